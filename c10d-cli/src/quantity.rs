//! Parses durations, byte counts and counts on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// `5s`, `250ms`, `2m`, `1h`, `1.5s`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let seconds_per_unit = match unit {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!(
                "unknown unit {unit:?}: use ms, s, m or h, for example 5s or 250ms"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a time, for example 5s, 250ms or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|error| error.to_string())
}

/// Parses a duration that is not shorter than `min`.
pub(crate) fn parse_duration_from(min: Duration, text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < min => Err(format!("must be at least {min:?}")),
        duration => Ok(duration),
    }
}

/// A number of bytes: `8388608`, `8MiB`, `64KiB`, `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteCount(pub(crate) usize);

const BYTE_UNITS: [(&str, usize); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("", 1),
];

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in BYTE_UNITS {
            if self.0 >= bytes && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl FromStr for ByteCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let Some((_, bytes)) = BYTE_UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?}: use KiB, MiB or GiB"));
        };
        let number: usize = number
            .parse()
            .map_err(|_| "expected a number of bytes, for example 8192 or 8MiB".to_owned())?;
        number
            .checked_mul(*bytes)
            .map(Self)
            .ok_or_else(|| "more bytes than this machine can address".to_owned())
    }
}

/// A count of at least 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let unit_from = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text.split_at(unit_from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_an_optional_unit() {
        let table = [
            ("5s", Duration::from_secs(5)),
            ("250ms", Duration::from_millis(250)),
            ("2m", Duration::from_secs(120)),
            ("1h", Duration::from_secs(3600)),
            ("1.5s", Duration::from_millis(1500)),
            ("0", Duration::ZERO),
            ("10", Duration::from_secs(10)),
        ];
        for (text, duration) in table {
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
        for text in [
            "",
            "s",
            "-1s",
            "5 s",
            "5d",
            "1e3s",
            "1.2.3s",
            "99999999999999999999s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn byte_counts_round_trip() {
        let table = [
            ("0", 0),
            ("8193", 8193),
            ("8KiB", 8 << 10),
            ("8MiB", 8 << 20),
            ("1GiB", 1 << 30),
        ];
        for (text, bytes) in table {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)), "{text}");
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
        for text in ["", "MiB", "1.5MiB", "1MB", "-1", "99999999999GiB"] {
            assert!(text.parse::<ByteCount>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_count_is_at_least_one() {
        assert_eq!(at_least_one("16000"), Ok(16_000));
        for text in ["0", "-1", "", "many"] {
            assert!(at_least_one(text).is_err(), "{text}");
        }
    }
}
