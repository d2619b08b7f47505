//! The result of something asked of another worker, when there is one.
//!
//! A future of `rpc-agent` with this crate's errors: it waits, is awaited and calls back as that one does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_agent::RpcFuture;

use crate::error::RRefError;

/// A result that comes later, once and for good: a value or an [`RRefError`]. A handle, as [`RpcFuture`]
/// is; dropping it cancels nothing.
#[must_use = "an error that nobody looks at is lost"]
pub struct RRefFuture<T> {
    inner: RpcFuture<Result<T, RRefError>>,
}

impl<T: Clone + Send + 'static> RRefFuture<T> {
    pub(crate) const fn of(inner: RpcFuture<Result<T, RRefError>>) -> Self {
        Self { inner }
    }

    /// Whether the result is there. Never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    /// Blocks until the result is there, for as long as the request's own timeout lets it.
    ///
    /// # Errors
    /// The request's.
    pub fn wait(&self) -> Result<T, RRefError> {
        self.inner.wait()?
    }

    /// Blocks until the result is there, for at most `timeout`. `None`: it is not, and the request goes
    /// on.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<T, RRefError>> {
        self.inner
            .wait_timeout(timeout)
            .map(|result| result.map_err(RRefError::from).flatten())
    }

    /// Registers a callback, which runs at once if the result is there, else on a thread of the agent.
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
