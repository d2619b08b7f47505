//! A reference as the program holds it.
//!
//! Clones share one cell, and the cell is what the context counts. Dropping the last clone only leaves a
//! note: no message is sent and no lock of the context taken where a handle happens to be dropped.

use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rpc_agent::{CallOptions, RpcFuture, WorkerId, WorkerInfo};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::carry;
use crate::context::{Handle, UserStatus};
use crate::error::RRefError;
use crate::future::RRefFuture;
use crate::id::{ForkId, RRefId};
use crate::protocol::{ForkData, TYPE_NAME_BYTES_MAX, cut};
use crate::runtime::Runtime;
use crate::value::Value;

/// What all clones of a handle share.
pub(crate) struct Cell {
    runtime: Arc<Runtime>,
    handle: Handle,
    rref: RRefId,
    owner: WorkerId,
    type_name: Arc<str>,
    /// Complete when the owner has answered for this user, or could not be asked; once somebody waits.
    answered: OnceLock<RpcFuture<()>>,
}

impl Cell {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        handle: Handle,
        rref: RRefId,
        owner: WorkerId,
        type_name: Arc<str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            handle,
            rref,
            owner,
            type_name,
            answered: OnceLock::new(),
        })
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) const fn rref(&self) -> RRefId {
        self.rref
    }

    pub(crate) const fn owner(&self) -> WorkerId {
        self.owner
    }

    pub(crate) fn type_name(&self) -> &str {
        &self.type_name
    }

    pub(crate) const fn user(&self) -> Option<ForkId> {
        match self.handle {
            Handle::User(fork) => Some(fork),
            Handle::Owner(_) => None,
        }
    }

    /// Complete when the owner has answered for this user, or could not be asked: what it said is the
    /// user's status then.
    pub(crate) fn answered(&self, user: ForkId) -> &RpcFuture<()> {
        self.answered.get_or_init(|| self.runtime.answered(user))
    }

    /// Forks the reference for a message of `runtime` to a worker.
    pub(crate) fn fork(&self, runtime: &Arc<Runtime>, to: WorkerId) -> Result<ForkData, RRefError> {
        if !Arc::ptr_eq(runtime, &self.runtime) {
            return Err(RRefError::Foreign { rref: self.rref });
        }
        runtime.fork(self, to)
    }

    pub(crate) fn print(&self) -> String {
        let rref = self.rref;
        match self.handle {
            Handle::Owner(_) => format!("OwnerRRef({rref})"),
            Handle::User(fork) => format!("UserRRef(RRefId = {rref}, ForkId = {fork})"),
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.runtime.let_go(self.handle);
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

/// A reference to a value of type `T`, which is on its owner and nowhere else.
///
/// Clones are cheap and local: they are one user together, and when the last of them is dropped the owner
/// is told. The value is freed when no worker has a reference any more. Dropping never blocks.
///
/// In the arguments and results of calls made by this crate ([`RRefs::call`](crate::RRefs::call),
/// [`RRef::rpc_sync`] and so on) a reference can be any field of a serde type; the receiver gets a
/// reference of its own. A function runs only when the owners have confirmed all references among its
/// arguments. Elsewhere, in the agent's own calls too, a reference has no encoding: serializing one is an
/// error.
///
/// References that point at each other, from inside of the values, are never freed before the shutdown,
/// which reports them.
pub struct RRef<T> {
    cell: Arc<Cell>,
    /// The value is on the owner: a handle can be sent between threads whatever `T` is.
    value: PhantomData<fn() -> T>,
}

impl<T> RRef<T> {
    pub(crate) const fn of(cell: Arc<Cell>) -> Self {
        Self {
            cell,
            value: PhantomData,
        }
    }

    /// The reference's name, the same for all who have it.
    #[must_use]
    pub fn id(&self) -> RRefId {
        self.cell.rref
    }

    /// The name of this worker's share in it; `None` on the owner.
    #[must_use]
    pub fn fork_id(&self) -> Option<ForkId> {
        self.cell.user()
    }

    /// The worker that has the value.
    #[must_use]
    pub fn owner(&self) -> WorkerInfo {
        self.cell.runtime.worker(self.cell.owner)
    }

    /// Whether the value is here.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.cell.runtime.is_me(self.cell.owner)
    }

    /// What the value's type is called.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.cell.type_name
    }

    /// Whether the owner knows of this reference; true on the owner. It does not say that there is a value:
    /// the function that makes it runs after that, and may fail. It is false after a creation that the owner
    /// did not accept, and again when the owner is lost or the group has ended.
    #[must_use]
    pub fn confirmed(&self) -> bool {
        self.cell.user().is_none_or(|fork| {
            matches!(self.cell.runtime.status(fork), Some(UserStatus::Confirmed))
        })
    }

    /// Whether the creation was not answered in time: then all that is asked of the reference fails at once,
    /// with [`RRefError::CreationTimedOut`]. It becomes false again if the owner says that it has accepted the
    /// creation all the same. PyTorch's `getTimedOut`, which stays true.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        let user = self.cell.user();
        user.is_some_and(|fork| self.cell.runtime.has_timed_out(fork))
    }

    /// Waits until the owner knows of this reference, for at most `timeout`; zero: as long as it takes to
    /// know that it never will.
    ///
    /// # Errors
    /// [`RRefError`]: the creation failed, the owner was lost, or [`RRefError::TimedOut`].
    pub fn wait_confirmed(&self, timeout: Duration) -> Result<(), RRefError> {
        self.cell.runtime.wait_confirmed(&self.cell, timeout)
    }
}

