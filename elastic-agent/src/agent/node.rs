//! The parts of an agent that last for its whole life, and the checks before it joins a round.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, Cancel, sleep};
use c10d_store::in_brief;
use crossbeam_channel::{Receiver, unbounded};
use elastic_rendezvous::{RendezvousError, RendezvousHandler, this_host};
use tempfile::TempDir;

use super::event::{Event, Listeners};
use super::handle::Shared;
use super::options::AgentOptions;
use super::rounds::PublishedEnd;
use crate::failure::ExitRecord;
use crate::logs::LogDirectory;
use crate::preload::{ForkedWorkers, NotForked, Preloader};
use crate::round::AgentError;
use crate::worker::StartError;
use crate::workers_network::WorkersNetwork;
use crate::{environment, files, health};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) options: AgentOptions,
    pub(super) host: String,
    pub(super) shared: Arc<Shared>,
    pub(super) events: Receiver<Event>,
    pub(super) listeners: Listeners,
    pub(super) logs: LogDirectory,
    /// The directory in which workers report their progress.
    pub(super) progress: Option<TempDir>,
    pub(super) forking: Forking,
    /// The published end of the job, which the other nodes shall read before their store stops.
    pub(super) published: Option<PublishedEnd>,
    /// The first failure of the job on any node, as far as this node has learned it.
    pub(super) first_failure: Option<ExitRecord>,
    /// The network of the workers of the current round.
    pub(super) network: WorkersNetwork,
    /// How often this agent has started workers.
    pub(super) starts: usize,
}

impl Node {
    pub(super) fn new(
        options: AgentOptions,
        handler: Arc<dyn RendezvousHandler>,
    ) -> Result<Self, AgentError> {
        options.check()?;
        let needs_store = [
            (options.has_relay, "--relay"),
            (options.keep_workers.is_some(), "--keep-workers"),
        ];
        let needs_store = needs_store.into_iter().find(|(is_given, _)| *is_given);
        if let Some((_, option)) = needs_store.filter(|_| !handler.has_agent_store()) {
            return Err(AgentError::InvalidOption {
                option,
                reason: "needs a workers' store that a launcher serves, not the worker with rank 0 (share_store=0)",
            });
        }
        let progress = options.progress.as_ref().map(|_| private_directory());
        let progress = progress
            .transpose()
            .map_err(|source| AgentError::Progress { source })?;
        let (sender, events) = unbounded();
        Ok(Self {
            logs: LogDirectory::new(options.logs.clone(), handler.run_id()),
            host: options.host.clone().unwrap_or_else(this_host::full_name),
            options,
            progress,
            shared: Arc::new(Shared::new(handler, sender)),
            events,
            listeners: Listeners::default(),
            forking: Forking::default(),
            published: None,
            first_failure: None,
            network: WorkersNetwork::default(),
            starts: 0,
        })
    }
}

