//! The requests that this suite adds to the requests of a case: the handshake, and the fence behind a reply.

use crate::column::Column;
use crate::request::{Opcode, RequestBytes};

/// The first bytes of a connection that PyTorch's servers want.
pub(crate) const MAGIC: u32 = 0x3c85_f7ce;

/// No reply looks like it, and our server takes it for no question about its extensions.
const NONCE: u32 = 0xf0e7_c45e;

const CANCELLED: u8 = 1;

/// A request and its reply.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

/// A request that changes nothing, with a reply that no other reply looks like. `key` is for servers without PING: no case
/// uses it.
pub(crate) fn fence(column: Column, key: &str) -> Exchange {
    let ping = RequestBytes::new(Opcode::PING).word(NONCE).0;
    let nonce = ping[1..].to_vec();
    if column.has_ping() {
        return Exchange {
            request: ping,
            reply: nonce,
        };
    }
    // A COMPARE_SET of a missing key replies with the expected value.
    let request = RequestBytes::new(Opcode::COMPARE_SET).blob(key.as_bytes());
    Exchange {
        request: request.blob(&nonce).blob(&nonce).0,
        reply: RequestBytes::default().blob(&nonce).0,
    }
}

/// Opens a connection.
pub(crate) fn handshake(fence: &Exchange) -> Exchange {
    let validate = RequestBytes::new(Opcode::VALIDATE).word(MAGIC).0;
    Exchange {
        request: [&validate[..], &fence.request].concat(),
        reply: fence.reply.clone(),
    }
}

/// Ends the wait that a case may have left on a connection, and shows that nothing else is under way on it.
pub(crate) fn reset(fence: &Exchange) -> Exchange {
    let cancel = RequestBytes::new(Opcode::CANCEL_WAIT).0;
    Exchange {
        request: [&cancel[..], &fence.request].concat(),
        reply: [&[CANCELLED][..], &fence.reply].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_ping_are_fenced_by_a_failed_compare_set() {
        let newest = fence(Column::default(), "/f");
        assert_eq!(newest.request[0], Opcode::PING.0);
        let older = fence("torch-2.4".parse().expect("a column"), "/f");
        assert_eq!(older.request[0], Opcode::COMPARE_SET.0);
        assert_eq!(older.reply[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(older.reply[8..], newest.reply);
    }
}
