//! The functions that other workers may call, each under its name.
//!
//! A peer can run only the functions that are registered here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::context::{Context, Reply};
use crate::error::HandlerError;
use crate::peer::{FunctionId, Functions, RegistryId};

/// The longest name of a function, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 255;

/// A function whose average run takes longer is slow: another thread takes over the sockets while it
/// runs. Faster ones are not worth a hand-over between threads.
const SLOW: Duration = Duration::from_micros(100);

/// The functions that other workers may call. It cannot change once the agent has started.
///
/// ```
/// use rpc_agent::{HandlerError, Registry};
///
/// let mut registry = Registry::new();
/// registry.register("double", |_, payload| {
///     let number: u8 = *payload.first().ok_or_else(|| HandlerError::new("no number given"))?;
///     Ok(vec![number.wrapping_mul(2)])
/// })?;
/// assert!(registry.register("double", |_, _| Ok(Vec::new())).is_err());
/// # Ok::<(), rpc_agent::RegistryError>(())
/// ```
#[derive(Default)]
pub struct Registry {
    names: Functions,
    /// The functions in the order of their ids.
    functions: Vec<Function>,
}

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the identity of this registry. [`AgentHandle::registry_id`](crate::AgentHandle::registry_id) of an
    /// agent that was started with this registry is equal.
    #[must_use]
    pub fn id(&self) -> RegistryId {
        self.names.registry.clone()
    }

    /// Registers a function that takes the request's bytes and returns the answer's bytes.
    ///
    /// It runs on a thread of the agent, in parallel with other functions and with itself. It may call
    /// any worker, its caller and its own worker included, and wait for the answer. If it panics, the
    /// caller receives [`RpcError::Remote`](crate::RpcError::Remote).
    ///
    /// # Errors
    /// [`RegistryError`] if the name is empty, too long or already registered.
    pub fn register<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, &[u8]) -> Result<Vec<u8>, HandlerError> + Send + Sync + 'static,
    {
        self.register_bytes(name, move |context, payload| {
            function(context, &payload).map(Bytes::from)
        })
    }

    /// [`Registry::register`] without copies: for a function that keeps parts of the request, or returns
    /// shared bytes.
    ///
    /// A small request is a slice of a receive buffer of up to 64 KiB. The whole buffer stays in memory
    /// while the slice is kept.
    ///
    /// # Errors
    /// The errors of [`Registry::register`].
    pub fn register_bytes<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, Bytes) -> Result<Bytes, HandlerError> + Send + Sync + 'static,
    {
        self.insert(name, Body::Direct(Box::new(function)))
    }

    /// Registers a function that answers later through its [`Reply`], from any thread.
    ///
    /// Use it for functions that wait for something: they occupy no thread of the agent while they wait. If the reply
    /// is dropped without an answer, the caller receives an error.
    ///
    /// # Errors
    /// The errors of [`Registry::register`].
    pub fn register_deferred<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, Bytes, Reply) + Send + Sync + 'static,
    {
        self.insert(name, Body::Deferred(Box::new(function)))
    }

    /// Returns the names of the functions, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions().names()
    }

    /// The names with the ids for [`Registry::function`].
    pub(crate) fn functions(&self) -> &Functions {
        &self.names
    }

    /// A function by one of this registry's own ids.
    pub(crate) fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.0 as usize]
    }

    fn insert(&mut self, name: &str, body: Body) -> Result<(), RegistryError> {
        if name.is_empty() || name.len() > FUNCTION_NAME_BYTES_MAX {
            return Err(RegistryError::Name { bytes: name.len() });
        }
        let name: Arc<str> = name.into();
        if self.names.add(Arc::clone(&name)).is_none() {
            return Err(RegistryError::Taken { name });
        }
        self.functions.push(Function {
            body,
            mean_run_ns: AtomicU64::new(0),
        });
        Ok(())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// The error of a function that was not registered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name is empty, or longer than [`FUNCTION_NAME_BYTES_MAX`].
    #[error("a function's name has 1 to {FUNCTION_NAME_BYTES_MAX} bytes, this one has {bytes}")]
    Name {
        /// Length of the refused name.
        bytes: usize,
    },
    /// Another function has this name.
    #[error("a function named `{name}` is registered already")]
    Taken {
        /// The name of both functions.
        name: Arc<str>,
    },
}

c10d_socket::debug_as_display!(RegistryError);

type Direct = dyn Fn(&Context, Bytes) -> Result<Bytes, HandlerError> + Send + Sync;
type Deferred = dyn Fn(&Context, Bytes, Reply) + Send + Sync;

pub(crate) enum Body {
    Direct(Box<Direct>),
    Deferred(Box<Deferred>),
}

/// A registered function, and its average run time.
pub(crate) struct Function {
    pub(crate) body: Body,
    /// A moving average over about 8 runs. The loss of an update to another thread does no harm.
    mean_run_ns: AtomicU64,
}

impl Function {
    /// Whether another thread should take over the sockets while this function runs.
    pub(crate) fn is_slow(&self) -> bool {
        u128::from(self.mean_run_ns.load(Ordering::Relaxed)) >= SLOW.as_nanos()
    }

    pub(crate) fn ran_for(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mean_ns = self.mean_run_ns.load(Ordering::Relaxed);
        self.mean_run_ns
            .store(mean_ns - mean_ns / 8 + time_ns / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_name_is_unique_and_has_1_to_255_bytes() {
        let mut registry = Registry::new();
        assert_eq!(registry.register("f", |_, _| Ok(Vec::new())), Ok(()));
        let longest = "n".repeat(255);
        assert_eq!(registry.register_deferred(&longest, |_, _, _| {}), Ok(()));
        assert_eq!(
            registry.register_deferred("f", |_, _, _| {}),
            Err(RegistryError::Taken { name: "f".into() })
        );
        for name in ["", &"n".repeat(256)] {
            assert_eq!(
                registry.register(name, |_, _| Ok(Vec::new())),
                Err(RegistryError::Name { bytes: name.len() })
            );
        }
        assert_eq!(registry.names().count(), 2);
        assert!(registry.functions().find("g").is_none());
    }

    #[test]
    fn a_function_is_slow_by_its_average_run_time_and_can_become_fast_again() {
        let mut registry = Registry::new();
        registry.register("f", |_, _| Ok(Vec::new())).unwrap();
        let function = registry.function(registry.functions().find("f").unwrap());
        assert!(!function.is_slow());
        function.ran_for(Duration::from_millis(10));
        assert!(function.is_slow());
        for _ in 0..40 {
            function.ran_for(Duration::from_micros(1));
        }
        assert!(!function.is_slow());
    }
}
