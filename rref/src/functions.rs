//! The registered functions: functions that make values, and methods that run on the values.
//!
//! Decoding the arguments and running the function are two steps: in between, the owners confirm the
//! references among the arguments.

use std::any::type_name;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use c10d_socket::Deadline;
use rpc_agent::{HandlerError, WorkerInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::async_functions::Pending;
use crate::rrefs::RRefs;
use crate::value::Value;

/// The length limit of a function name, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = rpc_agent::FUNCTION_NAME_BYTES_MAX;

/// The functions that other workers can run here. Register all of them before [`RRefs::register`].
///
/// ```
/// use std::sync::Mutex;
/// use rref::Functions;
///
/// let mut functions = Functions::new();
/// functions.register("zeros", |_, length: usize| Ok(Mutex::new(vec![0.0_f32; length])))?;
/// functions.register_method("add", |_, sums: &Mutex<Vec<f32>>, terms: Vec<f32>| {
///     let mut sums = sums.lock().map_err(|_| rpc_agent::HandlerError::new("the sums are poisoned"))?;
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
    /// Creates an empty set of functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a function. [`RRefs::call`] sends its result to the caller;
    /// [`RRefCall::remote`](crate::RRefCall::remote) keeps it here and returns a reference to it.
    ///
    /// Callers must use the same types: arguments travel as postcard, which does not name types, so a mismatch
    /// is mostly an error, but not always.
    ///
    /// # Errors
    /// [`FunctionError::Name`] for an invalid name, [`FunctionError::Taken`] if another function has the name.
    pub fn register<A, R, F>(&mut self, name: &str, function: F) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + Sync + 'static,
        F: Fn(&CallContext, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        self.insert_plain(name, function, Value::of)
    }

    /// [`Functions::register`] for an `async` function: while it awaits, it holds no thread, so a worker can serve
    /// more calls at a time than it has threads.
    ///
    /// An async runtime is not needed. The future is polled on the agent's threads: first on the thread that serves the
    /// request, and again whenever its waker is called, from any thread. It can await the futures of calls
    /// ([`RRefCall::send`](crate::RRefCall::send), [`RRef::fetch`](crate::RRef::fetch)), and the futures of any
    /// other library that needs no runtime.
    ///
    /// The future is dropped where it awaits when the caller's deadline passes, and when the agent ends, so
    /// a destructor has to undo its effects. A creation has no deadline. A worker has at most 65,536 of these futures at a
    /// time, and refuses further calls.
    ///
    /// ```
    /// use rpc_agent::HandlerError;
    /// use rref::{CallContext, Functions, RRef};
    ///
    /// /// Fetches both numbers at the same time.
    /// async fn sum(_: CallContext, (a, b): (RRef<i64>, RRef<i64>)) -> Result<i64, HandlerError> {
    ///     let (a, b) = (a.fetch(None)?, b.fetch(None)?);
    ///     Ok(a.await? + b.await?)
    /// }
    ///
    /// let mut functions = Functions::new();
    /// functions.register_async("sum", sum)?;
    /// # Ok::<(), rref::FunctionError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Functions::register`].
    pub fn register_async<A, R, F, P>(
        &mut self,
        name: &str,
        function: F,
    ) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + Sync + 'static,
        F: Fn(CallContext, A) -> P + Send + Sync + 'static,
        P: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.insert_prepared(name, false, move |arguments: A| {
            let function = Arc::clone(&function);
            Box::new(move |context, _| Ok(Made::later(function(context, arguments))))
        })
    }

    /// [`Functions::register`] for a result that never leaves its owner, such as one without an encoding:
    /// other workers can hold references to it and run methods on it.
    ///
    /// # Errors
    /// The errors of [`Functions::register`].
    pub fn register_opaque<A, R, F>(&mut self, name: &str, function: F) -> Result<(), FunctionError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Send + Sync + 'static,
        F: Fn(&CallContext, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        self.insert_plain(name, function, Value::opaque)
    }

    /// Registers a method: a function of a value of this worker and of arguments, for
    /// [`RRef::call`](crate::RRef::call). Methods of one value may run concurrently, so a value that changes needs
    /// its own lock.
    ///
    /// # Errors
    /// The errors of [`Functions::register`].
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
        self.insert_prepared(name, true, move |arguments: A| {
            let function = Arc::clone(&function);
            Box::new(move |context, on| {
                let on: Arc<T> = target(on)?;
                let made = function(&context, &on, arguments);
                made.map(Value::of).map(Made::Now)
            })
        })
    }

    /// [`Functions::register_async`] for a method: the future shares the value, which lives until the future ends.
    ///
    /// # Errors
    /// The errors of [`Functions::register`].
    pub fn register_async_method<T, A, R, F, P>(
        &mut self,
        name: &str,
        function: F,
    ) -> Result<(), FunctionError>
    where
        T: Send + Sync + 'static,
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + Sync + 'static,
        F: Fn(CallContext, Arc<T>, A) -> P + Send + Sync + 'static,
        P: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.insert_prepared(name, true, move |arguments: A| {
            let function = Arc::clone(&function);
            Box::new(move |context, on| Ok(Made::later(function(context, target(on)?, arguments))))
        })
    }

    /// Returns the registered names, in no particular order.
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
        self.insert_prepared(name, false, move |arguments: A| {
            let function = Arc::clone(&function);
            Box::new(move |context, _| {
                let made = function(&context, arguments);
                made.map(into_value).map(Made::Now)
            })
        })
    }

    /// Inserts a function whose arguments are decoded before it is prepared.
    fn insert_prepared<A: DeserializeOwned>(
        &mut self,
        name: &str,
        is_method: bool,
        prepare: impl Fn(A) -> Prepared + Send + Sync + 'static,
    ) -> Result<(), FunctionError> {
        let prepare = move |arguments: &[u8]| decode(arguments).map(&prepare);
        self.insert(name, is_method, Box::new(prepare))
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

/// The error of a function that was not registered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The name is empty, or longer than [`FUNCTION_NAME_BYTES_MAX`].
    #[error("a function name has 1 to {FUNCTION_NAME_BYTES_MAX} bytes, this one has {bytes}")]
    Name {
        /// The length of the name, in bytes.
        bytes: usize,
    },
    /// Another function has this name.
    #[error("a function named `{name}` is already registered")]
    Taken {
        /// The name that was registered twice.
        name: Arc<str>,
    },
}

