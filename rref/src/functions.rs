//! The functions that make values, and those that are run on them, by name.
//!
//! Knows neither how a function is asked for nor what becomes of its result. Decoding the arguments and
//! running are two steps: between them the references among the arguments are confirmed.

use std::any::type_name;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use c10d_socket::Deadline;
use rpc_agent::{HandlerError, WorkerInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::runtime::RRefs;
use crate::value::Value;

/// The longest function name, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = rpc_agent::FUNCTION_NAME_BYTES_MAX;

/// The functions that others may have run here. Filled before [`RRefs::register`], fixed from then on.
///
/// ```
/// use std::sync::Mutex;
/// use rref::Functions;
///
/// let mut functions = Functions::new();
/// functions.register("zeros", |_, length: usize| Ok(Mutex::new(vec![0.0_f32; length])))?;
/// functions.register_method("add", |_, sums: &Mutex<Vec<f32>>, terms: Vec<f32>| {
///     let mut sums = sums.lock().map_err(|_| rpc_agent::HandlerError::new("a sum was given up"))?;
///     sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
///     Ok(())
/// })?;
/// # Ok::<(), rref::FunctionError>(())
/// ```
#[derive(Default)]
pub struct Functions {
    by_name: HashMap<Arc<str>, Arc<Function>>,
}

impl Functions {
    /// None at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a function of values. Its result can be sent to who called it, or stay here with a
    /// reference to it made by [`RRefs::remote`].
    ///
    /// Who calls it must mean the same types: arguments travel as postcard, which does not name them, and
    /// what does not fit is found out mostly, but not always.
    ///
    /// # Errors
    /// [`FunctionError`].
    pub fn register<A, R, F>(&mut self, name: &str, function: F) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + Sync + 'static,
        F: Fn(&CallContext, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        self.insert_plain(name, function, Value::of)
    }

    /// [`Functions::register`] for a result that never leaves its owner, as one that has no encoding: it
    /// can be referred to, and methods run on it.
    ///
    /// # Errors
    /// [`FunctionError`].
    pub fn register_opaque<A, R, F>(&mut self, name: &str, function: F) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Send + Sync + 'static,
        F: Fn(&CallContext, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        self.insert_plain(name, function, Value::opaque)
    }

    /// Registers a function of a value here and of arguments, for [`crate::RRef::rpc_sync`] and its like.
    /// Several may run at a time, so what changes is behind a lock of the value's own.
    ///
    /// # Errors
    /// [`FunctionError`].
    pub fn register_method<T, A, R, F>(
        &mut self,
        name: &str,
        function: F,
    ) -> Result<(), FunctionError>
    where
        T: Send + Sync + 'static,
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + Sync + 'static,
        F: Fn(&CallContext, &T, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        self.insert(
            name,
            true,
            Box::new(move |decode| {
                let arguments: A = decode.decode()?;
                let function = Arc::clone(&function);
                Ok(Box::new(move |context, on| {
                    let on = on.and_then(Value::downcast::<T>).ok_or_else(|| {
                        HandlerError::new(format!(
                            "the function is one of a `{}`, the value is a `{}`",
                            type_name::<T>(),
                            on.map_or("nothing", Value::type_name)
                        ))
                    })?;
                    function(context, &on, arguments).map(Value::of)
                }))
            }),
        )
    }

    /// The names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Function>> {
        self.by_name.get(name)
    }

    fn insert_plain<A, R, F>(
        &mut self,
        name: &str,
        function: F,
        into_value: fn(R) -> Value,
    ) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Send + Sync + 'static,
        F: Fn(&CallContext, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        self.insert(
            name,
            false,
            Box::new(move |decode| {
                let arguments: A = decode.decode()?;
                let function = Arc::clone(&function);
                Ok(Box::new(move |context, _| {
                    function(context, arguments).map(into_value)
                }))
            }),
        )
    }

    fn insert(
        &mut self,
        name: &str,
        is_method: bool,
        prepare: Box<Prepare>,
    ) -> Result<(), FunctionError> {
        if name.is_empty() || name.len() > FUNCTION_NAME_BYTES_MAX {
            return Err(FunctionError::Name { bytes: name.len() });
        }
        let name: Arc<str> = name.into();
        if self.by_name.contains_key(&name) {
            return Err(FunctionError::Taken { name });
        }
        let function = Function {
            name: Arc::clone(&name),
            is_method,
            prepare,
        };
        self.by_name.insert(name, Arc::new(function));
        Ok(())
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

/// Why a function was not registered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
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
impl fmt::Debug for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a function is told about why it runs.
#[derive(Debug)]
pub struct CallContext {
    pub(crate) rrefs: RRefs,
    pub(crate) caller: WorkerInfo,
    pub(crate) deadline: Deadline,
}

impl CallContext {
    /// The references of this worker, to make and to call others.
    #[must_use]
    pub const fn rrefs(&self) -> &RRefs {
        &self.rrefs
    }

    /// The worker that asked for it.
    #[must_use]
    pub const fn caller(&self) -> &WorkerInfo {
        &self.caller
    }

    /// When the caller gives up; never for the making of a value.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline
    }
}

/// Decodes the arguments of one request.
pub(crate) struct Arguments<'a>(pub(crate) &'a [u8]);

impl Arguments<'_> {
    fn decode<A: DeserializeOwned>(&self) -> Result<A, HandlerError> {
        rpc_agent::typed::decode(self.0)
            .map_err(|error| HandlerError::new(format!("wrong arguments: {error}")))
    }
}

/// A function with its arguments, ready to run on a value or on none.
pub(crate) type Prepared =
    Box<dyn FnOnce(&CallContext, Option<&Value>) -> Result<Value, HandlerError> + Send>;

type Prepare = dyn Fn(&Arguments<'_>) -> Result<Prepared, HandlerError> + Send + Sync;

/// A registered function.
pub(crate) struct Function {
    pub(crate) name: Arc<str>,
    pub(crate) is_method: bool,
    prepare: Box<Prepare>,
}

impl Function {
    /// Decodes the arguments. References among them are taken from the message that is being unpacked.
    pub(crate) fn prepare(&self, arguments: &[u8]) -> Result<Prepared, HandlerError> {
        (self.prepare)(&Arguments(arguments))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("is_method", &self.is_method)
            .finish_non_exhaustive()
    }
}
