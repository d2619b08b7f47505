//! Errors of stores in one line of a log: the event, and one cause.

use std::error::Error;
use std::io;

use c10d_socket::{ConnectError, ListenError};

use crate::client::SessionError;
use crate::error::{ErrorContext, StoreError};

/// Returns the event at a store that caused an error, with at most one cause, for a line of a log. The whole error is
/// logged at the level "debug".
///
/// The text of other errors is returned unchanged.
///
/// ```
/// use c10d_store::{TcpStore, TcpStoreOptions, in_brief};
/// use std::time::Duration;
///
/// let options = TcpStoreOptions::default().with_timeout(Duration::from_millis(10));
/// let error = TcpStore::open("127.0.0.1", 1, options).unwrap_err();
/// assert_eq!(in_brief(&error), "cannot connect to 127.0.0.1:1 (Connection refused)");
/// ```
pub fn in_brief(error: &(dyn Error + 'static)) -> String {
    let all = error.to_string();
    let mut next = Some(error);
    let mut brief = None;
    while let Some(error) = next
        && brief.is_none()
    {
        brief = event(error);
        next = error.source();
    }
    let Some(brief) = brief else {
        return all;
    };
    if log::log_enabled!(log::Level::Debug) {
        log::debug!("{all}");
    }
    brief
}

/// Returns the event that this error reports; `None` if it is not about a connection.
fn event(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<Box<StoreError>>() {
        return of_store(error);
    }
    if let Some(error) = error.downcast_ref::<StoreError>() {
        return of_store(error);
    }
    if let Some(error) = error.downcast_ref::<SessionError>() {
        return of_session(error);
    }
    if let Some(ListenError::Address { address, source }) = error.downcast_ref() {
        return Some(format!("cannot listen on {address} ({})", cause(source)));
    }
    error.downcast_ref::<ConnectError>().map(of_connect)
}

fn of_store(error: &StoreError) -> Option<String> {
    Some(match error {
        StoreError::Connect { source, .. } => of_connect(source),
        StoreError::Listen(source) => return event(source),
        StoreError::ConnectionLost {
            context, source, ..
        } => {
            format!(
                "lost the connection to {} ({})",
                place(context),
                cause(source)
            )
        }
        StoreError::NoReply { context, timeout } => {
            format!("no answer from {} within {timeout:?}", place(context))
        }
        StoreError::Timeout { context, timeout } => {
            format!(
                "{} at {} timed out after {timeout:?}",
                context.operation,
                place(context)
            )
        }
        _ => return None,
    })
}

fn of_session(error: &SessionError) -> Option<String> {
    Some(match error {
        SessionError::Connect(source) => of_connect(source),
        SessionError::Lost { server, source } => {
            format!(
                "lost the connection to the store at {server} ({})",
                cause(source)
            )
        }
        SessionError::Full { server } => {
            format!("the store at {server} has no room for another session")
        }
        _ => return None,
    })
}

fn of_connect(error: &ConnectError) -> String {
    let last = error.failures().last();
    let cause = last.map(|failure| format!(" ({})", cause(failure.error())));
    format!(
        "cannot connect to {}{}",
        error.target(),
        cause.unwrap_or_default()
    )
}

fn place(context: &ErrorContext) -> String {
    match context.store.strip_prefix("TCP store ") {
        Some(address) => format!("the store at {address}"),
        None => format!("the {}", context.store),
    }
}

/// The standard library's words before the reason why a name has no address.
const LOOKUP: &str = "failed to lookup address information: ";

/// Returns the first part of the error's text. The rest of the text only explains it.
fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix(LOOKUP).unwrap_or(&text);
    let end = text.find([',', ';', '(']).unwrap_or(text.len());
    text[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::{Operation, Outcome};

    /// An error of another crate, as they wrap those of stores.
    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("cannot close the rendezvous: {source}")]
        Boxed { source: Box<StoreError> },
        #[error("cannot close the rendezvous: {0}")]
        Plain(#[source] StoreError),
        #[error(transparent)]
        Same(StoreError),
    }

    fn context() -> ErrorContext {
        let elapsed = Duration::from_millis(1949);
        ErrorContext::new(
            Operation::WaitChange,
            ["key"],
            "TCP store 10.8.8.1:29500",
            elapsed,
        )
    }

    fn lost() -> StoreError {
        StoreError::ConnectionLost {
            context: context(),
            outcome: Outcome::Unknown,
            source: io::Error::other("closed by the server, which may have stopped; or not"),
        }
    }

    #[test]
    fn the_event_and_one_cause_are_left() {
        let expected = "lost the connection to the store at 10.8.8.1:29500 (closed by the server)";
        assert_eq!(in_brief(&lost()), expected);
        let source = Box::new(lost());
        assert_eq!(in_brief(&Outer::Boxed { source }), expected);
        assert_eq!(in_brief(&Outer::Plain(lost())), expected);
        let timeout = Duration::from_secs(60);
        let silent = StoreError::NoReply {
            context: context(),
            timeout,
        };
        assert_eq!(
            in_brief(&silent),
            "no answer from the store at 10.8.8.1:29500 within 60s"
        );
        let late = StoreError::timeout(context(), Some(timeout));
        assert_eq!(
            in_brief(&late),
            "wait_change at the store at 10.8.8.1:29500 timed out after 60s"
        );
    }

    #[test]
    fn an_error_of_a_session_names_the_store_and_one_cause() {
        let server = c10d_socket::HostPort::new("node0", 29500);
        let source = io::Error::from_raw_os_error(104);
        for (error, expected) in [
            (
                SessionError::Lost {
                    server: server.clone(),
                    source,
                },
                "lost the connection to the store at node0:29500 (Connection reset by peer)",
            ),
            (
                SessionError::Full { server },
                "the store at node0:29500 has no room for another session",
            ),
        ] {
            assert_eq!(in_brief(&error), expected);
        }
    }

    #[test]
    fn other_errors_stay_whole() {
        let closed = StoreError::Closed { context: context() };
        let whole = closed.to_string();
        assert_eq!(in_brief(&closed), whole);
        // Its source is the source of the store's error.
        assert_eq!(in_brief(&Outer::Same(closed)), whole);
        assert_eq!(in_brief(&io::Error::other("a, b")), "a, b");
    }

    #[test]
    fn a_cause_is_cut_where_its_explanation_begins() {
        for (text, cut) in [
            ("Connection refused (os error 111)", "Connection refused"),
            ("closed by the server, which", "closed by the server"),
            (
                "failed to lookup address information: Name or service not known",
                "Name or service not known",
            ),
            ("", ""),
            ("no name", "no name"),
        ] {
            assert_eq!(cause(&io::Error::other(text)), cut);
        }
    }
}
