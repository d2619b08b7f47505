//! The options of commands that read the status pages of a store server.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::Report;
use c10d_inspect::http::{StatusError, StatusPages};
use c10d_inspect::workers::{Job, JobError};
use c10d_socket::{Cancel, Deadline};
use clap::Args;

use crate::failure::Failure;
use crate::quantity::parse_duration;
use crate::server_address::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Limit the time for one answer of the server, or for all of `c10d why`: 5s, 250ms, 2m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    timeout: Duration,

    #[command(flatten)]
    server: ServerArgs,
}

impl StatusArgs {
    /// Looks up the server's name. Does not connect.
    pub(crate) fn open(&self) -> Result<StatusPages, Failure> {
        pages_of(&self.server, self.timeout)
    }

    /// [`open`](Self::open) with the timeout for all answers together.
    pub(crate) fn open_for_all(&self) -> Result<StatusPages, Failure> {
        let deadline = Deadline::after(Instant::now(), self.timeout);
        Ok(self.open()?.with_deadline(deadline))
    }

    /// The ranks of the job. The server is the store of its workers, or the rendezvous of its nodes.
    pub(crate) fn open_job(&self) -> Result<Job, Failure> {
        Ok(Job::open(&self.open()?.into_workers()?)?)
    }

    /// [`open_job`](Self::open_job) with a report that includes the activity of the ranks. The launchers are asked for it
    /// only if the store does not explain why ranks wait, because the new report may take a second.
    pub(crate) fn open_observed_job(&self) -> Result<Job, Failure> {
        let pages = self.open()?.into_workers()?;
        let job = Job::open(&pages)?;
        let report = job.report();
        let mut connected = report.nodes.iter().filter(|node| node.is_connected);
        if report.is_stuck || connected.all(|node| node.is_observed) {
            return Ok(job);
        }
        match job.ask_for_samples(|_| true, &Cancel::new()) {
            0 => Ok(job),
            nodes => Ok(until_observed(nodes, || Job::open(&pages), Job::report)?),
        }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Status(error) => error.into(),
            JobError::Store(error) => error.into(),
            nobody => Self::No(nobody.to_string()),
        }
    }
}

/// How long to wait for a newer report, and how often to request it. Most servers keep a report for a second.
const NEWER_TIMEOUT: Duration = Duration::from_millis(1200);
const NEWER_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the first answer whose report has the samples of this many nodes, because a server keeps a report for a
/// second or longer and returns it again. After a timeout, returns an answer without all samples.
pub(crate) fn until_observed<T, E>(
    nodes: usize,
    answer: impl Fn() -> Result<T, E>,
    report: impl Fn(&T) -> &Report,
) -> Result<T, E> {
    let end = Instant::now() + NEWER_TIMEOUT;
    loop {
        let answer = answer()?;
        let nodes_of = &report(&answer).nodes;
        let observed = nodes_of.iter().filter(|node| node.is_observed).count();
        if observed >= nodes || Instant::now() >= end {
            return Ok(answer);
        }
        thread::sleep(NEWER_INTERVAL);
    }
}

/// How long commands that keep running follow a store that moves while no process serves it: as long as its clients do.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(600);

/// The pause between two tries: each lasts as long as the timeout of the pages.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Asks the pages, as often as it takes if their store moves and no process serves it at the moment.
pub(crate) fn ask_following<T>(
    pages: &StatusPages,
    ask: impl Fn(&StatusPages) -> Result<T, StatusError>,
) -> Result<T, StatusError> {
    let give_up_at = Instant::now() + FOLLOW_TIME_MAX;
    let mut has_told = false;
    loop {
        match ask(pages) {
            Err(error)
                if pages.is_following() && error.is_transient() && Instant::now() < give_up_at =>
            {
                if !mem::replace(&mut has_told, true) {
                    log::warn!("{error}; trying for up to {FOLLOW_TIME_MAX:?}");
                }
                thread::sleep(FOLLOW_PAUSE);
            }
            result => return result,
        }
    }
}

/// The status pages of the server that the options name.
pub(crate) fn pages_of(server: &ServerArgs, timeout: Duration) -> Result<StatusPages, Failure> {
    let credentials = server.credentials()?;
    let target = server.target_of_pages(credentials.as_ref())?;
    Ok(StatusPages::open(target, credentials, timeout)?)
}
