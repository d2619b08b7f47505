//! [`RRef`]: the program's handle of a reference.

use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::WorkerInfo;
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cell::Cell;
use crate::context::UserStatus;
use crate::error::RRefError;
use crate::future::RRefFuture;
use crate::id::{ForkId, RRefId};
use crate::packing;
use crate::value::Value;
use crate::value::type_name_of;

/// A reference to a value of type `T`, which lives on its owner.
///
/// Clones are cheap and local: they are one user together, and dropping the last of them notifies the owner,
/// which frees the value when no worker has a reference to it. Dropping never blocks.
///
/// A reference can be any field of a serde type in the arguments and results of this crate's calls
/// ([`RRefs::call`](crate::RRefs::call), [`RRef::call`]); the receiver gets its own reference. A function runs after
/// the owners have confirmed all references among its arguments. Elsewhere, including the agent's own calls,
/// serializing a reference is an error.
///
/// Reference cycles, made of values that hold references to each other, are freed by
/// [`RRefs::shutdown`](crate::RRefs::shutdown) only.
///
/// In a forked child every operation on its parent's references fails with
/// [`RpcError::OtherProcess`](rpc_agent::RpcError::OtherProcess), and dropping its copies sends nothing.
///
/// A method that may block takes a timeout: `None` waits indefinitely, and zero checks once without waiting.
///
/// ```no_run
/// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
/// use std::time::Duration;
///
/// use rref::RRef;
///
/// let sum: RRef<i64> = rrefs.call("worker1", "add").remote((1, 2))?; // does not block
/// assert_eq!(sum.to_here(Duration::from_secs(5))?, 3);
/// drop(sum); // worker1 frees the value
/// # Ok(())
/// # }
/// ```
pub struct RRef<T> {
    pub(crate) cell: Arc<Cell>,
    /// The value is on its owner, so a handle is `Send` and `Sync` whatever `T` is.
    value: PhantomData<fn() -> T>,
}

impl<T> RRef<T> {
    pub(crate) const fn of(cell: Arc<Cell>) -> Self {
        Self {
            cell,
            value: PhantomData,
        }
    }

    /// Returns the id of the reference, the same on all workers.
    #[must_use]
    pub fn id(&self) -> RRefId {
        self.cell.rref()
    }

    /// Returns the id of this worker's user of the reference; `None` on the owner.
    #[must_use]
    pub fn fork_id(&self) -> Option<ForkId> {
        self.cell.user()
    }

    /// Returns the worker that has the value.
    #[must_use]
    pub fn owner(&self) -> WorkerInfo {
        self.cell.runtime().worker(self.cell.owner())
    }

    /// Returns whether this worker has the value.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.cell.runtime().is_me(self.cell.owner())
    }

    /// Returns the Rust name of the value's type, as given by its creator.
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.cell.type_name()
    }

    /// Returns whether the owner has confirmed this user; true on the owner. Never blocks.
    ///
    /// A confirmed reference may still get no value: the function that makes it runs later, and may fail. False
    /// after a creation that the owner did not accept, after the loss of the owner, and after the shutdown.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.cell
            .user()
            .is_none_or(|user| matches!(self.cell.status(user), Some(UserStatus::Confirmed)))
    }

    /// Returns whether the creation was not answered in time. Never blocks.
    ///
    /// While this is true, each use of the reference fails at once with [`RRefError::CreationTimedOut`]. It
    /// becomes false if the owner reports that it has accepted the creation after all. PyTorch's `getTimedOut`
    /// stays true.
    #[must_use]
    pub fn has_timed_out(&self) -> bool {
        let user = self.cell.user();
        user.is_some_and(|user| {
            let runtime = self.cell.here();
            runtime.is_ok_and(|runtime| runtime.lock().context.has_timed_out(user))
        })
    }

    /// Blocks until the owner has confirmed or refused this user, for at most `timeout`.
    ///
    /// # Errors
    /// [`RRefError::TimedOut`] if the owner has not answered in time. [`RRefError::Creation`],
    /// [`RRefError::CreationTimedOut`], [`RRefError::OwnerLost`], [`RRefError::Refused`] or [`RRefError::Shutdown`]
    /// if the reference cannot be used.
    pub fn wait_confirmed(&self, timeout: impl Into<Option<Duration>>) -> Result<(), RRefError> {
        self.cell.here()?.wait_confirmed(&self.cell, timeout.into())
    }
}

