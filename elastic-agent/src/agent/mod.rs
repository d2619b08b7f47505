//! The agent of one node: joins rounds, and runs the workers of this node in them.
//!
//! [`round`](crate::round) decides what to do, and this module does it: it starts workers when a round is complete, stops
//! them when its members change, and reports how the job ended. `elastic-rendezvous` decides which nodes are in a round;
//! [`worker`](crate::worker) starts and stops processes. Installs no signal handlers: callers report signals through an
//! [`AgentHandle`].

mod event;
mod exchange;
mod exits;
mod group_link;
mod handle;
#[cfg_attr(
    not(feature = "launcher"),
    allow(
        dead_code,
        unused_imports,
        reason = "only a launcher waits for readers"
    )
)]
mod job_news;
mod node;
mod options;
mod plan;
mod replace;
mod rounds;
mod runtime;
mod site;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;

use elastic_rendezvous::{RendezvousEvent, RendezvousHandler};

use self::event::Event;
pub use self::event::{
    AgentEvent, AgentListener, RestartTimes, RoundRecord, StartedWorker, StartedWorkers,
};
pub use self::handle::{AgentHandle, Pulse};
use self::node::Node;
pub use self::options::AgentOptions;
use self::runtime::Runtime;
#[cfg(feature = "launcher")]
use crate::failure::ExitRecord;
use crate::failure::Failures;
use crate::round::{AgentError, AgentOutcome};

/// An agent that supervises the workers of one node.
///
/// ```no_run
/// use elastic_agent::{AgentOptions, AgentOutcome, CommandLine, ElasticAgent};
/// use elastic_rendezvous::{RendezvousParameters, create_handler};
///
/// let parameters = RendezvousParameters::new("c10d", "node0:29400", "job-7", 2, 2)?;
/// let handler = create_handler(&parameters)?;
/// let command = CommandLine::new("python3", ["-u", "train.py"]);
/// let mut options = AgentOptions::new(command, 8);
/// options.restarts.max_restarts = Some(3);
/// let mut agent = ElasticAgent::new(options, handler.clone())?;
/// if let AgentOutcome::Failed(failures) = agent.run()? {
///     eprintln!("{}", agent.summary(&failures));
/// }
/// handler.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In PyTorch: `LocalElasticAgent`
/// (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
#[derive(Debug)]
pub struct ElasticAgent {
    node: Node,
}

impl ElasticAgent {
    /// Creates an agent that meets the other nodes through `handler`. Processes are started by [`run`](Self::run).
    /// Blocks for up to 2 s if the options name no [host](AgentOptions::host).
    ///
    /// # Errors
    /// [`AgentError::InvalidOption`] for a value that no agent can use.
    pub fn new(
        options: AgentOptions,
        handler: Arc<dyn RendezvousHandler>,
    ) -> Result<Self, AgentError> {
        Node::new(options, handler).map(|node| Self { node })
    }

    /// Adds a listener for later [`AgentEvent`]s. The listener must not block, except for the events whose
    /// documentation allows it.
    pub fn add_listener(&mut self, listener: AgentListener) {
        self.node.listeners.add(listener);
    }

    /// Returns a handle that other threads use to report signals.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        AgentHandle::new(Arc::clone(&self.node.shared))
    }

    /// Returns the log directory of this job on this node; `None` before the first workers start, and if no output is
    /// written to files. When all workers have exited, also `None` if they have written nothing.
    #[must_use]
    pub fn log_directory(&self) -> Option<PathBuf> {
        self.node.logs.path().map(PathBuf::from)
    }

    /// Runs workers until they succeed, fail without a restart left, or a signal arrives.
    ///
    /// Blocks until then, for hours or days; [`AgentHandle::stop`] interrupts it. When it returns, no worker is
    /// running. The caller closes or leaves the rendezvous: PyTorch closes it unless a signal arrived.
    ///
    /// # Errors
    /// [`AgentError`] if the agent could not run the workers.
    pub fn run(&mut self) -> Result<AgentOutcome, AgentError> {
        let node = &mut self.node;
        let events = node.shared.events.clone();
        let shared = Arc::downgrade(&node.shared);
        let listener = move |event: &RendezvousEvent<'_>| {
            if matches!(event, RendezvousEvent::MembershipChanged) {
                // Fails when the agent is dropped.
                let _ = events.send(Event::MembersChanged);
                if let Some(shared) = shared.upgrade() {
                    shared.wake_waiting();
                }
            }
        };
        node.shared.handler.add_listener(Arc::new(listener));
        // Before the rendezvous: it imports while this node waits for others.
        node.forking.start(&node.options)?;
        let result = Runtime::new(node).run();
        node.forking.stop();
        node.logs.remove_empty();
        result
    }

    /// The first failure of a job that ended so, if workers were restarted after it.
    #[cfg(feature = "launcher")]
    pub(crate) fn first_failure(
        &self,
        result: &Result<AgentOutcome, AgentError>,
    ) -> Option<&ExitRecord> {
        let first = self.node.first_failure.as_ref()?;
        let (failures, last) = match result {
            Ok(AgentOutcome::Ended {
                failures, notice, ..
            }) => {
                let last = notice.as_ref().and_then(|it| it.exit.as_ref());
                (failures.as_ref(), last)
            }
            Ok(AgentOutcome::Failed(failures)) => (Some(failures), None),
            _ => return None,
        };
        let own = failures.map_or(&[][..], Failures::all).iter();
        let is_last = own
            .map(|it| (it.rank, it.pid))
            .any(|it| it == (first.rank, first.pid))
            || last.is_some_and(|last| (last.rank, last.pid) == (first.rank, first.pid));
        (!is_last).then_some(first)
    }

    /// Returns the report on failures, in the form of PyTorch's launcher.
    #[must_use]
    pub fn summary(&self, failures: &Failures) -> String {
        failures.summary(
            &self.node.options.name,
            &self.node.host,
            crate::wording::local_time_text,
        )
    }
}
