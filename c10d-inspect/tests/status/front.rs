//! A status server on the port of a store.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::{StatusOptions, StatusServer, StatusSource};
use c10d_store::{HttpHandler, ServerOptions, TcpStoreServer};

/// How long an answer may take, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A store with a status server.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) status: Arc<StatusServer>,
    pub(crate) store: TcpStoreServer,
}

impl Front {
    /// Serves what the source says.
    pub(crate) fn start(source: impl StatusSource) -> Self {
        let store = start_store();
        Self::with(store, source)
    }

    /// Serves the reports of a real store.
    pub(crate) fn of_a_store() -> Self {
        let store = start_store();
        let observer = store.observer();
        Self::with(store, observer)
    }

    fn with(store: TcpStoreServer, source: impl StatusSource) -> Self {
        let options = StatusOptions::default()
            .with_title("llama-7b")
            .with_host_names(["status.example.org".to_owned()]);
        let status = StatusServer::start(source, options).expect("a thread");
        store.set_http_handler(Arc::clone(&status) as Arc<dyn HttpHandler>);
        Self {
            address: store.local_addr(),
            status,
            store,
        }
    }

    /// A connection to the store's port.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream.set_write_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    /// The answer to a GET.
    pub(crate) fn get(&self, path: &str) -> Answer {
        let host = self.address;
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ))
    }

    /// The answer to a GET that accepts this media type.
    pub(crate) fn get_as(&self, media_type: &str, path: &str) -> Answer {
        let host = self.address;
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {media_type}\r\nConnection: close\r\n\r\n"
        ))
    }

    /// The answer to these bytes, after which the server closes the connection.
    pub(crate) fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        Answer::parse(&answer)
    }
}

fn start_store() -> TcpStoreServer {
    let options = ServerOptions::default().with_groups(c10d_membership::groups);
    TcpStoreServer::bind("127.0.0.1:0", options).expect("a server")
}

/// An answer of HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Self {
            status: status.expect("a status"),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_str(&self.body).expect("JSON")
    }
}
