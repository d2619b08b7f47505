//! The address that a gloo rank publishes.
//!
//! `u64 h | h bytes host name | u64 a (136) | sockaddr_storage, 128 bytes | i64 sequence | N x i64 pair id`,
//! little endian except for the port. Most of the sockaddr is uninitialized memory: only family, port and
//! address are read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use byteorder::{BE, ByteOrder, LE};

use crate::text;

/// The sockaddr and the sequence number.
const ADDRESS_BYTES: usize = 136;
const HOST_BYTES_MAX: usize = 100;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The most members of a group that are believed.
pub(crate) const GROUP_SIZE_MAX: usize = 131_072;

/// The address of a rank of a gloo group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GlooAddress {
    /// The host's name, escaped.
    pub(crate) host: String,
    /// The address of the rank's listening socket.
    pub(crate) address: SocketAddr,
    /// The number of members of the group; `None` if the rank connects lazily and does not say.
    pub(crate) size: Option<usize>,
}

/// Decodes a published address from the first bytes of a value of `value_len` bytes; `None` for any other value.
pub(crate) fn gloo_address(head: &[u8], value_len: usize) -> Option<GlooAddress> {
    let (host, rest) = sized(head, HOST_BYTES_MAX)?;
    let (address_len, rest) = rest.split_at_checked(8)?;
    if LE::read_u64(address_len) != ADDRESS_BYTES as u64 || host.is_empty() {
        return None;
    }
    let sockaddr = rest.get(..28)?;
    let port = BE::read_u16(&sockaddr[2..4]);
    let ip: IpAddr = match LE::read_u16(&sockaddr[..2]) {
        AF_INET => Ipv4Addr::from(BE::read_u32(&sockaddr[4..8])).into(),
        AF_INET6 => Ipv6Addr::from(BE::read_u128(&sockaddr[8..24])).into(),
        _ => return None,
    };
    let pairs = value_len.checked_sub(16 + host.len() + ADDRESS_BYTES)?;
    let size = pairs / 8;
    if !pairs.is_multiple_of(8) || size > GROUP_SIZE_MAX {
        return None;
    }
    Some(GlooAddress {
        host: text::shown(host),
        address: SocketAddr::new(ip, port),
        size: (size > 0).then_some(size),
    })
}

/// Splits off bytes that a length of 8 bytes precedes.
fn sized(bytes: &[u8], length_max: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(8)?;
    let length = usize::try_from(LE::read_u64(length)).ok()?;
    if length > length_max {
        return None;
    }
    rest.split_at_checked(length)
}

/// The value that a rank of a gloo group of `size` publishes, for tests.
#[cfg(test)]
pub(crate) fn encoded(host: &str, address: SocketAddr, size: usize) -> Vec<u8> {
    use byteorder::WriteBytesExt;

    let mut bytes = Vec::new();
    let write = "a vector takes all bytes";
    bytes.write_u64::<LE>(host.len() as u64).expect(write);
    bytes.extend(host.as_bytes());
    bytes.write_u64::<LE>(136).expect(write);
    // The bytes after the address are uninitialized in PyTorch.
    let mut sockaddr = [0xa5; 128];
    BE::write_u16(&mut sockaddr[2..4], address.port());
    match address.ip() {
        IpAddr::V4(ip) => {
            LE::write_u16(&mut sockaddr[..2], AF_INET);
            sockaddr[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            LE::write_u16(&mut sockaddr[..2], AF_INET6);
            sockaddr[8..24].copy_from_slice(&ip.octets());
        }
    }
    bytes.extend(sockaddr);
    bytes.write_i64::<LE>(-1).expect(write);
    for pair in 0..size {
        bytes.write_i64::<LE>(pair as i64).expect(write);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_says_the_group_size() {
        let address = "127.0.0.1:46571".parse().unwrap();
        for (size, length) in [(4, 186), (3, 178), (2, 170), (5, 194), (0, 154)] {
            let value = encoded("vm", address, size);
            assert_eq!(value.len(), length);
            let decoded = gloo_address(&value, value.len()).unwrap();
            assert_eq!(decoded.size, (size > 0).then_some(size));
            assert_eq!(decoded.host, "vm");
            assert_eq!(decoded.address, address);
        }
    }

    #[test]
    fn a_large_group_and_ipv6_are_read_from_the_head() {
        let address = "[fd00::7]:29500".parse().unwrap();
        let value = encoded(&"h".repeat(64), address, 16_384);
        let decoded = gloo_address(&value[..256], value.len()).unwrap();
        assert_eq!(decoded.size, Some(16_384));
        assert_eq!(decoded.address, address);
    }

    #[test]
    fn other_values_are_refused() {
        let value = encoded("vm", "10.0.0.1:1".parse().unwrap(), 4);
        for length in 0..value.len() {
            let is_decoded = gloo_address(&value[..length], length).is_some();
            assert_eq!(
                is_decoded,
                length >= 154 && (length - 154).is_multiple_of(8),
                "{length} bytes"
            );
        }
        for (position, byte) in [(7, 0xff), (0, 200), (10, 135), (18, 7)] {
            let mut wrong = value.clone();
            wrong[position] = byte;
            assert_eq!(gloo_address(&wrong, wrong.len()), None);
        }
        assert_eq!(gloo_address(&value, usize::MAX), None);
        assert_eq!(gloo_address(&[0xff; 256], 256), None);
        let mut hostile = value;
        hostile[8] = 0x1b;
        assert_eq!(
            gloo_address(&hostile, hostile.len()).unwrap().host,
            "\\u{1b}m"
        );
    }
}
