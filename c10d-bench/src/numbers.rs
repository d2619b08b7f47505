//! Numbers on the command line.

use std::fmt;
use std::str::FromStr;

/// A count of at least 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// A count from 1 to `max`.
pub(crate) fn at_most(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match at_least_one(text)? {
        count if count <= max => Ok(count),
        _ => Err(format!("must be from 1 to {max}")),
    }
}

/// The length of one round, in seconds.
pub(crate) fn round_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("must be from 0.001 to 3600".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}

/// The length of a payload: `64`, `70KiB`, `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PayloadBytes(pub(crate) usize);

const UNITS: [(&str, usize); 3] = [("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

impl fmt::Display for PayloadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: usize| self.0 >= unit && self.0.is_multiple_of(unit);
        let (name, unit) = UNITS.into_iter().find(|it| fits(it.1)).unwrap_or(("", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl FromStr for PayloadBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbered = UNITS
            .into_iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?.parse::<usize>().ok()?, unit)));
        let bytes = numbered.and_then(|(number, unit)| number.checked_mul(unit));
        match bytes {
            Some(bytes) if bytes <= Self::MAX.0 => Ok(Self(bytes)),
            Some(_) => Err(format!("must be at most {}", Self::MAX)),
            None => Err("a length looks like 8192, 64KiB or 1MiB".to_owned()),
        }
    }
}

impl PayloadBytes {
    pub(crate) const MAX: Self = Self(64 << 20);
}
