//! A small server with a journal, in virtual time, for one session. Tests of the relay also include this file.
//!
//! It keeps nothing until [`commit`](Server::commit) and reports only kept requests. It remembers everything that it
//! was ever sent, and checks that repeated requests are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Credit, Frame, FrameReader, Opcode, RawRequests, SendBuf, SessionStream, WireLimits};

/// The part of a request that identifies it.
pub(crate) const START_BYTES: usize = 40;

/// The state that survives a crash.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    /// The starts of requests with an effect, in their order.
    pub(crate) executed: Vec<(u32, Vec<u8>)>,
    /// What GET reads.
    pub(crate) value: Arc<Vec<u8>>,
    /// What WAIT waits for.
    pub(crate) is_open: bool,
    /// The requests that must not be carried out again, with their replies.
    results: BTreeMap<(u32, u32), Vec<u8>>,
}

#[derive(Debug)]
struct Client {
    requests: RawRequests,
    /// The last request that it has sent.
    number: u32,
    waiting: Option<(u32, Opcode)>,
    credit: Credit,
    /// Replies that are not kept.
    held: Vec<u8>,
    replies: SendBuf,
    /// The bytes that were carried out since the last reply or DONE.
    unacknowledged_bytes: usize,
    unacknowledged: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) stream: SessionStream,
    reader: FrameReader,
    pub(crate) live: Kept,
    pub(crate) durable: Kept,
    clients: BTreeMap<u32, Client>,
    next_client: u32,
    /// Whether clients may have been open before.
    is_restarted: bool,
    seen: BTreeMap<(u32, u32), Vec<u8>>,
    /// The last reply to each request.
    replies: BTreeMap<(u32, u32), Vec<u8>>,
    pub(crate) closed: Vec<u32>,
    pub(crate) is_ended: bool,
    done_bytes_min: usize,
}

impl Server {
    /// Creates a server that reports done requests after this many bytes without a reply.
    pub(crate) fn new(done_bytes_min: usize) -> Self {
        Self {
            done_bytes_min,
            ..Self::default()
        }
    }

    /// The process is killed, and another process continues from the kept state.
    pub(crate) fn crash(&mut self) {
        *self = Self {
            live: self.durable.clone(),
            durable: std::mem::take(&mut self.durable),
            is_restarted: true,
            seen: std::mem::take(&mut self.seen),
            replies: std::mem::take(&mut self.replies),
            closed: std::mem::take(&mut self.closed),
            done_bytes_min: self.done_bytes_min,
            ..Self::default()
        };
    }

    /// All that was carried out is kept.
    pub(crate) fn commit(&mut self) {
        self.durable = self.live.clone();
        for (client, it) in &mut self.clients {
            it.replies.push(&std::mem::take(&mut it.held));
            let is_due =
                it.unacknowledged_bytes >= self.done_bytes_min.max(1) || it.unacknowledged >= 1024;
            if is_due {
                self.stream.push_done(*client, it.number);
                it.unacknowledged_bytes = 0;
                it.unacknowledged = 0;
            }
        }
        self.send();
    }

