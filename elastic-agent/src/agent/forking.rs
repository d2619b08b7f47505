//! Workers that are forked with [preloaded](crate::PreloadOptions) modules, if the options want it.

use std::io;

use c10d_socket::Cancel;

use super::options::AgentOptions;
use crate::environment;
use crate::preload::{ForkedWorkers, NotForked, Preloader};
use crate::round::AgentError;
use crate::worker::StartError;

#[derive(Debug, Default)]
pub(super) struct Forking {
    preloader: Option<Preloader>,
    /// Why workers were not forked last time: said once.
    not_forked: Option<String>,
}

impl Forking {
    pub(super) fn start(&mut self, options: &AgentOptions) -> Result<(), AgentError> {
        let Some(preload) = options.preload.clone() else {
            return Ok(());
        };
        let inherited = options.environment.iter().cloned();
        let (variables, varying) = environment::common(inherited, options.virtual_local_rank);
        // Those that may be replaced start one by one.
        let workers = match &options.keep {
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
