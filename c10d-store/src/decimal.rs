//! The decimal text of the numbers of `add`: the only parser and formatter, for all stores.

/// A number ends within this many bytes, or at the end of the value. `add` writes at most 20.
const NUMBER_BYTES_MAX: usize = 64;

/// Reads the number at the start of `text` as C's `strtoll` in base 10 and PyTorch's stores do
/// (docs/spec/wire.md, ADD): leading white space, an optional sign, then digits up to the first other byte.
/// `None` without digits, if the number does not fit an `i64`, or if it does not end within 64 bytes: a value of
/// megabytes of white space costs no more than that.
pub(crate) fn parse_decimal(value: &[u8]) -> Option<i64> {
    let text = &value[..value.len().min(NUMBER_BYTES_MAX)];
    let start = text.iter().position(|byte| !is_c_space(*byte))?;
    let (is_negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    // Accumulates the negated number, because the smallest number has no positive counterpart.
    let mut negated: i64 = 0;
    let mut digit_count = 0;
    for byte in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        negated = negated
            .checked_mul(10)?
            .checked_sub(i64::from(byte - b'0'))?;
        digit_count += 1;
    }
    let is_cut = digit_count == digits.len() && text.len() < value.len();
    match digit_count {
        0 => None,
        _ if is_cut => None,
        _ if is_negative => Some(negated),
        _ => negated.checked_neg(),
    }
}

/// Replaces the content of `text` with `number` in decimal. Does not allocate if the capacity is at
/// least 20 bytes.
pub(crate) fn write_decimal(number: i64, text: &mut Vec<u8>) {
    // The length of the longest number, "-9223372036854775808".
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        start -= 1;
        digits[start] = b'-';
    }
    text.clear();
    text.extend_from_slice(&digits[start..]);
}

/// C's `isspace`, which unlike `u8::is_ascii_whitespace` includes the vertical tab.
const fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// docs/spec/wire.md, ADD: how each value is read.
    /// docs/spec/wire.md, ADD 2 and 3.
    #[test]
    fn add_reads_values_like_strtoll() {
        let table: &[(&[u8], Option<i64>)] = &[
            (b"0", Some(0)),
            (b"-0", Some(0)),
            (b"7", Some(7)),
            (b" 12", Some(12)),
            (b"\n\t 4", Some(4)),
            (b"\x0b\x0c\r4", Some(4)),
            (b"+5", Some(5)),
            (b"-3", Some(-3)),
            (b"010", Some(10)),
            (b"0x10", Some(0)),
            (b"12abc", Some(12)),
            (b"12 34", Some(12)),
            (b"1.5", Some(1)),
            (b"1e3", Some(1)),
            (b"5\x006", Some(5)),
            (b"00000000000000000000000000005", Some(5)),
            (b"9223372036854775807", Some(i64::MAX)),
            (b"9223372036854775807xyz", Some(i64::MAX)),
            (b"-9223372036854775808", Some(i64::MIN)),
            (b"9223372036854775808", None),
            (b"-9223372036854775809", None),
            (b"99999999999999999999999999", None),
            (b"", None),
            (b" ", None),
            (b"abc", None),
            (b"-", None),
            (b"+", None),
            (b"--1", None),
            (b"+-1", None),
            (b"- 1", None),
            (b"\x005", None),
            (b"\xff5", None),
        ];
        for (text, number) in table {
            assert_eq!(parse_decimal(text), *number, "{:?}", text.escape_ascii());
        }
    }

    /// docs/spec/wire.md, ADD 7.
    #[test]
    fn the_first_64_bytes_decide_whether_a_value_is_a_number() {
        let after = |blanks: usize, rest: &str| " ".repeat(blanks) + rest;
        let table = [
            (after(62, "42"), Some(42)),
            (after(61, "42x"), Some(42)),
            (after(61, "42x and more"), Some(42)),
            (after(62, "42x"), None),
            (after(63, "42"), None),
            (after(64, "42"), None),
            (after(1 << 20, ""), None),
            ("0".repeat(64), Some(0)),
            ("0".repeat(65), None),
        ];
        for (text, number) in table {
            assert_eq!(parse_decimal(text.as_bytes()), number, "{text:?}");
        }
    }

    /// docs/spec/wire.md, ADD 5.
    #[test]
    fn a_written_number_replaces_the_content() {
        let mut text = b"something longer than any number".to_vec();
        let capacity = text.capacity();
        for number in [0, 1, -1, 9, 10, -10, 99, 100, 12345, i64::MAX, i64::MIN] {
            write_decimal(number, &mut text);
            assert_eq!(text, number.to_string().as_bytes());
            assert_eq!(text.capacity(), capacity);
        }
    }

    proptest! {
        #[test]
        fn written_numbers_read_back(number: i64) {
            let mut text = Vec::new();
            write_decimal(number, &mut text);
            prop_assert_eq!(String::from_utf8_lossy(&text), number.to_string());
            prop_assert_eq!(parse_decimal(&text), Some(number));
        }

        #[test]
        fn parsing_accepts_any_bytes(text: Vec<u8>) {
            parse_decimal(&text);
        }
    }
}
