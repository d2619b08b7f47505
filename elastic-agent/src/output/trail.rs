//! The place of output that the console has not shown yet: in the log file of the stream, or in memory. Pure.

use std::collections::VecDeque;

/// How much a stream keeps in memory for a console that is behind while the log file cannot be written: thousands of
/// lines, and with two streams of eight workers 16 MiB.
pub(super) const MEMORY_BYTES_MAX: usize = 1 << 20;

/// The longest piece in memory.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// How many parts are kept. Parts in the file merge, so that only output that alternates has many.
const PARTS_MAX: usize = 4096;

/// The parts, oldest first. The file takes any number of bytes; memory takes [`MEMORY_BYTES_MAX`], and drops more.
///
/// Once it has dropped output, memory takes none until it is half empty: a console that is slow, rather than stopped,
/// gets long runs of lines with few gaps.
#[derive(Debug, Default)]
pub(super) struct Trail {
    parts: VecDeque<Part>,
    memory_bytes: usize,
    is_dropping: bool,
}

/// Successive output of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The bytes of the log file between these positions.
    File { from: u64, to: u64 },
    /// Output that the file does not have.
    Memory(Vec<u8>),
    /// This many bytes are nowhere.
    Dropped(u64),
}

impl Trail {
    /// The next output is in the file, between these positions.
    pub(super) fn push_file(&mut self, from: u64, to: u64) {
        let is_full = self.parts.len() >= PARTS_MAX;
        match self.parts.back_mut() {
            Some(Part::File { to: end, .. }) if *end == from => *end = to,
            _ if is_full => self.drop_bytes(to - from),
            _ => self.parts.push_back(Part::File { from, to }),
        }
    }

    /// The next output is these bytes.
    pub(super) fn push_memory(&mut self, bytes: &[u8]) {
        let bytes_max = if self.is_dropping {
            MEMORY_BYTES_MAX / 2
        } else {
            MEMORY_BYTES_MAX
        };
        self.is_dropping = self.memory_bytes + bytes.len() > bytes_max;
        if self.is_dropping || self.parts.len() >= PARTS_MAX {
            self.drop_bytes(bytes.len() as u64);
            return;
        }
        self.memory_bytes += bytes.len();
        match self.parts.back_mut() {
            Some(Part::Memory(piece)) if piece.len() + bytes.len() <= PIECE_BYTES_MAX => {
                piece.extend_from_slice(bytes);
            }
            _ => self.parts.push_back(Part::Memory(bytes.to_vec())),
        }
    }

    fn drop_bytes(&mut self, count: u64) {
        match self.parts.back_mut() {
            Some(Part::Dropped(dropped)) => *dropped += count,
            _ => self.parts.push_back(Part::Dropped(count)),
        }
    }

    /// Takes the oldest part, of the file this many bytes at most.
    pub(super) fn pop(&mut self, file_bytes_max: u64) -> Option<Part> {
        if let Some(Part::File { from, to }) = self.parts.front_mut()
            && *to - *from > file_bytes_max
        {
            let part = Part::File {
                from: *from,
                to: *from + file_bytes_max,
            };
            *from += file_bytes_max;
            return Some(part);
        }
        let part = self.parts.pop_front()?;
        if let Part::Memory(piece) = &part {
            self.memory_bytes -= piece.len();
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(trail: &mut Trail) -> Vec<Part> {
        std::iter::from_fn(|| trail.pop(u64::MAX)).collect()
    }

    #[test]
    fn a_file_is_a_backlog_without_a_limit() {
        let mut trail = Trail::default();
        for at in 0..1_000_000 {
            trail.push_file(at * 1000, (at + 1) * 1000);
        }
        assert_eq!(trail.parts.len(), 1);
        assert_eq!(trail.pop(10), Some(Part::File { from: 0, to: 10 }));
        let rest = Part::File {
            from: 10,
            to: 1_000_000_000,
        };
        assert_eq!(drain(&mut trail), [rest]);
    }

    #[test]
    fn positions_that_do_not_follow_are_other_parts() {
        let mut trail = Trail::default();
        trail.push_file(0, 5);
        // Between them is a line that the worker did not write.
        trail.push_file(9, 12);
        // The file was truncated.
        trail.push_file(0, 3);
        let expected = [(0, 5), (9, 12), (0, 3)].map(|(from, to)| Part::File { from, to });
        assert_eq!(drain(&mut trail), expected);
    }

    #[test]
    fn memory_is_bounded_and_what_it_drops_is_counted_where_it_is_missing() {
        let mut trail = Trail::default();
        let piece = vec![b'x'; PIECE_BYTES_MAX];
        let pieces = MEMORY_BYTES_MAX / PIECE_BYTES_MAX;
        for _ in 0..pieces + 3 {
            trail.push_memory(&piece);
        }
        assert_eq!(trail.memory_bytes, MEMORY_BYTES_MAX);
        for _ in 0..pieces / 2 {
            assert_eq!(trail.pop(1), Some(Part::Memory(piece.clone())));
            // The trail is less than half empty.
            trail.push_memory(&piece);
        }
        trail.pop(1);
        trail.push_memory(b"after");
        let dropped = Part::Dropped(((3 + pieces / 2) * PIECE_BYTES_MAX) as u64);
        let rest = drain(&mut trail);
        let at = rest.iter().position(|it| *it == dropped).unwrap();
        assert_eq!(rest[at + 1..], [Part::Memory(b"after".to_vec())]);
        assert_eq!(trail.memory_bytes, 0);
    }

    #[test]
    fn every_byte_is_somewhere_in_order_or_counted() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let mut trail = Trail::default();
        let (mut pushed, mut seen, mut position) = (0_u64, 0, 0);
        for _ in 0..50_000 {
            let count = random.u64(1..3000);
            match random.u8(..4) {
                0 => {
                    position += random.u64(..2);
                    trail.push_file(position, position + count);
                    position += count;
                    pushed += count;
                }
                1 => {
                    trail.push_memory(&vec![0; usize::try_from(count).unwrap()]);
                    pushed += count;
                }
                2 if random.u8(..8) > 0 => {}
                _ => {
                    seen += match trail.pop(count) {
                        Some(Part::File { from, to }) => to - from,
                        Some(Part::Memory(piece)) => piece.len() as u64,
                        Some(Part::Dropped(dropped)) => dropped,
                        None => 0,
                    };
                }
            }
            assert!(trail.memory_bytes <= MEMORY_BYTES_MAX);
            assert!(trail.parts.len() <= PARTS_MAX + 1);
        }
        let rest = drain(&mut trail).into_iter().map(|part| match part {
            Part::File { from, to } => to - from,
            Part::Memory(piece) => piece.len() as u64,
            Part::Dropped(dropped) => dropped,
        });
        assert_eq!(seen + rest.sum::<u64>(), pushed);
    }
}
