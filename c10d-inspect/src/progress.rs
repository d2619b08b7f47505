//! The progress of a rank in joining a group, derived from the last request of its connection.
//!
//! A rank publishes its own address. Then it waits for the addresses of all members and reads them in order,
//! including its own address.

use std::time::Duration;

use c10d_store::{ConnectionRecord, Opcode};

use crate::index::{GlooGroup, Index, Published};

/// The progress of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The member has published its address, has read no address, and does not wait.
    Published,
    /// The member waits for another member's address.
    Waiting { member: usize, since: Duration },
    /// The member has read this many addresses, and does not wait.
    Reading { read: usize },
    /// The member stopped waiting for this other member after its timeout.
    GaveUp { member: usize },
    /// The member has read all addresses, or has made other requests afterwards.
    Past,
    /// The member's connection closed too long ago.
    Unknown,
}

/// Returns the progress of a member, at present or when its connection closed.
pub(crate) fn progress(
    index: &Index<'_>,
    group: &GlooGroup<'_>,
    member: &Published<'_>,
) -> Progress {
    let Some(slot) = member.writer else {
        return Progress::Unknown;
    };
    let connection = index.connections[slot];
    if let Some(wait) = &connection.wait {
        let awaited = wait.missing.iter().find_map(|key| member_of(group, key));
        return match awaited {
            Some(member) => Progress::Waiting {
                member,
                since: wait.since,
            },
            None => Progress::Past,
        };
    }
    by_last_request(group, member, connection)
}

fn by_last_request(
    group: &GlooGroup<'_>,
    member: &Published<'_>,
    connection: &ConnectionRecord,
) -> Progress {
    let Some(last) = connection.last.as_ref().filter(|last| !last.is_key_cut) else {
        return Progress::Past;
    };
    let Some(named) = member_of(group, &last.key) else {
        return Progress::Past;
    };
    // Without a size the rank connects lazily: it reads an address when it needs it.
    let Some(size) = member.address.size else {
        return match last.command {
            Opcode::CancelWait => Progress::GaveUp { member: named },
            _ => Progress::Past,
        };
    };
    match last.command {
        Opcode::Set | Opcode::MultiSet if named == member.rank => Progress::Published,
        Opcode::CancelWait => Progress::GaveUp { member: named },
        Opcode::Wait | Opcode::WaitGet if last.key_count > 1 => Progress::Reading { read: 0 },
        Opcode::Wait | Opcode::Check => Progress::Reading { read: named },
        Opcode::Get | Opcode::WaitGet if named + 1 < size => Progress::Reading { read: named + 1 },
        _ => Progress::Past,
    }
}

/// The member of the group whose address a key is.
pub(crate) fn member_of(group: &GlooGroup<'_>, key: &[u8]) -> Option<usize> {
    crate::text::decimal(key.strip_prefix(group.stem)?)
}
