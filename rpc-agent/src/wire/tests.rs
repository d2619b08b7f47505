//! Golden frames, invalid frames and random frames.

use proptest::prelude::*;

use super::*;

fn hello() -> Hello {
    Hello {
        from: WorkerInfo::new("ps:0", 3).unwrap(),
        to: WorkerId::new(4).unwrap(),
        incarnation: 0x0102_0304_0506_0708,
        incarnation_wanted: 9,
        links: 5,
        message_bytes_max: 6,
    }
}

pub(crate) const fn request<'a>(
    id: u64,
    budget_ms: u32,
    function: &'a str,
    payload: &'a [u8],
) -> Frame<'a> {
    Frame::Message {
        id,
        call: Some((budget_ms, function)),
        payload: Payload::Whole(payload),
    }
}

pub(crate) const fn response(id: u64, payload: &[u8]) -> Frame<'_> {
    Frame::Message {
        id,
        call: None,
        payload: Payload::Whole(payload),
    }
}

/// The first frame of a large message.
pub(crate) const fn large<'a>(
    id: u64,
    call: Option<(u32, &'a str)>,
    payload_bytes: u64,
) -> Frame<'a> {
    Frame::Message {
        id,
        call,
        payload: Payload::InParts(payload_bytes),
    }
}

pub(crate) const fn part(is_response: bool, id: u64, payload: &[u8]) -> Frame<'_> {
    Frame::Part {
        is_response,
        id,
        payload,
    }
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

fn error_of(bytes: &[u8]) -> String {
    decode(bytes).unwrap_err().to_string()
}

/// A header with arbitrary numbers.
fn raw(body: u32, kind: u8, flags: u8, aux: u16) -> Vec<u8> {
    let mut out = Vec::new();
    write_u32(&mut out, body);
    out.extend_from_slice(&[kind, flags]);
    write_u16(&mut out, aux);
    write_u64(&mut out, 7);
    out
}

