//! The processes of nodes, as the measurement sees them.

use std::io::{self, Write as _};
use std::ops::Range;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::agreement::Joined;
use super::node::{Job, PATIENCE, now};
use super::nodes::{REPORT_BYTES_MAX, RendezvousNodesArgs, STACK_BYTES};
use crate::child::{read_line, this_program};
use crate::failure::{Context as _, Failure};

/// How long a process may take to report. Longer than the timeout of the nodes, whose errors say more.
const SILENCE_MAX: Duration = Duration::from_secs(PATIENCE.as_secs() + 30);

/// Processes of nodes. Killed on drop.
#[derive(Debug)]
pub(super) struct Processes(Vec<NodeProcess>);

#[derive(Debug)]
struct NodeProcess {
    child: Child,
    nodes: Range<usize>,
}

impl Processes {
    /// Starts as few processes as needed, and waits until all nodes are connected.
    pub(super) fn start(job: &Job, nodes_per_process: usize) -> Result<Self, Failure> {
        let groups = groups(job.nodes, nodes_per_process);
        let processes = groups.map(|nodes| NodeProcess::start(job, nodes));
        let mut this = Self(processes.collect::<Result<_, _>>()?);
        for process in &mut this.0 {
            process.report()?;
        }
        Ok(this)
    }

    /// Lets all nodes join at once. Returns what they were told, and how long the last one took.
    pub(super) fn join(&mut self) -> Result<(Joined, Duration), Failure> {
        let start = now();
        for process in &mut self.0 {
            process.signal_start()?;
        }
        let mut joined = Joined::default();
        for process in &mut self.0 {
            joined.merge(process.report()?);
        }
        let time = joined.last_at.saturating_sub(start);
        Ok((joined, time))
    }
}

/// The nodes of each process, spread evenly.
fn groups(nodes: usize, nodes_per_process: usize) -> impl Iterator<Item = Range<usize>> {
    let processes = nodes.div_ceil(nodes_per_process);
    let from = move |index: usize| index * nodes / processes;
    (0..processes).map(move |index| from(index)..from(index + 1))
}

impl NodeProcess {
    fn start(job: &Job, nodes: Range<usize>) -> Result<Self, Failure> {
        let child = this_program("error")?
            .args(RendezvousNodesArgs::command_line(job, &nodes))
            // For the threads of the handlers.
            .env("RUST_MIN_STACK", STACK_BYTES.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of nodes")?;
        Ok(Self { child, nodes })
    }

    fn signal_start(&mut self) -> Result<(), Failure> {
        match self.child.stdin.as_mut().map(|it| it.write_all(b"\n")) {
            // Its report, or its status, says more; both are read next.
            Some(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("cannot write to a process of nodes")
            }
            _ => Ok(()),
        }
    }

    /// Returns the next report of the process.
    fn report(&mut self) -> Result<Joined, Failure> {
        let Range { start, end } = self.nodes;
        let failed = || format!("the process of nodes {start} to {}", end.saturating_sub(1));
        let line =
            read_line(&mut self.child, SILENCE_MAX, REPORT_BYTES_MAX).with_context(failed)?;
        if line.is_empty() {
            let status = self.child.wait().with_context(failed)?;
            return Err(Failure::new(format!("{} ended early ({status})", failed())));
        }
        let report: Result<Joined, String> = serde_json::from_str(&line).with_context(failed)?;
        report.map_err(Failure::new)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_evenly_over_as_few_processes_as_needed() {
        let groups = |nodes, per_process| Vec::from_iter(groups(nodes, per_process));
        assert_eq!(groups(6, 5), [0..3, 3..6]);
        assert_eq!(groups(11, 4), [0..3, 3..7, 7..11]);
        assert_eq!(groups(2, 1), [0..1, 1..2]);
    }
}
