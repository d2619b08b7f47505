//! The ports that the system gives to outgoing connections. A server should not use them.

use std::fs;
use std::ops::RangeInclusive;

use elastic_rendezvous::PortRange;

/// The range of ports for outgoing connections, without the reserved ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EphemeralPorts {
    range: RangeInclusive<u16>,
    reserved: Vec<RangeInclusive<u16>>,
}

impl EphemeralPorts {
    /// Reads the settings of the system. The range is empty on a system without these settings.
    pub(crate) fn of_this_system() -> Self {
        let read = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        let range = read("ip_local_port_range").unwrap_or_default();
        let reserved = read("ip_local_reserved_ports").unwrap_or_default();
        Self::parse(&range, &reserved)
    }

    /// Reads the text of the two settings, for example `32768 60999` and `40000-40009,50000`.
    pub(crate) fn parse(range: &str, reserved: &str) -> Self {
        let mut ends = range.split_ascii_whitespace().map(str::parse);
        let range = match (ends.next(), ends.next()) {
            (Some(Ok(first)), Some(Ok(last))) => first..=last,
            // An empty range, which contains no port.
            _ => RangeInclusive::new(1, 0),
        };
        let reserved = reserved.trim().split(',').filter_map(|entry| {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Self {
            range,
            reserved: reserved.collect(),
        }
    }

    /// The first and the last port.
    pub(crate) fn range(&self) -> Option<(u16, u16)> {
        (!self.range.is_empty()).then(|| (*self.range.start(), *self.range.end()))
    }

    /// Returns the first port if the system may give each port of the range to an outgoing connection. A used port costs nothing as
    /// long as the range has a free port.
    pub(crate) fn of_range(&self, ports: PortRange) -> Option<u16> {
        let mut ports = ports.ports();
        let is_any_free = ports.clone().any(|port| self.range_with(port).is_none());
        ports.next().filter(|_| !is_any_free)
    }

    /// Returns the range, and whether the system may give this port to an outgoing connection.
    pub(crate) fn range_with(&self, port: u16) -> Option<&RangeInclusive<u16>> {
        let is_reserved = self.reserved.iter().any(|ports| ports.contains(&port));
        (self.range.contains(&port) && !is_reserved).then_some(&self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_not_given_to_connections() {
        let ports = EphemeralPorts::parse("32768\t60999\n", "29500,40000-40009,x,7-\n");
        for (port, is_ephemeral) in [
            (29500, false),
            (32767, false),
            (32768, true),
            (39999, true),
            (40000, false),
            (40009, false),
            (40010, true),
            (60999, true),
            (61000, false),
        ] {
            assert_eq!(ports.range_with(port).is_some(), is_ephemeral, "{port}");
        }
        for text in ["", "x", "1", "70000 80000"] {
            assert_eq!(EphemeralPorts::parse(text, "").range_with(40000), None);
        }
    }
}
