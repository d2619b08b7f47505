//! Parts of keys.

pub(super) fn after_last(bytes: &[u8], separator: u8) -> &[u8] {
    bytes
        .rsplit(|&byte| byte == separator)
        .next()
        .unwrap_or(bytes)
}

pub(super) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

pub(super) fn find_last(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).rposition(|window| window == part)
}

pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    find(bytes, part).is_some()
}
