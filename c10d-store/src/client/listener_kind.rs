//! The kind of program that listens where a store was expected. It follows from the bytes that the listener sends; a thin shell
//! asks.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectOptions, Deadline, HostPort, connect, is_tls, printable, wait_for_input,
};

use crate::wire::{CAPABILITY_MASK, CAPABILITY_NONCE, CHECK_READY, RequestBuf, read_u32};

/// How long a listener may take to answer one question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of an answer is read.
const ANSWER_BYTES_MAX: usize = 64;

/// How much of an unknown answer is shown.
const SHOWN_CHARS_MAX: usize = 40;

const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// A ClientHello of TLS 1.3 without extensions, which each server of TLS answers, if only by an alert.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03\
    c10d asks who listens at a port.\x00\x00\x02\x13\x01\x01\x00\x00\x00";

/// The kind of program that accepts connections at an address where a store was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenerKind {
    /// A TCPStore server without a secret.
    Store,
    /// A TLS server: a store with a secret, or another program.
    Tls,
    /// An HTTP server.
    Http,
    /// Another protocol, with the printable start of its answer.
    Other(String),
    /// A program that accepts connections and answers nothing.
    Silent,
    /// A program that closes each connection without an answer.
    Closes,
    /// No program: connections fail, for this reason.
    Nothing(String),
}

/// A question, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// The handshake of a store's client.
    Ping,
    /// That for servers of PyTorch up to 2.4, which close the connection on a PING.
    PlainHello,
    /// Before HTTP, because a store with a secret serves its pages at the same port.
    Tls,
    Http,
}

/// The answer of the listener to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    Bytes(Vec<u8>),
    Silence,
    Closed,
    Failed(String),
}

impl ListenerKind {
    /// Finds out what listens at `target`. Sends a store no request that changes or reads a key. Blocks for at most 4
    /// s, or until the deadline, or until `cancel` interrupts it.
    #[must_use]
    pub fn ask(target: &HostPort, deadline: Deadline, cancel: &Cancel) -> Self {
        let mut heard = Vec::new();
        while let Some(question) = next_question(&heard) {
            heard.push((question, answer_to(question, target, deadline, cancel)));
        }
        kind_of(&heard)
    }

    /// Returns whether it is a store, or may be a store with a secret.
    #[must_use]
    pub const fn is_store_or_tls(&self) -> bool {
        matches!(self, Self::Store | Self::Tls)
    }

    /// The kind of a listener with this answer, which a store does not send.
    pub(super) fn of_answer(bytes: &[u8]) -> Self {
        if bytes.starts_with(b"HTTP") || bytes.starts_with(b"<") {
            return Self::Http;
        }
        if is_tls(bytes.first().copied().unwrap_or_default()) || bytes.starts_with(b"\x15\x03") {
            return Self::Tls;
        }
        Self::Other(printable(bytes.trim_ascii(), SHOWN_CHARS_MAX).to_string())
    }
}

impl fmt::Display for ListenerKind {
    /// A noun phrase with its clause, such as `an HTTP server`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str("a store"),
            Self::Tls => {
                f.write_str("a TLS server, which is a store with a secret or another program")
            }
            Self::Http => f.write_str("an HTTP server"),
            Self::Other(start) => {
                write!(f, "a program of another protocol, which sends \"{start}\"")
            }
            Self::Silent => f.write_str("a program that never answers"),
            Self::Closes => f.write_str("a program that closes each connection"),
            Self::Nothing(reason) => write!(f, "nothing that accepts connections ({reason})"),
        }
    }
}

/// The next question after these answers; `None` if the kind is known.
fn next_question(heard: &[(Question, Heard)]) -> Option<Question> {
    let Some((question, answer)) = heard.last() else {
        return Some(Question::Ping);
    };
    match (question, answer) {
        (_, Heard::Bytes(_) | Heard::Failed(_)) | (Question::Http, _) => None,
        (Question::Ping, Heard::Closed) => Some(Question::PlainHello),
        (Question::Ping, Heard::Silence) | (Question::PlainHello, _) => Some(Question::Tls),
        (Question::Tls, _) => Some(Question::Http),
    }
}

