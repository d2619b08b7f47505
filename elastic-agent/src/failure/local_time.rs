//! Moments as people write them.

use crate::sys::{WallTime, wall_time};

/// A moment in seconds since the epoch as local time, as in `2025-01-31_23:59:59`; the number itself
/// when no calendar reaches that far.
#[must_use]
pub fn local_time_text(epoch_s: i64) -> String {
    wall_time(epoch_s).map_or_else(|| epoch_s.to_string(), text)
}

fn text(time: WallTime) -> String {
    let WallTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = time;
    format!("{year:04}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_width() {
        let time = WallTime {
            year: 987,
            month: 1,
            day: 2,
            hour: 3,
            minute: 4,
            second: 5,
        };
        assert_eq!(text(time), "0987-01-02_03:04:05");
        assert_eq!(local_time_text(i64::MAX), i64::MAX.to_string());
    }
}
