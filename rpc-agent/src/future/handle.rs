//! The two ends of a result: [`RpcFuture`] reads it, [`Promise`] writes it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::{Cancel, Deadline};

use super::panic::catch_panic;
use super::slot::{Executor, Hint};
use super::slot::{Slot, WakerKey};
use crate::error::RpcError;
use crate::sync::Arc;

/// The future of a call that returns bytes.
pub type FutureMessage = RpcFuture<Bytes>;

/// The read half of a result that arrives later: a value or an [`RpcError`]. [`Promise`] is the write half.
///
/// Clones are handles to the same result; each can wait for it any number of times. Dropping handles,
/// even all of them, does not cancel the call, and callbacks still run.
///
/// Callbacks run at once on the registering thread if the future is complete. Otherwise they run upon completion, one
/// after the other in order of registration: on a thread of the agent that created the future, or, for a future of
/// [`RpcFuture::new`], on the completing thread. They run without a lock. A panic in a callback is logged, and the
/// other callbacks still run.
///
/// A future can be awaited on any async runtime, by value or by reference.
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
#[must_use = "the error of a call is lost if its future is not used"]
pub struct RpcFuture<T> {
    pub(super) slot: Arc<Slot<T>>,
    /// Key of this handle's registered waker. `None` until the handle is polled.
    waker: Option<WakerKey>,
}

impl<T: Clone + Send + 'static> RpcFuture<T> {
    /// Creates a pending future and the promise that completes it. Callbacks run on the completing
    /// thread.
    pub fn new() -> (Promise<T>, Self) {
        Self::with_executor(None, Hint::NONE)
    }

    /// Creates a completed future.
    pub fn ready(result: Result<T, RpcError>) -> Self {
        Self::of(Arc::new(Slot::new(Some(result), None, Hint::NONE)))
    }

    /// Creates a pending future. `executor` runs its callbacks, and receives `hint` from waiting threads.
    pub(crate) fn with_executor(
        executor: Option<Arc<dyn Executor>>,
        hint: Hint,
    ) -> (Promise<T>, Self) {
        let slot = Arc::new(Slot::new(None, executor, hint));
        let promise = Promise {
            slot: Arc::clone(&slot),
        };
        (promise, Self::of(slot))
    }

    /// Creates a pending future whose callbacks run on the same threads as this future's callbacks. It has no hint:
    /// its result does not arrive over a connection.
    pub(super) fn child<U: Clone + Send + 'static>(&self) -> (Promise<U>, RpcFuture<U>) {
        RpcFuture::with_executor(self.slot.executor(), Hint::NONE)
    }

    /// Returns whether the future is complete. Does not block.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slot.is_complete()
    }

    /// Returns the result, or `None` while the future is pending. Does not block.
    #[must_use]
    pub fn try_get(&self) -> Option<Result<T, RpcError>> {
        self.slot.try_get()
    }

    /// Blocks until the future is complete: at most for the call's timeout, or indefinitely if the call has none. On
    /// a thread of an agent, another thread takes over its other work while it waits.
    ///
    /// # Errors
    /// The error of the call.
    pub fn wait(&self) -> Result<T, RpcError> {
        loop {
            // Without a deadline the first iteration returns.
            if let Some(result) = self.wait_until(Deadline::NEVER, &Cancel::NEVER) {
                return result;
            }
        }
    }

    /// Blocks until the future is complete, at most for `timeout`; `None` waits indefinitely, and zero checks once
    /// without waiting.
    ///
    /// Returns `None` if the future is still pending. The call continues, and can be waited for again.
    #[must_use]
    pub fn wait_timeout(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Option<Result<T, RpcError>> {
        let timeout = timeout.into();
        let completed = self.try_get();
        if completed.is_some() || timeout == Some(Duration::ZERO) {
            return completed;
        }
        self.wait_until(Deadline::after(Instant::now(), timeout), &Cancel::NEVER)
    }

    /// Blocks until the future is complete, the deadline passes, or `cancel` interrupts the wait. A deadline that has
    /// passed checks once without waiting.
    ///
    /// Returns `None` if the future is still pending. The call continues, and can be waited for again.
    #[must_use]
    pub fn wait_until(&self, deadline: Deadline, cancel: &Cancel) -> Option<Result<T, RpcError>> {
        self.slot.wait_until(deadline, cancel)
    }

    /// Runs `callback` with the result. [`RpcFuture`] describes on which thread. Does not block, unless the future is
    /// complete and the callback blocks.
    pub fn on_complete(&self, callback: impl FnOnce(&Result<T, RpcError>) + Send + 'static) {
        self.slot.when_complete(move |result| callback(&result));
    }

    /// Returns a future of the value that `continuation` computes from the result. The continuation runs like a
    /// callback; if it panics, the returned future fails with [`RpcError::Broken`].
    pub fn then<U: Clone + Send + 'static>(
        &self,
        continuation: impl FnOnce(Result<T, RpcError>) -> Result<U, RpcError> + Send + 'static,
    ) -> RpcFuture<U> {
        let (promise, child) = self.child();
        self.slot.when_complete(move |result| {
            let result = catch_panic(|| continuation(result));
            promise.complete(result.unwrap_or_else(|text| Err(continuation_panicked(&text))));
        });
        child
    }

    /// Like [`RpcFuture::then`], for a `continuation` that itself returns a future. The returned future completes
    /// when that future completes. This is PyTorch's `then` with an asynchronous callback.
    pub fn then_async<U: Clone + Send + 'static>(
        &self,
        continuation: impl FnOnce(Result<T, RpcError>) -> RpcFuture<U> + Send + 'static,
    ) -> RpcFuture<U> {
        let (promise, child) = self.child();
        self.slot.when_complete(move |result| {
            match catch_panic(|| continuation(result)) {
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

    /// [`RpcFuture::then_async`] for values only: an error is passed on without calling `continuation`.
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

/// The write half of an [`RpcFuture`]. Dropping it fails the future with [`RpcError::Broken`].
///
/// ```
/// use rpc_agent::RpcFuture;
///
/// let (promise, future) = RpcFuture::new();
/// assert!(promise.complete(Ok(42)));
/// assert_eq!(future.wait()?, 42);
/// # Ok::<(), rpc_agent::RpcError>(())
/// ```
pub struct Promise<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Promise<T> {
    /// Completes the future, and returns `true` if it was pending. A completed future keeps its result,
    /// so an answer and a timeout can race without harm.
    ///
    /// For a future of [`RpcFuture::new`] the callbacks run in this call. Otherwise it does not block.
    pub fn complete(&self, result: Result<T, RpcError>) -> bool {
        self.slot.complete(result)
    }

    /// Returns whether the future is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slot.is_complete()
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.slot.is_complete() {
            let why = "the promise of this future was dropped before it was completed";
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
