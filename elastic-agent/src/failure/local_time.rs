//! Timestamps as local time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Seconds since the epoch as local time, as in `2025-01-31_23:59:59`; the number itself beyond the year
/// 9999. The time zone is that of `TZ`, or else the system's.
#[must_use]
pub fn local_time_text(epoch_s: i64) -> String {
    text(epoch_s, TimeZone::system())
}

/// Whole seconds since 1970.
pub(crate) fn epoch_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A time in nanoseconds since 1970 as local time, and how long before `now` that was: "18:04:11 (41 s ago)", with the date
/// before it after 12 hours. The clock of another host can be ahead of this one.
#[must_use]
pub fn local_time_and_age(unix_ns: u64, now: SystemTime) -> String {
    let at = Duration::from_nanos(unix_ns);
    let local = local_time_text(i64::try_from(at.as_secs()).unwrap_or(i64::MAX));
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(at).as_secs();
    let shown = match local.split_once('_') {
        Some((_, time)) if age < 12 * 3600 => time.to_owned(),
        _ => local.replace('_', " "),
    };
    format!("{shown} ({age} s ago)")
}

fn text(epoch_s: i64, zone: TimeZone) -> String {
    Timestamp::from_second(epoch_s).map_or_else(
        |_| epoch_s.to_string(),
        |time| {
            time.to_zoned(zone)
                .strftime("%Y-%m-%d_%H:%M:%S")
                .to_string()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_left_out_of_the_last_12_hours() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let text = |now| local_time_and_age(1_000_000_000_000_000_000, at(now));
        let local = local_time_text(1_000_000_000);
        let (date, time) = local.split_once('_').unwrap();
        assert_eq!(text(1_000_000_041), format!("{time} (41 s ago)"));
        assert_eq!(text(999_999_999), format!("{time} (0 s ago)"));
        let half_a_day_later = format!("{date} {time} (43200 s ago)");
        assert_eq!(text(1_000_043_200), half_a_day_later);
    }

    #[test]
    fn every_field_has_its_width() {
        let text = |epoch_s| text(epoch_s, TimeZone::UTC);
        assert_eq!(text(1_000_000_000), "2001-09-09_01:46:40");
        assert_eq!(text(-31_020_353_755), "0987-01-02_03:04:05");
        assert_eq!(text(i64::MAX), i64::MAX.to_string());
    }

    #[test]
    fn local_time_is_within_a_day_of_universal_time() {
        let local = local_time_text(1_000_000_000);
        assert!(
            local.starts_with("2001-09-08_") || local.starts_with("2001-09-09_"),
            "{local}"
        );
        assert!(local.ends_with(":40"), "{local}");
    }
}
