//! The options of commands that read the status pages of a store server.

use std::time::Duration;

use c10d_inspect::http::StatusPages;
use c10d_inspect::workers::{Job, JobError};
use clap::Args;

use crate::failure::Failure;
use crate::quantity::parse_duration;
use crate::server_address::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// The time for one answer of the server: 5s, 250ms, 2m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    timeout: Duration,
}

impl StatusArgs {
    /// Looks up the server's name. Does not connect.
    pub(crate) fn open(&self) -> Result<StatusPages, Failure> {
        pages_of(&self.server, self.timeout)
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

/// The status pages of the server that the options name.
pub(crate) fn pages_of(server: &ServerArgs, timeout: Duration) -> Result<StatusPages, Failure> {
    let credentials = server.credentials()?;
    let target = server.target_of_pages(credentials.as_ref())?;
    Ok(StatusPages::open(target, credentials, timeout)?)
}
