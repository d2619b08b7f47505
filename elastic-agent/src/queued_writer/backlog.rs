//! Items that wait for a stream: a bounded queue that drops what does not fit, and counts it. Pure.

use std::collections::VecDeque;

/// The queue. Adding never waits.
///
/// Once it has dropped an item, it drops all until it is half empty: a stream that is slow, rather than stopped, gets
/// long runs of items with few gaps.
#[derive(Debug)]
pub(super) struct Backlog<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    bytes_max: usize,
    /// Since the last gap.
    dropped: u64,
}

#[derive(Debug)]
enum Entry<T> {
    Item { bytes: usize, item: T },
    Gap(u64),
}

/// What the stream gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The oldest that was not written yet.
    Item(T),
    /// Here this many items were dropped.
    Gap(u64),
}

impl<T> Backlog<T> {
    /// An empty queue for items of `bytes_max` bytes in all, of which none has 0. An empty queue takes a longer item too.
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
            dropped: 0,
        }
    }

    /// Adds an item of this length, or drops it.
    pub(super) fn push(&mut self, bytes: usize, item: T) {
        let room = if self.dropped == 0 {
            self.bytes_max
        } else {
            self.bytes_max / 2
        };
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > room {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            self.entries.push_back(Entry::Gap(self.dropped));
            self.dropped = 0;
        }
        self.bytes += bytes;
        self.entries.push_back(Entry::Item { bytes, item });
    }

    /// Removes the oldest.
    pub(super) fn pop(&mut self) -> Option<Next<T>> {
        match self.entries.pop_front() {
            Some(Entry::Item { bytes, item }) => {
                self.bytes -= bytes;
                Some(Next::Item(item))
            }
            Some(Entry::Gap(dropped)) => Some(Next::Gap(dropped)),
            None if self.dropped > 0 => Some(Next::Gap(std::mem::take(&mut self.dropped))),
            None => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.dropped == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain<T>(backlog: &mut Backlog<T>) -> Vec<Next<T>> {
        std::iter::from_fn(|| backlog.pop()).collect()
    }

    #[test]
    fn what_does_not_fit_is_counted_where_it_is_missing() {
        let mut backlog = Backlog::new(40);
        for item in 0..6 {
            backlog.push(10, item);
        }
        assert_eq!(backlog.pop(), Some(Next::Item(0)));
        // Not half empty.
        backlog.push(10, 6);
        assert_eq!(backlog.pop(), Some(Next::Item(1)));
        assert_eq!(backlog.pop(), Some(Next::Item(2)));
        backlog.push(10, 7);
        backlog.push(10, 8);
        let rest = drain(&mut backlog);
        let expected = [Next::Item(3), Next::Gap(3), Next::Item(7), Next::Item(8)];
        assert_eq!(rest, expected);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_gap_at_the_end_is_reported_without_another_item() {
        let mut backlog = Backlog::new(10);
        backlog.push(10, 0);
        backlog.push(1, 1);
        assert!(!backlog.is_empty());
        assert_eq!(drain(&mut backlog), [Next::Item(0), Next::Gap(1)]);
        backlog.push(10, 2);
        assert_eq!(drain(&mut backlog), [Next::Item(2)]);
    }

    #[test]
    fn an_empty_queue_takes_an_item_of_any_length() {
        let mut backlog = Backlog::new(10);
        backlog.push(usize::MAX, 0);
        backlog.push(1, 1);
        assert_eq!(drain(&mut backlog), [Next::Item(0), Next::Gap(1)]);
    }

    #[test]
    fn every_item_is_written_or_counted() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut backlog = Backlog::new(100);
        let (mut pushed, mut seen) = (0_u64, 0);
        for _ in 0..10_000 {
            if random.bool() {
                backlog.push(random.usize(1..40), pushed);
                pushed += 1;
            } else {
                match backlog.pop() {
                    Some(Next::Item(item)) => {
                        assert_eq!(item, seen, "seed {seed}");
                        seen += 1;
                    }
                    Some(Next::Gap(dropped)) => seen += dropped,
                    None => assert_eq!(seen, pushed, "seed {seed}"),
                }
            }
            assert!(backlog.bytes <= 100, "seed {seed}");
        }
    }
}
