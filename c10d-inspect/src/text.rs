//! Words for people: escaped bytes, ages, lists of ranks.

use std::collections::BTreeSet;
use std::time::Duration;

use c10d_socket::printable;

/// The most characters of a name or key that are shown.
const SHOWN_CHARS_MAX: usize = 160;

/// The most ranges of ranks in one sentence.
const RANGES_MAX: usize = 8;

/// A name or key of others as people read it.
pub(crate) fn shown(bytes: &[u8]) -> String {
    shown_up_to(bytes, SHOWN_CHARS_MAX)
}

/// A text of another process, made [`printable`].
pub(crate) fn shown_up_to(bytes: &[u8], chars_max: usize) -> String {
    printable(bytes, chars_max).to_string()
}

/// A duration as people say it: "0.4 s", "31 s", "12 min", "2 h 5 min".
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0 => format!("{:.1} s", age.as_secs_f64().min(0.9)),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// ", seen 5 s ago" after a state, or nothing if that was less than a second ago: a page shows the text for longer.
pub(crate) fn seen(age_then: Duration) -> String {
    match age_then.as_secs() {
        0 => String::new(),
        _ => format!(", seen {} ago", age(age_then)),
    }
}

/// "rank 2", "ranks 1 and 3", "ranks 0-4095 and 4100"; at most 8 ranges.
pub(crate) fn ranks(ranks: &BTreeSet<usize>) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", numbers(ranks))
}

/// Formats ranks like [`ranks`], for ranks in any order.
pub(crate) fn ranks_named(ranks: impl IntoIterator<Item = usize>) -> String {
    self::ranks(&ranks.into_iter().collect())
}

/// "Rank 2", "Ranks 1 and 3", for the start of a sentence.
pub(crate) fn ranks_start(ranks: &BTreeSet<usize>) -> String {
    capitalized(&self::ranks(ranks))
}

/// The text with its first letter in upper case.
pub(crate) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}

/// "2", "1 and 3", "0-4095 and 4100"; at most 8 ranges.
pub(crate) fn numbers(numbers: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let mut words = Vec::new();
    let mut left_out = numbers.len();
    for (first, last) in ranges {
        if words.len() == RANGES_MAX {
            break;
        }
        left_out -= last - first + 1;
        if last == first {
            words.push(first.to_string());
        } else if last == first + 1 {
            words.push(first.to_string());
            words.push(last.to_string());
        } else {
            words.push(format!("{first}-{last}"));
        }
    }
    if left_out > 0 {
        words.push(format!("{left_out} more"));
    }
    joined(&words)
}

/// "a", "a and b", "a, b and c".
pub(crate) fn joined(words: &[String]) -> String {
    match words {
        [] => "none".to_owned(),
        [word] => word.clone(),
        [words @ .., last] => format!("{} and {last}", words.join(", ")),
    }
}

/// "1 rank", "3 ranks".
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else if noun.ends_with("ss") {
        format!("{number} {noun}es")
    } else {
        format!("{number} {noun}s")
    }
}

/// "waits" for one, "wait" for several.
pub(crate) fn verb(number: usize, one: &'static str, several: &'static str) -> &'static str {
    if number == 1 { one } else { several }
}

/// The number that the bytes are in decimal, without sign and leading zeros.
pub(crate) fn decimal(bytes: &[u8]) -> Option<usize> {
    if bytes.len() > 12 || (bytes.len() > 1 && bytes[0] == b'0') {
        return None;
    }
    let digits = bytes.iter().all(u8::is_ascii_digit).then_some(bytes)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges() {
        let of = |numbers: &[usize]| ranks(&numbers.iter().copied().collect());
        assert_eq!(of(&[2]), "rank 2");
        assert_eq!(of(&[1, 3]), "ranks 1 and 3");
        assert_eq!(of(&[0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(of(&[0, 1, 2, 3, 9]), "ranks 0-3 and 9");
        let all = (0..4096).chain([4100]).collect();
        assert_eq!(ranks(&all), "ranks 0-4095 and 4100");
        let odd = (0..16_384).filter(|rank| rank % 2 == 1).collect();
        assert_eq!(ranks(&odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 8184 more");
        assert_eq!(of(&[usize::MAX]), format!("rank {}", usize::MAX));
    }

    #[test]
    fn ages_have_one_unit_that_fits() {
        for (milliseconds, expected) in [
            (0, "0.0 s"),
            (440, "0.4 s"),
            (999, "0.9 s"),
            (31_900, "31 s"),
            (180_000, "3 min"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(age(Duration::from_millis(milliseconds)), expected);
        }
    }
}