fn kind_of(heard: &[(Question, Heard)]) -> ListenerKind {
    for (question, answer) in heard {
        match (question, answer) {
            (Question::Ping, Heard::Bytes(bytes)) if is_pong(bytes) => return ListenerKind::Store,
            (Question::PlainHello, Heard::Bytes(bytes)) if *bytes == [CHECK_READY] => {
                return ListenerKind::Store;
            }
            (_, Heard::Bytes(bytes)) => return ListenerKind::of_answer(bytes),
            (_, Heard::Silence | Heard::Closed | Heard::Failed(_)) => {}
        }
    }
    let is_silent = heard.iter().any(|(_, answer)| *answer == Heard::Silence);
    match heard.last() {
        Some((_, Heard::Failed(reason))) if heard.len() == 1 => {
            ListenerKind::Nothing(reason.clone())
        }
        _ if is_silent => ListenerKind::Silent,
        _ => ListenerKind::Closes,
    }
}

fn is_pong(bytes: &[u8]) -> bool {
    <[u8; 4]>::try_from(bytes)
        .is_ok_and(|bytes| read_u32(bytes) & !CAPABILITY_MASK == CAPABILITY_NONCE)
}

fn answer_to(question: Question, target: &HostPort, deadline: Deadline, cancel: &Cancel) -> Heard {
    let deadline = Deadline::after(Instant::now(), ANSWER_TIMEOUT).min(deadline);
    let once = ConnectOptions::default().with_rounds_max(1);
    let mut stream = match connect(target, &once, deadline) {
        Ok(stream) => stream,
        Err(error) => {
            let last = error.failures().last();
            let reason = last.map_or_else(|| error.to_string(), |last| last.error().to_string());
            return Heard::Failed(reason);
        }
    };
    let mut request = RequestBuf::new();
    let bytes = match question {
        Question::Ping => request.hello().contiguous().unwrap_or_default(),
        Question::PlainHello => request.plain_hello().contiguous().unwrap_or_default(),
        Question::Http => GET,
        Question::Tls => CLIENT_HELLO,
    };
    // These few bytes fit into an empty send buffer.
    match stream
        .write_all(bytes)
        .and_then(|()| first_answer(&mut stream, deadline, cancel))
    {
        Ok(Some(bytes)) if bytes.is_empty() => Heard::Closed,
        Ok(Some(bytes)) => Heard::Bytes(bytes),
        Ok(None) => Heard::Silence,
        Err(_) => Heard::Closed,
    }
}

