//! The cost of peers without the secret: failed handshakes an address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The number of failed handshakes of one address that cost public-key operations, after which the server closes its
/// next connections at once.
const FAILURES_MAX: u32 = 64;

/// How often one failed handshake is forgotten: from then on, an address costs at most 8 failed handshakes a second,
/// 2.4 ms.
const FORGET_INTERVAL: Duration = Duration::from_millis(125);

/// How many addresses are remembered.
const ADDRESSES_MAX: usize = 4096;

/// Limits what peers without the secret cost a server: failed handshakes of an address.
///
/// Pure: the time is an argument. Memory is bounded. It decides nothing about a peer that has the secret.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    failures: HashMap<IpAddr, Failures>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    /// The time of the count.
    at: Instant,
}

impl Strangers {
    /// Whether the server may begin a handshake with this address.
    pub(crate) fn may_try(&self, address: IpAddr, now: Instant) -> bool {
        if self.failures.is_empty() {
            return true;
        }
        let failures = self.failures.get(&network(address));
        failures.is_none_or(|failures| failures.left(now) < FAILURES_MAX)
    }

    /// A handshake has failed that cost public-key operations.
    pub(crate) fn on_failure(&mut self, address: IpAddr, now: Instant) {
        let address = network(address);
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&address) {
            self.failures.retain(|_, failures| failures.left(now) > 0);
            if self.failures.len() >= ADDRESSES_MAX {
                // So many addresses are not limited by their number: let none of them push out another.
                return;
            }
        }
        let failures = self
            .failures
            .entry(address)
            .or_insert(Failures { count: 0, at: now });
        failures.count = failures.left(now).saturating_add(1);
        failures.at = now;
    }
}

impl Failures {
    fn left(&self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let forgotten = passed / FORGET_INTERVAL.as_millis();
        self.count
            .saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

/// The range of addresses that one owner usually has: an IPv4 address, or a /64 of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(bits).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_whose_handshakes_fail_has_to_wait() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        for _ in 0..FAILURES_MAX {
            assert!(strangers.may_try(one, start));
            strangers.on_failure(one, start);
        }
        assert!(!strangers.may_try(one, start));
        assert!(!strangers.may_try(address("::ffff:10.0.0.1"), start));
        assert!(strangers.may_try(other, start));
        let later = start + FORGET_INTERVAL;
        assert!(strangers.may_try(one, later));
        strangers.on_failure(one, later);
        assert!(!strangers.may_try(one, later));
        // However long it fails, it gets eight tries a second.
        let mut tries = 0;
        for millisecond in 0..10_000 {
            let now = later + Duration::from_millis(millisecond);
            if strangers.may_try(one, now) {
                strangers.on_failure(one, now);
                tries += 1;
            }
        }
        assert!((70..=80).contains(&tries), "{tries}");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let now = Instant::now();
        let mut strangers = Strangers::default();
        for host in 0..FAILURES_MAX {
            strangers.on_failure(address(&format!("2001:db8::{host:x}")), now);
        }
        assert!(!strangers.may_try(address("2001:db8::ffff"), now));
        assert!(strangers.may_try(address("2001:db8:0:1::1"), now));
    }

    #[test]
    fn the_number_of_addresses_is_limited() {
        let now = Instant::now();
        let mut strangers = Strangers::default();
        for number in 0..10_000_u32 {
            strangers.on_failure(std::net::Ipv4Addr::from_bits(number).into(), now);
        }
        assert_eq!(strangers.failures.len(), ADDRESSES_MAX);
        let later = now + Duration::from_secs(60);
        strangers.on_failure(address("10.0.0.1"), later);
        assert_eq!(strangers.failures.len(), 1);
    }
}
