//! The functions that other workers may call, by name.
//!
//! Knows neither how a call arrives nor where its answer goes. A function that is not registered here
//! cannot be run by a peer, whatever it sends.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::context::{Context, Reply};
use crate::handler_error::HandlerError;

/// The longest function name, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 255;

/// A run longer than this marks a function as slow, until it is fast again on average.
const SLOW: Duration = Duration::from_micros(100);

/// The functions that other workers may call. Filled before the agent starts, fixed from then on.
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
    functions: HashMap<Arc<str>, Arc<Function>>,
    id: RegistryId,
}

/// Which [`Registry`] it is: for what is registered in one, and finds an agent later, to tell whether that was
/// started with it.
#[derive(Debug, Clone, Default)]
pub struct RegistryId(Arc<u8>);

impl PartialEq for RegistryId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RegistryId {}

impl Registry {
    /// No function at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which registry it is; an agent says the same of the one that it was started with.
    #[must_use]
    pub fn id(&self) -> RegistryId {
        self.id.clone()
    }

    /// Registers a function of the request's bytes that returns the answer's bytes.
    ///
    /// It runs on a thread of the agent, in parallel with others and with itself. It may call any
    /// worker, its caller and its own worker included, and wait for the result. A panic is an error at
    /// the caller.
    ///
    /// # Errors
    /// [`RegistryError`]: the name is empty, too long or taken.
    pub fn register<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, &[u8]) -> Result<Vec<u8>, HandlerError> + Send + Sync + 'static,
    {
        self.register_bytes(name, move |context, payload| {
            function(context, &payload).map(Bytes::from)
        })
    }

    /// [`Registry::register`] for a function that keeps parts of the request, or returns what is shared:
    /// nothing is copied on the way in or out.
    ///
    /// A small request is a piece of what was received along with it, some 64 KiB at most, all of which
    /// stays in memory as long as the piece is kept.
    ///
    /// # Errors
    /// As [`Registry::register`].
    pub fn register_bytes<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, Bytes) -> Result<Bytes, HandlerError> + Send + Sync + 'static,
    {
        self.insert(name, Body::Direct(Box::new(function)))
    }

    /// Registers a function that answers later, through its [`Reply`], from whatever thread.
    ///
    /// For what waits for something: no thread of the agent is occupied meanwhile. A reply that is
    /// dropped without an answer is an error at the caller.
    ///
    /// # Errors
    /// As [`Registry::register`].
    pub fn register_deferred<F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        F: Fn(&Context, Bytes, Reply) + Send + Sync + 'static,
    {
        self.insert(name, Body::Deferred(Box::new(function)))
    }

    /// The names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(|name| &**name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.get(name)
    }

    fn insert(&mut self, name: &str, body: Body) -> Result<(), RegistryError> {
        if name.is_empty() || name.len() > FUNCTION_NAME_BYTES_MAX {
            return Err(RegistryError::Name { bytes: name.len() });
        }
        let name: Arc<str> = name.into();
        if self.functions.contains_key(&name) {
            return Err(RegistryError::Taken { name });
        }
        let function = Function {
            name: Arc::clone(&name),
            body,
            usual_run_ns: AtomicU64::new(0),
        };
        self.functions.insert(name, Arc::new(function));
        Ok(())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}

/// Why a function was not registered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name has no byte, or too many.
    #[error("a function's name has 1 to {FUNCTION_NAME_BYTES_MAX} bytes, this one has {bytes}")]
    Name {
        /// Its length.
        bytes: usize,
    },
    /// There is a function of this name.
    #[error("a function named `{name}` is registered already")]
    Taken {
        /// The name.
        name: Arc<str>,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

type Direct = dyn Fn(&Context, Bytes) -> Result<Bytes, HandlerError> + Send + Sync;
type Deferred = dyn Fn(&Context, Bytes, Reply) + Send + Sync;

pub(crate) enum Body {
    Direct(Box<Direct>),
    Deferred(Box<Deferred>),
}

/// A registered function, and how long it usually runs.
pub(crate) struct Function {
    pub(crate) name: Arc<str>,
    pub(crate) body: Body,
    /// A moving average. Lost updates of threads that write at the same time do no harm.
    usual_run_ns: AtomicU64,
}

impl Function {
    /// Whether another thread had better look after the sockets while this one runs.
    pub(crate) fn is_slow(&self) -> bool {
        u128::from(self.usual_run_ns.load(Ordering::Relaxed)) >= SLOW.as_nanos()
    }

    pub(crate) fn ran_for(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let usual = self.usual_run_ns.load(Ordering::Relaxed);
        self.usual_run_ns
            .store(usual - usual / 8 + time / 8, Ordering::Relaxed);
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("usual_run_ns", &self.usual_run_ns)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once_and_has_1_to_255_bytes() {
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
        assert!(registry.find("g").is_none());
    }

    #[test]
    fn a_function_is_slow_by_its_usual_time_and_gets_fast_again() {
        let mut registry = Registry::new();
        registry.register("f", |_, _| Ok(Vec::new())).unwrap();
        let function = registry.find("f").unwrap();
        assert!(!function.is_slow());
        function.ran_for(Duration::from_millis(10));
        assert!(function.is_slow());
        for _ in 0..40 {
            function.ran_for(Duration::from_micros(1));
        }
        assert!(!function.is_slow());
    }
}
