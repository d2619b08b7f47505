//! The data that the loop of a handler shares with the handler, and the calls of its listeners.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, printable};
use c10d_store::in_brief;

use crate::shell::handler::{Listener, RendezvousEvent};
use crate::shell::notices::Notices;
use crate::shell::this_host;
use crate::values::error::RendezvousError;
use crate::values::goal::{Method, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::recorded_event::RecordedEvent;
use crate::values::report::{Membership, WaitReport};

/// The data shared by the loop and the handler.
#[derive(Debug)]
pub(crate) struct Shared {
    membership: Mutex<Option<Result<Membership, String>>>,
    pub(crate) listeners: Listeners,
    /// Set for good: this and all later joins fail.
    pub(crate) is_interrupted: AtomicBool,
    /// Ends the agreement on the workers' store after an interrupt, and when a member was lost, which may
    /// be the member that serves the store.
    pub(crate) settling: Cancel,
    /// Whether the rendezvous was closed when its state was read last.
    pub(crate) was_closed: AtomicBool,
    /// Set until the event that this process hosts the store is recorded.
    pub(crate) is_new_host: AtomicBool,
    pub(crate) notices: Notices,
    me: Mutex<NodeId>,
    members_connected_at: Mutex<Option<Instant>>,
}

/// The listeners of a handler.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Listener>>);

impl Listeners {
    pub(crate) fn add(&self, listener: Listener) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
    }

    pub(crate) fn notify(&self, event: &RendezvousEvent<'_>) {
        for listener in self.all() {
            listener(event);
        }
    }

    /// A copy, because a listener is not called under the lock.
    fn all(&self) -> Vec<Listener> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.clone()
    }
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} listeners", self.all().len())
    }
}

impl Shared {
    pub(crate) fn new(notices: Notices, me: NodeId) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            settling: Cancel::with_check({
                let this = this.clone();
                move || this.upgrade().is_none_or(|this| this.is_round_over())
            }),
            membership: Mutex::default(),
            listeners: Listeners::default(),
            is_interrupted: AtomicBool::new(false),
            was_closed: AtomicBool::new(false),
            is_new_host: AtomicBool::new(false),
            notices,
            me: Mutex::new(me),
            members_connected_at: Mutex::default(),
        })
    }

    /// The identity of this node.
    pub(crate) fn me(&self) -> NodeId {
        let me = self.me.lock().unwrap_or_else(PoisonError::into_inner);
        me.clone()
    }

    /// The node has this identity from now on. Returns the former one if it differs.
    pub(crate) fn set_me(&self, me: &NodeId) -> Option<NodeId> {
        let mut known = self.me.lock().unwrap_or_else(PoisonError::into_inner);
        (*known != *me).then(|| std::mem::replace(&mut *known, me.clone()))
    }

    /// When the last request began that has shown that all other members are connected to the store.
    pub(crate) fn members_connected_at(&self) -> MutexGuard<'_, Option<Instant>> {
        let at = self.members_connected_at.lock();
        at.unwrap_or_else(PoisonError::into_inner)
    }

    /// This and all later joins fail.
    pub(crate) fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Release);
        self.settling.wake();
    }

    fn is_round_over(&self) -> bool {
        let is_changed = |it: Membership| it.is_evicted || it.departed() > 0;
        let membership = self.membership().and_then(Result::ok);
        self.is_interrupted.load(Ordering::Acquire) || membership.is_some_and(is_changed)
    }

    /// The membership, or why it is unknown; `None` when the node is in no round.
    pub(crate) fn membership(&self) -> Option<Result<Membership, String>> {
        self.membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Fails after an interrupt.
    pub(crate) fn refuse_if_interrupted(&self, run_id: &str) -> Result<(), RendezvousError> {
        if self.is_interrupted.load(Ordering::Acquire) {
            return Err(RendezvousError::Interrupted {
                run_id: run_id.to_owned(),
            });
        }
        Ok(())
    }

    /// The node is in no round.
    pub(crate) fn forget_membership(&self) {
        self.set_membership(None);
    }

    pub(crate) fn publish(&self, membership: Membership) {
        self.was_closed
            .store(membership.is_closed, Ordering::Release);
        if self.set_membership(Some(Ok(membership))) {
            self.notify(RendezvousEvent::MembershipChanged);
        }
    }

    /// The state cannot be read. `left`: how long this may last before the other nodes drop this one; `None` if the log
    /// needs no line about it.
    pub(crate) fn publish_failure(&self, error: &RendezvousError, left: Option<Duration>) {
        let text = error.to_string();
        let was_known = matches!(self.membership(), Some(Ok(_)));
        // A store that stops after the closing stops with the job.
        let is_loss = was_known && !self.was_closed.load(Ordering::Acquire);
        match left.filter(|_| is_loss) {
            Some(left) => log::warn!(
                "{}; reconnecting for up to {:.0} s",
                in_brief(error),
                left.as_secs_f64()
            ),
            None => log::debug!("cannot read the state of the rendezvous: {text}"),
        }
        if self.set_membership(Some(Err(text))) && was_known {
            self.notify(RendezvousEvent::MembershipChanged);
        }
    }

    /// Passes the events of these steps to the listeners.
    pub(crate) fn record(&self, run_id: &str, me: &NodeId, steps: impl IntoIterator<Item = Step>) {
        let listeners = self.listeners.all();
        if listeners.is_empty() {
            return;
        }
        for step in steps {
            let event = step.event(run_id, me);
            for listener in &listeners {
                listener(&RendezvousEvent::Recorded(&event));
            }
        }
    }

    pub(crate) fn notify(&self, event: RendezvousEvent<'_>) {
        self.listeners.notify(&event);
    }

    /// Returns whether the value has changed.
    fn set_membership(&self, membership: Option<Result<Membership, String>>) -> bool {
        let mut current = self
            .membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_new = *current != membership;
        *current = membership;
        drop(current);
        self.settling.wake();
        is_new
    }
}

