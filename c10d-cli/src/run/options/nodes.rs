//! The options about the nodes of the job, and the workers of this one.

use std::collections::BTreeMap;
use std::time::Duration;

use c10d_store::recommended_memory_max;
use clap::Args;
use elastic_agent::devices::DeviceKind;
use elastic_agent::scheduler::{self, Found, Sourced};
use elastic_agent::{HealthCheck, LauncherOptions};
use elastic_rendezvous::{StartWarning, WarningKind, parse_config};

use super::arguments::{Origin, Parsed, Read, Surroundings, value_of};
use super::error::{Given, Refusal, UsageError};
use super::timeouts;
use super::values::{bytes, number, positive_time, text, time, whole_number};

/// [`choose`](Self::choose) takes those about the rendezvous.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Nodes and workers")]
pub(super) struct NodeArgs {
    /// Run the job on N nodes, or on MIN to MAX nodes if it is elastic. [default: 1:1]
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true, value_parser = Read(node_counts))]
    pub(super) nnodes: Option<Parsed<(usize, usize)>>,

    /// Start this many workers on this node: a number, cpu, gpu, xpu or auto. [default: 1]
    ///
    /// `cpu` starts one worker per processor, `gpu` one per NVIDIA or AMD GPU, and `xpu` one per Intel GPU. `auto` starts
    /// one per GPU if there is one, otherwise one per processor.
    #[arg(long, value_name = "N|cpu|gpu|xpu|auto", allow_negative_numbers = true, value_parser = Read(workers))]
    nproc_per_node: Option<Parsed<Workers>>,

    /// Run a job of one node, on a free port of this machine. Overrides --rdzv-backend, --rdzv-endpoint and --rdzv-id.
    #[arg(long)]
    pub(super) standalone: bool,

    /// Choose how nodes find each other: c10d or static. [default: static]
    #[arg(long, value_name = "NAME", value_parser = Read(backend))]
    pub(super) rdzv_backend: Option<Parsed<Backend>>,

    /// Let the nodes meet at HOST or HOST:PORT, or for a c10d rendezvous in a shared file, at its path.
    ///
    /// With etcd://H1:2379,../PREFIX, launchers of the job serve the store and keep it in etcd, so the job does not depend
    /// on one node. Example: --rdzv-endpoint node0:29400
    #[arg(long, value_name = "HOST[:PORT]", value_parser = Read(text))]
    pub(super) rdzv_endpoint: Option<Parsed<String>>,

    /// Name the job: use the same id on all nodes, and a new one for each run. [default: none]
    #[arg(long, value_name = "ID", value_parser = Read(text))]
    pub(super) rdzv_id: Option<Parsed<String>>,

    /// Change settings of the rendezvous. Example: --rdzv-conf join_timeout=60,is_host=1
    #[arg(hide_short_help = true, long, value_name = "KEY=VALUE,...", default_value = "", value_parser = Read(settings))]
    pub(super) rdzv_conf: Parsed<BTreeMap<String, String>>,

    /// Give this node its rank, from 0. Only for the static backend. [default: 0]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, value_parser = Read(whole_number))]
    pub(super) node_rank: Option<Parsed<usize>>,

    /// Find node 0 at this host. Only for the static backend without --rdzv-endpoint. [default: 127.0.0.1]
    #[arg(hide_short_help = true, long, value_name = "HOST", value_parser = Read(text))]
    pub(super) master_addr: Option<Parsed<String>>,

    /// Find node 0 at this port. Only for the static backend without --rdzv-endpoint. [default: 29500]
    #[arg(hide_short_help = true, long, value_name = "PORT", allow_negative_numbers = true, value_parser = Read(master_port))]
    pub(super) master_port: Option<Parsed<u16>>,

    /// Give other nodes this address of this node, or the address of this network interface, for example 10.0.0.7 or eth0.
    /// [default: the address at which the nodes have met]
    #[arg(hide_short_help = true, long, value_name = "HOST", default_value = "", value_parser = Read(text))]
    pub(super) local_addr: Parsed<String>,

    /// Let spare nodes wait this long after a round before they take the place of one of its members; 0 for no wait.
    /// [default: 15s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(spare_wait))]
    pub(super) spare_wait: Option<Parsed<Duration>>,

    /// Run this command with /bin/sh each time before this node joins a round, and join only if it succeeds.
    ///
    /// If it fails, this node stays away and tries again after 10 s, and then after doubled delays of up to 5 min. Example:
    /// --health-check 'nvidia-smi -L'
    #[arg(hide_short_help = true, long, value_name = "COMMAND", value_parser = Read(text))]
    health_check: Option<Parsed<String>>,

    /// Kill --health-check after this time, and count it as failed. [default: 60s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(positive_time))]
    health_check_timeout: Option<Parsed<Duration>>,

    /// Limit the memory for the data of each store that this node hosts; 0 for no limit.
    ///
    /// Beyond the limit, writes are refused. [default: 80 % of the memory or of the control group's limit] Example:
    /// --store-memory-max 8GiB
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = Read(bytes))]
    store_memory_max: Option<Parsed<usize>>,

    /// Ignore the environment of Slurm, Kubernetes and MPI, which otherwise gives the nodes, this node's rank, the
    /// endpoint, the id of the job, and the workers.
    #[arg(hide_short_help = true, long)]
    no_scheduler: bool,

    /// Print the plan with the source of each value, and start nothing. With --json, the plan is JSON.
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Name the role of this node's workers. Each role has its own ranks. [default: default]
    #[arg(hide_short_help = true, long, value_name = "NAME", default_value = "default", value_parser = Read(text))]
    role: Parsed<String>,

    /// Make one GPU visible to each worker, and set LOCAL_RANK to 0.
    #[arg(hide_short_help = true, long)]
    virtual_local_rank: bool,
}