c10d_socket::debug_as_display!(FunctionError);

/// The context of a running function: the request that it serves.
///
/// ```
/// use rref::{CallContext, Functions};
///
/// let mut functions = Functions::new();
/// functions.register("greet", |context: &CallContext, name: String| {
///     Ok(format!("hello {name}, from the caller {}", context.caller()))
/// })?;
/// # Ok::<(), rref::FunctionError>(())
/// ```
#[derive(Debug)]
pub struct CallContext {
    pub(crate) rrefs: RRefs,
    pub(crate) caller: WorkerInfo,
    pub(crate) deadline: Deadline,
}

impl CallContext {
    /// Returns the references of this worker, to create and call other references.
    #[must_use]
    pub const fn rrefs(&self) -> &RRefs {
        &self.rrefs
    }

    /// Returns the worker that made the request.
    #[must_use]
    pub const fn caller(&self) -> &WorkerInfo {
        &self.caller
    }

    /// Returns the deadline of the call; [`Deadline::NEVER`] for a creation.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline
    }
}

fn decode<A: DeserializeOwned>(arguments: &[u8]) -> Result<A, HandlerError> {
    rpc_agent::typed::decode(arguments)
        .map_err(|error| HandlerError::new(format!("wrong arguments: {error}")))
}

/// The value that a method runs on.
fn target<T: Send + Sync + 'static>(on: Option<&Value>) -> Result<Arc<T>, HandlerError> {
    on.and_then(Value::downcast::<T>).ok_or_else(|| {
        HandlerError::new(format!(
            "the method is for a `{}`, the value is a `{}`",
            type_name::<T>(),
            on.map_or("nothing", Value::type_name)
        ))
    })
}

/// The result of a function, or the future of its result.
pub(crate) enum Made {
    Now(Value),
    /// The function is `async`.
    Later(Pending),
}

impl Made {
    fn later<R: Serialize + Send + Sync + 'static>(
        returned: impl Future<Output = Result<R, HandlerError>> + Send + 'static,
    ) -> Self {
        Self::Later(Box::pin(async move { returned.await.map(Value::of) }))
    }
}

/// A function with its decoded arguments. A method takes the value that it runs on.
pub(crate) type Prepared =
    Box<dyn FnOnce(CallContext, Option<&Value>) -> Result<Made, HandlerError> + Send>;

type Prepare = dyn Fn(&[u8]) -> Result<Prepared, HandlerError> + Send + Sync;

/// A registered function.
pub(crate) struct Function {
    pub(crate) name: Arc<str>,
    pub(crate) is_method: bool,
    prepare: Box<Prepare>,
}

impl Function {
    /// Decodes the arguments, while their message is unpacked.
    pub(crate) fn prepare(&self, arguments: &[u8]) -> Result<Prepared, HandlerError> {
        (self.prepare)(arguments)
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
