//! The options about processes from which workers are forked.

use clap::Args;
use elastic_agent::{Entrypoint, PreloadOptions};
use elastic_rendezvous::StartWarning;

use super::error::UsageError;
use super::given::{Parsed, Read};
use super::values::list;
use crate::run::headings::PRELOADING;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = PRELOADING)]
pub(super) struct PreloadArgs {
    /// Imports these Python modules once, in a process from which workers are forked.
    ///
    /// A restart takes milliseconds then. `torch,torch._dynamo` for training scripts. Workers that cannot be forked start as without it,
    /// with a warning (Linux).
    #[arg(long, value_name = "MODULE,...", default_value = "", value_parser = Read(list))]
    preload: Parsed<Vec<String>>,

    /// Fails instead of starting workers that are not forked.
    #[arg(hide_short_help = true, long)]
    preload_required: bool,

    /// Forks workers ahead, which saves some 10 ms for each at a restart.
    #[arg(hide_short_help = true, long)]
    preload_standby: bool,
}

impl PreloadArgs {
    pub(super) fn options(
        &self,
        entrypoint: &Entrypoint,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<PreloadOptions>, UsageError> {
        let modules = self.preload.value()?;
        if modules.is_empty() {
            if self.preload_required || self.preload_standby {
                warnings.push(
                    "--preload-required and --preload-standby have no effect: \
                     --preload is not given"
                        .into(),
                );
            }
            return Ok(None);
        }
        match entrypoint {
            Entrypoint::Program(script) => Err(UsageError::PreloadWithoutPython {
                script: script.clone(),
            }),
            Entrypoint::RunPath(_) => Err(UsageError::PreloadWithRunPath),
            Entrypoint::Script(_) | Entrypoint::Module(_) => Ok(Some(
                PreloadOptions::new(modules)
                    .with_required(self.preload_required)
                    .with_standbys(self.preload_standby),
            )),
        }
    }
}
