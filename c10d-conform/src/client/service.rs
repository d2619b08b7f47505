//! The store's side of the connections of a client, without sockets and clocks. It behaves as PyTorch's within its rights,
//! with the manners of a scenario, and notes what the client does wrong.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::client::store::{READY, Replies, Store};
use crate::fence::MAGIC;
use crate::request::{Opcode, Request, decode};

/// A WAIT for a missing key that begins so is answered after [`SOON`].
const LATE: &[u8] = b"/late";

/// The answer to a WAIT for it crosses its CANCEL_WAIT.
const CROSSING: &[u8] = b"/crossing";

/// Replies with its value end, with the connection, after some bytes.
const CUT: &[u8] = b"/cut";

/// A WAIT for it ends with the connection, after [`SOON`].
const GONE: &[u8] = b"/gone";

const SOON: Duration = Duration::from_millis(100);

/// Between the pieces of a reply: the client reads each by itself.
const PIECE_PAUSE: Duration = Duration::from_millis(2);

/// So many bytes of a reply arrive one by one, which is all of most; the rest in pieces of some.
const SINGLE_BYTES: usize = 24;
const PIECE_BYTES: usize = 500;

/// How the store treats its clients.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Manners {
    /// Each reply is this late.
    late_ms: u64,
    /// The reply to a CANCEL_WAIT is this late.
    cancel_late_ms: u64,
    /// Replies arrive in pieces.
    is_piecewise: bool,
    /// Requests are read this long after they have arrived, and slowly.
    pub(crate) read_late_ms: u64,
}

/// What the shell does at a time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Send(u64, Vec<u8>),
    /// After all that was sent.
    Close(u64),
}

#[derive(Debug)]
enum Planned {
    Effect(Effect),
    Set(Vec<u8>),
}

#[derive(Debug, Default)]
struct Link {
    unread: Vec<u8>,
    is_validated: bool,
    is_refused: bool,
    /// When its last reply leaves: the next one is no earlier.
    last: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Service {
    manners: Manners,
    store: Store,
    links: BTreeMap<u64, Link>,
    /// By their time and in their order.
    planned: BTreeMap<(Instant, u64), Planned>,
    plans: u64,
    wrong: Vec<String>,
    #[cfg(test)]
    pub(crate) mistake: Option<crate::client::mistakes::Mistake>,
}

impl Service {
    pub(crate) fn new(manners: Manners) -> Self {
        let mut service = Self {
            manners,
            ..Self::default()
        };
        service
            .store
            .set(CUT, b"0123456789".to_vec(), &mut Replies::new());
        service
    }

    /// What the client has done wrong, a sentence each, the same only once.
    pub(crate) fn wrong(&self) -> &[String] {
        &self.wrong
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.store.value(key).map(Vec::as_slice)
    }

    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.store = Store::default();
    }

    /// Bytes of a connection, which the first ones open.
    pub(crate) fn received(&mut self, connection: u64, bytes: &[u8], now: Instant) {
        let link = self.links.entry(connection).or_default();
        if !link.is_validated && link.unread.is_empty() && bytes.len() < 5 {
            self.note(
                "sent VALIDATE in two writes: PyTorch's server closes if it reads them apart",
            );
        }
        let link = self.links.entry(connection).or_default();
        if !link.is_refused {
            link.unread.extend(bytes);
        }
        while let Some(link) = self.links.get_mut(&connection).filter(|it| !it.is_refused) {
            match decode(&link.unread) {
                Ok(None) => break,
                Ok(Some((request, length))) => {
                    link.unread.drain(..length);
                    self.request(connection, &request, now);
                }
                Err(why) => self.refuse(connection, &why, now),
            }
        }
    }

    /// The client has closed the connection.
    pub(crate) fn ended(&mut self, connection: u64) {
        self.links.remove(&connection);
        self.store.forget(connection);
    }

