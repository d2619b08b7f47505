//! The two ends of a result: [`RpcFuture`] reads it, [`Promise`] writes it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;

use super::executor::{Executor, Hint};
use super::panic::caught;
use super::slot::{Slot, WakerKey};
use crate::error::RpcError;
use crate::sync::Arc;

/// The future of a call whose answer is bytes.
pub type FutureMessage = RpcFuture<Bytes>;

/// A result that comes later: a value or an [`RpcError`], once and for good.
///
/// A handle: clones stand for the same result, and each may wait, as often as it likes, with always the
/// same result. Dropping handles, even all of them, cancels nothing and leaks nothing; callbacks still
/// run.
///
/// Callbacks run at once, on the registering thread, if the result is there already. Else they run when
/// it comes, one after the other in the order of registration: on a thread of the agent that made the
/// future, or, for a future made with [`RpcFuture::new`], on the completing thread. No lock is held
/// then, and a callback that panics harms no other: the panic is logged.
///
/// It can be awaited too, by value or by reference, on any async runtime.
///
/// ```
/// use rpc_agent::{RpcError, RpcFuture};
///
/// let (promise, future) = RpcFuture::new();
/// let length = future.then(|name: Result<String, RpcError>| Ok(name?.len()));
/// assert!(!length.is_complete());
///
/// promise.complete(Ok("trainer:0".to_owned()));
/// assert_eq!(future.wait()?, "trainer:0");
/// assert_eq!(length.wait()?, 9);
/// # Ok::<(), RpcError>(())
/// ```
#[must_use = "an error that nobody looks at is lost"]
pub struct RpcFuture<T> {
    pub(super) slot: Arc<Slot<T>>,
    /// Under which this handle's waker is registered, once it has been polled.
    waker: Option<WakerKey>,
}

impl<T: Clone + Send + 'static> RpcFuture<T> {
    /// A pending future and what completes it, for functions that answer later. Callbacks run on the
    /// completing thread.
    pub fn new() -> (Promise<T>, Self) {
        Self::with_executor(None, Hint::NONE)
    }

    /// A future that is complete already.
    pub fn ready(result: Result<T, RpcError>) -> Self {
        Self::of(Arc::new(Slot::complete_from_the_start(result)))
    }

    /// A pending future whose callbacks `executor` runs, and which `hint` tells it how to drive.
    pub(crate) fn with_executor(
        executor: Option<Arc<dyn Executor>>,
        hint: Hint,
    ) -> (Promise<T>, Self) {
        let slot = Arc::new(Slot::new(executor, hint));
        let promise = Promise {
            slot: Arc::clone(&slot),
        };
        (promise, Self::of(slot))
    }

    /// A pending future that hangs on this one. Nothing says what completes it, so it is not driven.
    pub(super) fn child<U: Clone + Send + 'static>(&self) -> (Promise<U>, RpcFuture<U>) {
        RpcFuture::with_executor(self.slot.executor(), Hint::NONE)
    }

    /// Whether the result is there. Never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slot.is_complete()
    }

    /// The result, if it is there. Never blocks.
    #[must_use]
    pub fn try_get(&self) -> Option<Result<T, RpcError>> {
        self.slot.try_get()
    }

    /// Blocks until the result is there: as long as the call's own timeout lets it.
    ///
    /// # Errors
    /// The call's.
    pub fn wait(&self) -> Result<T, RpcError> {
        loop {
            // Without a deadline the first round has the result.
            if let Some(result) = self.wait_until(Deadline::NEVER) {
                return result;
            }
        }
    }

    /// Blocks until the result is there, for at most `timeout`. `None`: it is not, and the call goes on.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<T, RpcError>> {
        // What is there is taken without a look at the clock.
        self.try_get()
            .or_else(|| self.wait_until(Deadline::after(Instant::now(), timeout)))
    }

    /// Blocks until the result is there or the deadline passes. `None`: it is not, and the call goes on.
    #[must_use]
    pub fn wait_until(&self, deadline: Deadline) -> Option<Result<T, RpcError>> {
        self.slot.wait_until(deadline)
    }

    /// Registers a callback: see [`RpcFuture`] for where it runs.
    pub fn on_complete(&self, callback: impl FnOnce(&Result<T, RpcError>) + Send + 'static) {
        self.slot.when_complete(move |result| callback(&result));
    }

    /// A future of what `continuation` makes of the result. If it panics, that is the future's error:
    /// [`RpcError::Broken`]. It runs as a callback does.
    pub fn then<U: Clone + Send + 'static>(
        &self,
        continuation: impl FnOnce(Result<T, RpcError>) -> Result<U, RpcError> + Send + 'static,
    ) -> RpcFuture<U> {
        let (promise, child) = self.child();
        self.slot.when_complete(move |result| {
            let result = caught(|| continuation(result));
            promise.complete(result.unwrap_or_else(|text| Err(continuation_panicked(&text))));
        });
        child
    }

    /// A future of what the future that `continuation` returns will be: PyTorch's `then` with an
    /// asynchronous callback. Otherwise like [`RpcFuture::then`].
    pub fn then_async<U: Clone + Send + 'static>(
        &self,
        continuation: impl FnOnce(Result<T, RpcError>) -> RpcFuture<U> + Send + 'static,
    ) -> RpcFuture<U> {
        let (promise, child) = self.child();
        self.slot.when_complete(move |result| {
            match caught(|| continuation(result)) {
                Ok(adopted) if Arc::ptr_eq(&adopted.slot, &promise.slot) => {
                    let why = "a continuation returned the future that waits for it";
                    promise.complete(Err(RpcError::Broken(why.into())));
                }
                Ok(adopted) => adopted.slot.when_complete(move |result| {
                    promise.complete(result);
                }),
                Err(text) => {
                    promise.complete(Err(continuation_panicked(&text)));
                }
            };
        });
        child
    }

    /// [`RpcFuture::then_async`] for values only: an error is passed on, and `continuation` not called.
    ///
    /// ```
    /// use rpc_agent::RpcFuture;
    ///
    /// let twice = RpcFuture::ready(Ok(4)).and_then(|n| RpcFuture::ready(Ok(2 * n)));
    /// assert_eq!(twice.wait()?, 8);
    /// # Ok::<(), rpc_agent::RpcError>(())
    /// ```
    pub fn and_then<U: Clone + Send + 'static>(
        &self,
        continuation: impl FnOnce(T) -> RpcFuture<U> + Send + 'static,
    ) -> RpcFuture<U> {
        self.then_async(|result| match result {
            Ok(value) => continuation(value),
            Err(error) => RpcFuture::ready(Err(error)),
        })
    }
}

