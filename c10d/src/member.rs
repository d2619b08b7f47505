//! How a process describes itself to the other ranks.

use std::hash::{BuildHasher, RandomState};
use std::process;

use c10d_socket::{host_name, printable};

/// Longest part of a member's text that is shown.
const SHOWN_CHARS_MAX: usize = 100;

/// This process, told apart from all others: `NUMBER PID HOST`.
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

/// What another process wrote, for a message.
pub(crate) fn shown(text: &[u8]) -> String {
    printable(text, SHOWN_CHARS_MAX).to_string()
}

/// Not for secrets. The keys of the standard library's hash maps come from the system's generator.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_text_may_be_anybodys() {
        assert_eq!(in_words(b"00ff 17 node1"), "pid 17 on node1");
        assert_eq!(in_words(b""), "an unknown process");
        assert_eq!(in_words(b"0 1 \x1b[2J\xff"), "pid 1 on \\u{1b}[2J\\xff");
        assert!(in_words(&[b' '; 1000]).len() < 200);
    }
}
