//! The wire format, sessions, the raw requests of many clients, and the content of a journal: for c10d-relay,
//! c10d-inspect, c10d-journal, benchmarks and tests of this repository, in the same version. **Any release may change
//! or remove these items.**
//!
//! The relay could be a feature of this crate instead, and these items private. It is a crate because programs that
//! only use a store would then compile its event loop whenever any crate of their build has one, because features add
//! up; and because a separate crate cannot reach into the server, which keeps the relay a client like any other.

pub use crate::forward_store;
pub use crate::wire::{
    ANNOUNCEMENT_BYTES_MAX, CAPABILITY_MASK, CAPABILITY_NONCE, PAYLOAD_KEY_PREFIX, REFUSAL_NONCE,
    RequestBuf, VALIDATION_MAGIC, WireError, WireErrorKind, capability,
};
#[cfg(feature = "extensions")]
pub use crate::{
    at_leader::{NotReached, at_leader},
    client::{Closer, SILENCE_MAX, SessionDialer, SessionLink},
    journal::{
        Authority,
        batch::{BatchWriter, Effect, Effects, effects},
        contents::{Contents, Entry},
        format::FORMAT_VERSION,
    },
    leader_search::LeaderSearch,
    session::{
        CLIENT_WINDOW_BYTES, ClientEnd, Credit, Frame, FrameReader, GROUP_BYTES_MAX,
        GROUP_CLIENTS_MAX, Group, NotCarried, Outstanding, RawRequest, RawRequests, ReplyError,
        ResentWait, Restart, SESSION_WINDOW_BYTES, Session, SessionClient, SessionStream,
        Violation,
    },
    wire::{NotAReply, ReplyScan},
};
