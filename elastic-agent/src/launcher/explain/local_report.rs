//! What a launcher can say about a job whose store tells nothing. Pure.

use c10d_inspect::{AnnouncedNode, AnnouncedWorker, Finding, FindingKind, Report, ReportState};
use c10d_socket::HostPort;

/// A worker without a connection is mentioned after this time: importing PyTorch takes seconds.
const STARTING_MAX_MS: u64 = 20_000;

/// Says which workers of this node have not reached the workers' store, if any other has, or which get no
/// answer when they connect.
pub(super) fn local_report(node: &AnnouncedNode, master: &HostPort) -> Report {
    let mut report = Report::default();
    report.world_size = node.world_size;
    let running = || node.workers.iter().filter(|worker| worker.end.is_none());
    let any_connected = running().any(is_connected);
    let late = running().filter(|worker| {
        let is_due = worker.started_ago_ms >= STARTING_MAX_MS && !is_connected(worker);
        is_due && (any_connected || !targets_of(worker).is_empty())
    });
    for worker in late {
        let mut finding = Finding::new(FindingKind::NeverConnected, sentence(worker, master));
        finding.culprits.0.insert(worker.rank);
        finding.age_ms = Some(worker.started_ago_ms);
        report.findings.push(finding);
    }
    report.is_stuck = !report.findings.is_empty();
    if report.is_stuck {
        report.state = ReportState::NoProgress;
    }
    report.headline = match report.findings.as_slice() {
        [] => "All workers of this node are connected to the workers' store.".to_owned(),
        [only] => only.text.clone(),
        many => format!(
            "{} of this node's {} workers have no connection to the workers' store {master}.",
            many.len(),
            node.workers.len()
        ),
    };
    report
}

fn sentence(worker: &AnnouncedWorker, master: &HostPort) -> String {
    let (rank, pid) = (worker.rank, worker.pid);
    let seconds = worker.started_ago_ms / 1000;
    let mut text = format!(
        "Rank {rank} (pid {pid}) has run for {seconds} s without a connection to the \
                            workers' store {master}"
    );
    let targets = targets_of(worker);
    if is_stopped(worker) {
        text.push_str(": it is stopped (state T)");
    } else if targets.is_empty() {
        text.push_str(": it is still importing, or it has not reached init_process_group");
    } else {
        text.push_str(": it is trying to connect to ");
        text.push_str(&targets.join(" and "));
    }
    text.push('.');
    text
}

fn is_connected(worker: &AnnouncedWorker) -> bool {
    let mut processes = worker.processes.iter();
    processes.any(|process| !process.store_connections.is_empty())
}

fn is_stopped(worker: &AnnouncedWorker) -> bool {
    let mut processes = worker.processes.iter();
    processes.any(|process| matches!(process.state, Some('T' | 't')))
}

/// The addresses to which a worker tries to connect, four at most.
fn targets_of(worker: &AnnouncedWorker) -> Vec<String> {
    let processes = worker.processes.iter();
    let targets = processes.flat_map(|process| &process.connecting_to);
    let mut targets: Vec<String> = targets.map(ToString::to_string).collect();
    targets.sort_unstable();
    targets.dedup();
    targets.truncate(4);
    targets
}

#[cfg(test)]
mod tests {
    use c10d_inspect::AnnouncedProcess;

    use crate::launcher::explain::local_report::*;

    fn worker(rank: usize, connection: Option<&str>, connecting: Option<&str>) -> AnnouncedWorker {
        let mut process = AnnouncedProcess::default();
        process.store_connections = connection
            .map(|it| it.parse().unwrap())
            .into_iter()
            .collect();
        process.connecting_to = connecting
            .map(|it| it.parse().unwrap())
            .into_iter()
            .collect();
        let mut worker = AnnouncedWorker::default();
        worker.rank = rank;
        worker.pid = 100 + u32::try_from(rank).unwrap();
        worker.started_ago_ms = 40_000;
        worker.processes = vec![process];
        worker
    }

    fn texts(workers: Vec<AnnouncedWorker>) -> Vec<String> {
        let mut node = AnnouncedNode::default();
        node.workers = workers;
        let report = local_report(&node, &HostPort::new("node0", 29500));
        assert_eq!(report.is_stuck, !report.findings.is_empty());
        report
            .findings
            .into_iter()
            .map(|finding| finding.text)
            .collect()
    }

    #[test]
    fn a_worker_without_a_connection_is_named_if_another_has_one() {
        let connected = || worker(0, Some("10.0.0.1:4000"), None);
        assert_eq!(
            texts(vec![connected(), worker(2, None, None)]),
            [
                "Rank 2 (pid 102) has run for 40 s without a connection to the workers' store node0:29500: \
              it is still importing, or it has not reached init_process_group."
            ]
        );
        let mut stopped = worker(2, None, None);
        stopped.processes[0].state = Some('T');
        let text = &texts(vec![connected(), stopped])[0];
        assert!(text.ends_with(": it is stopped (state T)."), "{text}");
        // A job that may not use the store at all.
        assert_eq!(
            texts(vec![worker(0, None, None), worker(1, None, None)]),
            [""; 0]
        );
        let mut young = worker(2, None, None);
        young.started_ago_ms = 3000;
        assert_eq!(texts(vec![connected(), young]), [""; 0]);
    }

    #[test]
    fn a_worker_that_cannot_connect_is_named_with_the_address() {
        let text = &texts(vec![worker(2, None, Some("10.255.255.1:29500"))])[0];
        assert!(
            text.ends_with("trying to connect to 10.255.255.1:29500."),
            "{text}"
        );
    }
}