impl<T: Send + Sync + 'static> RRef<T> {
    /// The value itself, on the owner: shared, not copied. Waits until it is there, for at most
    /// `timeout`; zero: for ever.
    ///
    /// May be called from a function that the agent runs.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] elsewhere; [`RRefError::Creation`] if the function that makes it failed;
    /// [`RRefError::TimedOut`].
    pub fn local_value(&self, timeout: Duration) -> Result<Arc<T>, RRefError> {
        self.check_owner("localValue")?;
        let value = self.cell.runtime.local_value(self.cell.rref, timeout)?;
        typed(&value)
    }

    /// A future of the value itself, on the owner: shared, neither copied nor encoded. PyTorch's `getFuture`.
    /// It fails with the error of the function that makes the value or the one given by [`RRef::set_error`],
    /// and with [`RRefError::Deleted`] when no reference is left.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] elsewhere, and [`RRefError::Shutdown`].
    pub fn value_future(&self) -> Result<RRefFuture<Arc<T>>, RRefError> {
        self.check_owner("getFuture")?;
        self.cell
            .runtime
            .value_future(self.cell.rref, |value| typed(&value))
    }

    /// Whether there is a value, or the error that there is none, on the owner. Never blocks. PyTorch's
    /// `hasValue`; see [`RRef::wait_ready`] for other workers.
    ///
    /// # Errors
    /// [`RRefError::NotOwner`] elsewhere, and [`RRefError::Shutdown`].
    pub fn has_value(&self) -> Result<bool, RRefError> {
        self.check_owner("hasValue")?;
        self.cell.runtime.has_value(self.cell.rref)
    }

    /// [`RRef::set_value`] for a value that never leaves its owner.
    ///
    /// # Errors
    /// As [`RRef::set_value`].
    pub fn set_value_opaque(&self, value: T) -> Result<(), RRefError> {
        self.give(Ok(Value::opaque(value)))
    }

    /// Gives a reference of [`RRefs::rref_without_value`](crate::RRefs::rref_without_value) an error instead of
    /// a value: all that ask for the value get [`RRefError::Creation`] with this message. `false` if the
    /// reference has a value or an error already, which stays: as in PyTorch, an error may come too late.
    ///
    /// # Errors
    /// As [`RRef::set_value`], without [`RRefError::AlreadySet`].
    pub fn set_error(&self, message: impl Into<String>) -> Result<bool, RRefError> {
        match self.give(Err(message.into().into())) {
            Ok(()) => Ok(true),
            Err(RRefError::AlreadySet { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn give(&self, result: Result<Value, Arc<str>>) -> Result<(), RRefError> {
        self.check_owner(match result {
            Ok(_) => "setValue",
            Err(_) => "setError",
        })?;
        self.cell.runtime.give(self.cell.rref, result)
    }

    fn check_owner(&self, operation: &'static str) -> Result<(), RRefError> {
        if self.is_owner() {
            return Ok(());
        }
        Err(RRefError::NotOwner {
            rref: self.cell.print().into(),
            operation,
            me: self.cell.runtime.agent.me().clone(),
            owner: self.owner(),
        })
    }

    /// Waits until the owner has the value, without fetching it, for at most `timeout`. Zero checks once without
    /// waiting for the value: the answer takes a round trip to the owner. [`Duration::MAX`] waits without limit.
    ///
    /// # Errors
    /// [`RRefError::TimedOut`] if the value is missing then; [`RRefError::Creation`] if there will be none;
    /// others of [`RRefError`].
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), RRefError> {
        let runtime = &self.cell.runtime;
        if timeout.is_zero() {
            return runtime.check_value(&self.cell);
        }
        runtime.await_value(&self.cell, timeout)
    }

    /// Has a registered method run with the value and these arguments, where the value is, and waits for
    /// its result, for at most the agent's timeout. After that the method may go on.
    ///
    /// ```no_run
    /// # fn f(counter: &rref::RRef<std::sync::Mutex<u64>>) -> Result<(), rref::RRefError> {
    /// let count: u64 = counter.rpc_sync("count up", 1_u64)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RRefError`].
    pub fn rpc_sync<A: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        arguments: A,
    ) -> Result<R, RRefError> {
        self.rpc_sync_with(method, arguments, CallOptions::default())
    }

    /// [`RRef::rpc_sync`] with options.
    ///
    /// # Errors
    /// [`RRefError`].
    pub fn rpc_sync_with<A: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<R, RRefError> {
        let runtime = &self.cell.runtime;
        let call = runtime.call_value(&self.cell, method, &arguments, options)?;
        call.wait(runtime)
    }

    /// [`RRef::rpc_sync`] without waiting.
    ///
    /// # Errors
    /// What is known at once; the rest is the future's.
    pub fn rpc_async<A: Serialize, R: DeserializeOwned + Clone + Send + 'static>(
        &self,
        method: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<RRefFuture<R>, RRefError> {
        let runtime = &self.cell.runtime;
        let call = runtime.call_value(&self.cell, method, &arguments, options)?;
        Ok(call.into_future(runtime))
    }

    /// Has a registered method run with the value and these arguments, where the value is, and its result
    /// kept there: returns a reference to that, at once.
    ///
    /// # Errors
    /// As [`RRefs::remote`](crate::RRefs::remote).
    pub fn remote<A: Serialize, R: Send + Sync + 'static>(
        &self,
        method: &str,
        arguments: A,
    ) -> Result<RRef<R>, RRefError> {
        let runtime = &self.cell.runtime;
        let created = runtime.create(
            self.cell.owner,
            Some(&self.cell),
            method,
            &arguments,
            type_name_of::<R>(),
            None,
        )?;
        Ok(RRef::of(created))
    }
}

