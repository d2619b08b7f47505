//! Text that others wrote (host names, keys, values), made safe for a terminal.

/// The text with each character that is not printable replaced by its escape, as in `\u{1b}`: controls, bidirectional
/// marks, zero-width and combining characters.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            ' '..='~' => safe.push(char),
            _ => safe.extend(char.escape_debug()),
        }
    }
    safe
}

/// Lines of text for a terminal, each as [`printable`] makes it. Bytes that are not UTF-8 become replacement characters.
pub(crate) fn printable_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// A value in quotes: text with escapes, or bytes with escapes after a `b` if it is not UTF-8. Shows the first
/// `shown_max` bytes of it, and then how many are left out.
pub(crate) fn printable_value(value: &[u8], shown_max: usize) -> String {
    let shown = match std::str::from_utf8(value) {
        Ok(text) => {
            let end = (0..=shown_max.min(text.len()))
                .rfind(|end| text.is_char_boundary(*end))
                .unwrap_or(0);
            return with_rest(format!("{:?}", &text[..end]), text.len() - end);
        }
        Err(_) => &value[..value.len().min(shown_max)],
    };
    with_rest(
        format!("b\"{}\"", shown.escape_ascii()),
        value.len() - shown.len(),
    )
}

/// A text in JSON with each character that is not printable replaced by its escape, as in `\u202e`, which means
/// the same. Keeps line breaks between the parts of the text.
pub(crate) fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            ' '..='~' | '\n' => safe.push(char),
            _ if char.escape_debug().count() == 1 => safe.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    safe
}

fn with_rest(shown: String, left_out: usize) -> String {
    match left_out {
        0 => shown,
        _ => format!("{shown} (+{left_out} B)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_the_cursor_remains() {
        let table = [
            (
                "/default_pg/0//cpu//0/2 \\ \"x\"",
                "/default_pg/0//cpu//0/2 \\ \"x\"",
            ),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("\u{9b}31m\r\n\t\x7f", "\\u{9b}31m\\r\\n\\t\\u{7f}"),
            ("\u{202e}evil\u{200b}", "\\u{202e}evil\\u{200b}"),
            ("e\u{301}", "e\\u{301}"),
            ("grün 日本", "grün 日本"),
        ];
        for (text, expected) in table {
            assert_eq!(printable(text), expected);
        }
    }

    #[test]
    fn every_character_becomes_printable() {
        for char in ('\0'..='\u{2fff}').chain('\u{e0000}'..='\u{e0fff}') {
            let safe = printable(char.encode_utf8(&mut [0; 4]));
            assert!(
                safe.chars()
                    .all(|c| !c.is_control() && c.escape_debug().count() <= 2),
                "{char:?}"
            );
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\u{e0001}\u{301}\n\t\u{1b}\"\\ grün 日本";
        let plain = serde_json::json!({ "k": text });
        let safe = printable_json(&plain.to_string());
        let is_safe = |c: char| !c.is_control() && c.escape_debug().count() <= 2;
        assert!(safe.chars().all(is_safe), "{safe}");
        assert!(safe.contains("grün 日本"));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&safe).unwrap(),
            plain
        );
    }

    #[test]
    fn values_are_quoted_escaped_and_cut() {
        let table: [(&[u8], &str); 6] = [
            (b"", r#""""#),
            (b"four", r#""four""#),
            (b"a \"quote\"", r#""a \"qu" (+4 B)"#),
            (b"\x1b[2J", r#""\u{1b}[2J""#),
            ("日本".as_bytes(), r#""日" (+3 B)"#),
            (b"\xff\n\x1b\x00ab", r#"b"\xff\n\x1b\x00a" (+1 B)"#),
        ];
        for (value, expected) in table {
            assert_eq!(printable_value(value, 5), expected);
        }
    }
}
