//! The capability bits of servers (docs/spec/wire-extensions.md, section 9.1), one for each command or change of a command that
//! PyTorch does not have.

/// The server supports WAIT_GET (0x80).
pub const WAIT_GET: u32 = 1 << 0;

/// The server supports WAIT_CHANGE (0x81).
pub const WAIT_CHANGE: u32 = 1 << 1;

/// The server supports TRY_ADD (0x82).
pub const TRY_ADD: u32 = 1 << 2;

/// The server supports COMPARE_EXCHANGE (0x83).
pub const COMPARE_EXCHANGE: u32 = 1 << 3;

/// The server supports ANNOUNCE (0x84).
pub const ANNOUNCE: u32 = 1 << 4;

/// The server supports QUEUE_TAKE (0x85).
pub const QUEUE_TAKE: u32 = 1 << 5;

/// The server supports SESSION (0x86).
pub const SESSION: u32 = 1 << 6;

/// The server supports SET_EPHEMERAL (0x87) and KEEP_ALIVE (0x88).
pub const EPHEMERAL: u32 = 1 << 7;

/// The server supports DELETE_PREFIX (0x89).
pub const DELETE_PREFIX: u32 = 1 << 8;

/// The server supports END_WAITS (0x8a).
pub const END_WAITS: u32 = 1 << 9;

/// The server supports MEMBERSHIP (0x8b) and MEMBERSHIP_POLL (0x8c).
pub const MEMBERSHIP: u32 = 1 << 10;

/// The server sends what has changed in the list of a group.
pub const LIST_CHANGES: u32 = 1 << 11;

/// The server sends heartbeats over the links of sessions that ask for them.
pub const HEARTBEAT: u32 = 1 << 12;

/// The server sends lists of groups with counted seats.
pub const COUNTED_LISTS: u32 = 1 << 13;

/// The server answers a PING with [`REFUSAL_NONCE`](super::REFUSAL_NONCE) after a refused write.
pub const REFUSAL: u32 = 1 << 14;

/// The capabilities of this crate's server.
pub const ALL: u32 = WAIT_GET
    | WAIT_CHANGE
    | TRY_ADD
    | COMPARE_EXCHANGE
    | ANNOUNCE
    | QUEUE_TAKE
    | SESSION
    | EPHEMERAL
    | DELETE_PREFIX
    | END_WAITS
    | MEMBERSHIP
    | LIST_CHANGES
    | HEARTBEAT
    | COUNTED_LISTS
    | REFUSAL;

/// The capabilities that only a server with [groups](crate::groups) has.
pub(super) const OF_GROUPS: u32 = MEMBERSHIP | LIST_CHANGES | COUNTED_LISTS;
