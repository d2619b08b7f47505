//! Reads a value from an argument, a file, or standard input.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct ValueArgs {
    /// Use this value; `-` reads it from standard input.
    #[arg(allow_negative_numbers = true)]
    value: Option<OsString>,
    /// Read the value from this file.
    #[arg(long)]
    file: Option<PathBuf>,
}

impl ValueArgs {
    /// Reads the whole value. --timeout does not include this: it limits the server, not a slow pipe.
    pub(super) fn read(&self) -> Result<Vec<u8>, Failure> {
        match (&self.value, &self.file) {
            (Some(value), _) => argument(value),
            (None, Some(path)) => file(path),
            (None, None) => Err(Failure::Usage("a value is missing".to_owned())),
        }
    }
}

/// A value given on the command line; `-` for standard input.
pub(super) fn argument(value: &OsStr) -> Result<Vec<u8>, Failure> {
    if value != "-" {
        return Ok(bytes_of(value).to_vec());
    }
    let mut bytes = Vec::new();
    io::stdin()
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::Usage(format!("cannot read standard input: {error}")))?;
    Ok(bytes)
}

pub(super) fn file(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path)
        .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))
}

/// The bytes of an argument, which need not be UTF-8.
pub(super) fn bytes_of(argument: &OsStr) -> &[u8] {
    argument.as_bytes()
}

/// A key given on the command line.
pub(super) fn key(argument: &OsStr) -> Result<&str, Failure> {
    let not_text = || Failure::Usage(format!("the key {argument:?} is not UTF-8"));
    argument.to_str().ok_or_else(not_text)
}

/// A key with its value: `value` for UTF-8, otherwise `base64` (RFC 4648, section 4, with padding).
pub(super) fn pair(key: &str, value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) => json!({ "key": key, "value": text }),
        Err(_) => json!({ "key": key, "base64": BASE64_STANDARD.encode(value) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_is_text_and_other_bytes_are_base64() {
        let table: [(&[u8], &str); 4] = [
            (b"", r#"{"key":"k","value":""}"#),
            ("é\n".as_bytes(), r#"{"key":"k","value":"é\n"}"#),
            (&[0xff], r#"{"base64":"/w==","key":"k"}"#),
            (&[0xff, 0xfe, 0xfb], r#"{"base64":"//77","key":"k"}"#),
        ];
        for (value, text) in table {
            assert_eq!(pair("k", value).to_string(), text);
        }
    }
}
