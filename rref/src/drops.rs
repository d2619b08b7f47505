//! Notes that are left in passing, for somebody who is sent for them.
//!
//! Handles are dropped in destructors: on any thread, with any locks held. So a drop only leaves a note
//! here, and whoever finds none but its own has a thread come for them all. No note is forgotten:
//!
//! > While a note lies here, whoever left the first of them has been told to send somebody.
//!
//! No flag says so, as the notes themselves do. A note is left, and seen to be the first or not, in one go
//! under the lock under which all are taken: it is among those taken, or it is one of the next. So no
//! ordering matters but the lock's. An atomic flag beside the lock would have to be cleared before the look,
//! as a note left between a look and a later clearing would have nobody come; even then, somebody would be
//! sent now and then for a note that is already taken.
//!
//! Knows nothing of handles, of threads, or of how somebody is sent.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// Notes that nobody has come for yet.
///
/// Between two pushes that return true there is one [`DropQueue::take`] that finds something. So at most one
/// is on the way, and does not come in vain, unless others take notes in passing: each who finds some allows
/// for one more on the way.
///
/// Who is told to send somebody may have nobody left to send, as all threads have ended for good. That need
/// not be told here: it is so for later notes too, which are spared the attempt. They lie until they are
/// taken in passing or the queue goes, and each is smaller than the handle that it was left for.
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

    /// Leaves a note. True: it is the first, and the caller is to send somebody to [`DropQueue::take`].
    ///
    /// Takes one lock, for as long as it takes to add to a vector. Can be called in any destructor: under
    /// this lock nothing is dropped, no other is taken, and none of `T`'s code runs.
    #[must_use = "somebody has to come for the notes"]
    pub(crate) fn push(&self, note: T) -> bool {
        let mut notes = self.lock();
        let is_first = notes.is_empty();
        notes.push(note);
        is_first
    }

    /// Takes all notes, in the order in which they were left. Whoever leaves one after that has another
    /// come.
    ///
    /// Their memory goes with them, so that nothing of it is left here after a burst, however long. The next
    /// first note allocates for itself and a few more, which is little beside having somebody come for it.
    #[must_use = "the notes are gone from the queue"]
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    /// Whether all notes that were left so far have been taken.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // No code that can panic runs under this lock.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread;

    #[test]
    fn the_first_note_sends_somebody_and_who_comes_takes_all_in_order() {
        let queue = DropQueue::new();
        assert!(queue.is_empty());
        assert_eq!(queue.take(), []);
        assert_eq!([1, 2, 3].map(|note| queue.push(note)), [true, false, false]);
        assert!(!queue.is_empty());
        assert_eq!(queue.take(), [1, 2, 3]);
        assert!(queue.is_empty());
        assert!(queue.push(4), "nobody is on the way any more");
        assert_eq!(queue.take(), [4]);
    }

    #[test]
    fn if_nobody_can_be_sent_nobody_else_tries_until_the_notes_are_taken_in_passing() {
        let queue = DropQueue::new();
        assert!(queue.push(1));
        assert_eq!([2, 3].map(|note| queue.push(note)), [false; 2]);
        assert_eq!(queue.take(), [1, 2, 3]);
        assert!(queue.push(4));
    }

    #[test]
    fn the_memory_of_a_burst_goes_with_its_notes() {
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
    fn a_note_that_leaves_another_when_it_is_dropped_finds_the_lock_free() {
        struct Parent(Arc<DropQueue<Option<Self>>>);
        impl Drop for Parent {
            fn drop(&mut self) {
                // Without this it would not fail, but hang.
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
    fn of_notes_left_by_many_threads_none_is_lost_and_nobody_comes_in_vain() {
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
        // Ends with the threads.
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
