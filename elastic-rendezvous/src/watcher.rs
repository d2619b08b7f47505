//! The thread that waits for changes of the state, so that nobody has to.
//!
//! It decides nothing: it is told from which version on to look at which part, waits, and passes on
//! what it finds.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::{Part, StateWatch, Stored, Token, Watched};
use crate::error::RendezvousError;

/// The thread's name, and the longest that it waits before it looks whether it is to watch something
/// else: what it is to watch only changes along with what it watches, so that this hardly matters.
const THREAD: &str = "rendezvous-watch";
const SLICE: Duration = Duration::from_secs(5);

/// After an error it watches no more, so that a broken store is not asked without end.
pub(crate) type Found = Result<Option<Stored>, RendezvousError>;

/// Owns the thread; dropping it ends and joins it.
#[derive(Debug)]
pub(crate) struct Watcher {
    watch: Arc<dyn StateWatch>,
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Orders {
    next: Mutex<Order>,
    has_come: Condvar,
}

/// The number of the order, the version from which on to look, and the part to look at.
type Task = (u64, Option<Token>, Part);

#[derive(Debug, Default)]
enum Order {
    #[default]
    None,
    Watch(Task),
    End,
}

impl Watcher {
    /// Starts the thread. `found` is called on it with what was found on which order.
    pub(crate) fn start(
        watch: Arc<dyn StateWatch>,
        found: impl Fn(u64, Found) + Send + 'static,
    ) -> Result<Self, RendezvousError> {
        let orders = Arc::new(Orders::default());
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn({
                let (watch, orders) = (Arc::clone(&watch), Arc::clone(&orders));
                move || run(&*watch, &orders, found)
            })
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        Ok(Self {
            watch,
            orders,
            thread: Some(thread),
        })
    }

    /// From now on, looks for a change of `part` against the version `known`.
    pub(crate) fn order(&self, number: u64, known: Option<Token>, part: Part) {
        self.orders.give(Order::Watch((number, known, part)));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.orders.give(Order::End);
        self.watch.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

impl Orders {
    fn give(&self, order: Order) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*next, Order::End) {
            *next = order;
        }
        drop(next);
        self.has_come.notify_one();
    }

    /// The newest order, taken when there is one. `None`: the end.
    fn take(&self, present: Option<Task>) -> Option<Task> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut *next) {
                Order::End => {
                    *next = Order::End;
                    return None;
                }
                Order::Watch(task) => return Some(task),
                Order::None if present.is_some() => return present,
                Order::None => {
                    next = self
                        .has_come
                        .wait(next)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn run(watch: &dyn StateWatch, orders: &Orders, found: impl Fn(u64, Found)) {
    let mut present = None;
    while let Some((number, known, part)) = orders.take(present.take()) {
        match watch.wait(known.as_ref(), part, Some(SLICE)) {
            Ok(Watched::Unchanged) => present = Some((number, known, part)),
            Ok(Watched::Changed(stored)) => found(number, Ok(stored)),
            Err(error) => found(number, Err(error)),
        }
    }
}
