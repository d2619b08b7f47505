//! The `async` functions that run here: their futures, polled on the agent's threads when they are woken.
//!
//! A future ends once: with its output, by a panic, at its call's deadline, or at the agent's end. Then it is
//! dropped, before its end is reported. It holds no thread while it waits.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, ProcessBound};
use rpc_agent::{AgentHandle, HandlerError, WorkerId, catch_panic};

use crate::places::Places;
use crate::value::Value;

/// How much later than its call's deadline a future ends: the caller's own error should be the first one, because it reports
/// whether the function may have run.
const GRACE: Duration = Duration::from_millis(100);

/// The future of a function's result.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;

/// Called once with the end of a future, on the thread that ended it.
pub(crate) type Done = Box<dyn FnOnce(Result<Result<Value, HandlerError>, Unfinished>) + Send>;

/// Why a future has no output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The message of the panic.
    Panicked(String),
    DeadlinePassed,
    AgentEnded,
    /// The caller has this number of functions here.
    TooMany(usize),
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(message) => f.write_str(message),
            Self::DeadlinePassed => {
                f.write_str("the caller's deadline passed before the function returned")
            }
            Self::AgentEnded => {
                f.write_str("the worker was shut down before the function returned")
            }
            Self::TooMany(running) => write!(
                f,
                "too many async functions run on this worker, {running} of them for this caller"
            ),
        }
    }
}

/// The futures of one agent.
pub(crate) struct PendingCalls {
    agent: AgentHandle,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    has_ended: bool,
    next_id: u64,
    /// The tasks, each with its caller.
    tasks: BTreeMap<TaskId, (WorkerId, Arc<Task>)>,
    places: Places,
    /// The time when a thread checks for passed deadlines.
    tick_at: Option<Instant>,
}

/// The due time of a task, and a count.
type TaskId = (Due, u64);

/// The time when a future ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    Never,
}

/// A future, which its wakers share. A forked child's copy is neither polled nor dropped.
struct Task(ProcessBound<PendingCall>);

struct PendingCall {
    id: TaskId,
    calls: Weak<PendingCalls>,
    state: Mutex<State>,
}

enum State {
    /// The future was not woken after the last poll.
    Waiting(Pending, Done),
    /// A thread is going to poll it.
    Scheduled(Pending, Done),
    Polling {
        is_woken: bool,
        /// Ends it after this poll.
        end: Option<Unfinished>,
    },
    Ended,
}

impl PendingCalls {
    pub(crate) fn new(agent: &AgentHandle) -> Arc<Self> {
        Arc::new(Self {
            agent: agent.clone(),
            table: Mutex::default(),
        })
    }

    /// Polls the future on this thread, which belongs to the agent, and later on others whenever it is woken.
    pub(crate) fn start(
        self: &Arc<Self>,
        caller: WorkerId,
        future: Pending,
        deadline: Deadline,
        done: Done,
    ) {
        // The call of a creation has its answer already, so a shutdown would not wait for it.
        let work = self.agent.begin_work();
        let done: Done = Box::new(move |result| {
            done(result);
            drop(work);
        });
        let mut table = self.lock();
        let place = match table.has_ended {
            true => Err(Unfinished::AgentEnded),
            false => table.places.take(caller).map_err(Unfinished::TooMany),
        };
        if let Err(refused) = place {
            drop(table);
            return finish(future, done, Err(refused));
        }
        let due = deadline.instant().and_then(|at| at.checked_add(GRACE));
        let id = (due.map_or(Due::Never, Due::At), table.next_id);
        table.next_id += 1;
        let task = Arc::new(Task(ProcessBound::new(PendingCall {
            id,
            calls: Arc::downgrade(self),
            state: Mutex::new(State::Scheduled(future, done)),
        })));
        table.tasks.insert(id, (caller, Arc::clone(&task)));
        let tick_at = table.schedule_tick();
        drop(table);
        self.tick_at(tick_at);
        task.poll();
    }

    /// Ends all futures, and those that are started later.
    pub(crate) fn end(&self) {
        let mut table = self.lock();
        table.has_ended = true;
        let tasks = std::mem::take(&mut table.tasks);
        drop(table);
        for (_, task) in tasks.into_values() {
            task.end(Unfinished::AgentEnded);
        }
    }

    fn tick_at(self: &Arc<Self>, at: Option<Instant>) {
        let Some(at) = at else { return };
        let calls = Arc::downgrade(self);
        self.agent.spawn_at(at, move || {
            if let Some(calls) = calls.upgrade() {
                calls.tick(at);
            }
        });
    }

