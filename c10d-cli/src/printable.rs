//! Lines, values and JSON that others wrote, made safe for a terminal.

use c10d_socket::{is_printable, printable};

/// Lines of text for a terminal, each [printable].
pub(crate) fn printable_lines(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines: Vec<String> = lines
        .map(|line| printable(line, usize::MAX).to_string())
        .collect();
    lines.join("\n")
}

/// A value in quotes. Shows the first `shown_max` bytes of it, and then how many are left out.
pub(crate) fn printable_value(value: &[u8], shown_max: usize) -> String {
    let mut end = value.len().min(shown_max);
    if let Ok(text) = str::from_utf8(value) {
        while !text.is_char_boundary(end) {
            end -= 1;
        }
    }
    let shown = printable(&value[..end], usize::MAX);
    match value.len() - end {
        0 => format!("\"{shown}\""),
        left_out => format!("\"{shown}\" (+{left_out} B)"),
    }
}

/// A text in JSON with each character that is not printable replaced by its escape, as in `\u202e`, which means
/// the same. Keeps line breaks between the parts of the text.
pub(crate) fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '\n' => safe.push(char),
            _ if is_printable(char) => safe.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_breaks_between_lines_remain() {
        let lines = b"a\x1b[2J\r\n\xff\n\n";
        assert_eq!(printable_lines(lines), "a\\u{1b}[2J\\r\n\\xff\n\n");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\u{e0001}\u{301}\n\t\u{1b}\"\\ grün 日本";
        let plain = serde_json::json!({ "k": text });
        let safe = printable_json(&plain.to_string());
        assert!(safe.chars().all(is_printable), "{safe}");
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
            (b"a \"quote\"", r#""a "qu" (+4 B)"#),
            (b"\x1b[2J", r#""\u{1b}[2J""#),
            ("日本".as_bytes(), r#""日" (+3 B)"#),
            (b"\xff\n\x1b\x00ab", r#""\xff\n\u{1b}\u{0}a" (+1 B)"#),
        ];
        for (value, expected) in table {
            assert_eq!(printable_value(value, 5), expected);
        }
    }
}
