//! The text of a state in the store: base64.

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine as _};

use super::decode::{decode, decode_with_layout};
use super::encode::encode;
use super::error::{CodecLimits, CorruptState, CorruptStateKind};
use super::watch::WatchRanges;
use crate::values::state::RendezvousState;

/// The value of the key while there is no state, because a GET of a missing key blocks. In PyTorch:
/// `C10dRendezvousBackend._NULL_SENTINEL`
/// (`torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py`).
pub const SENTINEL: &[u8] = b"Y2FuaW1hZGFt";

/// Encodes `state` as PyTorch stores it: the pickle of [`encode`] in base64.
#[must_use]
pub fn to_text(state: &RendezvousState) -> Vec<u8> {
    to_base64(&encode(state))
}

/// Wraps a pickle as PyTorch stores it: base64 with padding and without line breaks.
#[must_use]
pub fn to_base64(pickle: &[u8]) -> Vec<u8> {
    STANDARD.encode(pickle).into_bytes()
}

/// Decodes a stored state.
///
/// Stricter than PyTorch, whose base64 decoder skips invalid characters: here they are errors, including a
/// final line end. [`SENTINEL`] is not a state, so compare with it first.
///
/// # Errors
/// [`CorruptState`] when the text is not a state or exceeds `limits`.
///
/// ```
/// use elastic_rendezvous::RendezvousState;
/// use elastic_rendezvous::codec::{self, CodecLimits};
///
/// let stored = codec::to_text(&RendezvousState::default());
/// let state = codec::from_text(&stored, &CodecLimits::default());
/// assert_eq!(state, Ok(RendezvousState::default()));
/// ```
pub fn from_text(text: &[u8], limits: &CodecLimits) -> Result<RendezvousState, CorruptState> {
    decode(&from_base64(text, limits)?, limits)
}

/// Decodes the base64 of a stored text, without looking into the pickle.
///
/// # Errors
/// [`CorruptState`] when the text exceeds `limits` or is not base64.
pub fn from_base64(text: &[u8], limits: &CodecLimits) -> Result<Vec<u8>, CorruptState> {
    let bytes_max = limits.text_bytes_max;
    if text.len() > bytes_max {
        let bytes = text.len();
        return Err(CorruptState {
            offset: 0,
            kind: CorruptStateKind::TooLong { bytes, bytes_max },
        });
    }
    STANDARD.decode(text).map_err(|error| CorruptState {
        offset: match error {
            DecodeError::InvalidByte(offset, _) | DecodeError::InvalidLastSymbol { offset, .. } => {
                offset
            }
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len(),
        },
        kind: CorruptStateKind::NotBase64,
    })
}

/// Locates the parts of a stored state, within the default limits. `None` if the text is not a state or not in
/// PyTorch's layout: then only the whole value can be watched.
///
/// ```
/// use elastic_rendezvous::codec;
/// use elastic_rendezvous::{NodeId, RendezvousState, Timestamp};
///
/// let mut state = RendezvousState::default();
/// let node = NodeId::new("node0.example.com", 1000, 0);
/// state.participants.insert(node.clone(), 0);
/// state.last_heartbeats.insert(node.clone(), Timestamp::from_micros(0));
/// let before = codec::to_text(&state);
/// let members = codec::watch_ranges(&before).expect("our own layout").members;
///
/// state.last_heartbeats.insert(node, Timestamp::from_micros(5_000_000));
/// let after = codec::to_text(&state);
/// assert_ne!(before, after);
/// assert_eq!(before[members.clone()], after[members]);
/// ```
#[must_use]
pub fn watch_ranges(text: &[u8]) -> Option<WatchRanges> {
    let limits = CodecLimits::default();
    let bytes = from_base64(text, &limits).ok()?;
    let (_, layout) = decode_with_layout(&bytes, &limits).ok()?;
    layout.map(|layout| layout.in_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &[u8], limits: &CodecLimits) -> CorruptState {
        from_text(text, limits).expect_err("refused")
    }

    /// docs/spec/rendezvous.md, CODEC 3.
    #[test]
    fn only_the_output_of_an_encoder_is_base64() {
        let text = to_text(&RendezvousState::default());
        let limits = CodecLimits::default();
        assert!(from_text(&text, &limits).is_ok());
        let with = |position: usize, byte: u8| {
            let mut text = text.clone();
            text[position] = byte;
            text
        };
        let table = [
            ([&text[..], b"\n"].concat(), text.len()),
            ([&text[..], b" "].concat(), text.len()),
            ([b"\n", &text[..]].concat(), 0),
            (with(7, b'\n'), 7),
            (with(7, b'-'), 7),
            (with(7, b'_'), 7),
            (with(7, b'='), 7),
            (with(7, 0xff), 7),
            (text[..text.len() - 1].to_vec(), text.len() - 1),
            (b"!!!".to_vec(), 0),
        ];
        for (text, offset) in table {
            let kind = CorruptStateKind::NotBase64;
            let expected = CorruptState { offset, kind };
            assert_eq!(fault(&text, &limits), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_not_decoded() {
        let text = to_text(&RendezvousState::default());
        let at_most = |text_bytes_max| CodecLimits {
            text_bytes_max,
            ..CodecLimits::default()
        };
        assert!(from_text(&text, &at_most(text.len())).is_ok());
        let limits = at_most(text.len() - 4);
        let kind = CorruptStateKind::TooLong {
            bytes: text.len(),
            bytes_max: text.len() - 4,
        };
        assert_eq!(fault(&text, &limits), CorruptState { offset: 0, kind });
        assert_eq!(
            fault(&vec![b'!'; 9 << 20], &CodecLimits::default()).kind,
            CorruptStateKind::TooLong {
                bytes: 9 << 20,
                bytes_max: 8 << 20,
            }
        );
    }

    #[test]
    fn the_sentinel_is_not_a_state() {
        assert_eq!(
            from_base64(SENTINEL, &CodecLimits::default()).as_deref(),
            Ok(&b"canimadam"[..])
        );
        let kind = CorruptStateKind::ForeignOpcode(b'c');
        let expected = CorruptState { offset: 0, kind };
        assert_eq!(fault(SENTINEL, &CodecLimits::default()), expected);
        assert_eq!(watch_ranges(SENTINEL), None);
    }
}
