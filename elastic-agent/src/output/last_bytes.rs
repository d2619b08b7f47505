//! The last bytes of a stream.

/// How much of a worker's standard error is kept for the report on failures: a screen of text.
pub(crate) const LAST_BYTES_MAX: usize = 4 << 10;

/// Keeps the last [`LAST_BYTES_MAX`] pushed bytes.
#[derive(Default)]
pub(crate) struct LastBytes {
    bytes: Vec<u8>,
}

impl std::fmt::Debug for LastBytes {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastBytes")
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

impl LastBytes {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LAST_BYTES_MAX)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(LAST_BYTES_MAX);
        self.bytes.drain(..surplus);
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_chunking_keeps_the_same_last_bytes() {
        let all: Vec<u8> = (0..=u8::MAX).cycle().take(3 * LAST_BYTES_MAX + 7).collect();
        for size in [1, 100, LAST_BYTES_MAX, LAST_BYTES_MAX + 1, all.len()] {
            let mut last = LastBytes::default();
            for chunk in all.chunks(size) {
                last.push(chunk);
            }
            assert_eq!(last.to_vec(), all[all.len() - LAST_BYTES_MAX..], "{size}");
        }
    }

    #[test]
    fn a_short_stream_is_kept_whole() {
        let mut last = LastBytes::default();
        last.push(b"ab");
        last.push(b"");
        last.push(b"c");
        assert_eq!(last.to_vec(), b"abc");
    }
}