    /// Ends the futures whose deadlines have passed.
    fn tick(self: &Arc<Self>, at: Instant) {
        let now = Instant::now();
        let mut table = self.lock();
        // A call with an earlier deadline may have replaced this tick.
        if table.tick_at != Some(at) {
            return;
        }
        table.tick_at = None;
        let mut passed = Vec::new();
        while let Some((id, _)) = table.tasks.first_key_value()
            && id.0 <= Due::At(now)
        {
            let id = *id;
            passed.extend(table.remove(id));
        }
        let next = table.schedule_tick();
        drop(table);
        self.tick_at(next);
        for task in passed {
            task.end(Unfinished::DeadlinePassed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // None of the program's code runs under this lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, id: TaskId) -> Option<Arc<Task>> {
        let (caller, task) = self.tasks.remove(&id)?;
        self.places.give_back(caller);
        Some(task)
    }

    /// The time of the first deadline, if no thread looks at that time or earlier. The tick counts as scheduled.
    fn schedule_tick(&mut self) -> Option<Instant> {
        let (Due::At(first), _) = *self.tasks.first_key_value()?.0 else {
            return None;
        };
        let is_earlier = self.tick_at.is_none_or(|at| first < at);
        is_earlier.then(|| *self.tick_at.insert(first))
    }
}

impl Task {
    fn poll(self: &Arc<Self>) {
        let Ok(call) = self.0.get() else { return };
        let polling = State::Polling {
            is_woken: false,
            end: None,
        };
        let mut state = call.lock();
        let (mut future, done) = match std::mem::replace(&mut *state, polling) {
            State::Scheduled(future, done) => (future, done),
            ended => {
                *state = ended;
                return;
            }
        };
        drop(state);
        let waker = Waker::from(Arc::clone(self));
        let polled = catch_panic(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        let result = match polled {
            Err(message) => Err(Unfinished::Panicked(message)),
            Ok(Poll::Ready(result)) => Ok(result),
            Ok(Poll::Pending) => {
                let mut state = call.lock();
                match std::mem::replace(&mut *state, State::Ended) {
                    State::Polling { end: Some(end), .. } => {
                        drop(state);
                        return finish(future, done, Err(end));
                    }
                    State::Polling { is_woken: true, .. } => {
                        *state = State::Scheduled(future, done);
                        drop(state);
                        return self.schedule();
                    }
                    _ => {
                        *state = State::Waiting(future, done);
                        return;
                    }
                }
            }
        };
        *call.lock() = State::Ended;
        if let Some(calls) = call.calls.upgrade() {
            calls.lock().remove(call.id);
        }
        finish(future, done, result);
    }

    /// Has a thread of the agent poll it. After the agent's end, none does: that has ended it.
    fn schedule(self: &Arc<Self>) {
        let calls = self.0.get().ok().and_then(|call| call.calls.upgrade());
        if let Some(calls) = calls {
            let task = Arc::clone(self);
            calls.agent.spawn(move || task.poll());
        }
    }

    fn end(&self, why: Unfinished) {
        let Ok(call) = self.0.get() else { return };
        let mut state = call.lock();
        match std::mem::replace(&mut *state, State::Ended) {
            State::Waiting(future, done) | State::Scheduled(future, done) => {
                drop(state);
                finish(future, done, Err(why));
            }
            State::Polling { is_woken, .. } => {
                let end = Some(why);
                *state = State::Polling { is_woken, end };
            }
            State::Ended => {}
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // Before the lock: in a forked child, a thread of the parent may hold it.
        let Ok(call) = self.0.get() else { return };
        let mut state = call.lock();
        match std::mem::replace(&mut *state, State::Ended) {
            State::Waiting(future, done) => {
                *state = State::Scheduled(future, done);
                drop(state);
                self.schedule();
            }
            State::Polling { end, .. } => {
                *state = State::Polling {
                    is_woken: true,
                    end,
                };
            }
            other => *state = other,
        }
    }
}

impl PendingCall {
    fn lock(&self) -> MutexGuard<'_, State> {
        // None of the program's code runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn finish(future: Pending, done: Done, result: Result<Result<Value, HandlerError>, Unfinished>) {
    if let Err(message) = catch_panic(|| drop(future)) {
        log::error!("the destructor of an async function panicked: {message}");
    }
    done(result);
}
