//! Replies of one connection that wait until the state that they show is durable. Pure.

use std::collections::VecDeque;

use c10d_socket::SendBuf;

/// Replies in their order, each with the position that it waits for. A reply holds those behind it.
#[derive(Debug, Default)]
pub(super) struct DelayedReplies {
    /// The segments in the order of their positions. At most two: batches gather and are appended one at a time.
    segments: VecDeque<Segment>,
}

#[derive(Debug)]
struct Segment {
    position: u64,
    out: SendBuf,
}

impl DelayedReplies {
    /// Returns the buffer for a reply that waits for this position, and whether it is the first reply with so late a
    /// position.
    pub(super) fn out(&mut self, position: u64) -> (&mut SendBuf, bool) {
        let is_new = self
            .segments
            .back()
            .is_none_or(|last| last.position < position);
        if is_new {
            let out = SendBuf::new();
            self.segments.push_back(Segment { position, out });
        }
        let last = self.segments.back_mut().expect("there is one");
        (&mut last.out, is_new)
    }

    /// Everything up to this position is durable: hands over the replies that have waited for it.
    pub(super) fn release(&mut self, durable: u64, out: &mut SendBuf) {
        while let Some(first) = self.segments.front()
            && first.position <= durable
            && let Some(first) = self.segments.pop_front()
        {
            out.append(first.out);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.sum(SendBuf::unsent_bytes)
    }

    pub(super) fn copied_bytes(&self) -> usize {
        self.sum(SendBuf::copied_bytes)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sum(SendBuf::memory_bytes)
    }

    pub(super) fn outs(&self) -> impl Iterator<Item = &SendBuf> {
        self.segments.iter().map(|segment| &segment.out)
    }

    fn sum(&self, of: impl Fn(&SendBuf) -> usize) -> usize {
        self.segments.iter().map(|segment| of(&segment.out)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(held: &mut DelayedReplies, position: u64, reply: &[u8]) -> bool {
        let (out, is_new) = held.out(position);
        out.push(reply);
        is_new
    }

    fn released(held: &mut DelayedReplies, durable: u64) -> Vec<u8> {
        let mut out = SendBuf::new();
        held.release(durable, &mut out);
        let mut sent = Vec::new();
        out.flush(&mut sent).expect("a vector accepts everything");
        sent
    }

    #[test]
    fn a_reply_waits_for_its_position_and_holds_those_behind_it() {
        let mut held = DelayedReplies::default();
        assert!(hold(&mut held, 5, b"a"));
        assert!(
            !hold(&mut held, 4, b"b"),
            "it waits no longer than the one before"
        );
        assert!(!hold(&mut held, 0, b"c"));
        assert!(hold(&mut held, 6, b"d"));
        assert!(!hold(&mut held, 0, b"e"));
        assert_eq!(held.unsent_bytes(), 5);
        assert_eq!(released(&mut held, 4), b"");
        assert_eq!(released(&mut held, 5), b"abc");
        assert!(hold(&mut held, 7, b"f"));
        assert_eq!(released(&mut held, 9), b"def");
        assert!(held.is_empty());
    }
}
