//! Texts from ranks and launchers, made safe to print, and lists of ranks.

/// The most parts of a list of ranks.
const PARTS_MAX: usize = 16;

/// The first `max` characters of `text` without control characters; "..." stands for the rest.
pub(crate) fn shown(text: &str, max: usize) -> String {
    let mut characters = text.chars().filter(|character| is_printable(*character));
    let mut shown: String = characters.by_ref().take(max).collect();
    if characters.next().is_some() {
        shown.push_str("...");
    }
    shown
}

/// Whether a character neither controls a terminal nor changes the direction of the text around it.
fn is_printable(character: char) -> bool {
    let is_direction = matches!(
        character,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !character.is_control() && !is_direction
}

/// Ranks in ascending order as "0, 1 and 3", or "0-15, 20"; long lists end in "and 12 more".
pub(crate) fn rank_list(ranks: impl IntoIterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let mut parts = Vec::new();
    let mut left_out = 0;
    for (first, last) in runs {
        if parts.len() >= PARTS_MAX {
            left_out += last - first + 1;
        } else if last - first < 2 {
            parts.extend((first..=last).map(|rank| rank.to_string()));
        } else {
            parts.push(format!("{first}-{last}"));
        }
    }
    if left_out > 0 {
        return format!("{} and {left_out} more", parts.join(", "));
    }
    match parts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => parts.concat(),
    }
}

/// "rank 2", or "ranks 0, 1 and 3".
pub(crate) fn ranks_named(ranks: impl IntoIterator<Item = usize>) -> String {
    let ranks: Vec<usize> = ranks.into_iter().collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", rank_list(ranks))
}

/// The text with its first letter in upper case.
pub(crate) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_left_out() {
        assert_eq!(shown("a\u{1b}[2J\u{9b}b\u{202e}c\nd", 64), "a[2Jbcd");
        assert_eq!(shown("abcdef", 3), "abc...");
        assert_eq!(shown("abc\n", 3), "abc");
    }

    #[test]
    fn ranks_are_listed_in_runs() {
        assert_eq!(rank_list([]), "");
        assert_eq!(ranks_named([2]), "rank 2");
        assert_eq!(ranks_named([0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(rank_list([0, 1, 2, 3, 7]), "0-3 and 7");
        let many = rank_list((0..100).map(|n| n * 2));
        assert!(many.ends_with("28, 30 and 84 more"), "{many}");
        assert_eq!(capitalized("rank 2"), "Rank 2");
    }
}