    /// What is due.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(entry) = self.planned.first_entry().filter(|it| it.key().0 <= now) {
            match entry.remove() {
                Planned::Effect(effect) => effects.push(effect),
                Planned::Set(key) => {
                    let mut replies = Replies::new();
                    self.store.set(&key, b"late".to_vec(), &mut replies);
                    self.send(replies, Duration::ZERO, now);
                }
            }
        }
        effects
    }

    fn request(&mut self, connection: u64, request: &Request, now: Instant) {
        let name = request.opcode.name().unwrap_or_default();
        let is_validate = request.opcode == Opcode::VALIDATE;
        let link = self.links.entry(connection).or_default();
        match (link.is_validated, is_validate) {
            (false, true) if request.number == i64::from(MAGIC) => {
                link.is_validated = true;
                return;
            }
            (false, true) => {
                return self.refuse(connection, "sent VALIDATE with a wrong number", now);
            }
            (false, false) => {
                let why =
                    format!("sent {name} first on a connection: PyTorch's server wants VALIDATE");
                return self.refuse(connection, &why, now);
            }
            (true, true) => {
                return self.refuse(connection, "sent VALIDATE twice on a connection", now);
            }
            (true, false) => {}
        }
        if let Some(key) = request.keys.iter().find(|key| !is_of_client(key)) {
            let key = c10d_socket::printable(key, 60);
            self.note(&format!(
                "sent {name} with the key {key}: PyTorch's clients put a / before each"
            ));
        }
        let is_cancel = request.opcode == Opcode::CANCEL_WAIT;
        if self.store.is_waiting(connection) && !is_cancel {
            self.note(&format!(
                "sent {name} while its WAIT was unanswered: a late answer would be taken for that of {name}. \
                 CANCEL_WAIT comes first"
            ));
        }
        let mut replies = Replies::new();
        if is_cancel && self.store.is_waiting_for(connection, CROSSING) {
            replies.push((connection, vec![READY]));
        }
        if self.answer(connection, request, &mut replies).is_err() {
            return self.refuse(
                connection,
                &format!("sent {name}, which the store refuses"),
                now,
            );
        }
        let is_cut =
            request.keys.iter().any(|key| key == CUT) && replies.iter().any(|it| it.1.len() > 4);
        if is_cut {
            replies.iter_mut().for_each(|(_, bytes)| bytes.truncate(4));
        }
        let late = match is_cancel {
            true => self.manners.cancel_late_ms,
            false => self.manners.late_ms,
        };
        self.send(replies, Duration::from_millis(late), now);
        if is_cut {
            self.close(connection, now);
        }
        if request.opcode == Opcode::WAIT && self.store.is_waiting(connection) {
            self.while_waiting(connection, request, now);
        }
    }

    #[cfg(not(test))]
    fn answer(
        &mut self,
        connection: u64,
        request: &Request,
        replies: &mut Replies,
    ) -> Result<(), crate::client::store::Refused> {
        self.store.apply(connection, request, replies)
    }

    /// With the mistake that a test makes.
    #[cfg(test)]
    fn answer(
        &mut self,
        connection: u64,
        request: &Request,
        replies: &mut Replies,
    ) -> Result<(), crate::client::store::Refused> {
        match self.mistake {
            Some(mistake) => mistake(&mut self.store, connection, request.clone(), replies),
            None => self.store.apply(connection, request, replies),
        }
    }

    fn while_waiting(&mut self, connection: u64, request: &Request, now: Instant) {
        for key in &request.keys {
            if key.starts_with(LATE) {
                self.plan(now + SOON, Planned::Set(key.clone()));
            }
            if key == GONE {
                self.close(connection, now + SOON);
            }
        }
    }

    fn send(&mut self, replies: Replies, late: Duration, now: Instant) {
        for (connection, bytes) in replies {
            let Some(link) = self.links.get_mut(&connection) else {
                continue;
            };
            let mut at = (now + late).max(link.last.unwrap_or(now));
            let pieces = match self.manners.is_piecewise {
                true => pieces(bytes),
                false => vec![bytes],
            };
            let pieces = pieces.into_iter().map(|piece| {
                let time = at;
                if self.manners.is_piecewise {
                    at += PIECE_PAUSE;
                }
                (time, Planned::Effect(Effect::Send(connection, piece)))
            });
            let pieces: Vec<_> = pieces.collect();
            link.last = Some(at);
            for (time, piece) in pieces {
                self.plan(time, piece);
            }
        }
    }

    fn close(&mut self, connection: u64, at: Instant) {
        let Some(link) = self.links.get_mut(&connection) else {
            return;
        };
        link.is_refused = true;
        let at = at.max(link.last.unwrap_or(at));
        self.store.forget(connection);
        self.plan(at, Planned::Effect(Effect::Close(connection)));
    }

    fn plan(&mut self, at: Instant, what: Planned) {
        self.plans += 1;
        self.planned.insert((at, self.plans), what);
    }

    fn refuse(&mut self, connection: u64, why: &str, now: Instant) {
        self.note(why);
        self.close(connection, now);
    }

    fn note(&mut self, why: &str) {
        if !self.wrong.iter().any(|it| it == why) {
            self.wrong.push(why.to_owned());
        }
    }
}

