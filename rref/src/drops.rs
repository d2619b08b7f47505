//! The queue of dropped handles.
//!
//! A handle is dropped on any thread, with any locks held. So a drop only adds a note here, and the caller of a push
//! to the empty queue schedules a thread that takes all notes. All notes are eventually taken:
//!
//! > While the queue has notes, the push of the first of them has returned true.
//!
//! A push adds its note and checks whether it is the first. It does so under the lock that protects the taking of
//! notes, so a note is either among the taken notes or starts the next round. An atomic flag beside the lock would
//! need a clearing order.

use std::sync::PoisonError;
#[cfg(not(shuttle))]
use std::sync::{Mutex, MutexGuard};

// The locks of the model checker work inside a model only, so code without model tests uses the standard library's.
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard};

/// Notes that no thread has taken yet.
///
/// Between two pushes that return true there is one [`DropQueue::take`] that finds notes, so a scheduled thread finds
/// notes, unless another thread has taken them.
///
/// If the agent has ended, no thread can be scheduled. The notes then stay until they are taken otherwise or the
/// queue is dropped; each is smaller than its handle.
#[derive(Debug)]
pub(crate) struct DropQueue<T> {
    notes: Mutex<Vec<T>>,
}

impl<T> DropQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            notes: Mutex::new(Vec::new()),
        }
    }

    /// Adds a note. Returns true for the first one: the caller schedules a [`DropQueue::take`].
    ///
    /// Safe to call in any destructor: under the lock nothing is dropped, no other lock is taken, and nothing of
    /// `T`'s code runs.
    #[must_use = "true: schedule a take"]
    pub(crate) fn push(&self, note: T) -> bool {
        let mut notes = self.lock();
        let is_first = notes.is_empty();
        notes.push(note);
        is_first
    }

    /// Takes all notes, in order. The next push returns true.
    ///
    /// Takes the vector, too, so that a burst leaves no memory behind.
    #[must_use = "the notes leave the queue"]
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    /// Whether all notes have been taken.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // The code that runs under this lock does not panic.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread;

    #[test]
    fn the_first_push_schedules_a_take_of_all_notes_in_order() {
        let queue = DropQueue::new();
        assert!(queue.is_empty());
        assert_eq!(queue.take(), []);
        assert_eq!([1, 2, 3].map(|note| queue.push(note)), [true, false, false]);
        assert!(!queue.is_empty());
        assert_eq!(queue.take(), [1, 2, 3]);
        assert!(queue.is_empty());
        assert!(queue.push(4), "no take is scheduled any more");
        assert_eq!(queue.take(), [4]);
    }

    #[test]
    fn later_pushes_schedule_no_take_until_the_notes_are_taken() {
        let queue = DropQueue::new();
        assert!(queue.push(1));
        assert_eq!([2, 3].map(|note| queue.push(note)), [false; 2]);
        assert_eq!(queue.take(), [1, 2, 3]);
        assert!(queue.push(4));
    }

    #[test]
    fn a_take_releases_the_memory_of_a_burst() {
        let queue = DropQueue::new();
        for note in 0..100_000 {
            let _ = queue.push(note);
        }
        assert_eq!(queue.take().len(), 100_000);
        assert!(queue.push(0));
        let capacity = queue.lock().capacity();
        assert!(capacity < 100, "room for {capacity} notes is left");
    }

    #[test]
    fn a_note_whose_drop_pushes_another_finds_the_lock_free() {
        struct Parent(Arc<DropQueue<Option<Self>>>);
        impl Drop for Parent {
            fn drop(&mut self) {
                // Without this the test would hang instead of fail.
                assert!(self.0.notes.try_lock().is_ok());
                assert!(self.0.push(None));
            }
        }
        let queue = Arc::new(DropQueue::new());
        assert!(queue.push(Some(Parent(Arc::clone(&queue)))));
        drop(queue.take());
        assert!(matches!(*queue.take(), [None]));
    }

    #[test]
    fn notes_of_many_threads_are_taken_once_without_empty_takes() {
        const THREADS: u32 = 4;
        const NOTES: u32 = 5_000;
        let queue = Arc::new(DropQueue::new());
        let (send, sent) = mpsc::channel();
        let leaving: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (queue, send) = (Arc::clone(&queue), send.clone());
                thread::spawn(move || {
                    for note in thread * NOTES..(thread + 1) * NOTES {
                        if queue.push(note) {
                            send.send(()).unwrap();
                        }
                    }
                })
            })
            .collect();
        drop(send);
        let mut taken = Vec::new();
        for () in sent {
            let notes = queue.take();
            assert!(!notes.is_empty());
            taken.extend(notes);
        }
        for leaving in leaving {
            leaving.join().unwrap();
        }
        assert!(queue.is_empty());
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..THREADS * NOTES));
    }
}

#[cfg(all(test, shuttle))]
mod model_tests;