/// The names of the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    C10d,
    Static,
}

/// How many workers this node has.
#[derive(Debug, Clone)]
enum Workers {
    Number(usize),
    OneForEach(DeviceKind),
}

impl NodeArgs {
    /// Applies the options about this node.
    pub(super) fn apply(
        &self,
        launcher: &mut LauncherOptions,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(), UsageError> {
        let memory_max = value_of(&self.store_memory_max)?.or_else(recommended_memory_max);
        launcher.store_memory_max = memory_max.filter(|bytes| *bytes > 0);
        let agent = &mut launcher.agent;
        agent.role = self.role.value()?;
        agent.has_virtual_local_rank = self.virtual_local_rank;
        let join_timeout = timeouts::join_timeout(&launcher.rendezvous);
        agent.health_check = self.health_check(join_timeout, warnings)?;
        Ok(())
    }

    /// Returns the scheduler whose environment has the nodes of this job.
    pub(super) fn scheduler(
        &self,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<StartWarning>,
    ) -> Option<Found> {
        if self.no_scheduler {
            return None;
        }
        let (found, doubts) = scheduler::find(surroundings.variable, surroundings.site);
        let doubts = doubts.into_iter();
        warnings.extend(doubts.map(|doubt| format!("{doubt}; it is not used").into()));
        found
    }

    /// How many workers this node starts, and where the number is from, unless it is the default.
    pub(super) fn worker_count(
        &self,
        surroundings: &Surroundings<'_>,
        found: Option<&Found>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(usize, Option<Origin>), UsageError> {
        let (number, from) = match &self.nproc_per_node {
            Some(option) => {
                let number = match option.value()? {
                    Workers::Number(number) => Ok(number),
                    Workers::OneForEach(kind) => (surroundings.count_devices)(kind),
                };
                let number = number.map_err(|error| {
                    let refusal = Refusal::But(error.to_string());
                    option.given.refused(refusal)
                });
                let number = number?;
                let warning = quota_warning(option, number, surroundings);
                warnings.extend(warning.map(|text| StartWarning::new(WarningKind::Quota, text)));
                (number, option.given.name.clone())
            }
            None => match found.and_then(|found| allotted_gpus(surroundings, found)) {
                Some(gpus) => (gpus.value, gpus.from),
                None => return Ok((1, None)),
            },
        };
        let origin = Origin {
            name: "workers",
            value: number.to_string(),
            from,
        };
        Ok((number, Some(origin)))
    }

    /// A join takes at most `join_timeout`.
    fn health_check(
        &self,
        join_timeout: Option<Duration>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<HealthCheck>, UsageError> {
        let timeout = &self.health_check_timeout;
        let command = value_of(&self.health_check)?;
        let Some(command) = command.filter(|command| !command.trim().is_empty()) else {
            let why = "--health-check is not given";
            warnings.extend(timeout.iter().map(|it| it.given.has_no_effect(why)));
            return Ok(None);
        };
        let check = HealthCheck::new(command);
        let usual = join_timeout.map_or(check.timeout(), |join| join.min(check.timeout()));
        Ok(Some(
            check.with_timeout(value_of(timeout)?.unwrap_or(usual)),
        ))
    }
}

/// More workers than this for each processor of a quota are worth a warning: training on GPUs does with less than one, and
/// workers that compute on processors are slower then than fewer ones would be.
const WORKERS_PER_PROCESSOR: usize = 2;

/// Says that the control group limits the processors, where that limits the workers or should.
fn quota_warning(
    option: &Parsed<Workers>,
    number: usize,
    surroundings: &Surroundings<'_>,
) -> Option<String> {
    let Given { name, value } = &option.given;
    let cpus = || {
        let cpus = (surroundings.count_cpus)()?;
        Some((cpus.allowed, cpus.quota?))
    };
    match option.value().ok()? {
        Workers::Number(1) => None,
        Workers::Number(_) => {
            let (_, quota) = cpus()?;
            (number > quota.saturating_mul(WORKERS_PER_PROCESSOR)).then(|| {
                format!(
                    "{name} is {number}, but the control group's CPU quota is {quota}: the workers will wait for processors"
                )
            })
        }
        Workers::OneForEach(DeviceKind::Gpu | DeviceKind::Xpu) => None,
        Workers::OneForEach(DeviceKind::Auto)
            if (surroundings.count_devices)(DeviceKind::Gpu).is_ok() =>
        {
            None
        }
        Workers::OneForEach(DeviceKind::Cpu | DeviceKind::Auto) => {
            let (allowed, quota) = cpus()?;
            (number == quota && quota < allowed).then(|| {
                format!(
                    "{name} is {value:?}: {quota} for the control group's CPU quota, although {allowed} processors are visible"
                )
            })
        }
    }
}

/// The GPUs of this node that belong to the job: as many as the scheduler names, but no more than are visible here;
/// otherwise all visible GPUs.
fn allotted_gpus(surroundings: &Surroundings<'_>, found: &Found) -> Option<Sourced<usize>> {
    // Several launchers share this node's GPUs in a way that is unknown.
    if !found.is_alone_on_node {
        return None;
    }
    let visible = (surroundings.count_devices)(DeviceKind::Gpu).ok();
    match (&found.gpus, visible) {
        (Some(gpus), Some(visible)) if visible < gpus.value => {
            let from = format!("the visible GPUs of those in {}", gpus.from);
            Some(Sourced::new(visible, from))
        }
        (Some(gpus), _) => Some(gpus.clone()),
        (None, Some(visible)) => Some(Sourced::new(visible, "the visible GPUs")),
        (None, None) => None,
    }
}

pub(super) fn node_counts(text: &str) -> Result<(usize, usize), Refusal> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    match (min.trim().parse(), max.trim().parse()) {
        (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok((min, max)),
        _ => Err(Refusal::IsNot("N or MIN:MAX with 1 <= MIN <= MAX")),
    }
}

fn workers(text: &str) -> Result<Workers, Refusal> {
    match (DeviceKind::from_word(text), text.trim().parse()) {
        (Some(kind), _) => Ok(Workers::OneForEach(kind)),
        (None, Ok(number)) if number > 0 => Ok(Workers::Number(number)),
        (None, _) => Err(Refusal::IsNot("a number above 0, cpu, gpu, xpu or auto")),
    }
}

fn backend(text: &str) -> Result<Backend, Refusal> {
    match text {
        "static" => Ok(Backend::Static),
        "c10d" => Ok(Backend::C10d),
        _ => Err(Refusal::IsNot("c10d or static")),
    }
}

fn settings(text: &str) -> Result<BTreeMap<String, String>, Refusal> {
    parse_config(text).map_err(Refusal::because)
}

fn master_port(text: &str) -> Result<u16, Refusal> {
    number(text, "a port, 0 to 65535")
}

fn spare_wait(text: &str) -> Result<Duration, Refusal> {
    time(text).ok_or(Refusal::IsNot("a time, for example 15s or 1m, or 0"))
}
