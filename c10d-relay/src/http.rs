//! The answer to HTTP requests, as of `c10d why` and browsers: the store has the pages, the relay points to it.
//!
//! Pure: no socket and no clock.

use std::fmt::Write;
use std::net::SocketAddr;

use c10d_store::StoreAddress;

/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The longest path that is passed on.
const PATH_BYTES_MAX: usize = 4096;

/// What the relay knows of its store.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) target: StoreAddress,
    /// The address of the store, while the relay is connected to it.
    pub(crate) connected: Option<SocketAddr>,
    /// Why it is not, as the rest of a sentence about the relay.
    pub(crate) reason: String,
}

/// Whether a connection with this first byte speaks HTTP: those of ranks begin with a zero byte.
pub(crate) const fn is_http(first: u8) -> bool {
    first.is_ascii_uppercase()
}

/// The answer to a request; `None` until its head is complete.
pub(crate) fn answer(head: &[u8], store: &StoreState) -> Option<String> {
    let is_complete = head.windows(4).any(|end| end == b"\r\n\r\n");
    if !is_complete && head.len() < HEAD_BYTES_MAX {
        return None;
    }
    let target = &store.target;
    Some(match store.connected {
        _ if !is_complete => response(
            "431 Request Header Fields Too Large",
            "",
            "the request is too long\n",
        ),
        Some(address) => {
            let location = format!("http://{address}{}", path(head));
            response(
                "307 Temporary Redirect",
                &format!("Location: {location}\r\n"),
                &format!("this is a relay of the store at {target}, which answers at {location}\n"),
            )
        }
        None => response(
            "503 Service Unavailable",
            "",
            &format!(
                "this is a relay of the store at {target}, and {}\n",
                store.reason
            ),
        ),
    })
}

/// The path of the request with its query; `/` if it is none that can be in a header.
fn path(head: &[u8]) -> &str {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let path = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let is_plain = path.first() == Some(&b'/')
        && path.len() <= PATH_BYTES_MAX
        && path.iter().all(u8::is_ascii_graphic);
    let plain = is_plain.then(|| str::from_utf8(path).ok()).flatten();
    plain.unwrap_or("/")
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let mut text = format!("HTTP/1.1 {status}\r\n{headers}");
    // Writing to memory does not fail.
    let _ = write!(
        text,
        "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use c10d_socket::HostPort;

    use super::*;

    fn store(connected: Option<&str>) -> StoreState {
        StoreState {
            target: HostPort::new("node0", 29_500).into(),
            connected: connected.map(|address| address.parse().expect("an address")),
            reason: "it has had no connection to it for 3 s".to_owned(),
        }
    }

    #[test]
    fn a_request_is_redirected_to_the_store() {
        let head = b"GET /why.json?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(answer(&head[..end], &store(Some("10.0.0.1:29500"))), None);
        }
        let text = answer(head, &store(Some("[::1]:29500"))).expect("an answer");
        assert!(
            text.starts_with("HTTP/1.1 307 ")
                && text.contains("\r\nLocation: http://[::1]:29500/why.json?x=1\r\n"),
            "{text}"
        );
    }

    #[test]
    fn without_a_connection_the_answer_says_so() {
        let text = answer(b"GET / HTTP/1.1\r\n\r\n", &store(None)).expect("an answer");
        assert!(
            text.starts_with("HTTP/1.1 503 ")
                && text.ends_with(
                    "this is a relay of the store at node0:29500, and it has had no connection to it for 3 s\n"
                ),
            "{text}"
        );
    }

    #[test]
    fn no_byte_of_a_request_ends_a_header() {
        for request in [
            &b"GET /a\nSet-Cookie:x HTTP/1.1\r\n\r\n"[..],
            b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\n\r\n",
        ] {
            let text = answer(request, &store(Some("10.0.0.1:1"))).expect("an answer");
            assert!(
                text.contains("\r\nLocation: http://10.0.0.1:1/\r\n"),
                "{text}"
            );
        }
        let long = vec![b'A'; HEAD_BYTES_MAX];
        let text = answer(&long, &store(None)).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }
}
