//! The sources of a report about the job: the workers' store, or this launcher alone while the store does not answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_inspect::http::{HttpRequest, Target, fetch};
use c10d_inspect::workers::Job;
use c10d_inspect::{
    AnnouncedNode, AnnouncedWorker, Finding, FindingKind, NodeReport, Report, ReportState, explain,
    local_hang_report,
};
use c10d_socket::{Cancel, Deadline, HostPort, resolve, resolve_local};
use c10d_store::{Snapshot, StoreAddress};

use crate::agent::StartedWorkers;
use crate::launcher::announce::LocalView;
use crate::launcher::status_page::{Hosted, HostedServer};

/// The longest report of another host.
const REPORT_BYTES_MAX: usize = 16 << 20;

/// The limit for looking up the host of the workers' store.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// The source of the reports about the workers of one round.
#[derive(Debug, Clone)]
pub(super) struct Source {
    address: StoreAddress,
    is_agent_store: bool,
    hosted: Arc<Hosted>,
    local: LocalView,
    cancel: Cancel,
    master: HostPort,
    /// The server of the store, if this process has it.
    store: Option<HostedServer>,
    /// The addresses of a store on another host.
    addresses: Vec<SocketAddr>,
}

impl Source {
    /// Finds the store of these workers. Blocks for at most 1 s, to look up a name, or until `cancel` ends it.
    pub(super) fn of(
        started: &StartedWorkers,
        hosted: Arc<Hosted>,
        local: LocalView,
        cancel: Cancel,
    ) -> Self {
        let mut source = Self {
            address: started.address.clone(),
            is_agent_store: started.is_agent_store,
            hosted,
            local,
            cancel,
            master: started.master.clone(),
            store: None,
            addresses: Vec::new(),
        };
        source.find();
        source
    }

    /// Finds the store again, because another process may serve it now. If a lookup fails, the store that was found before
    /// remains. Blocks for at most 1 s, or until it is cancelled.
    pub(super) fn find(&mut self) {
        let (deadline, cancel) = (
            Deadline::after(Instant::now(), LOOKUP_TIMEOUT),
            &self.cancel,
        );
        if let Ok(current) = self.address.current(deadline, cancel) {
            self.master = current;
        }
        let on_port = self.hosted.on_port(self.master.port());
        let own = match on_port {
            None => None,
            Some(own) => match resolve_local(&self.master, deadline, cancel) {
                Ok(local) => Some(own).filter(|_| !local.is_empty()),
                Err(_) => return,
            },
        };
        if own.is_none() && self.is_agent_store {
            match resolve(&self.master, deadline, cancel) {
                Ok(addresses) => self.addresses = addresses,
                Err(_) => return,
            }
        }
        self.store = own;
    }

    /// Whether a report comes from another host.
    pub(super) const fn is_remote(&self) -> bool {
        self.store.is_none()
    }

    /// Asks the launchers of these nodes to observe their workers, so that the next report includes the activity of
    /// these workers. Blocks for at most 1.5 s.
    pub(super) fn ask_for_samples(
        &self,
        nodes: &[NodeReport],
        is_wanted: impl Fn(&NodeReport) -> bool,
    ) {
        let own = || IpAddr::from(Ipv4Addr::LOCALHOST);
        let store = match &self.store {
            Some(_) => Some(own()),
            None => self.addresses.first().map(SocketAddr::ip),
        };
        let mut report = Report::default();
        report.nodes = nodes.to_vec();
        let token = self.hosted.token().map(str::to_owned);
        let job = Job::new(report, store, token);
        let answered = job.ask_for_samples(is_wanted, &self.cancel);
        log::debug!("{answered} launchers observe their workers because this one asked");
    }

    /// Whether the store is a server of this project, which answers unless it is unreachable or busy.
    pub(super) fn can_answer(&self) -> bool {
        self.store.is_some() || self.local.is_store_known()
    }

    /// The report of the store about the job. Blocks for at most `timeout`.
    pub(super) fn report(&self, timeout: Duration) -> Option<Report> {
        match &self.store {
            Some(store) => store.report(timeout),
            None => self.ask(timeout),
        }
    }

    /// Returns the report of this launcher about its own workers.
    pub(super) fn local_report(&self) -> Report {
        let node = self.local.get();
        let report = local_report(&node, &self.master);
        let observed = || local_hang_report(&node);
        let observed = (!report.is_stuck).then(observed).flatten();
        observed.unwrap_or(report)
    }

    /// Returns a new report about the job, if the store provides it, and the snapshot that it is based on, if this
    /// process hosts the store. Blocks for at most `timeout`, and while the report is made.
    pub(super) fn fresh_report(&self, timeout: Duration) -> (Option<Report>, Option<Snapshot>) {
        match &self.store {
            Some(store) => {
                let snapshot = store.snapshot(timeout);
                let made = snapshot.as_ref().map(|it| explain(it, None));
                (made, snapshot)
            }
            None => (self.ask(timeout), None),
        }
    }

    /// Asks only a server of this project: PyTorch's does not expect HTTP.
    fn ask(&self, timeout: Duration) -> Option<Report> {
        if !self.local.is_store_known() {
            return None;
        }
        let address = *self.addresses.first()?;
        let request = HttpRequest::get(Target::Tcp(address), "/why.json")
            .with_token(self.hosted.token())
            .with_limit(REPORT_BYTES_MAX)
            .with_cancel(self.cancel.clone());
        match fetch(&request, timeout) {
            Ok(answer) if answer.is_success() => serde_json::from_slice(&answer.body).ok(),
            Ok(_) => None,
            Err(error) => {
                log::debug!("no report from the workers' store: {error}");
                None
            }
        }
    }
}

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

    use super::*;

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
