//! The bytes of an HTTP/1.1 answer. Pure: any split of them gives the same result.

use std::io;

/// The most bytes of a status line with its headers.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most bytes of a line with the size of a chunk, or of what follows the last one.
const LINE_BYTES_MAX: usize = 1 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The connection, its deadline or its cancel.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The answer is not HTTP, as far as this client knows it.
    #[error("does not answer with HTTP: {0}")]
    NotHttp(&'static str),
    /// The body is larger than the caller takes.
    #[error("the answer has more than {bytes_max} bytes")]
    TooLarge {
        /// What the caller takes.
        bytes_max: usize,
    },
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// The connection takes another request after the body.
    pub(crate) is_kept: bool,
}

/// How far a body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes are left.
    Length(u64),
    /// It ends with the connection.
    UntilEnd,
    /// The line with the size of a chunk follows.
    ChunkSize,
    /// So many bytes of a chunk are left.
    Chunk(u64),
    /// The end of the line after a chunk follows.
    ChunkEnd,
    /// Lines up to an empty one follow.
    Trailer,
    Complete,
}

/// The head, and its bytes, once it is complete.
pub(crate) fn parse_head(received: &[u8]) -> Result<Option<(Head, usize)>, HttpError> {
    let shown = &received[..received.len().min(HEAD_BYTES_MAX)];
    let Some(end) = shown.windows(4).position(|end| end == b"\r\n\r\n") else {
        let is_http = received.len() < 5 || received.starts_with(b"HTTP/");
        return match received.len() {
            _ if !is_http => Err(HttpError::NotHttp(
                "the status line does not begin with HTTP/",
            )),
            HEAD_BYTES_MAX.. => Err(HttpError::NotHttp("its head is too large")),
            _ => Ok(None),
        };
    };
    let text = std::str::from_utf8(&received[..end])
        .map_err(|_| HttpError::NotHttp("its head is no text"))?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok())
        .ok_or(HttpError::NotHttp("its status line is not of HTTP/1.1"))?;
    let mut body = match status {
        100..200 | 204 | 304 => Body::Complete,
        _ => Body::UntilEnd,
    };
    let mut is_kept = true;
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or(HttpError::NotHttp("a header has no colon"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let is_number = !value.is_empty() && value.bytes().all(|it| it.is_ascii_digit());
            let length = value.parse().ok().filter(|_| is_number);
            let length = length.ok_or(HttpError::NotHttp("its length is no number"))?;
            match body {
                Body::UntilEnd => body = Body::Length(length),
                Body::Length(other) if other != length => {
                    return Err(HttpError::NotHttp("it has two lengths"));
                }
                _ => {}
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(HttpError::NotHttp("its transfer encoding is not chunked"));
            }
            // It takes precedence over a length (RFC 9112, section 6.3).
            if body != Body::Complete {
                body = Body::ChunkSize;
            }
        } else if name.eq_ignore_ascii_case("connection") {
            is_kept &= !value.eq_ignore_ascii_case("close");
        }
    }
    is_kept &= body != Body::UntilEnd;
    if body == Body::Length(0) {
        body = Body::Complete;
    }
    let head = Head {
        status,
        body,
        is_kept,
    };
    Ok(Some((head, end + 4)))
}

impl Body {
    /// Whether all of it was read.
    pub(crate) fn is_complete(self) -> bool {
        self == Self::Complete
    }

    /// Refuses a body whose length is known to be more than the caller takes.
    pub(crate) fn check_length(self, bytes_max: usize) -> Result<(), HttpError> {
        match self {
            Self::Length(length) if length > bytes_max as u64 => {
                Err(HttpError::TooLarge { bytes_max })
            }
            _ => Ok(()),
        }
    }

