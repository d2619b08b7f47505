//! The handshake: the magic number of VALIDATE, and the capabilities in the reply to PING.

use super::capability;

/// The magic number of VALIDATE (docs/spec/wire.md, section 1).
pub const VALIDATION_MAGIC: u32 = 0x3C85_F7CE;

/// The nonce of a PING that requests the server's capabilities (docs/spec/wire-extensions.md, section 9.1). A PyTorch
/// server echoes it, which means "none". PyTorch's clients send their process id, which on Linux is below 2^22.
pub const CAPABILITY_NONCE: u32 = 0xC10D_0000;

/// The capability bits in the reply to a PING with [`CAPABILITY_NONCE`].
pub const CAPABILITY_MASK: u32 = 0x0000_FFFF;

/// The nonce of the PING that follows a write (docs/spec/wire-extensions.md, section 9.14). Every server
/// echoes it after a write that was carried out.
pub const REFUSAL_NONCE: u32 = 0xC10E_0000;

/// The reply, if the write was refused. Two sizes follow.
pub(crate) const REFUSED_NONCE: u32 = 0xC10E_0001;

/// The reply of this crate's server to a PING.
pub(crate) const fn reply_to_ping(nonce: u32, has_groups: bool) -> u32 {
    match nonce {
        CAPABILITY_NONCE if has_groups => CAPABILITY_NONCE | capability::ALL,
        CAPABILITY_NONCE => CAPABILITY_NONCE | capability::ALL & !capability::OF_GROUPS,
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
            assert_eq!(reply & capability::SESSION, capability::SESSION);
            assert_eq!(reply & capability::MEMBERSHIP != 0, has_groups);
            assert_eq!(
                without_capabilities(reply, capability::SESSION),
                reply & !capability::SESSION
            );
        }
        let echo = capability::SESSION | 1;
        assert_eq!(
            without_capabilities(reply_to_ping(echo, true), capability::SESSION),
            echo
        );
    }
}