impl<T: Serialize + Send + Sync + 'static> RRef<T> {
    /// Gives a reference of [`RRefs::rref_without_value`](crate::RRefs::rref_without_value) its value, once, on
    /// its owner. All that wait for it get it. Never blocks.
    ///
    /// # Errors
    /// [`RRefError::AlreadySet`]; [`RRefError::NotOwner`] elsewhere; [`RRefError::Refused`] if a function makes
    /// the value; [`RRefError::Shutdown`]. The value is dropped then.
    pub fn set_value(&self, value: T) -> Result<(), RRefError> {
        self.give(Ok(Value::of(value)))
    }
}

impl<T: DeserializeOwned> RRef<T> {
    /// A copy of the value. Waits until it is there, for at most `timeout`; zero: for ever.
    ///
    /// Each call fetches it again, and the owner encodes it again: the value of a `Mutex` when it is free.
    /// May be called from a function that the agent runs.
    ///
    /// # Errors
    /// [`RRefError`]. An error of the creation ends the wait at once, as the owner's death does.
    pub fn to_here(&self, timeout: Duration) -> Result<T, RRefError> {
        let runtime = &self.cell.runtime;
        let fetch = runtime.fetch(&self.cell, timeout)?;
        fetch.wait_or_failure(runtime, &self.cell)
    }
}

impl<T: DeserializeOwned + Clone + Send + 'static> RRef<T> {
    /// [`RRef::to_here`] without waiting.
    ///
    /// # Errors
    /// What is known at once; the rest is the future's.
    pub fn fetch(&self, timeout: Duration) -> Result<RRefFuture<T>, RRefError> {
        let runtime = &self.cell.runtime;
        Ok(runtime.fetch(&self.cell, timeout)?.into_future(runtime))
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

/// As the fork data of a value of this type have it.
pub(crate) fn type_name_of<T>() -> &'static str {
    cut(type_name::<T>(), TYPE_NAME_BYTES_MAX)
}

impl<T> Clone for RRef<T> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.cell))
    }
}

impl<T> PartialEq for RRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cell.rref == other.cell.rref
    }
}

impl<T> Eq for RRef<T> {}

impl<T> Hash for RRef<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.cell.rref.hash(state);
    }
}

impl<T> fmt::Display for RRef<T> {
    /// As PyTorch prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cell.print())
    }
}

impl<T> fmt::Debug for RRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Only for a message of this crate that is being packed; elsewhere an error.
impl<T> Serialize for RRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = carry::put(&self.cell).map_err(S::Error::custom)?;
        serializer.serialize_u32(number)
    }
}

/// Only from a message of this crate that is being unpacked; elsewhere an error.
impl<'de, T> Deserialize<'de> for RRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        let cell = carry::take(number, type_name_of::<T>()).map_err(D::Error::custom)?;
        Ok(Self::of(cell))
    }
}
