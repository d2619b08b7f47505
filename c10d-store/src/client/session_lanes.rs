//! Opens the lanes of a store as sessions, which survive the loss of a connection.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Cancel, Deadline, HostPort, sleep};

use super::connection::{Connection, Failure, Hello};
use super::pool::{Pool, PoolError};
use super::resumed::{Channel, Resumed};
use super::session_dialer::{SessionDialer, SessionError};
use crate::address::StoreAddress;

/// Why a lane is not opened as a session.
#[derive(Debug)]
enum SessionFailure {
    Unsupported,
    Failed(PoolError),
}

impl<E: Into<PoolError>> From<E> for SessionFailure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Pool {
    /// Opens a lane as a session, if the store resumes. `None` if the server has no sessions.
    pub(super) fn dial_resumable(
        &self,
        lane: usize,
        target: &HostPort,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Connection>, PoolError> {
        if let Some(resume) = self.options.resume
            && !self.lock().has_no_sessions
        {
            match self.dial_session(lane, target, resume, deadline, cancel) {
                Err(SessionFailure::Unsupported) if self.options.lookup.is_some() => {
                    let text = format!("{target} leads to a server without sessions");
                    return Err(Failure::Protocol(text).into());
                }
                Err(SessionFailure::Unsupported) => {
                    log::warn!(
                        "{target} does not support sessions, so a lost connection cannot be resumed"
                    );
                    self.lock().has_no_sessions = true;
                }
                Err(SessionFailure::Failed(error)) => return Err(error),
                Ok(connection) => return Ok(Some(connection)),
            }
        }
        Ok(None)
    }

    /// Opens a lane as a session. The first one retries until the deadline, as [`connect`](Self::connect) does.
    fn dial_session(
        &self,
        lane: usize,
        target: &HostPort,
        resume: Duration,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Connection, SessionFailure> {
        let is_first = self.lock().server.is_none();
        let options = &self.options;
        let connect_options = options.connect_options.clone();
        let credentials = options.credentials.as_ref();
        let address = match &options.lookup {
            Some(lookup) => StoreAddress::LookedUp(Arc::clone(lookup)),
            None => target.clone().into(),
        };
        let mut dialer = SessionDialer::new(address, connect_options, credentials, resume)
            .map_err(|error| Failure::Protocol(error.to_string()))?
            .carrying_over();
        dialer.set_cancel(cancel.clone());
        self.make_closable(lane, dialer.closer().clone())?;
        let mut backoff = Backoff::new(BackoffOptions::default(), u64::from(std::process::id()));
        let link = loop {
            let error = match dialer.connect(0, deadline) {
                Ok(link) => break link,
                Err(_) if cancel.is_cancelled() => return Err(PoolError::Interrupted.into()),
                Err(error) => error,
            };
            let delay = backoff.next_delay();
            let is_late = deadline.has_passed(Instant::now() + delay);
            match error {
                SessionError::Unsupported { .. } => return Err(SessionFailure::Unsupported),
                SessionError::Connect(error) if !is_first || is_late => {
                    return Err(PoolError::Connect(error).into());
                }
                error if is_first && error.is_transient() && !is_late => {
                    // The next attempt finds out why the pause has ended.
                    let _ = sleep(delay, [cancel, dialer.closer().closed()]);
                }
                SessionError::Lost { source, .. } => return Err(Failure::Lost(source).into()),
                SessionError::Cancelled if let Some(ended) = self.lock().ended.clone() => {
                    return Err(PoolError::Ended(ended).into());
                }
                error @ SessionError::Cancelled => {
                    let source = io::Error::new(io::ErrorKind::ConnectionAborted, error);
                    return Err(Failure::Lost(source).into());
                }
                // The store has no server at the moment, or its directory does not answer.
                error if error.is_transient() => {
                    let source = io::Error::new(io::ErrorKind::NotConnected, error);
                    return Err(Failure::NotSent(source).into());
                }
                error => return Err(Failure::Protocol(error.to_string()).into()),
            }
        };
        let mut resumed = Resumed::new(dialer, link, resume).map_err(Failure::Lost)?;
        resumed.set_cancel(cancel.clone());
        let channel = Channel::Resumed(Box::new(resumed));
        let opened = Connection::open(channel, Hello::InSession, options.reply_bytes_max, deadline);
        Ok(opened?)
    }
}
