//! Timestamps as local time.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Seconds since the epoch as local time, as in `2025-01-31_23:59:59`; the number itself beyond the year
/// 9999. The time zone is that of `TZ`, or else the system's.
#[must_use]
pub fn local_time_text(epoch_s: i64) -> String {
    text(epoch_s, TimeZone::system())
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
