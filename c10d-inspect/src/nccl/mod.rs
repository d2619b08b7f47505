//! What NCCL itself says about a job: the answers of its RAS service, which runs in each process that uses NCCL 2.24 and
//! later, and listens on the node's loopback interface. Any of them answers for the whole job.
//!
//! Pure: bytes in, values out. The formats are those of NVIDIA's public sources, `src/ras/client_support.cc`, in the
//! releases 2.24.3 to 2.30.7. A client sends lines; the service answers each, and ends the connection after a status:
//!
//! | line | answer |
//! |---|---|
//! | `CLIENT PROTOCOL 2` | `SERVER PROTOCOL 2` |
//! | `TIMEOUT 1` | `OK`; so many seconds it waits for processes that do not answer, and up to 5 s more for one that has not been silent for 5 s yet |
//! | `SET FORMAT json` | `OK` from 2.28.7 on; before, `ERROR: Unknown command` |
//! | `VERBOSE STATUS` | the text, or the JSON |
//!
//! What a process ranks as in a communicator is its rank there, not that in the job. Hosts are IP addresses, processes the
//! ids that they have for themselves.

mod announced;
mod dialogue;
mod json;
mod report;
mod text;

pub use announced::{AnnouncedNccl, NcclProblem, NcclWatch, ProblemKind};
pub use dialogue::{ANSWER_BYTES_MAX, GREETING, RAS_ADDRESS, question};
pub use report::{
    Communicator, CommunicatorStatus, Counted, DifferentCounts, Failed, InStatus, Members,
    NcclAnswerError, NcclMember, NcclProcess, NcclReport,
};

#[cfg(test)]
mod tests;
