//! The start of each side: the same job, with the same options if the tools have the same options.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use super::hosts::Hosts;
use super::plan::{NODES, RANKS_PER_NODE};

/// Modules that each rank imports, and that are imported once where workers are forked.
const PRELOADED: &str = "torch,torch._dynamo";

/// The number of workers that suffices to continue, instead of waiting for more.
const WORKERS_MIN: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Side {
    /// PyTorch's launcher.
    Torchrun,
    /// `c10d run` as it comes.
    Plain,
    /// With --preload.
    Preload,
    /// With --preload, --keep-workers, a relay on each node, and a store in etcd.
    Everything,
}

impl Side {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Plain => "c10d run",
            Self::Preload => "c10d run --preload",
            Self::Everything => "c10d run with everything",
        }
    }

    /// Whether survivors continue, over a store in etcd.
    pub(super) const fn keeps_ranks(self) -> bool {
        matches!(self, Self::Everything)
    }
}

/// The paths of the measured programs.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) c10d: PathBuf,
    pub(super) python: PathBuf,
    /// The script of the ranks.
    pub(super) worker: PathBuf,
    /// How long a step takes at least.
    pub(super) step_ms: u64,
}

/// The place where the parts of a job meet.
#[derive(Debug, Clone)]
pub(super) struct Meeting {
    /// The endpoint of the rendezvous: on node 0, or a store in etcd.
    pub(super) endpoint: String,
    /// The ports of the relays, one for each node.
    pub(super) relay_ports: Vec<u16>,
}

/// The launcher of a node.
pub(super) fn launcher(
    side: Side,
    node: usize,
    submission: usize,
    hosts: &Hosts,
    tools: &Tools,
    meeting: &Meeting,
) -> Command {
    let mut command = match side {
        Side::Torchrun => {
            let mut command = hosts.command(node, &tools.python);
            command.args(["-m", "torch.distributed.run"]);
            // Without it, gloo of PyTorch 2.15 finds the addresses of the ranks before a restart.
            command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
            command
        }
        _ => {
            let mut command = hosts.command(node, &tools.c10d);
            command.arg("run");
            command
        }
    };
    let is_host = u8::from(node == 0);
    command
        .arg(format!("--nnodes=1:{NODES}"))
        .arg(format!("--nproc-per-node={RANKS_PER_NODE}"))
        .arg("--max-restarts=1000000")
        .arg("--rdzv-backend=c10d")
        .arg(format!("--rdzv-id=goodput-{submission}"))
        .arg(format!("--rdzv-endpoint={}", meeting.endpoint))
        .arg(format!("--local-addr={}", hosts.address(node)))
        .args(["--tee=3", "--log-dir"])
        .arg(hosts.shared().join("logs"));
    if side != Side::Everything {
        command.arg(format!("--rdzv-conf=is_host={is_host}"));
    }
    match side {
        Side::Torchrun | Side::Plain => {}
        Side::Preload => {
            command.args(["--preload", PRELOADED, "--preload-required"]);
        }
        Side::Everything => {
            command
                .arg(format!("--preload={PRELOADED},c10d_rs.torch"))
                .args([
                    "--preload-required",
                    "--keep-workers",
                    "--store-candidates=0",
                ])
                .arg(format!("--min-workers={WORKERS_MIN}"))
                .env("GOODPUT_RELAY_PORT", meeting.relay_ports[node].to_string());
        }
    }
    let mode = if side.keeps_ranks() {
        "kept"
    } else {
        "restarted"
    };
    command
        .arg(&tools.worker)
        .arg(mode)
        .args([hosts.ranks(), hosts.shared()])
        .env("GOODPUT_NODE", node.to_string())
        .env("GOODPUT_STEP_MS", tools.step_ms.to_string())
        .env("GLOO_SOCKET_IFNAME", hosts.interface())
        .env("PYTHON_EXEC", &tools.python)
        .env("OMP_NUM_THREADS", "1")
        .env("TORCH_CPP_LOG_LEVEL", "ERROR");
    command
}

/// The relay of a node.
pub(super) fn relay(node: usize, hosts: &Hosts, c10d: &Path, meeting: &Meeting) -> Command {
    let mut command = hosts.command(node, c10d);
    command
        .arg("relay")
        .arg(format!("--upstream={}", meeting.endpoint))
        .arg(format!("--listen=127.0.0.1:{}", meeting.relay_ports[node]));
    command
}

/// A server that can serve the store.
pub(super) fn candidate(
    host: usize,
    port: u16,
    hosts: &Hosts,
    c10d: &Path,
    meeting: &Meeting,
) -> Command {
    let place = meeting.endpoint.trim_start_matches("etcd://");
    let (members, prefix) = place.split_once('/').unwrap_or((place, ""));
    let mut command = hosts.command(host, c10d);
    command
        .args(["store", "serve"])
        .arg(format!("--host={}", hosts.address(host)))
        .arg(format!("--port={port}"))
        .arg(format!("--etcd={members}"))
        .arg(format!("--etcd-prefix={prefix}"));
    command
}