/// The first bytes that arrive, none at the end of the stream; `None` if nothing arrives.
fn first_answer(
    stream: &mut TcpStream,
    deadline: Deadline,
    cancel: &Cancel,
) -> io::Result<Option<Vec<u8>>> {
    let left = deadline.remaining(Instant::now());
    match wait_for_input(stream, left, cancel) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut bytes = [0; ANSWER_BYTES_MAX];
    let count = stream.read(&mut bytes)?;
    Ok(Some(bytes[..count].to_vec()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use c10d_socket::sleep;

    use super::*;
    use crate::{ServerOptions, TcpStoreServer};

    fn bytes(bytes: &[u8]) -> Heard {
        Heard::Bytes(bytes.to_vec())
    }

    /// The kind of a listener that answers each question with `answer`, and the number of questions.
    fn kind(answer: impl Fn(Question) -> Heard) -> (ListenerKind, usize) {
        let mut heard = Vec::new();
        while let Some(question) = next_question(&heard) {
            heard.push((question, answer(question)));
        }
        (kind_of(&heard), heard.len())
    }

    #[test]
    fn the_kind_follows_from_what_a_listener_sends() {
        use ListenerKind as Kind;
        let mut pong = RequestBuf::new();
        pong.u32(CAPABILITY_NONCE | 5);
        let pong = bytes(pong.contiguous().expect("four bytes"));
        let other = |text: &str| Kind::Other(text.to_owned());
        type Row = (Heard, Heard, Heard, Heard, (Kind, usize));
        let silence = || Heard::Silence;
        let closed = || Heard::Closed;
        let table: [Row; 12] = [
            (pong, silence(), silence(), silence(), (Kind::Store, 1)),
            // PyTorch up to 2.4.
            (
                closed(),
                bytes(&[CHECK_READY]),
                closed(),
                closed(),
                (Kind::Store, 2),
            ),
            (
                bytes(b"HTTP"),
                silence(),
                silence(),
                silence(),
                (Kind::Http, 1),
            ),
            (
                closed(),
                closed(),
                bytes(b"HTTP/1.1 400"),
                closed(),
                (Kind::Http, 4),
            ),
            // It waits for the end of a line.
            (
                silence(),
                silence(),
                bytes(b"HTTP/1.0 200"),
                silence(),
                (Kind::Http, 3),
            ),
            (
                silence(),
                silence(),
                bytes(b"<html>"),
                silence(),
                (Kind::Http, 3),
            ),
            (
                closed(),
                closed(),
                closed(),
                bytes(b"\x15\x03\x03"),
                (Kind::Tls, 3),
            ),
            (
                silence(),
                silence(),
                silence(),
                bytes(b"\x16\x03\x03"),
                (Kind::Tls, 2),
            ),
            (
                bytes(b"SSH-2.0-x\x1b[2J\r\n"),
                silence(),
                silence(),
                silence(),
                (other("SSH-2.0-x\\u{1b}[2J"), 1),
            ),
            (
                silence(),
                silence(),
                silence(),
                silence(),
                (Kind::Silent, 3),
            ),
            (closed(), closed(), closed(), closed(), (Kind::Closes, 4)),
            (
                Heard::Failed("refused".to_owned()),
                closed(),
                closed(),
                closed(),
                (Kind::Nothing("refused".to_owned()), 1),
            ),
        ];
        for (ping, plain, http, tls, expected) in table {
            let found = kind(|question| match question {
                Question::Ping => ping.clone(),
                Question::PlainHello => plain.clone(),
                Question::Http => http.clone(),
                Question::Tls => tls.clone(),
            });
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn real_listeners_are_recognised() {
        let ask = |port: u16| {
            let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
            ListenerKind::ask(&HostPort::new("127.0.0.1", port), deadline, &Cancel::NEVER)
        };
        let server =
            TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
        assert_eq!(ask(server.local_addr().port()), ListenerKind::Store);
        drop(server);

        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(ask(port), ListenerKind::Silent);
        drop(listener);
        assert!(matches!(ask(port), ListenerKind::Nothing(_)));

        // It reads lines, one connection after another.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let serving = thread::spawn(move || {
            loop {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut received = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|count| count == 1) {
                    received.push(byte[0]);
                    if received.ends_with(b"\r\n\r\n") {
                        let _ = stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n");
                        return;
                    }
                }
            }
        });
        assert_eq!(ask(port), ListenerKind::Http);
        serving.join().expect("no panic");
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_store_with_a_secret_is_a_server_of_tls() {
        let secret = crate::Secret::random().expect("randomness");
        let options = ServerOptions::default().with_credentials(secret.into());
        let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
        let target = HostPort::new("127.0.0.1", server.local_addr().port());
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        assert_eq!(
            ListenerKind::ask(&target, deadline, &Cancel::NEVER),
            ListenerKind::Tls
        );
    }

    #[test]
    fn a_cancel_ends_the_questions() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let target = HostPort::new("127.0.0.1", listener.local_addr().expect("bound").port());
        let cancel = Cancel::new();
        cancel.cancel();
        assert!(sleep(Duration::from_secs(1), [&cancel]).is_err());
        let kind = ListenerKind::ask(&target, Deadline::NEVER, &cancel);
        assert_eq!(kind, ListenerKind::Silent);
    }
}