impl<T> RRef<T> {
    /// [`RRef::wait_confirmed`] without blocking: a future of the owner's answer to this user. PyTorch's
    /// `getOwnerCreationFuture`.
    ///
    /// The future fails with the errors of [`RRef::wait_confirmed`] except the timeout. It keeps the reference.
    ///
    /// ```no_run
    /// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
    /// let sum = rrefs.call("worker1", "add").remote::<_, i64>((1, 2))?;
    /// sum.confirmation()?.on_complete(|confirmed| assert!(confirmed.is_ok()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RRefError::Rpc`] in a forked child.
    pub fn confirmation(&self) -> Result<RRefFuture<()>, RRefError> {
        Ok(self.cell.here()?.confirmation(&self.cell))
    }
}

impl<T: Send + Sync + 'static> RRef<T> {
    /// Returns the value itself, shared, on its owner. Blocks until it is ready, for at most `timeout`. May be called
    /// from a function that the agent runs.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] on other workers; [`RRefError::TimedOut`]; [`RRefError::Creation`] if the
    /// function that makes the value failed; [`RRefError::Refused`] if the value is not a `T`;
    /// [`RRefError::Shutdown`].
    pub fn local_value(&self, timeout: impl Into<Option<Duration>>) -> Result<Arc<T>, RRefError> {
        self.check_owner("localValue")?;
        let value = self.cell.here()?.local_value(&self.cell, timeout.into())?;
        typed(&value)
    }

    /// Returns a future of the value itself, on its owner: shared, neither copied nor encoded. PyTorch's `getFuture`.
    /// Never blocks.
    ///
    /// The future fails with [`RRefError::Creation`] if the function that makes the value failed or
    /// [`RRef::set_error`] was called, and with [`RRefError::Deleted`] when no reference is left.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] on other workers; [`RRefError::Shutdown`].
    pub fn value_future(&self) -> Result<RRefFuture<Arc<T>>, RRefError> {
        self.check_owner("getFuture")?;
        self.cell
            .here()?
            .value_future(&self.cell, |value| typed(&value))
    }

    /// Returns whether the value is ready or failed, on its owner. Never blocks. PyTorch's `hasValue`;
    /// [`RRef::wait_ready`] serves other workers.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] on other workers; [`RRefError::Shutdown`].
    pub fn has_value(&self) -> Result<bool, RRefError> {
        self.check_owner("hasValue")?;
        self.cell.here()?.has_value(&self.cell)
    }

    /// [`RRef::set_value`] for a value that never leaves its owner.
    ///
    /// # Errors
    /// The errors of [`RRef::set_value`].
    pub fn set_value_opaque(&self, value: T) -> Result<(), RRefError> {
        self.set(Ok(Value::opaque(value)))
    }

    /// Sets an error instead of the value of a reference made by
    /// [`RRefs::rref_without_value`](crate::RRefs::rref_without_value): requests for the value fail with
    /// [`RRefError::Creation`] and this message. Returns `false` if the reference already has a value or an error,
    /// which is not replaced, like in PyTorch. Never blocks.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] on other workers; [`RRefError::Refused`] if a function makes the value;
    /// [`RRefError::Shutdown`].
    pub fn set_error(&self, message: impl Into<String>) -> Result<bool, RRefError> {
        match self.set(Err(message.into().into())) {
            Ok(()) => Ok(true),
            Err(RRefError::AlreadySet { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set(&self, result: Result<Value, Arc<str>>) -> Result<(), RRefError> {
        self.check_owner(match result {
            Ok(_) => "setValue",
            Err(_) => "setError",
        })?;
        self.cell.here()?.set_value(self.cell.rref(), result)
    }

    fn check_owner(&self, operation: &'static str) -> Result<(), RRefError> {
        if self.is_owner() {
            return Ok(());
        }
        Err(RRefError::NotOwner {
            rref: self.cell.print().into(),
            operation,
            me: self.cell.runtime().agent.me().clone(),
            owner: self.owner(),
        })
    }

    /// Blocks until the owner has the value, without fetching it, for at most `timeout`. Zero checks once: on
    /// another worker that takes one round trip to the owner, bounded by the agent's timeout.
    ///
    /// # Errors
    /// [`RRefError::TimedOut`] if the value is not ready in time; [`RRefError::Creation`] if its function failed;
    /// [`RRefError::OwnerLost`]; any other [`RRefError`] if the request fails.
    pub fn wait_ready(&self, timeout: impl Into<Option<Duration>>) -> Result<(), RRefError> {
        self.cell.here()?.wait_ready(&self.cell, timeout.into())
    }
}

impl<T: Serialize + Send + Sync + 'static> RRef<T> {
    /// Sets the value of a reference made by
    /// [`RRefs::rref_without_value`](crate::RRefs::rref_without_value), once, on its owner. Answers all
    /// requests that wait for it. Never blocks.
    ///
    /// # Errors
    /// [`RRefError::AlreadySet`]; [`RRefError::NotOwner`] on other workers; [`RRefError::Refused`] if a function
    /// makes the value; [`RRefError::Shutdown`]. After an error, the value is dropped.
    pub fn set_value(&self, value: T) -> Result<(), RRefError> {
        self.set(Ok(Value::of(value)))
    }
}

impl<T: DeserializeOwned> RRef<T> {
    /// Returns a copy of the value, fetched from its owner. Blocks until the value is ready, for at most `timeout`.
    /// May be called from a function that the agent runs.
    ///
    /// Each call fetches and encodes the value again; a `Mutex` is encoded under its lock. Zero does not wait
    /// for the value to be made: it takes two round trips, each bounded by the agent's timeout.
    ///
    /// # Errors
    /// [`RRefError::TimedOut`] if the value is not ready in time; [`RRefError::Creation`] if its function failed, at
    /// once; [`RRefError::OwnerLost`] when the owner is lost; [`RRefError::Opaque`] if the value has no encoding; any
    /// other [`RRefError`] if the request fails.
    pub fn to_here(&self, timeout: impl Into<Option<Duration>>) -> Result<T, RRefError> {
        let fetch = self.cell.here()?.fetch(&self.cell, timeout.into())?;
        fetch.wait_or_failure(&self.cell)
    }
}

impl<T: DeserializeOwned + Clone + Send + 'static> RRef<T> {
    /// [`RRef::to_here`] without blocking.
    ///
    /// # Errors
    /// The errors that are known at once; the future returns later errors.
    pub fn fetch(&self, timeout: impl Into<Option<Duration>>) -> Result<RRefFuture<T>, RRefError> {
        let runtime = self.cell.here()?;
        Ok(runtime
            .fetch(&self.cell, timeout.into())?
            .into_future(runtime))
    }
}

fn typed<T: Send + Sync + 'static>(value: &Value) -> Result<Arc<T>, RRefError> {
    value.downcast().ok_or_else(|| {
        let what = format!(
            "the value is a `{}`, not a `{}`",
            value.type_name(),
            type_name::<T>()
        );
        RRefError::Refused(what.into())
    })
}

impl<T> Clone for RRef<T> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.cell))
    }
}

impl<T> PartialEq for RRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl<T> Eq for RRef<T> {}

impl<T> Hash for RRef<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl<T> fmt::Display for RRef<T> {
    /// Shows the reference like PyTorch.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cell.print())
    }
}

impl<T> fmt::Debug for RRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Works only while a message of this crate is packed; an error elsewhere.
impl<T> Serialize for RRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = packing::put(&self.cell).map_err(S::Error::custom)?;
        serializer.serialize_u32(number)
    }
}

/// Works only while a message of this crate is unpacked; an error elsewhere.
impl<'de, T> Deserialize<'de> for RRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        let cell = packing::take(number, type_name_of::<T>()).map_err(D::Error::custom)?;
        Ok(Self::of(cell))
    }
}
