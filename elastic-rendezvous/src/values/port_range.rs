//! A port, or a range of ports. A server takes the first free port.

use std::fmt;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The ports that a server may use, in the order in which it tries them. Never empty, and without port 0.
///
/// ```
/// use elastic_rendezvous::PortRange;
///
/// let range: PortRange = "29600-29609".parse()?;
/// assert_eq!(range.ports().count(), 10);
/// assert_eq!("29600".parse::<PortRange>()?.to_string(), "29600");
/// assert!("29609-29600".parse::<PortRange>().is_err());
/// # Ok::<(), elastic_rendezvous::PortRangeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: NonZero<u16>,
    last: NonZero<u16>,
}

/// The text is not a port or a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a port, 1 to 65535, or a range of ports, for example 29600-29609")]
pub struct PortRangeError;

impl PortRange {
    /// Returns the ports, the lowest first.
    #[must_use]
    pub const fn ports(self) -> RangeInclusive<u16> {
        self.first.get()..=self.last.get()
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    /// Reads `N` or `A-B` with A <= B. Blanks around the numbers are ignored.
    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let port = |text: &str| text.trim().parse().map_err(|_| PortRangeError);
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(PortRangeError);
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_or_a_range_is_read() {
        for (text, ports) in [
            ("1", 1..=1),
            (" 29600 ", 29600..=29600),
            ("29600-29609", 29600..=29609),
            (" 5 - 7", 5..=7),
            ("65535-65535", 65535..=65535),
        ] {
            assert_eq!(text.parse().map(PortRange::ports), Ok(ports), "{text:?}");
        }
        for text in [
            "", "0", "0-5", "65536", "7-5", "5-", "-5", "5-6-7", "a", "5,6",
        ] {
            assert_eq!(text.parse::<PortRange>(), Err(PortRangeError), "{text:?}");
        }
    }
}
