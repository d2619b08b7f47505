//! A server that answers HTTP with prepared pages instead of a store's status pages.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::process::PATIENCE;

/// Prepared answers by path. The thread runs until the test process exits.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) address: SocketAddr,
    answers: Arc<Mutex<BTreeMap<String, String>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Pages {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pages = Self {
            address: listener.local_addr().unwrap(),
            answers: Arc::default(),
            asked: Arc::default(),
        };
        let served = pages.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A killed command resets its connection.
                let _ = served.answer(stream.unwrap());
            }
        });
        pages
    }

    /// Sets the answer for a path, whatever its query.
    pub(crate) fn set(&self, path: &str, answer: &Value) {
        self.set_text(path, &answer.to_string());
    }

    pub(crate) fn set_text(&self, path: &str, answer: &str) {
        let mut answers = self.answers.lock().unwrap();
        answers.insert(path.to_owned(), answer.to_owned());
    }

    /// The paths and queries of all requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut line = first.clone();
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let path = first.split(' ').nth(1).unwrap_or_default();
        self.asked.lock().unwrap().push(path.to_owned());
        let path = path.split('?').next().unwrap_or_default();
        let answer = self.answers.lock().unwrap().get(path).cloned();
        let (status, body) = match answer {
            Some(body) => ("200 OK", body),
            None => ("404 Not Found", "there is no such page".to_owned()),
        };
        let mut stream = reader.into_inner();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Ranks 0, 1 and 3 wait for rank 2, in the form of `/why.json`.
pub(crate) fn stuck_report() -> Value {
    json!({
        "headline": "Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store.",
        "is_stuck": true,
        "findings": [{
            "kind": "never_connected",
            "text": "Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store.",
            "culprits": [2], "waiting": [0, 1, 3], "age_ms": 31000, "is_consequence": false
        }],
        "world_size": 4,
        "ranks": [{ "rank": 2, "state": "not_seen", "is_suspect": true, "doing": "has never connected" }],
        "a_field_of_a_newer_version": 7,
    })
}