#[test]
fn a_request_encodes_to_the_golden_bytes() {
    let frame = request(0x0102, 1000, "add", b"xy");
    let mut expected = vec![9, 0, 0, 0, 4, 0, 3, 0, 2, 1, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(&[0xE8, 3, 0, 0]);
    expected.extend_from_slice(b"addxy");
    assert_eq!(encoded(&frame), expected);
}

#[test]
fn an_answer_that_is_too_large_is_reported_with_its_length_in_digits() {
    let frame = Frame::Error {
        id: 7,
        failure: Failure::AnswerTooLarge {
            bytes: Some(300_002),
        },
    };
    let mut expected = raw(6, 6, 0, 5);
    expected.extend_from_slice(b"300002");
    assert_eq!(encoded(&frame), expected);
    assert_eq!(decode(&expected), Ok(Some((frame, expected.len()))));

    let mut without_length = raw(3, 6, 0, 5);
    without_length.extend_from_slice(b"why");
    let Some((Frame::Error { failure, .. }, _)) = decode(&without_length).unwrap() else {
        panic!("not an Error frame");
    };
    assert_eq!(failure, Failure::AnswerTooLarge { bytes: None });
}

#[test]
fn a_hello_encodes_to_the_golden_bytes() {
    let mut expected = vec![47, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(b"C10DRPC\0");
    expected.extend_from_slice(&[1, 0, 3, 0, 4, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
    expected.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(b"\x04ps:0");
    assert_eq!(encoded(&Frame::Hello(hello())), expected);
}

#[test]
fn an_invalid_header_is_refused() {
    let table = [
        (raw(0, 0, 0, 0), "frame of unknown kind 0"),
        (raw(0, 10, 0, 0), "frame of unknown kind 10"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "frame of unknown kind 47"),
        (raw(4, 4, 2, 0), "Request frame with flags 0x02"),
        (raw(4, 6, 1, 0), "Error frame with flags 0x01"),
        (
            raw(2000, 4, 0, 1025),
            "function name of 1025 bytes, limit 1024",
        ),
        (
            raw(3, 4, 0, 0),
            "Request frame with a body of 3 bytes, not 4 to 131076",
        ),
        (
            raw(131_077, 4, 0, 0),
            "Request frame with a body of 131077 bytes, not 4 to 131076",
        ),
        (
            raw(u32::MAX, 5, 0, 0),
            "Response frame with a body of 4294967295 bytes, not 0 to 131072",
        ),
        (
            raw(13, 4, 1, 0),
            "Request frame with a body of 13 bytes, not 12 to 12",
        ),
        (
            raw(0, 7, 0, 0),
            "RequestPart frame with a body of 0 bytes, not 1 to 131072",
        ),
        (
            raw(65_537, 6, 0, 1),
            "Error frame with a body of 65537 bytes, not 0 to 65536",
        ),
        (
            raw(513, 1, 0, 0),
            "Hello frame with a body of 513 bytes, not 43 to 512",
        ),
        (
            raw(1, 9, 0, 0),
            "Goodbye frame with a body of 1 bytes, not 0 to 0",
        ),
    ];
    for (bytes, error_text) in table {
        assert_eq!(error_of(&bytes), error_text);
    }
}

#[test]
fn an_invalid_body_is_refused() {
    let changed = |frame: Frame<'_>, at: usize, byte: u8| {
        let mut bytes = encoded(&frame);
        bytes[HEADER_BYTES + at] = byte;
        bytes
    };
    let hello = || Frame::Hello(hello());
    let request = request(1, 0, "add", b"");
    let refuse = Frame::Refuse(Refuse {
        reason: RefuseReason::UseOther,
        links: 0,
        text: String::new(),
    });
    let large = large(1, None, 131_073);
    let table = [
        (
            changed(hello(), 0, b'X'),
            "Hello frame without the protocol's magic bytes",
        ),
        (
            changed(hello(), 8, 2),
            "Hello frame of protocol version 2, this worker has version 1",
        ),
        (
            changed(hello(), 11, 0x80),
            "Hello frame with an invalid worker id",
        ),
        (
            changed(hello(), 13, 0x80),
            "Hello frame with an invalid expected worker id",
        ),
        (
            changed(hello(), 42, 3),
            "Hello frame with an invalid worker name",
        ),
        (
            changed(hello(), 43, b' '),
            "Hello frame with an invalid worker name",
        ),
        (
            changed(hello(), 43, 0xFF),
            "Hello frame with an invalid worker name",
        ),
        (
            changed(request, 5, 0xFF),
            "function name is not UTF-8 at byte 1",
        ),
        (changed(refuse, 0, 7), "Refuse frame with unknown reason 7"),
        (
            changed(large, 0, 0),
            "large Response frame for a payload of 131072 bytes, not more than 131072",
        ),
        (raw(0, 6, 0, 7), "Error frame with unknown error kind 7"),
    ];
    for (bytes, error_text) in table {
        assert_eq!(error_of(&bytes), error_text);
    }
}

#[test]
fn a_long_text_is_cut_between_characters_and_invalid_utf8_is_replaced() {
    // 65,535 ASCII bytes, then a character of two bytes.
    let text = format!("{}é", "x".repeat(ERROR_TEXT_BYTES_MAX - 1));
    let bytes = encoded(&Frame::Error {
        id: 1,
        failure: Failure::Handler(text.into()),
    });
    assert_eq!(bytes.len(), HEADER_BYTES + ERROR_TEXT_BYTES_MAX - 1);
    assert!(decode(&bytes).unwrap().is_some());

    let mut bytes = raw(2, 6, 0, 1);
    bytes.extend_from_slice(b"a\xFF");
    let Some((Frame::Error { failure, .. }, _)) = decode(&bytes).unwrap() else {
        panic!("an Error frame");
    };
    assert_eq!(failure, Failure::Handler("a\u{FFFD}".into()));
}

#[derive(Debug, Clone)]
pub(crate) struct AnyFrame {
    pub(crate) pick: u8,
    pub(crate) id: u64,
    pub(crate) number: u32,
    pub(crate) text: String,
    pub(crate) payload: Vec<u8>,
}

impl AnyFrame {
    pub(crate) fn frame(&self) -> Frame<'_> {
        let Self { id, number, .. } = *self;
        let (text, payload) = (self.text.as_str(), self.payload.as_slice());
        match self.pick % 11 {
            0 => Frame::Hello(Hello {
                from: WorkerInfo::new("w-1", number % 32_768).unwrap(),
                to: WorkerId::new((number >> 16) % 32_768).unwrap(),
                incarnation: id,
                incarnation_wanted: !id,
                links: number,
                message_bytes_max: id ^ 5,
            }),
            1 => Frame::Welcome(Welcome {
                incarnation: id,
                links: number,
                message_bytes_max: !id,
            }),
            2 => Frame::Refuse(Refuse {
                reason: RefuseReason::ALL[number as usize % 6],
                links: number,
                text: cut(text, 500).to_owned(),
            }),
            3 => request(id, number, text, payload),
            4 => {
                let bytes = PART_BYTES as u64 + 1 + u64::from(number);
                large(id, Some((number, text)), bytes)
            }
            5 => response(id, payload),
            6 => large(id, None, u64::MAX - u64::from(number)),
            7 => {
                let failure = match number % 6 {
                    0 => Failure::Handler(text.into()),
                    1 => Failure::Panicked(text.into()),
                    2 => Failure::NoSuchFunction,
                    3 => Failure::Rejected(text.into()),
                    4 => Failure::AnswerTooLarge { bytes: Some(id) },
                    _ => Failure::DeadlinePassed,
                };
                Frame::Error { id, failure }
            }
            pick @ (8 | 9) => {
                let payload = if payload.is_empty() { b"p" } else { payload };
                part(pick == 9, id, payload)
            }
            _ => Frame::Goodbye {
                reason: number as u16,
            },
        }
    }
}

pub(crate) fn any_frame() -> impl Strategy<Value = AnyFrame> {
    let text = "[a-zé.]{0,40}";
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    (any::<u8>(), any::<u64>(), any::<u32>(), text, payload).prop_map(
        |(pick, id, number, text, payload)| AnyFrame {
            pick,
            id,
            number,
            text,
            payload,
        },
    )
}

proptest! {
    #[test]
    fn a_frame_survives_encoding_and_decoding_and_no_prefix_decodes(any in any_frame()) {
        let frame = any.frame();
        let bytes = encoded(&frame);
        prop_assert_eq!(decode(&bytes), Ok(Some((frame, bytes.len()))));
        for end in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..end]), Ok(None));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0..11_u8, body in 0..200_u32) {
        let _ = decode(&bytes);
        let mut bytes = bytes;
        if bytes.len() >= HEADER_BYTES {
            LittleEndian::write_u32(&mut bytes[..4], body);
            bytes[4] = kind;
            bytes[5] &= 1;
            let _ = decode(&bytes);
            bytes[6..8].fill(0);
            let _ = decode(&bytes);
        }
    }
}
