//! A small HTTP server with a separate listener, for answers that take blocking work.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::http::request::Parts;

use super::answer::Answer;
use super::client::HttpResponse;
use super::guard::{Guard, Token};
use super::serve::{Limits, Reply, Routes, Server, Source};

const LIMITS: Limits = Limits {
    // As many as `c10d stacks` makes at once. A burst of clients takes less than this time for each.
    connections_max: 128,
    keep_alive: false,
    newcomer: Duration::from_millis(100),
    header: Duration::from_secs(5),
    ..Limits::DEFAULT
};

/// Makes the answer for the path and the query of a request. May block for as long as the client should wait.
pub type RequestHandler = Arc<dyn Fn(&str) -> HttpResponse + Send + Sync>;

/// A server that answers GET requests on a listener, from up to 128 connections at a time, each for 60 s at most.
///
/// Eight requests are answered at a time, and further requests wait. The server accepts only requests whose Host is an
/// address, `localhost` or the name of this machine, because a stranger's web page could send other names. Dropping it
/// shuts it down, which blocks for up to 1 s if answers are being made.
///
/// ```
/// use std::net::TcpListener;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use c10d_inspect::http::{HttpRequest, HttpResponse, RequestServer, Target, fetch};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let handler = Arc::new(|path: &str| HttpResponse::new(200, format!("you asked for {path}")));
/// let server = RequestServer::start(listener, "answers", None, handler)?;
///
/// let request = HttpRequest::get(Target::Tcp(server.address()), "/step");
/// let answer = fetch(&request, Duration::from_secs(5))?;
/// assert_eq!(answer.body, b"you asked for /step");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RequestServer {
    address: SocketAddr,
    _server: Server<RequestHandler>,
}

impl RequestServer {
    /// Starts a thread with this name. With a token, the server answers only requests that have it, for example from
    /// [`HttpRequest::with_token`](super::HttpRequest::with_token).
    ///
    /// # Errors
    /// The listener has no address, or the system has no room for another thread or poll descriptor.
    pub fn start(
        listener: TcpListener,
        name: &str,
        token: Option<String>,
        handler: RequestHandler,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let guard = Guard::new(&[], token.map(Token::new));
        let source = Source::Listener(listener);
        let server = Server::start(name, source, guard, LIMITS, handler)?;
        Ok(Self {
            address,
            _server: server,
        })
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Routes for RequestHandler {
    fn answer(&mut self, request: &Parts) -> Reply {
        let path = request.uri.path_and_query().map(ToString::to_string);
        let handler = Self::clone(self);
        Reply::Work(Box::new(move || {
            let HttpResponse { status, body, .. } = handler(&path.unwrap_or_default());
            Answer::bytes(status, body)
        }))
    }
}

#[cfg(test)]
mod tests;
