//! The error file, in which a worker leaves its exception.
//!
//! Workers whose main function is decorated with PyTorch's `record` write it, and launchers. In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/error_handler.py`.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The longest error file that is read. A traceback takes a few kilobytes.
pub(super) const ERROR_FILE_BYTES_MAX: u64 = 1 << 20;

/// A parsed error file.
#[derive(Clone, PartialEq)]
pub(super) struct ErrorFile {
    /// The traceback; without one, the message, which may be empty.
    pub(super) message: String,
    /// When the exception was raised, in seconds since the epoch.
    pub(super) timestamp: Option<i64>,
    /// The whole file.
    pub(super) json: Value,
}

impl std::fmt::Debug for ErrorFile {
    /// Leaves the content out, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorFile")
            .field("message", &self.message)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

/// An error file could not be written.
#[derive(thiserror::Error)]
#[error("cannot write the error file {}: {source}", path.display())]
pub struct ErrorFileError {
    /// The file that could not be written.
    pub path: PathBuf,
    /// The error of the operating system.
    pub source: io::Error,
}

c10d_socket::debug_as_display!(ErrorFileError);

impl ErrorFile {
    /// Parses an error file of either form: a text as `message`, with the timestamp beside it, or an
    /// object with message, traceback and timestamp. A timestamp may be a number or a text.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let json: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let message = json.get("message").ok_or("it has no `message`")?;
        let (text, timestamp) = match message {
            Value::String(text) => (text.clone(), json.get("timestamp")),
            Value::Object(fields) => {
                let extra = fields.get("extraInfo");
                let traceback = extra.and_then(|extra| extra.get("py_callstack"));
                let text = traceback.or_else(|| fields.get("message"));
                let text = text.and_then(Value::as_str).unwrap_or("<N/A>");
                // Indents the later lines like the report.
                let text = text.replace('\n', "\n  ");
                (text, extra.and_then(|extra| extra.get("timestamp")))
            }
            _ => return Err("its `message` is neither a string nor an object".to_owned()),
        };
        Ok(Self {
            message: text,
            timestamp: timestamp.and_then(epoch_seconds),
            json,
        })
    }

    /// The content with the worker's exit code, which the worker itself could not know.
    pub(super) fn with_error_code(&self, code: i32) -> Value {
        with_error_code(self.json.clone(), code)
    }
}

/// Adds an exit code to the content of an error file.
pub(super) fn with_error_code(mut json: Value, code: i32) -> Value {
    // The form with a plain text has no field for it.
    if let Some(Value::Object(message)) = json.get_mut("message")
        && code != 0
    {
        message.insert("errorCode".to_owned(), code.into());
    }
    json
}

/// Whole seconds, from a number or from a text that holds one.
fn epoch_seconds(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number
            .as_i64()
            // `as` saturates.
            .or_else(|| number.as_f64().map(|seconds| seconds as i64)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Writes an error of this process to an error file, in the form of PyTorch's workers. `message` is one
/// line, `traceback` the details, `epoch_s` the time in seconds since the epoch.
///
/// # Errors
/// [`ErrorFileError`] if the file cannot be written.
pub fn write_error_file(
    path: &Path,
    message: &str,
    traceback: &str,
    epoch_s: i64,
) -> Result<(), ErrorFileError> {
    write(path, &json(message, traceback, epoch_s))
}

pub(super) fn json(message: &str, traceback: &str, epoch_s: i64) -> Value {
    json!({
        "message": {
            "message": message,
            "extraInfo": { "py_callstack": traceback, "timestamp": epoch_s.to_string() },
        }
    })
}

pub(super) fn write(path: &Path, json: &Value) -> Result<(), ErrorFileError> {
    std::fs::write(path, json.to_string()).map_err(|source| ErrorFileError {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, Option<i64>), String> {
        ErrorFile::parse(text.as_bytes()).map(|file| (file.message, file.timestamp))
    }

    #[test]
    fn both_forms_of_the_message_are_parsed() {
        let table = [
            (r#"{"message": "a\nb"}"#, "a\nb", None),
            (r#"{"message": "a", "timestamp": 12}"#, "a", Some(12)),
            (r#"{"message": "a", "timestamp": " 12 "}"#, "a", Some(12)),
            (r#"{"message": "a", "timestamp": 12.9}"#, "a", Some(12)),
            (
                r#"{"message": "a", "timestamp": 1e300}"#,
                "a",
                Some(i64::MAX),
            ),
            (r#"{"message": "a", "timestamp": []}"#, "a", None),
            (
                r#"{"message": {"message": "E: x", "extraInfo":
                    {"py_callstack": "T\nU\n", "timestamp": "1700000000"}}}"#,
                "T\n  U\n  ",
                Some(1_700_000_000),
            ),
            (r#"{"message": {"message": "E: x\ny"}}"#, "E: x\n  y", None),
            (
                r#"{"message": {"message": 7, "extraInfo": 8}}"#,
                "<N/A>",
                None,
            ),
            (r#"{"message": {}}"#, "<N/A>", None),
        ];
        for (text, message, timestamp) in table {
            assert_eq!(parse(text), Ok((message.to_owned(), timestamp)), "{text}");
        }
    }

    #[test]
    fn a_malformed_error_file_is_explained() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let table = [
            ("", "EOF"),
            ("{", "EOF"),
            ("\u{fffd}", "expected value"),
            (&deep, "recursion limit"),
            ("[]", "no `message`"),
            ("{}", "no `message`"),
            (r#"{"message": 1}"#, "neither a string nor an object"),
        ];
        for (text, expected) in table {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_error_of_the_launcher_is_parsed_like_a_workers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        write_error_file(&path, "E: x", "more", 99).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = ErrorFile::parse(&bytes).unwrap();
        assert_eq!((file.message.as_str(), file.timestamp), ("more", Some(99)));
        assert_eq!(file.json["message"]["message"], "E: x");

        let error = write_error_file(folder.path(), "", "", 0).unwrap_err();
        assert_eq!(error.path, folder.path());
    }
}