/// A temporary directory that only this user can enter, where files fit.
fn private_directory() -> io::Result<TempDir> {
    files::create_temporary(|place| {
        let directory = tempfile::Builder::new()
            .prefix("c10d-progress-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(place)?;
        // A full file system may have room for the directory alone.
        let probe = directory.path().join("probe");
        fs::write(&probe, "0")?;
        fs::remove_file(probe)?;
        Ok(directory)
    })
}

/// How often a node that does not join checks whether the job is over.
const CLOSED_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The limit for an outage of the store in this wait. A store that is away for longer has probably stopped with the job.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

impl Node {
    /// Runs the health check, if there is one, until it succeeds or the job is over. The node leaves its round before
    /// the check, so that the other nodes do not wait for it longer than for any absent node.
    ///
    /// Blocks for as long as the node is not healthy, or until a stop signal.
    pub(super) fn pass_health_check(&self) -> Result<(), AgentError> {
        let Some(check) = &self.options.health_check else {
            return Ok(());
        };
        let stop = &self.shared.stopping;
        if self.starts > 0 {
            self.shared.handler.exit_round()?;
        }
        let variables = [
            ("C10D_NODE", self.host.as_str()),
            ("TORCHELASTIC_RUN_ID", self.shared.handler.run_id()),
        ];
        let mut backoff = Backoff::new(health::pauses(), fastrand::u64(..));
        let mut has_failed = false;
        let mut outage = None;
        loop {
            let Some(result) = health::run(check, &variables, stop) else {
                return Err(self.interrupted());
            };
            let Err(unhealthy) = result else { break };
            let pause = backoff.next_delay();
            has_failed = true;
            log::error!(
                "this node is not joining: {unhealthy}; next check in {:.0} s{}",
                pause.as_secs_f64(),
                match unhealthy.output() {
                    output if output.is_empty() => output,
                    output => format!("; the end of its output:\n{output}"),
                }
            );
            self.announce(Some(&unhealthy.to_string()));
            if self.wait_until_closed(pause, &mut outage)? {
                // The join says so.
                return Ok(());
            }
        }
        if has_failed {
            log::info!("the health check succeeds again: joining");
            self.announce(None);
        }
        Ok(())
    }

    /// Waits for this long, or until the rendezvous is closed: returns whether it is. `outage` is when the store was first
    /// found to be away.
    fn wait_until_closed(
        &self,
        pause: Duration,
        outage: &mut Option<Instant>,
    ) -> Result<bool, AgentError> {
        let begun = Instant::now();
        loop {
            let left = pause.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let until_poll = left.min(CLOSED_POLL_INTERVAL);
            sleep(until_poll, [&self.shared.stopping]).map_err(|_| self.interrupted())?;
            match self.shared.handler.is_closed() {
                Ok(false) => *outage = None,
                Ok(true) => return Ok(true),
                Err(error) => {
                    let since = *outage.get_or_insert_with(Instant::now);
                    if !error.is_outage() || since.elapsed() >= OUTAGE_MAX {
                        return Err(error.into());
                    }
                    log::debug!("cannot ask whether the job is over: {error}");
                }
            }
        }
    }

    fn announce(&self, why: Option<&str>) {
        if let Err(error) = self.shared.handler.set_not_joining(why) {
            let why = in_brief(&error);
            log::warn!("cannot report the health check: {why}");
        }
    }

    fn interrupted(&self) -> AgentError {
        AgentError::Rendezvous(RendezvousError::Interrupted {
            run_id: self.shared.handler.run_id().to_owned(),
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Forking {
    preloader: Option<Preloader>,
    /// The reason why workers were not forked last time, which is logged once.
    not_forked: Option<String>,
}

impl Forking {
    pub(super) fn start(&mut self, options: &AgentOptions) -> Result<(), AgentError> {
        let Some(preload) = options.preload.clone() else {
            return Ok(());
        };
        let inherited = options.environment.iter().cloned();
        let (variables, varying) = environment::common(inherited, options.has_virtual_local_rank);
        // Workers that may be replaced start one by one.
        let workers = match &options.keep_workers {
            Some(_) => 1,
            None => options.local_world_size,
        };
        let plan = preload
            .plan(&options.command, workers, variables, varying)
            .map_err(|reason| AgentError::InvalidOption {
                option: "preload",
                reason,
            })?;
        let started = Preloader::start(plan).map_err(|source| StartError::System { source })?;
        self.preloader = Some(started);
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        self.preloader = None;
    }

    /// Has workers of the next round prepared.
    pub(super) fn fork_ahead(&mut self) {
        if let Some(preloader) = &mut self.preloader {
            preloader.fork_ahead();
        }
    }

    /// Workers of a template that wait to be started, and whether only these may be started.
    pub(super) fn forked_workers(
        &mut self,
        stop: &Cancel,
    ) -> Result<(Option<ForkedWorkers>, bool), StartError> {
        let Some(preloader) = &mut self.preloader else {
            return Ok((None, false));
        };
        let is_required = preloader.is_required();
        match preloader.fork(stop) {
            Ok(forked) => Ok((Some(forked), is_required)),
            Err(NotForked::Interrupted) => Err(StartError::Interrupted),
            Err(NotForked::Declined(why)) if is_required => Err(StartError::Forked {
                source: io::Error::other(why),
            }),
            Err(NotForked::Declined(why)) => {
                if self.not_forked.as_ref() != Some(&why) {
                    log::warn!("preload: workers start without it: {why}");
                    self.not_forked = Some(why);
                }
                Ok((None, false))
            }
        }
    }
}
