//! Under a model checker: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.

use super::*;
// Only the queue's own lock is a point where others come between: what counts here is the standard
// library's, so that there are fewer schedules to try, and each is one of the queue's.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread::{self, JoinHandle};

fn check(model: fn()) {
    shuttle::check_random(model, 4000);
    shuttle::check_pct(model, 4000, 3);
}

/// A queue, and those who were sent to it.
struct Errands {
    queue: DropQueue<u32>,
    on_the_way: AtomicUsize,
    on_the_way_most: AtomicUsize,
    sent: Mutex<Vec<JoinHandle<Vec<u32>>>>,
}

impl Errands {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: DropQueue::new(),
            on_the_way: AtomicUsize::new(0),
            on_the_way_most: AtomicUsize::new(0),
            sent: Mutex::default(),
        })
    }

    /// Leaves a note, and sends a thread if there is to be one.
    fn leave(self: &Arc<Self>, note: u32) {
        if !self.queue.push(note) {
            return;
        }
        let on_the_way = self.on_the_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.on_the_way_most.fetch_max(on_the_way, Ordering::SeqCst);
        let errands = Arc::clone(self);
        let sent = thread::spawn(move || errands.come());
        self.sent.lock().unwrap().push(sent);
    }

    /// What each of these threads does. A note from 10 on leads to another, like the last reference to a
    /// value that holds a reference.
    fn come(self: &Arc<Self>) -> Vec<u32> {
        self.on_the_way.fetch_sub(1, Ordering::SeqCst);
        let notes = self.queue.take();
        for note in notes.iter().filter(|&&note| note >= 10) {
            self.leave(note - 10);
        }
        notes
    }

    /// A thread that leaves notes.
    fn leaving(self: &Arc<Self>, notes: &'static [u32]) -> JoinHandle<()> {
        let errands = Arc::clone(self);
        thread::spawn(move || notes.iter().for_each(|&note| errands.leave(note)))
    }

    /// What each found who was sent, when all of them have come and gone.
    fn found(&self) -> Vec<Vec<u32>> {
        let mut found = Vec::new();
        loop {
            let sent = self.sent.lock().unwrap().pop();
            let Some(sent) = sent else {
                return found;
            };
            found.push(sent.join().unwrap());
        }
    }
}

fn sorted(found: &[Vec<u32>]) -> Vec<u32> {
    let mut notes = found.concat();
    notes.sort_unstable();
    notes
}

/// Leaves all these notes at once, each list on a thread, and checks what became of them.
fn leave_all(lists: &[&'static [u32]], expected: &[u32]) {
    let errands = Errands::new();
    let leaving: Vec<_> = lists.iter().map(|list| errands.leaving(list)).collect();
    for leaving in leaving {
        leaving.join().unwrap();
    }
    let found = errands.found();
    assert!(errands.queue.is_empty(), "a note is forgotten");
    assert_eq!(sorted(&found), expected);
    let comes_in_vain = found.iter().any(Vec::is_empty);
    assert!(!comes_in_vain, "one was sent for nothing: {found:?}");
    let on_the_way_most = errands.on_the_way_most.load(Ordering::SeqCst);
    assert_eq!(on_the_way_most, 1, "so many were on the way at once");
}

#[test]
fn in_every_order_two_notes_are_taken_once_by_who_was_sent_for_them_under_shuttle() {
    shuttle::check_dfs(|| leave_all(&[&[0], &[1]], &[0, 1]), None);
}

#[test]
fn every_note_is_taken_once_and_at_most_one_is_on_the_way_under_shuttle() {
    check(|| leave_all(&[&[0, 1, 2], &[3, 4], &[5]], &[0, 1, 2, 3, 4, 5]));
}

#[test]
fn who_comes_for_notes_may_leave_more_of_them_under_shuttle() {
    check(|| leave_all(&[&[20, 1], &[13]], &[0, 1, 3, 10, 13, 20]));
}

#[test]
fn who_takes_notes_in_passing_takes_none_twice_and_leaves_none_behind_under_shuttle() {
    check(|| {
        let errands = Errands::new();
        let leaving = [errands.leaving(&[0, 1]), errands.leaving(&[2, 3])];
        let passing = [(); 2].map(|()| {
            let errands = Arc::clone(&errands);
            thread::spawn(move || errands.queue.take())
        });
        for leaving in leaving {
            leaving.join().unwrap();
        }
        let mut found = errands.found();
        let sent = found.len();
        found.extend(passing.map(|passing| passing.join().unwrap()));
        assert!(errands.queue.is_empty(), "a note is forgotten");
        assert_eq!(sorted(&found), [0, 1, 2, 3]);
        let found_some = found.iter().filter(|found| !found.is_empty()).count();
        assert_eq!(
            sent, found_some,
            "one is sent for each look that finds something"
        );
        let on_the_way_most = errands.on_the_way_most.load(Ordering::SeqCst);
        assert!(
            on_the_way_most <= 3,
            "more than one, and one for each in passing"
        );
    });
}
