//! Joins and waits for the tests of handlers, and a backend whose answers a test changes.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, Membership, RendezvousBackend, RendezvousError,
    RendezvousHandler, RendezvousInfo, SetState, StateWatch, Stored, Token, WriteLease,
};

/// Much longer than any step of a test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) type Joining = JoinHandle<Result<RendezvousInfo, RendezvousError>>;

pub(crate) fn join(node: &Arc<DynamicRendezvous>) -> Joining {
    let node = Arc::clone(node);
    thread::spawn(move || node.next_rendezvous())
}

pub(crate) fn joined(joining: Joining) -> RendezvousInfo {
    joining.join().expect("no panic").expect("a round")
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn membership(node: &DynamicRendezvous) -> Membership {
    node.membership().expect("a membership")
}

/// A backend without a group.
pub(crate) struct AlteredBackend {
    pub(crate) backend: C10dBackend,
    /// The error of the next read or write; `None` for the answer of the backend.
    pub(crate) failure: Box<dyn Fn() -> Option<RendezvousError> + Send + Sync>,
    pub(crate) watch: Option<Arc<dyn StateWatch>>,
    pub(crate) has_lease: bool,
}

impl AlteredBackend {
    /// A backend that can be polled only.
    pub(crate) fn new(
        backend: C10dBackend,
        failure: impl Fn() -> Option<RendezvousError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            backend,
            failure: Box::new(failure),
            watch: None,
            has_lease: false,
        }
    }
}

impl fmt::Debug for AlteredBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

impl RendezvousBackend for AlteredBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn get_state(&self) -> Result<Option<Stored>, RendezvousError> {
        (self.failure)().map_or_else(|| self.backend.get_state(), Err)
    }

    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError> {
        (self.failure)().map_or_else(|| self.backend.set_state(state, token), Err)
    }

    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        Ok(self.watch.clone())
    }

    fn write_lease(&self) -> Result<Option<WriteLease>, RendezvousError> {
        match self.has_lease {
            true => self.backend.write_lease(),
            false => Ok(None),
        }
    }

    fn label(&self) -> String {
        self.backend.label()
    }
}