    /// What WAIT waits for exists, or does not.
    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.live.is_open = is_open;
        if is_open {
            let waiting = self.clients.iter_mut();
            let waiting: Vec<_> = waiting
                .filter_map(|(client, it)| Some((*client, it.waiting.take()?)))
                .collect();
            for (client, (number, opcode)) in waiting {
                let reply = self.reply_to_wait(opcode);
                self.reply(client, number, reply);
            }
        }
    }

    /// All replies that a client must have received for its first `requests` requests.
    pub(crate) fn all_replies(&self, client: u32, requests: u32) -> Vec<u8> {
        let replies = self.replies.range((client, 0)..=(client, requests));
        replies.flat_map(|(_, reply)| reply.clone()).collect()
    }

    pub(crate) fn receive_link(&mut self, mut link: &[u8]) {
        while let Some(mut piece) = self.stream.next_bytes(&mut link).expect("link frames") {
            let mut reader = std::mem::take(&mut self.reader);
            while let Some(frame) = reader.next(&mut piece).expect("frames") {
                self.on_frame(frame);
            }
            self.reader = reader;
        }
        self.send();
    }

    fn on_frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Open { client, .. } => {
                assert!(client >= self.next_client, "in ascending order");
                self.next_client = client + 1;
                let new = Client {
                    requests: RawRequests::of_session(),
                    number: 0,
                    waiting: None,
                    credit: Credit::default(),
                    held: Vec::new(),
                    replies: SendBuf::new(),
                    unacknowledged_bytes: 0,
                    unacknowledged: 0,
                };
                self.clients.insert(client, new);
            }
            Frame::Resume { client, request } => {
                assert!(self.is_restarted && request >= 1);
                let highest = self
                    .seen
                    .range((client, 0)..=(client, u32::MAX))
                    .next_back();
                let highest = highest.map_or(0, |((_, number), _)| *number);
                assert!(request <= highest + 1, "{request} follows {highest}");
                let it = self.clients.get_mut(&client).expect("it is open");
                assert_eq!(it.number, 0, "RESUME follows OPEN");
                it.number = request - 1;
            }
            Frame::Data { client, bytes } => self.on_bytes(client, bytes),
            Frame::Group(group) => {
                for client in group.clients() {
                    self.on_bytes(client, group.bytes());
                }
            }
            Frame::Close { client } => {
                self.clients.remove(&client);
                self.closed.push(client);
            }
            Frame::Credit { client, bytes } => {
                if let Some(it) = self.clients.get_mut(&client) {
                    it.credit.returned(bytes).expect("it had credit");
                }
            }
            // A wait that was sent before.
            Frame::Done { .. } => {}
            Frame::Shared { .. } => panic!("not to the server"),
            Frame::End => {
                self.is_ended = true;
                self.stream.push_end();
            }
        }
    }

    fn on_bytes(&mut self, client: u32, bytes: &[u8]) {
        let it = self.clients.get_mut(&client).expect("it is open");
        it.credit.received(bytes.len()).expect("it had credit");
        let mut requests = Vec::new();
        let all = it
            .requests
            .receive(bytes, &WireLimits::default(), |request| {
                requests.push((request.opcode, request.bytes.to_vec()));
                true
            });
        assert_eq!(all, Ok(true));
        if let Some(returned) = it.credit.used(bytes.len()) {
            self.stream.push_credit(client, returned);
        }
        for (opcode, bytes) in requests {
            let it = self.clients.get_mut(&client).expect("it is open");
            it.number += 1;
            it.unacknowledged += 1;
            it.unacknowledged_bytes += bytes.len();
            let number = it.number;
            let before = self.seen.insert((client, number), bytes.clone());
            assert!(
                before.is_none_or(|before| before == bytes),
                "client {client} has sent another request {number} before"
            );
            self.on_request(client, number, opcode, bytes);
        }
    }

    fn on_request(&mut self, client: u32, number: u32, opcode: Opcode, mut bytes: Vec<u8>) {
        bytes.truncate(START_BYTES);
        if let Some(reply) = self.live.results.get(&(client, number)) {
            let reply = reply.clone();
            return self.reply(client, number, reply);
        }
        let blob = |bytes: &[u8]| [&word(bytes.len()), bytes].concat();
        let reply = match opcode {
            Opcode::Set | Opcode::Append | Opcode::QueuePush | Opcode::MultiSet => {
                self.live.executed.push((client, bytes));
                Vec::new()
            }
            Opcode::Add => {
                let reply = word(self.live.executed.len());
                self.live.executed.push((client, bytes));
                reply
            }
            Opcode::CompareSet => {
                let reply = blob(&word(self.live.executed.len()));
                self.live.executed.push((client, bytes));
                reply
            }
            Opcode::Get => return self.reply(client, number, blob(&self.live.value.clone())),
            Opcode::Check => return self.reply(client, number, vec![0]),
            Opcode::Ping => return self.reply(client, number, vec![1, 2, 3, 4]),
            Opcode::MultiGet => return,
            Opcode::Wait | Opcode::WaitGet => {
                if self.live.is_open {
                    let reply = self.reply_to_wait(opcode);
                    return self.reply(client, number, reply);
                }
                let it = self.clients.get_mut(&client).expect("it is open");
                it.waiting = Some((number, opcode));
                // This is not the reply that it had before a crash.
                self.replies.remove(&(client, number));
                return;
            }
            Opcode::CancelWait => {
                let it = self.clients.get_mut(&client).expect("it is open");
                it.waiting = None;
                return self.reply(client, number, vec![1]);
            }
            other => panic!("no {other:?} here"),
        };
        self.live.results.insert((client, number), reply.clone());
        self.reply(client, number, reply);
    }

    fn reply_to_wait(&self, opcode: Opcode) -> Vec<u8> {
        match opcode {
            Opcode::Wait => vec![0],
            _ => [&[0][..], &word(self.live.value.len()), &self.live.value].concat(),
        }
    }

    fn reply(&mut self, client: u32, number: u32, reply: Vec<u8>) {
        let it = self.clients.get_mut(&client).expect("it is open");
        if !reply.is_empty() {
            it.held.extend_from_slice(&reply);
            it.unacknowledged = 0;
            it.unacknowledged_bytes = 0;
        }
        self.replies.insert((client, number), reply);
    }

    /// Sends what is kept, as there is credit.
    fn send(&mut self) {
        for (client, it) in &mut self.clients {
            let count = it.replies.unsent_bytes().min(it.credit.to_send());
            if count > 0 {
                self.stream.push_data_from(*client, &mut it.replies, count);
                it.credit.sent(count);
            }
        }
    }
}

fn word(number: usize) -> Vec<u8> {
    (0..8).map(|byte| (number >> (8 * byte)) as u8).collect()
}
