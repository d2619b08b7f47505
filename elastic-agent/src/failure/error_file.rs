//! The file in which a worker leaves what its exception was.
//!
//! Written by workers whose main function is decorated for it, and by launchers. In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/error_handler.py`.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The longest error file that is read. A traceback has some kilobytes.
pub(super) const ERROR_FILE_BYTES_MAX: u64 = 1 << 20;

/// What an error file says.
#[derive(Clone, PartialEq)]
pub(super) struct ErrorFile {
    /// The traceback, or else the message; empty when the worker left it so.
    pub(super) message: String,
    /// When it happened, in seconds since the epoch.
    pub(super) timestamp: Option<i64>,
    /// All of it.
    pub(super) json: Value,
}

impl std::fmt::Debug for ErrorFile {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorFile")
            .field("message", &self.message)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

/// An error file could not be written. The failure itself is known all the same.
#[derive(thiserror::Error)]
#[error("cannot write the error file {}: {source}", path.display())]
pub struct ErrorFileError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for ErrorFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ErrorFile {
    /// Reads the content of an error file. It may be of either form: a text as `message`, with the
    /// time beside it, or an object with text, traceback and time. Times may be numbers or texts.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let json: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let message = json.get("message").ok_or("no `message` in it")?;
        let (text, timestamp) = match message {
            Value::String(text) => (text.clone(), json.get("timestamp")),
            Value::Object(fields) => {
                let extra = fields.get("extraInfo");
                let traceback = extra.and_then(|extra| extra.get("py_callstack"));
                let text = traceback.or_else(|| fields.get("message"));
                let text = text.and_then(Value::as_str).unwrap_or("<N/A>");
                // Later lines stand under the first one in the report.
                let text = text.replace('\n', "\n  ");
                (text, extra.and_then(|extra| extra.get("timestamp")))
            }
            _ => return Err("its `message` is neither a text nor an object".to_owned()),
        };
        Ok(Self {
            message: text,
            timestamp: timestamp.and_then(epoch_seconds),
            json,
        })
    }

    /// The content with the exit code of the worker in it, which the worker itself cannot know.
    pub(super) fn with_error_code(&self, code: i32) -> Value {
        with_error_code(self.json.clone(), code)
    }
}

/// An error file's content with an exit code in it.
pub(super) fn with_error_code(mut json: Value, code: i32) -> Value {
    // A plain text has no place for it.
    if let Some(Value::Object(message)) = json.get_mut("message")
        && code != 0
    {
        message.insert("errorCode".to_owned(), code.into());
    }
    json
}

/// Whole seconds, of a number or of a text that is one.
fn epoch_seconds(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number
            .as_i64()
            // `as` stops at the ends of i64.
            .or_else(|| number.as_f64().map(|seconds| seconds as i64)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Writes an error of this process to an error file, in the form that PyTorch's workers use:
/// `message` says what class of error and what text, `traceback` tells more.
///
/// # Errors
/// [`ErrorFileError`] with what the system said.
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
    fn both_forms_of_the_message_are_read() {
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
    fn what_is_no_error_file_is_told() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let table = [
            ("", "EOF"),
            ("{", "EOF"),
            ("\u{fffd}", "expected value"),
            (&deep, "recursion limit"),
            ("[]", "no `message`"),
            ("{}", "no `message`"),
            (r#"{"message": 1}"#, "neither a text nor an object"),
        ];
        for (text, expected) in table {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_error_of_the_launcher_is_read_like_a_workers() {
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
