//! The server without sockets, for tests: parsers and state in memory. Tests of c10d-membership use it by the feature `sim`.

#[cfg(all(test, feature = "extensions"))]
mod ended_waits;
#[cfg(test)]
mod handshake;
#[cfg(test)]
mod splits;
#[cfg(test)]
mod vectors;

use std::collections::BTreeMap;

use c10d_socket::SendBuf;
#[cfg(test)]
use proptest::test_runner::Config as ProptestConfig;

use crate::limits::WireLimits;
use crate::message::CloseReason;
use crate::message::{ConnId, Replies, Reply};
use crate::request_parser::{Flow, NextRead, ParseError, RequestParser};
use crate::state::{Refusal, StoreState};
use crate::wire::{RequestBuf, encode_reply};
#[cfg(feature = "extensions")]
use {crate::groups::Groups, crate::moment::Moment, std::time::Duration};

/// PROPTEST_CASES random cases, or `default`. A failing case is printed, minimized, and stored in a
/// regression file that later runs replay first.
#[cfg(test)]
pub(crate) fn cases(default: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(default),
    }
}

/// A server driven by test code. A connection exists from its first use.
#[derive(Debug, Default)]
pub struct SimServer {
    pub(crate) state: StoreState,
    limits: WireLimits,
    parsers: BTreeMap<u64, RequestParser>,
    outputs: Outputs,
}

#[derive(Debug, Default)]
struct Outputs(BTreeMap<u64, Output>);

#[derive(Debug, Default)]
struct Output {
    bytes: SendBuf,
    closed: bool,
}

impl Replies for Outputs {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        encode_reply(reply, &mut self.0.entry(conn.0).or_default().bytes);
    }
}

impl SimServer {
    /// Delivers bytes to the server as one piece.
    ///
    /// # Panics
    /// If the server breaks one of its invariants, which all methods check.
    pub fn send(&mut self, conn: u64, bytes: &[u8]) {
        let output = self.outputs.0.entry(conn).or_default();
        if output.closed {
            return;
        }
        let mut parser = self.parsers.remove(&conn).unwrap_or_else(|| {
            self.state.connect(ConnId(conn), ([127, 0, 0, 1], 1).into());
            RequestParser::default()
        });
        let (state, outputs) = (&mut self.state, &mut self.outputs);
        let handle = |request: crate::message::Request<'_>| {
            state.handle(ConnId(conn), request, outputs)?;
            #[cfg(feature = "extensions")]
            while state.can_sweep() {
                state.continue_sweep(outputs);
            }
            Ok::<_, Refusal>(Flow::Continue)
        };
        // As in the event loop, a long request continues in the parser's own buffer.
        let outcome = match parser.next_read() {
            NextRead::Direct { bytes_max } if bytes.len() <= bytes_max => {
                parser.direct_buffer().extend_from_slice(bytes);
                parser.resume(&self.limits, handle)
            }
            _ => parser.receive(bytes, &self.limits, handle),
        };
        self.parsers.insert(conn, parser);
        match outcome {
            Ok(flow) => assert_eq!(flow, Flow::Continue),
            Err(ParseError::Wire(_) | ParseError::Refused(_)) => self.close(conn),
        }
        self.check_invariants();
    }

    /// Runs the handshake and reads its reply.
    pub fn open(&mut self, conn: u64) {
        let mut hello = RequestBuf::new();
        hello.hello();
        self.send(conn, &hello.to_bytes());
        #[cfg(feature = "extensions")]
        let capabilities = match self.state.has_groups() {
            true => [0xff, 0x7f, 0x0d, 0xc1],
            false => [0xff, 0x53, 0x0d, 0xc1],
        };
        #[cfg(not(feature = "extensions"))]
        let capabilities = [0, 0, 0x0d, 0xc1];
        assert_eq!(self.take(conn), capabilities, "the capabilities");
    }

    /// The memory of the data, and of lists that replies hold, in bytes.
    pub fn memory(&mut self) -> (usize, usize) {
        self.state.forget_read();
        (self.state.memory(), self.state.lent_bytes())
    }

    /// The bytes that the server has sent to a connection since the last call.
    pub fn take(&mut self, conn: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let output = self.outputs.0.entry(conn).or_default();
        output
            .bytes
            .flush(&mut bytes)
            .expect("a vector accepts everything");
        bytes
    }

    /// Whether the server has closed a connection.
    #[must_use]
    pub fn is_closed(&self, conn: u64) -> bool {
        self.outputs
            .0
            .get(&conn)
            .is_some_and(|output| output.closed)
    }

    /// Ends a connection, from either side.
    pub fn close(&mut self, conn: u64) {
        self.outputs.0.entry(conn).or_default().closed = true;
        self.parsers.remove(&conn);
        self.state
            .disconnect(ConnId(conn), CloseReason::Peer, &mut self.outputs);
        self.check_invariants();
    }

    fn check_invariants(&self) {
        #[cfg(any(test, debug_assertions))]
        self.state.check_invariants();
    }
}

#[cfg(feature = "extensions")]
impl SimServer {
    /// A server with groups.
    #[must_use]
    pub fn new(groups: Box<dyn Groups>) -> Self {
        Self {
            state: StoreState::new(Some(groups)),
            ..Self::default()
        }
    }

    /// Sets the time since the start of the server.
    pub fn at(&mut self, now: Duration) {
        self.state.set_now(Moment::from(now));
        self.state.end_silent(&mut self.outputs);
        self.state.tick_groups(&mut self.outputs);
        self.check_invariants();
    }

    /// When the groups have something to do.
    #[must_use]
    pub fn next_group_timer(&self) -> Option<Duration> {
        self.state.next_group_timer().map(Moment::since_start)
    }
}
