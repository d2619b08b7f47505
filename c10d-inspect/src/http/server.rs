//! The status server: serves the HTTP connections of a store.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use c10d_store::{HttpConnection, HttpHandler, SnapshotError};
use hyper::http::request::Parts;
use tokio::sync::mpsc::error::TrySendError;

use super::guard::Guard;
use super::looker::{Looker, StatusOptions, StatusSource};
use super::routes::route;
use super::serve::{Limits, Reply, Routes, Server, Source};
use super::timeline::Timeline;
use crate::Report;

/// A server of a page, JSON and metrics about a store, on connections that the store hands over. Install it with
/// [`TcpStoreServer::set_http_handler`](c10d_store::TcpStoreServer::set_http_handler).
///
/// It is read-only, and uses no CPU time without requests. It serves 64 connections at a time, which are enough for a
/// few people and a Prometheus: each holds a descriptor that a rank may need. Dropping it shuts it down.
///
/// ```
/// use c10d_inspect::http::{StatusOptions, StatusServer};
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// let status = StatusServer::start(server.observer(), StatusOptions::default())?;
/// server.set_http_handler(status.clone());
/// // The store's port now serves the status page.
/// status.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StatusServer {
    server: Server<Looker>,
    timeline: Arc<Timeline>,
}

impl StatusServer {
    /// Starts the server on the thread `c10d-status`.
    ///
    /// # Errors
    /// The system has no room for another thread or for its poll descriptor.
    pub fn start(source: impl StatusSource, options: StatusOptions) -> io::Result<Arc<Self>> {
        Self::start_with(source, options, Limits::DEFAULT)
    }

    pub(super) fn start_with(
        source: impl StatusSource,
        options: StatusOptions,
        limits: Limits,
    ) -> io::Result<Arc<Self>> {
        let timeline = Arc::default();
        let guard = Guard::new(options.host_names(), options.token().cloned());
        let looker = Looker::new(Box::new(source), options, Arc::clone(&timeline));
        let server = Server::start("c10d-status", Source::HandedOver, guard, limits, looker)?;
        Ok(Arc::new(Self { server, timeline }))
    }

    /// Returns the newest report: a new report, unless one was created within the last second (longer if reports are
    /// expensive, see [`Report::taken_unix_ms`]). Blocks for up to `timeout`.
    ///
    /// # Errors
    /// The store has ended, or does not answer in time.
    pub fn report(&self, timeout: Duration) -> Result<Arc<Report>, SnapshotError> {
        let (reply, answer) = sync_channel(1);
        let asked = self.server.ask(move |looker| {
            let report = looker.look();
            // The caller may have stopped waiting.
            let _ = reply.try_send(report.map(|look| Arc::clone(&look.report)));
        });
        asked.map_err(|error| match error {
            TrySendError::Full(_) => SnapshotError::TimedOut {
                timeout: Duration::ZERO,
            },
            TrySendError::Closed(_) => SnapshotError::Stopped,
        })?;
        match answer.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(SnapshotError::TimedOut { timeout }),
            Err(RecvTimeoutError::Disconnected) => Err(SnapshotError::Stopped),
        }
    }

    /// Returns the events that the page shows. The metrics count the events of a launcher.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Ends all HTTP connections and joins the thread. Blocks for up to 3 s, if the store does not answer a request
    /// for a snapshot.
    pub fn shutdown(&self) {
        self.server.shutdown();
    }
}

impl HttpHandler for StatusServer {
    fn serve(&self, connection: HttpConnection) {
        self.server.take(connection);
    }
}

impl Routes for Looker {
    fn answer(&mut self, request: &Parts) -> Reply {
        Reply::Now(match route(request) {
            Ok(wanted) => self.answer(&wanted),
            Err(refusal) => refusal,
        })
    }
}
