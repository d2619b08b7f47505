//! The launcher's features for the workers of another agent in this process, for example of torchrun.

mod adoption;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use c10d_inspect::report_text::TextStyle;
use c10d_socket::{Cancel, HostPort};
use elastic_rendezvous::{RendezvousHandler, RendezvousInfo, RendezvousParameters, StartWarnings};

use self::adoption::Adoption;
use super::error::LauncherError;
use super::feature::JobEnd;
use super::features::Features;
use super::options::{LauncherOptions, Screen};
use super::status_page::Hosted;
use crate::relay::{NodeRelay, NodeRelayError};
use crate::round::AgentOutcome;
use crate::threads::lock;

/// The features of a [`Launcher`](crate::Launcher) for workers that another agent of this process starts and stops.
///
/// It finds the workers among the children of this process, by the environment that torchrun gives them, announces them to
/// their store, serves status pages on the stores of this process, and explains standstills and failures on the screen. It
/// only looks: it sends no signal, and each child stays for the agent to reap. A worker without such an environment, for
/// example a forked function, is not found.
///
/// ```
/// use elastic_agent::{AgentOptions, CommandLine, Companion, LauncherOptions};
/// use elastic_rendezvous::{RendezvousParameters, create_handler};
///
/// let agent = AgentOptions::new(CommandLine::new("torchrun", [""; 0]), 1);
/// let rendezvous = RendezvousParameters::new("c10d", "localhost:0", "job-7", 1, 1)?;
/// let companion = Companion::new(&LauncherOptions::new(agent, rendezvous))?;
/// let handler = create_handler(&companion.rendezvous())?;
/// companion.attend(&*handler)?;
/// let round = handler.next_rendezvous()?;
/// companion.expect_workers(round.round);
/// // The agent starts the workers, and waits for them.
/// companion.workers_ended();
/// handler.shutdown();
/// companion.job_ended();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Companion {
    run_id: String,
    rendezvous: RendezvousParameters,
    hosted: Arc<Hosted>,
    screen: Arc<dyn Screen>,
    relay: Option<Mutex<RoundRelay>>,
    /// `None` before the handler is there, and when the workers have ended.
    adoption: Mutex<Option<Adoption>>,
    /// After the adoption, whose thread calls their listeners.
    features: Mutex<Features>,
}

/// The relay of the current round.
#[derive(Debug, Default)]
struct RoundRelay {
    running: Option<NodeRelay>,
    /// The last round, and the port of the relay in it. A static rendezvous has only one round.
    last: Option<(i64, u16)>,
}

impl Companion {
    /// Starts the threads of the features. Of the agent's options only the name, the environment and the relay are used.
    ///
    /// # Errors
    /// The first feature that cannot be made.
    pub fn new(options: &LauncherOptions) -> Result<Self, LauncherError> {
        let features = Features::make(options, &StartWarnings::default())?;
        Ok(Self {
            run_id: options.rendezvous.run_id().to_owned(),
            rendezvous: features.rendezvous.clone(),
            hosted: features.hosted(),
            screen: Arc::clone(&options.screen),
            relay: options.agent.has_relay.then(Mutex::default),
            adoption: Mutex::default(),
            features: Mutex::new(features),
        })
    }

    /// The parameters for the handler, with the hooks of the features.
    pub fn rendezvous(&self) -> RendezvousParameters {
        self.rendezvous.clone()
    }

    /// Observes the handler from now on, and starts the thread `adoption`, which finds workers.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread or no socket left.
    pub fn attend(&self, handler: &dyn RendezvousHandler) -> Result<(), LauncherError> {
        let listeners = lock(&self.features).listen(handler);
        let adoption = Adoption::start(self.run_id.clone(), listeners)
            .map_err(LauncherError::system("cannot start a thread"))?;
        *lock(&self.adoption) = Some(adoption);
        Ok(())
    }

