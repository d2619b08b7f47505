//! The requests of a client to the RAS service, and the parsing of its answer.

use c10d_socket::printable;

use super::report::{NcclAnswerError, NcclReport};
use super::{json, text};

/// The address of the service, unless `NCCL_RAS_ADDR` names another.
pub const RAS_ADDRESS: &str = "localhost:28028";

/// The most bytes of an answer: the JSON of 8,192 ranks in one communicator. A text is some kilobytes.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The first line of a client, which negotiates the version of the protocol.
pub const GREETING: &str = "CLIENT PROTOCOL 2\n";

/// Returns the lines after [`GREETING`]. The service answers all of them and then closes the connection. A text answer
/// is much shorter than JSON, but does not name all ranks.
#[must_use]
pub const fn question(as_json: bool) -> &'static str {
    match as_json {
        true => "TIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n",
        false => "TIMEOUT 1\nVERBOSE STATUS\n",
    }
}

impl NcclReport {
    /// Parses all bytes that the service has sent, including its greeting.
    ///
    /// # Errors
    /// [`NcclAnswerError`] if the answer does not have the form of a known release. Unknown lines in the text of a
    /// later release are skipped.
    pub fn parse(answer: &[u8]) -> Result<Self, NcclAnswerError> {
        let mut rest = &answer[..answer.len().min(ANSWER_BYTES_MAX)];
        let not_ras = || NcclAnswerError::NotRas {
            start: printable(answer, 60).to_string(),
        };
        let greeting = next_line(&mut rest).ok_or_else(not_ras)?;
        if !greeting.starts_with(b"SERVER PROTOCOL ") {
            return Err(not_ras());
        }
        // The answers to the lines before the status.
        while rest.starts_with(b"OK\n") || rest.starts_with(b"ERROR: ") {
            next_line(&mut rest).ok_or(NcclAnswerError::Incomplete)?;
        }
        if rest.starts_with(b"{") {
            json::parse(rest)
        } else if rest.starts_with(b"NCCL version ") {
            text::parse(&String::from_utf8_lossy(rest))
        } else if rest.is_empty() {
            Err(NcclAnswerError::Incomplete)
        } else {
            Err(not_ras())
        }
    }
}

/// The line at the start, without its end, which it must have.
fn next_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let line = &rest[..end];
    *rest = &rest[end + 1..];
    Some(line)
}
