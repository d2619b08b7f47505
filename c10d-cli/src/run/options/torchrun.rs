//! torchrun's options that have no effect here, or are refused.

use std::time::Duration;

use clap::Args;
use elastic_rendezvous::StartWarning;

use super::arguments::{Parsed, Read};
use super::error::{Refusal, UsageError};
use super::values::text;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "For command lines of torchrun, without effect")]
pub(super) struct IgnoredArgs {
    /// Accept torchrun's option without effect: exits of workers are noticed at once.
    #[arg(hide_short_help = true, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = Read(interval))]
    monitor_interval: Option<Parsed<()>>,

    /// Accept torchrun's values spawn, fork and forkserver without effect: workers are programs.
    #[arg(hide_short_help = true, long, value_name = "METHOD", value_parser = Read(start_method))]
    start_method: Option<Parsed<()>>,

    /// Accept torchrun's option without effect: --events writes PyTorch's events to a file.
    #[arg(
        hide_short_help = true,
        long,
        aliases = ["ev", "eve", "even", "event"],
        value_name = "NAME",
        value_parser = Read(text)
    )]
    event_log_handler: Option<Parsed<String>>,

    /// Accept only `none`, because workers are not bound to processors.
    #[arg(hide_short_help = true, long, value_name = "MODE")]
    numa_binding: Option<String>,

    /// Not supported.
    #[arg(long, hide = true)]
    logs_specs: Option<String>,

    /// Not supported.
    #[arg(long, hide = true)]
    print_completion: Option<String>,
}

impl IgnoredArgs {
    /// Rejects options without which the job would do something else than the user asked for, and warns of those that
    /// have no effect.
    pub(super) fn check(&self, warnings: &mut Vec<StartWarning>) -> Result<(), UsageError> {
        let refuse = |name: String, why| Err(UsageError::Unsupported { name, why });
        if let Some(mode) = self.numa_binding.as_ref().filter(|mode| *mode != "none") {
            let why = "workers are not bound to processors; a script can call numactl";
            return refuse(format!("--numa-binding {mode}"), why);
        }
        // `default` is the name of what torchrun does without the option.
        if let Some(name) = self.logs_specs.as_ref().filter(|name| *name != "default") {
            let why = "it names a Python class of a plug-in for torchrun, and the launcher runs no Python; for files \
                       use --log-dir, --redirects and --tee";
            return refuse(format!("--logs-specs {name}"), why);
        }
        if let Some(shell) = &self.print_completion {
            let why = "`c10d completions SHELL` prints the script";
            return refuse(format!("--print-completion {shell}"), why);
        }
        // `null` is the name of what torchrun does without the option.
        if let Some(Parsed { given, .. }) = &self.event_log_handler
            && given.value != "null"
        {
            warnings.push(given.has_no_effect("--events writes PyTorch's events to a file"));
        }
        for (option, why) in [
            (&self.start_method, "workers are started as programs"),
            (
                &self.monitor_interval,
                "exits of workers are noticed at once",
            ),
        ] {
            if let Some(option) = option {
                warnings.push(option.given.has_no_effect(why));
                option.value()?;
            }
        }
        Ok(())
    }
}

fn interval(text: &str) -> Result<(), Refusal> {
    let seconds = text.trim().parse().ok();
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(interval) if !interval.is_zero() => Ok(()),
        _ => Err(Refusal::IsNot("a number of seconds above 0")),
    }
}

fn start_method(text: &str) -> Result<(), Refusal> {
    match text {
        "spawn" | "fork" | "forkserver" => Ok(()),
        _ => Err(Refusal::IsNot("spawn, fork or forkserver")),
    }
}
