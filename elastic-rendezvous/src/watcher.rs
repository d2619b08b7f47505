//! The thread that waits for changes of the state in the store and reports them to the loop, and its requests.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::StateWatch;
use crate::error::RendezvousError;
use crate::stored::{Part, Stored, Token, Watched};

const THREAD: &str = "rendezvous-watch";

/// How long one wait lasts before the thread checks for a new request. Requests change only after a change of
/// the watched state, so a long wait delays none.
const SLICE: Duration = Duration::from_secs(5);

/// The loop's end of the thread, with its last request.
#[derive(Debug)]
pub(crate) struct Watch {
    watcher: Watcher,
    number: u64,
    /// `None` once the request has ended.
    request: Option<(Option<Token>, Part)>,
}

impl Watch {
    /// Starts the thread, which calls `found` with the number and the result of a request.
    pub(crate) fn start(
        watch: Arc<dyn StateWatch>,
        found: impl Fn(u64, Found) + Send + 'static,
    ) -> Result<Self, RendezvousError> {
        Ok(Self {
            watcher: Watcher::start(watch, found)?,
            number: 0,
            request: None,
        })
    }

    /// Replaces the request: from now on, watches for a change of `part` since the version `known`.
    pub(crate) fn request(&mut self, known: Option<Token>, part: Part) {
        let request = (known, part);
        if self.request.as_ref() == Some(&request) {
            return;
        }
        self.number += 1;
        self.watcher.request(self.number, request.0.clone(), part);
        self.request = Some(request);
    }

    /// Ends the request of this number. Returns false if there was a later one.
    pub(crate) fn ends(&mut self, number: u64) -> bool {
        self.number == number && self.request.take().is_some()
    }
}

/// The result of a request. After an error the thread waits for the next request, so that a broken store is
/// not asked in a loop.
pub(crate) type Found = Result<Option<Stored>, RendezvousError>;

/// Owns the thread; dropping it ends and joins it.
#[derive(Debug)]
struct Watcher {
    watch: Arc<dyn StateWatch>,
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Requests {
    next: Mutex<Request>,
    is_new: Condvar,
}

/// The number of the request, the version to compare with, and the part to watch.
type Task = (u64, Option<Token>, Part);

#[derive(Debug, Default)]
enum Request {
    #[default]
    None,
    Watch(Task),
    End,
}

impl Watcher {
    /// Starts the thread, which calls `found` with the number and the result of a request.
    fn start(
        watch: Arc<dyn StateWatch>,
        found: impl Fn(u64, Found) + Send + 'static,
    ) -> Result<Self, RendezvousError> {
        let requests = Arc::new(Requests::default());
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn({
                let (watch, requests) = (Arc::clone(&watch), Arc::clone(&requests));
                move || run(&*watch, &requests, found)
            })
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        Ok(Self {
            watch,
            requests,
            thread: Some(thread),
        })
    }

    /// Replaces the request: from now on, watches for a change of `part` since the version `known`.
    fn request(&self, number: u64, known: Option<Token>, part: Part) {
        self.requests.put(Request::Watch((number, known, part)));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.requests.put(Request::End);
        self.watch.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

impl Requests {
    fn put(&self, request: Request) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*next, Request::End) {
            *next = request;
        }
        drop(next);
        self.is_new.notify_one();
    }

    /// Takes the newest request, or continues `current`, or waits for a request; `None` at the end.
    fn take(&self, current: Option<Task>) -> Option<Task> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut *next) {
                Request::End => {
                    *next = Request::End;
                    return None;
                }
                Request::Watch(task) => return Some(task),
                Request::None if current.is_some() => return current,
                Request::None => {
                    next = self
                        .is_new
                        .wait(next)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn run(watch: &dyn StateWatch, requests: &Requests, found: impl Fn(u64, Found)) {
    let mut current = None;
    while let Some((number, known, part)) = requests.take(current.take()) {
        match watch.wait(known.as_ref(), part, Some(SLICE)) {
            Ok(Watched::Unchanged) => current = Some((number, known, part)),
            Ok(Watched::Changed(stored)) => found(number, Ok(stored)),
            Err(error) => found(number, Err(error)),
        }
    }
}
