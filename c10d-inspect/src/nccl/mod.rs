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