    /// Appends what these bytes have of the body, and returns how many were used.
    pub(crate) fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, HttpError> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match self {
                Self::Complete => return Ok(used),
                Self::UntilEnd => {
                    out.extend_from_slice(rest);
                    return Ok(bytes.len());
                }
                Self::Length(left) | Self::Chunk(left) => {
                    let count = (*left).min(rest.len() as u64) as usize;
                    out.extend_from_slice(&rest[..count]);
                    used += count;
                    *left -= count as u64;
                    if *left > 0 {
                        return Ok(used);
                    }
                    *self = match self {
                        Self::Chunk(_) => Self::ChunkEnd,
                        _ => Self::Complete,
                    };
                }
                Self::ChunkSize | Self::ChunkEnd | Self::Trailer => {
                    let shown = &rest[..rest.len().min(LINE_BYTES_MAX)];
                    let Some(end) = shown.windows(2).position(|end| end == b"\r\n") else {
                        return match rest.len() {
                            LINE_BYTES_MAX.. => Err(HttpError::NotHttp("a line is too long")),
                            _ => Ok(used),
                        };
                    };
                    used += end + 2;
                    *self = self.after_line(&rest[..end])?;
                }
            }
        }
    }

    fn after_line(self, line: &[u8]) -> Result<Self, HttpError> {
        match self {
            Self::ChunkEnd if line.is_empty() => Ok(Self::ChunkSize),
            Self::ChunkEnd => Err(HttpError::NotHttp("a chunk is longer than its size")),
            Self::Trailer if line.is_empty() => Ok(Self::Complete),
            Self::Trailer => Ok(Self::Trailer),
            _ => {
                let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
                let size = std::str::from_utf8(size.trim_ascii()).unwrap_or_default();
                let is_number = size.bytes().all(|byte| byte.is_ascii_hexdigit());
                match u64::from_str_radix(size, 16) {
                    Ok(0) if is_number => Ok(Self::Trailer),
                    Ok(size) if is_number => Ok(Self::Chunk(size)),
                    _ => Err(HttpError::NotHttp("the size of a chunk is no number")),
                }
            }
        }
    }

    /// The connection has ended.
    pub(crate) fn ended(&mut self) -> Result<(), HttpError> {
        match self {
            Self::UntilEnd | Self::Complete => {
                *self = Self::Complete;
                Ok(())
            }
            _ => Err(HttpError::Io(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wire: &[u8], step: usize) -> Result<(u16, Vec<u8>, bool), HttpError> {
        let (mut received, mut head, mut out) = (Vec::new(), None, Vec::new());
        for bytes in wire.chunks(step) {
            received.extend_from_slice(bytes);
            if head.is_none()
                && let Some((parsed, used)) = parse_head(&received)?
            {
                received.drain(..used);
                head = Some(parsed);
            }
            if let Some(head) = &mut head {
                let used = head.body.decode(&received, &mut out)?;
                received.drain(..used);
            }
        }
        let mut head = head.ok_or(HttpError::NotHttp("incomplete"))?;
        head.body.ended()?;
        Ok((head.status, out, head.is_kept))
    }

    #[test]
    fn every_split_gives_the_same_answer() {
        let cases: [(&[u8], u16, &[u8], bool); 5] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", true),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 1\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n",
                200,
                b"hello!",
                true,
            ),
            (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nnone", 404, b"none", false),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", true),
            (b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", 503, b"", true),
        ];
        for (wire, status, body, is_kept) in cases {
            for step in 1..=wire.len() {
                let (its_status, its_body, its_kept) = read(wire, step).expect("HTTP");
                assert_eq!((its_status, &*its_body, its_kept), (status, body, is_kept));
            }
        }
    }

    #[test]
    fn what_is_not_http_is_an_error_and_takes_no_memory() {
        let many = [b"HTTP/1.1 200 OK\r\n".as_slice(), &[b'a'; HEAD_BYTES_MAX]].concat();
        let long_line = [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(),
            &[b'1'; LINE_BYTES_MAX],
        ]
        .concat();
        let cases: [&[u8]; 9] = [
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"\x15\x03\x01\0\x02\x02",
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            &many,
            &long_line,
        ];
        for wire in cases {
            read(wire, wire.len()).expect_err("not HTTP");
            read(wire, 1).expect_err("not HTTP");
        }
        let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n";
        let (head, _) = parse_head(huge).expect("HTTP").expect("a head");
        head.body.check_length(1 << 20).expect_err("too large");
    }
}
