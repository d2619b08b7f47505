//! A queue whose memory follows its length.

use std::collections::VecDeque;
use std::mem;

/// Bytes of a segment. Far below 128 KiB: glibc keeps the more free memory in each thread's arena, the larger the
/// blocks are that are freed, from that size on.
const SEGMENT_BYTES: usize = 16 << 10;

/// A first-in-first-out queue in segments. An emptied segment is freed, except the last one, so that after a burst
/// the queue does not keep the memory for the whole burst.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SegmentedQueue<T> {
    /// Empty only if `rest` is.
    first: VecDeque<T>,
    /// The segments, none of them empty.
    rest: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> SegmentedQueue<T> {
    const SEGMENT_ITEMS: usize = {
        let items = SEGMENT_BYTES
            / if size_of::<T>() == 0 {
                1
            } else {
                size_of::<T>()
            };
        if items == 0 { 1 } else { items }
    };

    /// Creates an empty queue. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self {
            first: VecDeque::new(),
            rest: VecDeque::new(),
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.first.front()
    }

    pub(crate) fn back(&self) -> Option<&T> {
        self.rest.back().unwrap_or(&self.first).back()
    }

    pub(crate) fn push_back(&mut self, item: T) {
        self.len += 1;
        let last = self.rest.back_mut().unwrap_or(&mut self.first);
        if last.len() < Self::SEGMENT_ITEMS {
            return last.push_back(item);
        }
        let mut segment = VecDeque::with_capacity(Self::SEGMENT_ITEMS);
        segment.push_back(item);
        self.rest.push_back(segment);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let item = self.first.pop_front()?;
        self.len -= 1;
        if self.first.is_empty()
            && let Some(next) = self.rest.pop_front()
        {
            self.first = next;
            if self.rest.is_empty() {
                self.rest = VecDeque::new();
            }
        }
        Some(item)
    }

    /// Takes all items out. Dropping the iterator drops the remaining items.
    pub(crate) const fn drain(&mut self) -> Drain<'_, T> {
        Drain(self)
    }

    /// Frees the memory of an empty queue that has room for more than `kept_bytes_max` bytes.
    pub(crate) fn release(&mut self, kept_bytes_max: usize) {
        if self.is_empty() && self.first.capacity() * size_of::<T>() > kept_bytes_max {
            *self = Self::new();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.rest.iter().flatten())
    }

    /// Bytes allocated for items and segments.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        let segments = self.rest.iter().chain([&self.first]);
        let items: usize = segments.map(VecDeque::capacity).sum();
        items * size_of::<T>() + self.rest.capacity() * size_of::<VecDeque<T>>()
    }

    /// Keeps the items for which `is_kept` is true.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&T) -> bool) {
        let kept = mem::take(self).into_iter().filter(is_kept);
        self.extend(kept);
    }
}

/// The iterator of [`SegmentedQueue::drain`].
pub(crate) struct Drain<'a, T>(&'a mut SegmentedQueue<T>);

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.pop_front()
    }
}

impl<T> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<T> Default for SegmentedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Extend<T> for SegmentedQueue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.push_back(item);
        }
    }
}

impl<T> IntoIterator for SegmentedQueue<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<
        std::collections::vec_deque::IntoIter<T>,
        std::iter::Flatten<std::collections::vec_deque::IntoIter<VecDeque<T>>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.first
            .into_iter()
            .chain(self.rest.into_iter().flatten())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_as_a_plain_queue() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let mut plain: VecDeque<[u64; 64]> = VecDeque::new();
        let mut queue = SegmentedQueue::new();
        for step in 0..20_000 {
            // Grows and shrinks in turns, over many segments.
            let grows = (step / 2_000) % 2 == 0;
            if random.u8(0..10) < if grows { 8 } else { 2 } {
                plain.push_back([step; 64]);
                queue.push_back([step; 64]);
            } else {
                assert_eq!(queue.pop_front(), plain.pop_front());
            }
            if random.u32(0..2_000) == 0 {
                plain.retain(|item| item[0] % 3 != 0);
                queue.retain(|item| item[0] % 3 != 0);
            }
            assert_eq!(queue.len(), plain.len());
            assert_eq!(queue.is_empty(), plain.is_empty());
            assert_eq!((queue.front(), queue.back()), (plain.front(), plain.back()));
        }
        assert!(queue.iter().eq(plain.iter()));
        let clone = queue.clone();
        assert!(queue.drain().eq(clone));
        queue.extend([[0; 64], [1; 64]]);
        assert_eq!(queue.drain().next(), Some([0; 64]));
        assert!(queue.is_empty(), "the rest is dropped");
        queue.push_back([0; 64]);
        queue.release(usize::MAX);
        assert_eq!(queue.len(), 1);
        queue.pop_front();
        queue.release(0);
        assert_eq!(queue.held_bytes(), 0);
    }

    #[test]
    fn it_keeps_one_segment_after_a_burst_and_allocates_no_large_block() {
        let mut queue: SegmentedQueue<[u8; 100]> = SegmentedQueue::new();
        assert_eq!(queue.held_bytes(), 0);
        queue.extend(std::iter::repeat_n([0; 100], 100_000));
        assert!(queue.held_bytes() > 10_000_000);
        for segment in queue.rest.iter().chain([&queue.first]) {
            assert!(segment.capacity() * 100 <= 2 * SEGMENT_BYTES);
        }
        assert_eq!(queue.drain().count(), 100_000);
        assert!(queue.held_bytes() <= 2 * SEGMENT_BYTES);
    }

    #[test]
    fn items_of_any_size_are_queued() {
        let mut large = SegmentedQueue::new();
        large.extend([[1_u8; 2 * SEGMENT_BYTES], [2; 2 * SEGMENT_BYTES]]);
        assert_eq!(large.pop_front().map(|item| item[0]), Some(1));
        assert_eq!(large.len(), 1);
        let mut empty = SegmentedQueue::new();
        empty.extend(std::iter::repeat_n((), 3));
        assert_eq!(empty.drain().count(), 3);
    }
}
