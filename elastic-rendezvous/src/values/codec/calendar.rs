//! Converts timestamps to and from the ten bytes of Python's `datetime`.
//!
//! Year (two bytes, big-endian), month, day, hour, minute, second, microsecond (three bytes).

use byteorder::{BigEndian, ByteOrder};

use crate::values::timestamp::Timestamp;

/// The length of a pickled `datetime`.
pub(super) const DATETIME_BYTES: usize = 10;

/// A flag in the month's byte for the second of two equal times of day when clocks are set back. It has no
/// meaning in a time zone with a fixed offset.
const FOLD: u8 = 0x80;

const DAYS_PER_YEAR: i64 = 365;
const DAYS_PER_4_YEARS: i64 = 4 * DAYS_PER_YEAR + 1;
const DAYS_PER_100_YEARS: i64 = 25 * DAYS_PER_4_YEARS - 1;
const DAYS_PER_400_YEARS: i64 = 4 * DAYS_PER_100_YEARS + 1;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;

/// Days before each month in a year without a 29 February.
const DAYS_BEFORE_MONTH: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// Encodes `moment` in UTC, clamped to the years 1 to 9999.
pub(super) fn to_bytes(moment: Timestamp) -> [u8; DATETIME_BYTES] {
    let moment = moment.clamp(Timestamp::MIN, Timestamp::MAX);
    // This is counted from the start of year 1, so it is never negative.
    let since = moment.as_micros() - Timestamp::MIN.as_micros();
    let (year, month, day) = date_of(since / MICROS_PER_DAY);
    let within_day = since % MICROS_PER_DAY;
    let seconds = within_day / MICROS_PER_SECOND;
    let mut bytes = [0; DATETIME_BYTES];
    // By the clamp and the remainders each number fits its bytes.
    BigEndian::write_u16(&mut bytes[..2], year as u16);
    bytes[2] = month as u8;
    bytes[3] = day as u8;
    bytes[4] = (seconds / 3600) as u8;
    bytes[5] = (seconds / 60 % 60) as u8;
    bytes[6] = (seconds % 60) as u8;
    BigEndian::write_u24(&mut bytes[7..], (within_day % MICROS_PER_SECOND) as u32);
    bytes
}

/// Decodes a time in a zone that is `offset_micros` ahead of UTC. `None` if there is no such date or time, or
/// if it is outside of the years 1 to 9999 in UTC.
pub(super) fn from_bytes(bytes: &[u8; DATETIME_BYTES], offset_micros: i64) -> Option<Timestamp> {
    let year = i64::from(BigEndian::read_u16(&bytes[..2]));
    let month = i64::from(bytes[2] & !FOLD);
    let day = i64::from(bytes[3]);
    let [hour, minute, second] = [bytes[4], bytes[5], bytes[6]].map(i64::from);
    let micros = i64::from(BigEndian::read_u24(&bytes[7..]));
    let exists = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && micros < MICROS_PER_SECOND;
    if !exists {
        return None;
    }
    let days = days_before_year(year) + days_before_month(year, month) + day - 1;
    let seconds = hour * 3600 + minute * 60 + second;
    let since = days * MICROS_PER_DAY + seconds * MICROS_PER_SECOND + micros;
    let local = since + Timestamp::MIN.as_micros();
    let moment = Timestamp::from_micros(local.checked_sub(offset_micros)?);
    (Timestamp::MIN..=Timestamp::MAX)
        .contains(&moment)
        .then_some(moment)
}

/// Year, month and day of the day `days` after the start of year 1.
fn date_of(days: i64) -> (i64, i64, i64) {
    let (cycles, days) = (days / DAYS_PER_400_YEARS, days % DAYS_PER_400_YEARS);
    // The last century of a cycle and the last year of four are a day longer than the other
    // centuries and years.
    let centuries = (days / DAYS_PER_100_YEARS).min(3);
    let days = days - centuries * DAYS_PER_100_YEARS;
    let (fours, days) = (days / DAYS_PER_4_YEARS, days % DAYS_PER_4_YEARS);
    let years = (days / DAYS_PER_YEAR).min(3);
    let days = days - years * DAYS_PER_YEAR;
    let year = cycles * 400 + centuries * 100 + fours * 4 + years + 1;
    let month = (2..=12)
        .rev()
        .find(|&month| days_before_month(year, month) <= days)
        .unwrap_or(1);
    (year, month, days - days_before_month(year, month) + 1)
}

const fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    past * DAYS_PER_YEAR + past / 4 - past / 100 + past / 400
}

