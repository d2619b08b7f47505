//! A future of `rpc-agent` with this crate's errors.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use c10d_socket::{Cancel, Deadline};
use rpc_agent::RpcFuture;

use crate::error::RRefError;

/// The future result of a request: a value or an [`RRefError`]. Clones share it; dropping them cancels nothing.
///
/// ```no_run
/// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
/// use rref::RRefFuture;
///
/// let sums: [RRefFuture<i64>; 2] = [
///     rrefs.call("worker1", "add").send((1, 2))?,
///     rrefs.call("worker2", "add").send((3, 4))?,
/// ];
/// for sum in sums {
///     println!("{}", sum.wait()?);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "an unread error is lost"]
pub struct RRefFuture<T> {
    inner: RpcFuture<Result<T, RRefError>>,
}

impl<T: Clone + Send + 'static> RRefFuture<T> {
    pub(crate) const fn of(inner: RpcFuture<Result<T, RRefError>>) -> Self {
        Self { inner }
    }

    /// Returns whether the result has arrived. Never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    /// Blocks until the result arrives, for at most the request's own timeout.
    ///
    /// # Errors
    /// The errors of the request.
    pub fn wait(&self) -> Result<T, RRefError> {
        self.inner.wait()?
    }

    /// Blocks until the result arrives, for at most `timeout`; `None` waits indefinitely, and zero checks once.
    /// Returns `None` if the result has not arrived; the request continues.
    #[must_use]
    pub fn wait_timeout(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Option<Result<T, RRefError>> {
        self.inner
            .wait_timeout(timeout)
            .map(|result| result.map_err(RRefError::from).flatten())
    }

    /// Blocks until the result arrives, the deadline passes, or `cancel` interrupts the wait. Returns `None` if the
    /// result has not arrived; the request continues.
    #[must_use]
    pub fn wait_until(&self, deadline: Deadline, cancel: &Cancel) -> Option<Result<T, RRefError>> {
        let result = self.inner.wait_until(deadline, cancel)?;
        Some(result.map_err(RRefError::from).flatten())
    }

    /// Runs a callback with the result: at once if it has arrived, otherwise on a thread of the agent.
    pub fn on_complete(&self, callback: impl FnOnce(Result<T, RRefError>) + Send + 'static) {
        self.inner.on_complete(move |result| {
            callback(result.clone().map_err(RRefError::from).flatten());
        });
    }
}

impl<T: Clone + Send + 'static> Future for RRefFuture<T> {
    type Output = Result<T, RRefError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner)
            .poll(context)
            .map(|result| result.map_err(RRefError::from).flatten())
    }
}

impl<T> Clone for RRefFuture<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<T> fmt::Debug for RRefFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