/// The key of a user, or that of the worker count.
fn is_of_client(key: &[u8]) -> bool {
    key.starts_with(b"/") || key == b"init/"
}

fn pieces(bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let (single, rest) = bytes.split_at(bytes.len().min(SINGLE_BYTES));
    let single = single.chunks(1);
    single
        .chain(rest.chunks(PIECE_BYTES))
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::store::CANCELLED;
    use crate::request::{RequestBytes, length_word};

    const CLIENT: u64 = 1;

    fn opened(manners: Manners, now: Instant) -> Service {
        let mut service = Service::new(manners);
        let validate = RequestBytes::new(Opcode::VALIDATE).word(MAGIC).0;
        service.received(CLIENT, &validate, now);
        service
    }

    fn wait(key: &[u8]) -> Vec<u8> {
        let request = [RequestBytes::new(Opcode::WAIT).0, length_word(1).to_vec()].concat();
        RequestBytes(request).blob(key).0
    }

    #[test]
    fn an_answer_crosses_the_cancel_of_its_wait() {
        let now = Instant::now();
        let mut service = opened(Manners::default(), now);
        service.received(CLIENT, &wait(CROSSING), now);
        assert_eq!(service.due(now + SOON), []);
        service.received(CLIENT, &RequestBytes::new(Opcode::CANCEL_WAIT).0, now);
        let replies = [READY, CANCELLED].map(|byte| Effect::Send(CLIENT, vec![byte]));
        assert_eq!(service.due(now), replies);
        assert!(service.wrong().is_empty(), "{:?}", service.wrong());
    }

    #[test]
    fn replies_in_pieces_keep_their_order_and_the_end_comes_last() {
        let now = Instant::now();
        let manners = Manners {
            is_piecewise: true,
            late_ms: 10,
            ..Manners::default()
        };
        let mut service = opened(manners, now);
        let ping = |nonce| RequestBytes::new(Opcode::PING).word(nonce).0;
        let two = [ping(0x0403_0201), ping(0x0807_0605)].concat();
        for byte in two {
            service.received(CLIENT, &[byte], now);
        }
        service.received(CLIENT, &RequestBytes::new(Opcode::GET).blob(CUT).0, now);
        assert_eq!(service.due(now), []);
        let effects = service.due(now + Duration::from_secs(1));
        let mut sent: Vec<u8> = Vec::new();
        for effect in &effects[..effects.len() - 1] {
            let Effect::Send(CLIENT, bytes) = effect else {
                panic!("{effect:?}")
            };
            assert_eq!(bytes.len(), 1);
            sent.extend(bytes);
        }
        assert_eq!(sent, [1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 0, 0]);
        assert_eq!(effects.last(), Some(&Effect::Close(CLIENT)));
    }

    #[test]
    fn what_a_client_sends_wrong_is_noted_once_and_closes_if_it_cannot_be_understood() {
        let now = Instant::now();
        let mut service = opened(Manners::default(), now);
        for _ in 0..2 {
            service.received(CLIENT, &wait(b"bare"), now);
        }
        assert_eq!(service.wrong().len(), 2, "{:?}", service.wrong());
        assert_eq!(service.due(now), []);
        let big_endian = [3, 0, 0, 0, 0, 0, 0, 0, 5];
        service.received(CLIENT, &big_endian, now);
        let last = service.wrong().last().expect("it is noted");
        assert!(last.ends_with("integers are little endian"), "{last}");
        assert_eq!(service.due(now), [Effect::Close(CLIENT)]);
    }
}