impl RecordedEvent {
    /// The event of a handler that could not be created. It has no listeners yet, so its owner records this one.
    ///
    /// ```
    /// use elastic_rendezvous::{RecordedEvent, RendezvousParameters};
    ///
    /// let parameters = RendezvousParameters::new("c10d", "localhost:0", "job", 2, 1);
    /// let error = parameters.expect_err("a job has no fewer nodes at most than at least");
    /// let event = RecordedEvent::of_failed_creation("job", &error.into());
    /// assert_eq!(event.node_state.as_str(), "FAILED");
    /// ```
    #[must_use]
    pub fn of_failed_creation(run_id: &str, error: &RendezvousError) -> Self {
        let me = NodeId::new(this_host::full_name(), i64::from(std::process::id()), 0);
        Step::failed(Method::CreateBackend, error).event(run_id, &me)
    }
}

/// The error of an operation that failed after `waited`; `report` is called for a join that timed out.
pub(crate) fn error_of(
    failure: OperationError,
    operation: Operation,
    run_id: &str,
    waited: Duration,
    report: impl FnOnce() -> WaitReport,
) -> RendezvousError {
    let run_id = run_id.to_owned();
    match (failure, operation) {
        (OperationError::Closed, _) => RendezvousError::Closed { run_id },
        (OperationError::GracefulExit, _) => RendezvousError::GracefulExit { run_id },
        (OperationError::Timeout, Operation::Join | Operation::Enter | Operation::Exit) => {
            RendezvousError::Timeout {
                report: Box::new(report()),
            }
        }
        (OperationError::Timeout, operation) => RendezvousError::OperationTimeout {
            run_id,
            operation: match operation {
                Operation::Close => "close",
                Operation::KeepAlive => "send a heartbeat to",
                _ => "leave",
            },
            timeout: waited,
        },
    }
}

/// The most characters of a report in a line of the log.
pub(crate) const WAIT_CHARS_MAX: usize = 76;

/// Writes the line of a waiting join to the log.
pub(crate) fn log_wait(report: &WaitReport, reason: Option<&str>) {
    log::info!(
        "still waiting for other nodes after {:.0} s, for up to {:.0} s more: {}",
        report.waited.as_secs_f64(),
        report.time_left.as_secs_f64(),
        printable(&report.in_brief(), WAIT_CHARS_MAX),
    );
    log::debug!("{report}; this node: {}", reason.unwrap_or("waiting"));
}
