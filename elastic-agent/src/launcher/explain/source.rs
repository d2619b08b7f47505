//! Where a launcher gets a report about its job.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::agent::StartedWorkers;
use c10d_inspect::http::{HttpRequest, Target, fetch};
use c10d_inspect::workers::Job;
use c10d_inspect::{NodeReport, Report, explain, local_hang_report};
use c10d_socket::{Cancel, Deadline, HostPort, resolve, resolve_local};
use c10d_store::Snapshot;

use super::local_report::local_report;
use crate::launcher::announce::LocalView;
use crate::launcher::status_page::{Hosted, HostedServer};

/// The longest report of another host.
const REPORT_BYTES_MAX: usize = 16 << 20;

/// The limit for looking up the host of the workers' store.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the reports about the workers of one round come from.
#[derive(Debug, Clone)]
pub(super) struct Source {
    master: HostPort,
    store: Option<HostedServer>,
    /// The addresses of a store on another host.
    addresses: Vec<SocketAddr>,
    token: Option<String>,
    local: LocalView,
    cancel: Cancel,
}

impl Source {
    /// Finds the store of these workers. Blocks for at most 1 s, to look up a name, or until `cancel` ends it.
    pub(super) fn of(
        started: &StartedWorkers,
        hosted: &Hosted,
        local: LocalView,
        cancel: Cancel,
    ) -> Self {
        let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
        let current = started.address.current(deadline, &cancel);
        let master = current.unwrap_or_else(|_| started.master.clone());
        let is_here =
            || resolve_local(&master, deadline, &cancel).is_ok_and(|local| !local.is_empty());
        let own = hosted.on_port(master.port()).filter(|_| is_here());
        let addresses = match own {
            None if started.is_agent_store => {
                resolve(&master, deadline, &cancel).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        Self {
            master,
            store: own,
            addresses,
            token: hosted.token().map(str::to_owned),
            local,
            cancel,
        }
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
        let job = Job::new(report, store, self.token.clone());
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

    /// The report about the job at this moment, if the store tells, and from what it was made, if this
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
            .with_token(self.token.as_deref())
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
