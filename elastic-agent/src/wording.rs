//! The names of signals, lists of workers and local times in messages.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// How many workers a list names: a line of the log.
const SHOWN_MAX: usize = 16;

/// `local rank 0 (pid 17), 1 (pid 18)`; empty for none.
pub(crate) fn local_ranks_with_pids(workers: impl Iterator<Item = (usize, u32)>) -> String {
    let names = workers.map(|(local_rank, pid)| format!("{local_rank} (pid {pid})"));
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return String::new();
    }
    format!("local rank {}", bounded(&names))
}

/// `rank 4-7 = local rank 0-3, pid 17, 18, 19, 20`, so that a process shown by `ps` can be matched to its
/// rank.
pub(crate) fn ranks_with_pids(first_rank: usize, pids: &[u32]) -> String {
    let span = |first: usize| match pids.len() {
        0 | 1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    };
    let names: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!(
        "rank {} = local rank {}, pid {}",
        span(first_rank),
        span(0),
        bounded(&names)
    )
}

/// `1, 2, 3 and 4 more`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    bounded(&ranks)
}

fn bounded(names: &[String]) -> String {
    let shown = names.len().min(SHOWN_MAX);
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}

/// The name of a signal as Python knows it; `None` for one without a name.
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    match number {
        // Python knows these two, signal-hook does not.
        #[cfg(target_os = "linux")]
        libc::SIGPWR => Some("SIGPWR"),
        #[cfg(target_os = "linux")]
        libc::SIGSTKFLT => Some("SIGSTKFLT"),
        _ => signal_hook::low_level::signal_name(number),
    }
}

/// The name of a signal for messages: `SIGTERM`, or `signal 40` for one without a name.
pub(crate) fn name_of(number: i32) -> Cow<'static, str> {
    signal_name(number).map_or_else(|| format!("signal {number}").into(), Cow::Borrowed)
}

/// The addition for a process that SIGKILL killed unexpectedly: the process itself cannot report the cause.
pub(crate) const OUT_OF_MEMORY: &str =
    "; the kernel sends it when memory runs out: see dmesg, memory.events";

/// Seconds since the epoch as local time, for example `2025-01-31_23:59:59`; the number itself beyond the year
/// 9999. The time zone is `TZ`, or otherwise the system's time zone.
#[must_use]
pub fn local_time_text(epoch_s: i64) -> String {
    text(epoch_s, TimeZone::system())
}

/// Whole seconds since 1970.
pub(crate) fn epoch_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Milliseconds since 1970.
pub(crate) fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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
    fn a_list_names_each_worker_up_to_a_bound() {
        assert_eq!(local_ranks_with_pids([].into_iter()), "");
        let two = local_ranks_with_pids([(0, 17), (2, 19)].into_iter());
        assert_eq!(two, "local rank 0 (pid 17), 2 (pid 19)");
        assert_eq!(ranks_with_pids(3, &[9]), "rank 3 = local rank 0, pid 9");
        assert_eq!(
            ranks_with_pids(4, &[7, 9]),
            "rank 4-5 = local rank 0-1, pid 7, 9"
        );
        let many: Vec<u32> = (100..1100).collect();
        let text = ranks_with_pids(0, &many);
        assert!(text.starts_with("rank 0-999 = local rank 0-999, pid 100, 101, "));
        assert!(text.ends_with(", 115 and 984 more"), "{text}");
    }

    #[test]
    fn named_signals_have_pythons_names() {
        assert_eq!(signal_name(9), Some("SIGKILL"));
        assert_eq!(signal_name(15), Some("SIGTERM"));
        if cfg!(target_os = "linux") {
            assert_eq!(signal_name(16), Some("SIGSTKFLT"));
            assert_eq!(signal_name(30), Some("SIGPWR"));
        }
        for number in [0, -1, 40, i32::MAX] {
            assert_eq!(signal_name(number), None);
        }
    }

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
