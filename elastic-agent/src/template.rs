//! Substitution of `$name` and `${name}`, by the rules of Python's `string.Template.safe_substitute`.
//!
//! Works on bytes, as arguments of a command need not be UTF-8.

/// Replaces `$name` and `${name}` by what `value` returns for the name, and `$$` by `$`. Everything else
/// stays: a name without a value, an unclosed brace, a `$` before any other character.
///
/// A name is an ASCII letter or `_`, followed by as many letters, digits and `_` as possible: `$ab` is
/// never `$a` followed by `b`. Names are case-sensitive.
pub(crate) fn substitute(template: &[u8], value: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut text = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        text.extend_from_slice(&rest[..at]);
        let macro_ = &rest[at..];
        let (taken, replacement) = match macro_.get(1) {
            Some(b'$') => (2, Some("$".to_owned())),
            Some(b'{') => {
                let name = name_at(&macro_[2..]);
                match macro_.get(2 + name.len()) {
                    Some(b'}') if !name.is_empty() => (name.len() + 3, value(name)),
                    _ => (1, None),
                }
            }
            _ => {
                let name = name_at(&macro_[1..]);
                let replacement = (!name.is_empty()).then(|| value(name)).flatten();
                (1 + name.len(), replacement)
            }
        };
        match replacement {
            Some(replacement) => text.extend_from_slice(replacement.as_bytes()),
            None => text.extend_from_slice(&macro_[..taken]),
        }
        rest = &macro_[taken..];
    }
    text.extend_from_slice(rest);
    text
}

/// The longest name at the start of `bytes`; empty if there is none.
fn name_at(bytes: &[u8]) -> &str {
    let starts = bytes
        .first()
        .is_some_and(|&first| first == b'_' || first.is_ascii_alphabetic());
    let length = if starts {
        bytes
            .iter()
            .take_while(|&&byte| byte == b'_' || byte.is_ascii_alphanumeric())
            .count()
    } else {
        0
    };
    // ASCII only, so never an error.
    str::from_utf8(&bytes[..length]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from `string.Template(text).safe_substitute(local_rank=3)`.
    #[test]
    fn substitution_equals_pythons() {
        let table = [
            ("$local_rank", "3"),
            ("${local_rank}", "3"),
            ("$$local_rank", "$local_rank"),
            ("$$$local_rank", "$3"),
            ("${local_rank", "${local_rank"),
            ("$local_rankx", "$local_rankx"),
            ("${x}", "${x}"),
            ("$", "$"),
            ("a$", "a$"),
            ("$1", "$1"),
            ("${}", "${}"),
            ("$LOCAL_RANK", "$LOCAL_RANK"),
            ("${ local_rank}", "${ local_rank}"),
            ("$local_rank.py", "3.py"),
            ("$$", "$"),
            ("${local_rank}}", "3}"),
            ("$é", "$é"),
            ("$local_ranké", "3é"),
            ("$${local_rank}", "${local_rank}"),
            ("${local_ranK}", "${local_ranK}"),
            ("$local_rank$local_rank", "33"),
            ("$_", "$_"),
            ("", ""),
        ];
        for (template, expected) in table {
            let text = substitute(template.as_bytes(), |name| {
                (name == "local_rank").then(|| "3".to_owned())
            });
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{template:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_unchanged() {
        let text = substitute(b"\xff$a\xfe${a}\xfd", |_| Some("1".to_owned()));
        assert_eq!(text, b"\xff1\xfe1\xfd");
    }
}