/// `month` is 1 to 12.
fn days_before_month(year: i64, month: i64) -> i64 {
    let leap_day = i64::from(month > 2 && is_leap(year));
    DAYS_BEFORE_MONTH[(month - 1) as usize] + leap_day
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(year: u16, date_and_time: [u8; 5], micros: u32) -> [u8; DATETIME_BYTES] {
        let mut bytes = [0; DATETIME_BYTES];
        BigEndian::write_u16(&mut bytes[..2], year);
        bytes[2..7].copy_from_slice(&date_and_time);
        BigEndian::write_u24(&mut bytes[7..], micros);
        bytes
    }

    #[test]
    fn known_moments_have_the_bytes_of_python() {
        let table = [
            (0, bytes(1970, [1, 1, 0, 0, 0], 0)),
            (-1, bytes(1969, [12, 31, 23, 59, 59], 999_999)),
            (951_782_400_000_000, bytes(2000, [2, 29, 0, 0, 0], 0)),
            (4_107_542_400_000_000, bytes(2100, [3, 1, 0, 0, 0], 0)),
            (1_767_323_045_678_901, bytes(2026, [1, 2, 3, 4, 5], 678_901)),
            (Timestamp::MIN.as_micros(), bytes(1, [1, 1, 0, 0, 0], 0)),
            (
                Timestamp::MAX.as_micros(),
                bytes(9999, [12, 31, 23, 59, 59], 999_999),
            ),
        ];
        for (micros, bytes) in table {
            let moment = Timestamp::from_micros(micros);
            assert_eq!(to_bytes(moment), bytes, "{micros}");
            assert_eq!(from_bytes(&bytes, 0), Some(moment), "{micros}");
        }
    }

    #[test]
    fn every_day_from_year_1_to_9999_follows_the_one_before() {
        let mut expected = (1, 1, 1);
        for days in 0..days_before_year(10_000) {
            assert_eq!(date_of(days), expected);
            let (year, month, day) = expected;
            assert_eq!(
                days_before_year(year) + days_before_month(year, month) + day - 1,
                days
            );
            expected = if day < days_in_month(year, month) {
                (year, month, day + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
        }
        assert_eq!(expected, (10_000, 1, 1));
    }

    #[test]
    fn impossible_dates_and_times_are_refused() {
        let refused = [
            bytes(0, [1, 1, 0, 0, 0], 0),
            bytes(10_000, [1, 1, 0, 0, 0], 0),
            bytes(2026, [0, 1, 0, 0, 0], 0),
            bytes(2026, [13, 1, 0, 0, 0], 0),
            bytes(2026, [1, 0, 0, 0, 0], 0),
            bytes(2026, [4, 31, 0, 0, 0], 0),
            bytes(2026, [2, 29, 0, 0, 0], 0),
            bytes(2100, [2, 29, 0, 0, 0], 0),
            bytes(2026, [1, 1, 24, 0, 0], 0),
            bytes(2026, [1, 1, 0, 60, 0], 0),
            bytes(2026, [1, 1, 0, 0, 60], 0),
            bytes(2026, [1, 1, 0, 0, 0], 1_000_000),
            [0xff; DATETIME_BYTES],
        ];
        for bytes in refused {
            assert_eq!(from_bytes(&bytes, 0), None, "{bytes:?}");
        }
    }

    #[test]
    fn offsets_are_converted_to_utc_within_the_years_1_to_9999() {
        let hour = 3600 * MICROS_PER_SECOND;
        let noon = bytes(2026, [1, 1, 12, 0, 0], 0);
        let ten = bytes(2026, [1, 1, 10, 0, 0], 0);
        assert_eq!(from_bytes(&noon, 2 * hour), from_bytes(&ten, 0));
        assert_eq!(from_bytes(&to_bytes(Timestamp::MIN), 1), None);
        assert_eq!(from_bytes(&to_bytes(Timestamp::MAX), -1), None);
        assert_eq!(from_bytes(&noon, i64::MIN), None);
        assert_eq!(from_bytes(&noon, i64::MAX), None);
    }

    #[test]
    fn the_fold_is_ignored() {
        let plain = bytes(2026, [12, 2, 3, 4, 5], 678_901);
        let mut folded = plain;
        folded[2] |= FOLD;
        assert_eq!(from_bytes(&folded, 0), from_bytes(&plain, 0));
    }

    proptest! {
        #[test]
        fn moments_come_back_unchanged(
            micros in Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros()
        ) {
            let moment = Timestamp::from_micros(micros);
            prop_assert_eq!(from_bytes(&to_bytes(moment), 0), Some(moment));
        }

        #[test]
        fn moments_outside_of_pythons_range_are_clamped(micros: i64) {
            let moment = Timestamp::from_micros(micros);
            let nearest = moment.clamp(Timestamp::MIN, Timestamp::MAX);
            prop_assert_eq!(from_bytes(&to_bytes(moment), 0), Some(nearest));
        }

        #[test]
        fn any_ten_bytes_are_a_moment_or_none(bytes: [u8; DATETIME_BYTES], offset: i64) {
            if let Some(moment) = from_bytes(&bytes, offset) {
                prop_assert!((Timestamp::MIN..=Timestamp::MAX).contains(&moment));
            }
        }
    }
}
