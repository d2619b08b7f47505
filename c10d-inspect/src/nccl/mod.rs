//! NCCL's own reports on a job: the answers of its RAS service, which runs in each process that uses NCCL 2.24 or
//! later, and listens on the node's loopback interface. Any of these services answers for the whole job.
//!
//! Pure: bytes in, values out. The formats are taken from NVIDIA's public sources, `src/ras/client_support.cc`, in the
//! releases 2.24.3 to 2.30.7. A client sends lines; the service answers each, and closes the connection after a status:
//!
//! | line | answer |
//! |---|---|
//! | `CLIENT PROTOCOL 2` | `SERVER PROTOCOL 2` |
//! | `TIMEOUT 1` | `OK`; the service then waits for this number of seconds for processes that do not answer, and up to 5 s more for a process that has not been silent for 5 s yet |
//! | `SET FORMAT json` | `OK` from 2.28.7 on; before, `ERROR: Unknown command` |
//! | `VERBOSE STATUS` | the text, or the JSON |
//!
//! The rank of a process is its rank in a communicator, not its rank in the job. Hosts are IP addresses, and processes
//! are the ids in their own process namespaces.

mod announced;
mod json;
mod report;
mod text;

use c10d_socket::printable;

pub use announced::{AnnouncedNccl, NcclProblem, NcclWatch, ProblemKind};
pub use report::{
    Communicator, CommunicatorStatus, Counted, DifferentCounts, Failed, InStatus, Members,
    NcclAnswerError, NcclMember, NcclProcess, NcclReport,
};

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

#[cfg(test)]
mod tests;