impl<T> RpcFuture<T> {
    const fn of(slot: Arc<Slot<T>>) -> Self {
        Self { slot, waker: None }
    }
}

fn continuation_panicked(text: &str) -> RpcError {
    RpcError::Broken(format!("a continuation of a future panicked: {text}").into())
}

impl<T: Clone + Send + 'static> Future for RpcFuture<T> {
    type Output = Result<T, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { slot, waker } = &mut *self;
        match slot.poll(waker, context.waker()) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl<T: Clone + Send + 'static> IntoFuture for &RpcFuture<T> {
    type Output = Result<T, RpcError>;
    type IntoFuture = RpcFuture<T>;

    fn into_future(self) -> RpcFuture<T> {
        self.clone()
    }
}

impl<T> Clone for RpcFuture<T> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.slot))
    }
}

impl<T> Drop for RpcFuture<T> {
    fn drop(&mut self) {
        if let Some(key) = self.waker {
            self.slot.remove_waker(key);
        }
    }
}

impl<T> fmt::Debug for RpcFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.slot.describe();
        f.debug_tuple("RpcFuture")
            .field(&format_args!("{state}"))
            .finish()
    }
}

/// The duty to complete a future. Dropped without, it completes the future with [`RpcError::Broken`],
/// so that nobody waits for ever.
pub struct Promise<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Promise<T> {
    /// Completes the future. True for the first only: to lose a race, of an answer with a timeout say,
    /// is no error, and the future keeps what it has. Blocks no longer than the callbacks, of a future
    /// of [`RpcFuture::new`].
    pub fn complete(&self, result: Result<T, RpcError>) -> bool {
        self.slot.complete(result)
    }

    /// Whether the future is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slot.is_complete()
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.slot.is_complete() {
            let why = "a future was given up by who should complete it";
            self.slot.complete(Err(RpcError::Broken(why.into())));
        }
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.slot.describe();
        f.debug_tuple("Promise")
            .field(&format_args!("{state}"))
            .finish()
    }
}
