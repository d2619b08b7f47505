//! The options of commands that read the status pages of a store server.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::{StatusError, StatusPages};
use c10d_inspect::workers::{Job, JobError};
use c10d_socket::Deadline;
use clap::Args;

use crate::failure::Failure;
use crate::quantity::parse_duration;
use crate::server_address::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// The time for one answer of the server, or for all of `c10d why`: 5s, 250ms, 2m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    timeout: Duration,
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
        let pages = self.open()?.into_workers()?;
        Job::open(&pages).map_err(|error| match error {
            JobError::Status(error) => error.into(),
            JobError::Store(error) => error.into(),
            nobody => Failure::No(nobody.to_string()),
        })
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
