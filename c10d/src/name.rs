//! Names of groups. Pure.

const NAME_BYTES_MAX: usize = 64;

/// What is wrong with a name, which becomes part of keys.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(format!(
            "the name {name:?} of a group must have 1 to {NAME_BYTES_MAX} of the characters A-Z, a-z, 0-9, -, _ and ."
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place_among_the_keys() {
        for good in ["world", "tp-0", "a.b_C", &"x".repeat(64)] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in ["", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            let text = check(bad).unwrap_err();
            assert!(text.contains("of the characters"), "{text}");
        }
    }
}
