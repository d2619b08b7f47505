//! The handshake: the magic number of VALIDATE, and the capabilities in the reply to PING.

/// The magic number of VALIDATE (docs/spec/wire.md, section 1).
pub const VALIDATION_MAGIC: u32 = 0x3C85_F7CE;

/// The nonce of a PING that asks for the server's capabilities (docs/spec/wire-extensions.md, section 9.1). A PyTorch
/// server echoes it, which means "none". PyTorch's clients send their process id, which on Linux is
/// below 2^22.
pub const CAPABILITY_NONCE: u32 = 0xC10D_0000;

/// The capability bits in the reply to a PING with [`CAPABILITY_NONCE`].
pub const CAPABILITY_MASK: u32 = 0x0000_FFFF;

/// The server supports WAIT_GET (0x80).
pub const CAPABILITY_WAIT_GET: u32 = 1 << 0;

/// The server supports WAIT_CHANGE (0x81).
pub const CAPABILITY_WAIT_CHANGE: u32 = 1 << 1;

/// The server supports TRY_ADD (0x82).
pub const CAPABILITY_TRY_ADD: u32 = 1 << 2;

/// The server supports COMPARE_EXCHANGE (0x83).
pub const CAPABILITY_COMPARE_EXCHANGE: u32 = 1 << 3;

/// The server supports ANNOUNCE (0x84).
pub const CAPABILITY_ANNOUNCE: u32 = 1 << 4;

/// The server supports QUEUE_TAKE (0x85).
pub const CAPABILITY_QUEUE_TAKE: u32 = 1 << 5;

/// The server supports SESSION (0x86).
pub const CAPABILITY_SESSION: u32 = 1 << 6;

/// The server supports SET_EPHEMERAL (0x87) and KEEP_ALIVE (0x88).
pub const CAPABILITY_EPHEMERAL: u32 = 1 << 7;

/// The server supports DELETE_PREFIX (0x89).
pub const CAPABILITY_DELETE_PREFIX: u32 = 1 << 8;

/// The server supports END_WAITS (0x8a).
pub const CAPABILITY_END_WAITS: u32 = 1 << 9;

/// The server supports MEMBERSHIP (0x8b) and MEMBERSHIP_POLL (0x8c).
pub const CAPABILITY_MEMBERSHIP: u32 = 1 << 10;

/// The server sends what has changed in the list of a group.
pub const CAPABILITY_LIST_CHANGES: u32 = 1 << 11;

/// The server sends heartbeats over the links of sessions that ask for them.
pub const CAPABILITY_HEARTBEAT: u32 = 1 << 12;

/// The server sends lists of groups with counted seats.
pub const CAPABILITY_COUNTED_LISTS: u32 = 1 << 13;

/// The server answers a PING with [`REFUSAL_NONCE`] after a refused write.
pub const CAPABILITY_REFUSAL: u32 = 1 << 14;

/// The nonce of the PING that follows a write (docs/spec/wire-extensions.md, section 9.14). Every server
/// echoes it after a write that was carried out.
pub const REFUSAL_NONCE: u32 = 0xC10E_0000;

/// The reply, if the write was refused. Two sizes follow.
pub(crate) const REFUSED_NONCE: u32 = 0xC10E_0001;

/// The capabilities of this crate's server.
pub const CAPABILITIES: u32 = CAPABILITY_WAIT_GET
    | CAPABILITY_WAIT_CHANGE
    | CAPABILITY_TRY_ADD
    | CAPABILITY_COMPARE_EXCHANGE
    | CAPABILITY_ANNOUNCE
    | CAPABILITY_QUEUE_TAKE
    | CAPABILITY_SESSION
    | CAPABILITY_EPHEMERAL
    | CAPABILITY_DELETE_PREFIX
    | CAPABILITY_END_WAITS
    | CAPABILITY_MEMBERSHIP
    | CAPABILITY_LIST_CHANGES
    | CAPABILITY_HEARTBEAT
    | CAPABILITY_COUNTED_LISTS
    | CAPABILITY_REFUSAL;

/// The capabilities that only a server with [groups](crate::groups) has.
const CAPABILITIES_OF_GROUPS: u32 =
    CAPABILITY_MEMBERSHIP | CAPABILITY_LIST_CHANGES | CAPABILITY_COUNTED_LISTS;

/// The reply of this crate's server to a PING.
pub(crate) const fn reply_to_ping(nonce: u32, has_groups: bool) -> u32 {
    match nonce {
        CAPABILITY_NONCE if has_groups => CAPABILITY_NONCE | CAPABILITIES,
        CAPABILITY_NONCE => CAPABILITY_NONCE | CAPABILITIES & !CAPABILITIES_OF_GROUPS,
        _ => nonce,
    }
}

/// Whether this reply to a PING shows the capabilities of a server.
pub(crate) const fn are_capabilities(reply: u32) -> bool {
    reply == reply_to_ping(CAPABILITY_NONCE, true)
        || reply == reply_to_ping(CAPABILITY_NONCE, false)
}

/// The reply to a client that is not shown these capabilities.
pub(crate) const fn without_capabilities(reply: u32, capabilities: u32) -> u32 {
    if are_capabilities(reply) {
        reply & !capabilities
    } else {
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_a_session_is_shown_no_sessions() {
        for has_groups in [false, true] {
            let reply = reply_to_ping(CAPABILITY_NONCE, has_groups);
            assert_eq!(reply & CAPABILITY_SESSION, CAPABILITY_SESSION);
            assert_eq!(reply & CAPABILITY_MEMBERSHIP != 0, has_groups);
            assert_eq!(
                without_capabilities(reply, CAPABILITY_SESSION),
                reply & !CAPABILITY_SESSION
            );
        }
        let echo = CAPABILITY_SESSION | 1;
        assert_eq!(
            without_capabilities(reply_to_ping(echo, true), CAPABILITY_SESSION),
            echo
        );
    }
}
