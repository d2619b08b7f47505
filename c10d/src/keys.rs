//! The keys of a group, the names in them, and the values that are not a caller's (docs/spec/group.md). Pure, except that
//! a process reads its own identity.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::process;
use std::str;

use c10d_socket::{host_name, printable};

/// One try of forming a group: rank 0 draws a new number for each try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) id: u64,
    pub(crate) world_size: usize,
}

impl Generation {
    /// Returns `None` if these are not the bytes of a generation.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (id, world_size) = str::from_utf8(value).ok()?.split_once(' ')?;
        if id.len() != 16 {
            return None;
        }
        Some(Self {
            id: u64::from_str_radix(id, 16).ok()?,
            world_size: world_size.parse().ok()?,
        })
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {}", self.id, self.world_size)
    }
}

/// An operation that the ranks of a group do together, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Broadcast { root: usize },
    Barrier,
    AllGather,
    Finish,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
            Self::AllGather => "all_gather",
            Self::Finish => "finish",
        }
    }
}

/// The key of a group's generation, by the group's name.
pub(crate) fn generation(name: &str) -> String {
    format!("c10d/{name}/generation")
}

/// The prefix of all other keys of a group.
pub(crate) fn prefix(name: &str, generation: Generation) -> String {
    format!("c10d/{name}/{:016x}", generation.id)
}

/// The prefix of all keys of a sub-group.
pub(crate) fn sub_prefix(parent: &str, name: &str) -> String {
    format!("{parent}/split/{name}")
}

/// The ranks of the parent that are in a sub-group.
pub(crate) fn ranks(prefix: &str) -> String {
    format!("{prefix}/ranks")
}

/// The process that has a rank.
pub(crate) fn member(prefix: &str, rank: usize) -> String {
    format!("{prefix}/member/{rank}")
}

/// The place where the members meet before their first operation.
pub(crate) fn joined(prefix: &str) -> String {
    format!("{prefix}/joined")
}

/// Exists when rank 0 has seen all members join: others may have completed a generation whose rank 0 has ended.
pub(crate) fn begun(prefix: &str) -> String {
    format!("{prefix}/begun")
}

/// The place where the members meet in an operation. It contains the kind: ranks that do different operations do not
/// meet.
pub(crate) fn operation(prefix: &str, number: u64, kind: Kind) -> String {
    match kind {
        Kind::Broadcast { root } => format!("{prefix}/{number}/broadcast/{root}"),
        Kind::Barrier | Kind::AllGather | Kind::Finish => {
            format!("{prefix}/{number}/{}", kind.name())
        }
    }
}

/// The value of a broadcast.
pub(crate) fn value(operation: &str) -> String {
    format!("{operation}/value")
}

/// The value of a rank for an all-gather.
pub(crate) fn value_of(operation: &str, rank: usize) -> String {
    format!("{operation}/value/{rank}")
}

/// The ranks that have arrived, each as four bytes.
pub(crate) fn arrived(place: &str) -> String {
    format!("{place}/arrived")
}

/// The key of the number of ranks that have arrived.
pub(crate) fn count(place: &str) -> String {
    format!("{place}/count")
}

/// Exists when all have arrived.
pub(crate) fn complete(place: &str) -> String {
    format!("{place}/complete")
}

/// A rank as it is added to those that have arrived.
pub(crate) fn arrival(rank: usize) -> [u8; 4] {
    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
    [24, 16, 8, 0].map(|shift| u8::try_from(rank >> shift & 0xff).unwrap_or(0))
}

/// The ranks below the world size that are not among those that have arrived.
pub(crate) fn absent(arrived: &[u8], world_size: usize) -> Vec<usize> {
    let mut is_there = vec![false; world_size];
    for bytes in arrived.chunks_exact(4) {
        let rank = bytes
            .iter()
            .fold(0, |rank, byte| rank << 8 | usize::from(*byte));
        if let Some(is_there) = is_there.get_mut(rank) {
            *is_there = true;
        }
    }
    let ranks = is_there.iter().enumerate();
    ranks
        .filter(|(_, is_there)| !**is_there)
        .map(|(rank, _)| rank)
        .collect()
}

const NAME_BYTES_MAX: usize = 64;

/// Checks a name, which becomes part of keys. An error is the reason why it is invalid.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(format!(
            "the name {name:?} of a group must have 1 to {NAME_BYTES_MAX} of the characters A-Z, a-z, 0-9, -, _ and ."
        ));
    }
    Ok(())
}

/// Longest part of a member's text that is shown.
const SHOWN_CHARS_MAX: usize = 100;

/// Returns the identity of this process, which no other process has: `NUMBER PID HOST`.
pub(crate) fn this_process() -> String {
    let host = host_name();
    let host = match host.as_str() {
        "" => "an unknown host",
        host => host,
    };
    format!("{:016x} {} {host}", random(), process::id())
}

/// A member's text as a reader understands it.
pub(crate) fn in_words(member: &[u8]) -> String {
    let text = shown(member);
    let mut words = text.splitn(3, ' ').skip(1);
    match (words.next(), words.next()) {
        (Some(pid), Some(host)) => format!("pid {pid} on {host}"),
        _ => "an unknown process".to_owned(),
    }
}

/// Returns the text of another process for a message.
pub(crate) fn shown(text: &[u8]) -> String {
    printable(text, SHOWN_CHARS_MAX).to_string()
}

/// Returns a random number, not for secrets. The keys of the standard library's hash maps come from the system's
/// generator.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_survives_its_text_and_strangers_text_is_none() {
        let generation = Generation {
            id: 0x00ab,
            world_size: 17,
        };
        assert_eq!(generation.to_string(), "00000000000000ab 17");
        let parsed = Generation::parse(generation.to_string().as_bytes());
        assert_eq!(parsed, Some(generation));
        for stranger in [
            &b""[..],
            b"x",
            b"00000000000000ab",
            b"00000000000000ab -1",
            b"ab 17",
            b"00000000000000ab 99999999999999999999999",
            b"\xff\xff",
        ] {
            assert_eq!(Generation::parse(stranger), None);
        }
    }

    #[test]
    fn those_that_have_not_arrived_are_named_whatever_the_bytes() {
        let mut arrived = Vec::new();
        for rank in [3, 0, 3, 70_000] {
            arrived.extend(arrival(rank));
        }
        assert_eq!(absent(&arrived, 5), [1, 2, 4]);
        arrived.push(1); // half a rank of a stranger
        assert_eq!(absent(&arrived, 5), [1, 2, 4]);
        assert_eq!(absent(&[], 2), [0, 1]);
        assert_eq!(absent(&[255; 9], 1), [0]);
    }

    #[test]
    fn names_cannot_leave_their_place_among_the_keys() {
        for good in ["world", "tp-0", "a.b_C", &"x".repeat(64)] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            let text = check_name(bad).unwrap_err();
            assert!(text.contains("of the characters"), "{text}");
        }
    }

    #[test]
    fn a_members_text_may_be_anybodys() {
        assert_eq!(in_words(b"00ff 17 node1"), "pid 17 on node1");
        assert_eq!(in_words(b""), "an unknown process");
        assert_eq!(in_words(b"0 1 \x1b[2J\xff"), "pid 1 on \\u{1b}[2J\\xff");
        assert!(in_words(&[b' '; 1000]).len() < 200);
    }
}