    /// Returns why a store that this process serves can no longer persist writes; `None` while it can. After an error,
    /// the agent should stop.
    #[must_use]
    pub fn journal_failure(&self) -> Option<String> {
        self.hosted.journal_failure()
    }

    /// Whether this node's workers reach their store through a relay, which outlives a store that is served again.
    #[must_use]
    pub fn has_relay(&self) -> bool {
        let relay = self.relay.as_ref();
        relay.is_some_and(|it| lock(it).running.is_some())
    }

    /// Starts the relay of a round, if the options ask for relays, and returns the address at which this node's workers
    /// reach their store. Call it before the agent exchanges ranks with the other nodes. The relay runs until
    /// [`end_relay`](Self::end_relay) or [`job_ended`](Self::job_ended).
    ///
    /// Waits for the other nodes and for the store for at most the timeout of the round each, or until `cancel` ends that.
    ///
    /// # Errors
    /// [`NodeRelayError`], for example if no agent serves the workers' store, or if a node of the round has no relay.
    pub fn start_relay(
        &self,
        round: &RendezvousInfo,
        cancel: &Cancel,
    ) -> Result<Option<HostPort>, NodeRelayError> {
        let Some(relay) = &self.relay else {
            return Ok(None);
        };
        let known = lock(relay).last.filter(|(last, _)| *last == round.round);
        let started = NodeRelay::start(round, None, known.map(|(_, port)| port), cancel)?;
        let address = started.address().clone();
        *lock(relay) = RoundRelay {
            running: Some(started),
            last: Some((round.round, address.port())),
        };
        Ok(Some(address))
    }

    /// Ends the relay of the last round, whose workers have ended. Blocks for 1 s at most.
    pub fn end_relay(&self) {
        let running = self.relay.as_ref().and_then(|it| lock(it).running.take());
        if let Some(relay) = running {
            relay.end();
        }
    }

    /// The agent starts the workers of this round from now on. Does not block.
    pub fn expect_workers(&self, round: i64) {
        if let Some(adoption) = &*lock(&self.adoption) {
            adoption.expect(round);
        }
    }

    /// The agent stops the workers that run, though none has failed. Does not block.
    pub fn workers_stop(&self) {
        if let Some(adoption) = &*lock(&self.adoption) {
            adoption.stop();
        }
    }

    /// The ports of the stores that this process serves, in the order in which it began to serve them.
    #[must_use]
    pub fn served_ports(&self) -> Vec<u16> {
        self.hosted.ports()
    }

    /// Whether the store on this port has a status page of this process.
    #[must_use]
    pub fn has_page(&self, port: u16) -> bool {
        self.hosted
            .on_port(port)
            .is_some_and(|store| store.has_status())
    }

    /// The workers have ended, and the agent starts no more workers. If a worker has failed, the screen shows the first
    /// failure, and the waits of the other workers, if they are known. Blocks for some seconds at most.
    pub fn workers_ended(&self) {
        let adoption = lock(&self.adoption).take();
        let failure = adoption.and_then(Adoption::end);
        let mut end = job_end();
        lock(&self.features).workers_ended(&mut end);
        let text = match (failure, end.why) {
            (None, _) => return,
            (Some(_), Some(why)) => {
                let why = why.to_text(TextStyle::PLAIN);
                format!("When the first worker failed: {why}")
            }
            (Some(first), None) => format!(
                "The first worker that failed on this node: rank {} (pid {}), {}. Other ranks did not wait for it yet.\n",
                first.rank, first.pid, first.exit,
            ),
        };
        self.screen.text(&text);
    }

    /// This node has left the rendezvous. Ends the relay and the status pages. Blocks for some seconds at most.
    pub fn job_ended(&self) {
        self.end_relay();
        lock(&self.features).job_ended(&job_end());
    }
}

/// Another agent has the results of its workers.
const fn job_end() -> JobEnd {
    JobEnd {
        result: Ok(AgentOutcome::Succeeded),
        why: None,
        first_failure: None,
        stuck_max: Duration::ZERO,
    }
}
