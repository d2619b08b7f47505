//! Model tests of the queue: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.

use super::*;
// Only the queue's lock is a point of preemption. The counters come from the standard library, which leaves fewer
// schedules to try.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread::{self, JoinHandle};

fn check(model: fn()) {
    shuttle::check_random(model, 4000);
    shuttle::check_pct(model, 4000, 3);
}

/// A queue, and the threads that were scheduled to take its notes.
struct Takers {
    queue: DropQueue<u32>,
    scheduled: AtomicUsize,
    scheduled_max: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<Vec<u32>>>>,
}

impl Takers {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: DropQueue::new(),
            scheduled: AtomicUsize::new(0),
            scheduled_max: AtomicUsize::new(0),
            threads: Mutex::default(),
        })
    }

    /// Pushes a note, and schedules a thread if the queue asks for one.
    fn push(self: &Arc<Self>, note: u32) {
        if !self.queue.push(note) {
            return;
        }
        let scheduled = self.scheduled.fetch_add(1, Ordering::SeqCst) + 1;
        self.scheduled_max.fetch_max(scheduled, Ordering::SeqCst);
        let takers = Arc::clone(self);
        let thread = thread::spawn(move || takers.take());
        self.threads.lock().unwrap().push(thread);
    }

    /// Body of a scheduled thread. A note from 10 on pushes another note, like the last reference to a value that
    /// holds a reference.
    fn take(self: &Arc<Self>) -> Vec<u32> {
        self.scheduled.fetch_sub(1, Ordering::SeqCst);
        let notes = self.queue.take();
        for note in notes.iter().filter(|&&note| note >= 10) {
            self.push(note - 10);
        }
        notes
    }

    /// Starts a thread that pushes notes.
    fn pusher(self: &Arc<Self>, notes: &'static [u32]) -> JoinHandle<()> {
        let takers = Arc::clone(self);
        thread::spawn(move || notes.iter().for_each(|&note| takers.push(note)))
    }

    /// Returns the notes that each scheduled thread took, after all of them have ended.
    fn taken(&self) -> Vec<Vec<u32>> {
        let mut taken = Vec::new();
        loop {
            let thread = self.threads.lock().unwrap().pop();
            let Some(thread) = thread else {
                return taken;
            };
            taken.push(thread.join().unwrap());
        }
    }
}

fn sorted(taken: &[Vec<u32>]) -> Vec<u32> {
    let mut notes = taken.concat();
    notes.sort_unstable();
    notes
}

/// Pushes each list of notes on its own thread, and checks which notes were taken.
fn push_all(lists: &[&'static [u32]], expected: &[u32]) {
    let takers = Takers::new();
    let pushers: Vec<_> = lists.iter().map(|list| takers.pusher(list)).collect();
    for pusher in pushers {
        pusher.join().unwrap();
    }
    let taken = takers.taken();
    assert!(takers.queue.is_empty(), "a note was not taken");
    assert_eq!(sorted(&taken), expected);
    let has_empty_take = taken.iter().any(Vec::is_empty);
    assert!(
        !has_empty_take,
        "a scheduled thread took nothing: {taken:?}"
    );
    let scheduled_max = takers.scheduled_max.load(Ordering::SeqCst);
    assert_eq!(scheduled_max, 1, "maximum of scheduled threads");
}

#[test]
fn two_notes_are_each_taken_once_in_every_order_under_shuttle() {
    shuttle::check_dfs(|| push_all(&[&[0], &[1]], &[0, 1]), None);
}

#[test]
fn every_note_is_taken_once_and_at_most_one_take_is_scheduled_under_shuttle() {
    check(|| push_all(&[&[0, 1, 2], &[3, 4], &[5]], &[0, 1, 2, 3, 4, 5]));
}

#[test]
fn a_thread_that_takes_notes_may_push_more_under_shuttle() {
    check(|| push_all(&[&[20, 1], &[13]], &[0, 1, 3, 10, 13, 20]));
}

#[test]
fn unscheduled_takes_neither_duplicate_nor_lose_notes_under_shuttle() {
    check(|| {
        let takers = Takers::new();
        let pushers = [takers.pusher(&[0, 1]), takers.pusher(&[2, 3])];
        let unscheduled = [(); 2].map(|()| {
            let takers = Arc::clone(&takers);
            thread::spawn(move || takers.queue.take())
        });
        for pusher in pushers {
            pusher.join().unwrap();
        }
        let mut taken = takers.taken();
        let threads = taken.len();
        taken.extend(unscheduled.map(|thread| thread.join().unwrap()));
        assert!(takers.queue.is_empty(), "a note was not taken");
        assert_eq!(sorted(&taken), [0, 1, 2, 3]);
        let nonempty_takes = taken.iter().filter(|taken| !taken.is_empty()).count();
        assert_eq!(
            threads, nonempty_takes,
            "one thread per take that found notes"
        );
        let scheduled_max = takers.scheduled_max.load(Ordering::SeqCst);
        assert!(
            scheduled_max <= 3,
            "at most one, and one for each unscheduled take"
        );
    });
}
