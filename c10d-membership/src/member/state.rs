//! The states of a member, each with what exists in it only.

use std::sync::Arc;
use std::time::Duration;

use super::input::Ending;
use crate::attempt::Attempt;
use crate::record::Record;

/// The activity of a process in a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    Working,
    /// It has asked whether to continue after this step.
    AtBoundary(u64),
    /// It has an exception, which is considered its own if the service reports no break until this time.
    Asking(Duration),
    /// It has done its last step. [`Noted::Yes`] once the service has recorded that.
    Finished(Noted),
}

/// Whether the service has the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Noted {
    No,
    Yes,
}

/// Whether the member has a mesh, and the event that it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// It has not joined.
    Outside,
    /// It has no mesh, and no attempt has been announced.
    Waiting {
        /// Whether the service has its hello.
        is_known: bool,
    },
    /// It has no mesh, and takes part in the attempt.
    Ready {
        attempt: Attempt,
        is_noted: bool,
    },
    /// The process leaves its mesh.
    Leaving {
        /// The attempt for which it will send that it is ready; `None` until the service has named it.
        attempt: Option<Attempt>,
        /// Whether the service has its hello.
        is_known: bool,
    },
    /// The process is in torch's call.
    Calling {
        record: Arc<Record>,
    },
    /// The call has returned.
    Called {
        record: Arc<Record>,
        is_ok: bool,
        is_noted: bool,
    },
    /// The generation works.
    Inside {
        record: Arc<Record>,
        doing: Doing,
        /// The attempt for which members stop at a boundary.
        change: Option<Attempt>,
    },
    Over(Ending),
}
