//! The memory of the store's data, and the limit on it.

use std::collections::HashSet;

use super::slot::{ELEMENT_BYTES, Slot};
use super::{Refusal, StoreState};
use crate::message::{Keys, Request};
use crate::stored_value::Value;

/// The memory of a name besides its bytes and its value's bytes: a slot of the map, a third of whose capacity may be
/// unused, and the allocator's overhead for the name and the value.
const NAME_BYTES: usize = 256;

/// The memory of one missing name of a wait, besides the name.
const WAIT_BYTES: usize = 128;

impl StoreState {
    /// Refuses requests that would make the data take more than this many bytes. Waits may take an eighth more, so
    /// that readers wait longer than writers write.
    pub(crate) const fn set_memory_max(&mut self, bytes: Option<usize>) {
        self.memory_max = bytes;
    }

    /// Sets the memory that peers take: unread replies and unfinished requests.
    pub(crate) const fn set_peer_bytes(&mut self, bytes: usize) {
        self.peer_bytes = bytes;
    }

    /// About the memory of names, values, queues, waits, announcements, and the sessions in the journal, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.extension_bytes()
            + self.slots.stored_bytes()
            + self.slots.queued_bytes()
            + self.slots.len() * NAME_BYTES
            + self.waiters.len() * WAIT_BYTES
            + self.waiters.name_bytes()
            + self.waiters.kept_bytes()
    }

    /// The limit on [`memory`](Self::memory).
    pub(crate) const fn memory_max(&self) -> Option<usize> {
        self.memory_max
    }

    /// The memory of long values that are not stored any more, but that replies may hold.
    pub(crate) const fn lent_bytes(&self) -> usize {
        self.slots.lent.bytes()
    }

    /// The addresses of these values.
    pub(crate) fn lent_values(&self) -> HashSet<*const Vec<u8>> {
        self.slots.lent.values()
    }

    /// Forgets the values that all peers have read. Costs a check of each.
    pub(crate) fn forget_read(&mut self) {
        self.slots.lent.forget_read();
    }

    /// Checks that there is memory for a request. Those that add nothing are never refused.
    ///
    /// # Errors
    /// [`Refusal::MemoryFull`].
    #[inline]
    pub(super) fn check_memory(&self, request: &Request<'_>) -> Result<(), Refusal> {
        match self.memory_max {
            Some(limit) if self.may_lack_memory(request) => self.check_growth(request, limit),
            _ => Ok(()),
        }
    }

    /// Whether memory may be missing for a request, without reading the data.
    #[inline]
    pub(super) fn may_lack_memory(&self, request: &Request<'_>) -> bool {
        self.memory_max
            .is_some_and(|limit| self.may_exceed(limit, request))
    }

    /// Not inlined, so that the code for a request to a store without a limit stays short.
    #[inline(never)]
    fn may_exceed(&self, limit: usize, request: &Request<'_>) -> bool {
        self.memory() + most_growth(request) > limit
    }

    fn check_growth(&self, request: &Request<'_>, limit: usize) -> Result<(), Refusal> {
        let used = self.memory();
        let (growth, room) = match request {
            Request::Wait { keys } => (self.growth_of_wait(*keys), limit + limit / 8),
            Request::MultiSet { .. } => {
                // The store copies its values while the request is still in memory, besides the requests and replies of other peers.
                let reserve = peer_reserve(limit);
                let most = limit.saturating_add(2 * reserve);
                let room = most.saturating_sub(self.peer_bytes).max(used + reserve);
                (self.growth_of_write(request), limit.min(room))
            }
            _ => (self.growth_of_write(request), limit),
        };
        check_room(used, growth, room, limit)
    }

    pub(super) fn growth_of_wait(&self, keys: Keys<'_>) -> usize {
        let missing = keys.iter().filter(|key| !self.has_value(key));
        // A WAIT_GET keeps its keys besides the names.
        missing
            .map(|key| NAME_BYTES + WAIT_BYTES + 2 * key.len())
            .sum()
    }

    fn growth_of_write(&self, request: &Request<'_>) -> usize {
        match request {
            Request::Set { key, value } => self.growth_of_set(key, value.as_bytes()),
            Request::CompareSet {
                key,
                expected,
                desired,
            } if self.compares_equal(key, expected) => self.growth_of_set(key, desired.as_bytes()),
            Request::Append { key, value } => self.growth_of_name(key) + value.as_bytes().len(),
            Request::MultiSet { pairs } => {
                let mut blobs = pairs.iter();
                let mut growth = 0;
                while let (Some(key), Some(value)) = (blobs.next(), blobs.next()) {
                    growth += self.growth_of_set(key, value);
                }
                growth
            }
            Request::QueuePush { key, value } => {
                self.growth_of_name(key) + ELEMENT_BYTES + value.as_bytes().len()
            }
            Request::Add { key, .. } | Request::Barrier { key, .. } => self.growth_of_name(key),
            _ => 0,
        }
    }

    pub(super) fn growth_of_set(&self, key: &[u8], value: &[u8]) -> usize {
        match self.slots.get(key).and_then(Slot::value) {
            Some(old) => value.len().saturating_sub(Value::as_bytes(old).len()),
            None => self.growth_of_name(key) + value.len(),
        }
    }

    pub(super) fn growth_of_name(&self, key: &[u8]) -> usize {
        match self.slots.get(key) {
            Some(_) => 0,
            None => NAME_BYTES + key.len(),
        }
    }
}

/// Checks that data of `used` bytes may grow by this much, up to `room`. The error shows the limit.
pub(super) const fn check_room(
    used: usize,
    growth: usize,
    room: usize,
    limit: usize,
) -> Result<(), Refusal> {
    if growth > 0 && used.saturating_add(growth) > room {
        return Err(Refusal::MemoryFull { used, limit });
    }
    Ok(())
}

/// Peers may take at least twice this, whatever the data takes.
pub(crate) fn peer_reserve(limit: usize) -> usize {
    (8 << 20).max(limit / 16)
}

/// An upper bound of the growth by a value of this many bytes, without reading the data.
pub(super) const fn most_growth_of_name(key: &[u8], bytes: usize) -> usize {
    NAME_BYTES + ELEMENT_BYTES + key.len() + bytes
}

/// An upper bound of the growth that a request can cause, without reading the data.
fn most_growth(request: &Request<'_>) -> usize {
    match request {
        Request::Set { key, value }
        | Request::Append { key, value }
        | Request::QueuePush { key, value }
        | Request::CompareSet {
            key,
            desired: value,
            ..
        } => most_growth_of_name(key, value.as_bytes().len()),
        Request::Add { key, .. } | Request::Barrier { key, .. } => most_growth_of_name(key, 0),
        Request::Wait { .. } | Request::MultiSet { .. } => usize::MAX / 2,
        _ => 0,
    }
}

#[cfg(all(test, feature = "extensions"))]
mod tests {
    use super::*;
    use crate::message::Extension;
    use crate::message::{ConnId, Payload};
    use crate::state::tests::{OwnedReply, Recorder};

    fn handle(store: &mut StoreState, request: Request<'_>) -> Result<(), Refusal> {
        let result = store.handle(ConnId(1), request, &mut Recorder::default());
        store.check_invariants();
        result
    }

    /// The only reply.
    fn reply(store: &mut StoreState, conn: u64, request: Request<'_>) -> OwnedReply {
        let mut replies = Recorder::default();
        let handled = store.handle(ConnId(conn), request, &mut replies);
        handled.expect("it is not refused without a reply");
        store.check_invariants();
        assert_eq!(replies.0.len(), 1);
        replies.0.remove(0).1
    }

    fn set<'a>(key: &'a str, value: &'a [u8]) -> Request<'a> {
        Request::Set {
            key: key.as_bytes(),
            value: Payload::Borrowed(value),
        }
    }

    /// docs/spec/wire.md, MEMORY 4.
    #[test]
    fn values_of_one_request_count_besides_the_request() {
        let mut store = StoreState::default();
        let limit = 256 << 20;
        store.set_memory_max(Some(limit));
        let value = vec![7; 4 << 20];
        let keys: Vec<String> = (0..40).map(|key| key.to_string()).collect();
        let pairs = keys.iter().flat_map(|key| [key.as_bytes(), &value]);
        let pairs: Vec<&[u8]> = pairs.collect();
        let mut set = |pairs: &[&[u8]], peer_bytes: usize| {
            store.set_peer_bytes(peer_bytes);
            let pairs = Keys::from(pairs);
            handle(&mut store, Request::MultiSet { pairs })
        };
        let most = limit + limit / 8;
        set(&pairs, most - (150 << 20)).expect_err("150 MiB are left for 160 MiB");
        set(&pairs[..6], most).expect("peers that take everything do not refuse 12 MiB");
        set(&pairs, 100 << 20).expect("160 MiB beside 100 MiB of 288 MiB");
    }

    /// docs/spec/wire.md, MEMORY 1 to 3, and docs/spec/wire-extensions.md, REFUSAL 3.
    #[test]
    fn a_full_store_refuses_writes_that_add_and_nothing_else() {
        let mut store = StoreState::default();
        store.set_memory_max(Some(10_000));
        let long = [7; 5000];
        handle(&mut store, set("long", &long)).expect("half of the memory");
        let push = || Request::QueuePush {
            key: b"queue",
            value: Payload::Borrowed(&long[..4000]),
        };
        handle(&mut store, push()).expect("the rest");
        let used = store.memory();
        let full = Err(Refusal::MemoryFull {
            used,
            limit: 10_000,
        });
        let keys: [&[u8]; 4] = [b"a", &long[..500], b"b", &long[..500]];
        let pairs = Keys::from(&keys[..]);
        let added = Payload::Borrowed(&long[..500]);
        for request in [
            set("more", &long),
            push(),
            Request::MultiSet { pairs },
            Request::Append {
                key: b"long",
                value: added,
            },
            Request::CompareSet {
                key: b"new",
                expected: b"",
                desired: Payload::Borrowed(&long),
            },
        ] {
            assert_eq!(handle(&mut store, request), full);
            assert_eq!(store.memory(), used, "nothing has changed");
        }
        for request in [
            Request::Extension(Extension::CompareExchange {
                key: b"new",
                expected: b"",
                desired: Payload::Borrowed(&long),
            }),
            Request::Extension(Extension::TryAdd {
                key: &long[..500],
                delta: 1,
            }),
        ] {
            let full = OwnedReply::Full(used, 10_000);
            assert_eq!(reply(&mut store, 1, request), full);
            assert_eq!(store.memory(), used, "nothing has changed");
        }
        // Replacing, reading, waiting, popping and deleting continue.
        let waited: &[&[u8]] = &[b"missing"];
        let keys = Keys::from(waited);
        for request in [
            set("long", &long[..4990]),
            Request::Get { key: b"long" },
            Request::Wait { keys },
            Request::ListKeys,
            Request::QueuePop { key: b"queue" },
            Request::DeleteKey { key: b"long" },
            set("more", &long),
        ] {
            assert_eq!(handle(&mut store, request), Ok(()));
        }
    }

    /// docs/spec/wire.md, QUEUE_PUSH 3. A PING, which keeps a wakeup, may follow a refused write.
    #[test]
    fn a_refused_write_passes_a_wakeup_on() {
        let mut store = StoreState::default();
        let mut replies = Recorder::default();
        let queue: &[&[u8]] = &[b"q"];
        for conn in [1, 2] {
            let keys = Keys::from(queue);
            let waits = store.handle(ConnId(conn), Request::Wait { keys }, &mut replies);
            waits.expect("no limit");
        }
        let push = Request::QueuePush {
            key: b"q",
            value: Payload::Borrowed(b"e"),
        };
        store
            .handle(ConnId(3), push, &mut replies)
            .expect("no limit");
        assert_eq!(replies.0, [(1, OwnedReply::Stop)]);
        store.set_memory_max(Some(1));
        let refused = store.handle(ConnId(1), set("more", b"value"), &mut replies);
        refused.expect_err("no memory");
        assert_eq!(replies.0[1..], [(2, OwnedReply::Stop)]);
    }

    /// docs/spec/wire.md, MEMORY 1.
    #[test]
    fn what_waits_and_announcements_keep_is_counted_while_it_is_kept() {
        let mut store = StoreState::default();
        let mut replies = Recorder::default();
        let mut on = |store: &mut StoreState, conn, request| {
            let result = store.handle(ConnId(conn), request, &mut replies);
            store.check_invariants();
            result
        };
        let known = [7; 5000];
        let wait = |known| {
            Request::Extension(Extension::WaitChange {
                key: b"k",
                offset: 0,
                length: None,
                known: Payload::Borrowed(known),
            })
        };
        // They share the known value of the one before.
        for conn in 0..10 {
            on(&mut store, conn, wait(&known)).expect("no limit");
        }
        let memory = store.memory();
        assert!((5000..10_000).contains(&memory), "{memory}");
        on(&mut store, 10, wait(&known[1..])).expect("no limit");
        let long = [8; 5000];
        let keys: [&[u8]; 2] = [b"missing", &long];
        for conn in 11..13 {
            let keys = Keys::from(&keys[..]);
            on(
                &mut store,
                conn,
                Request::Extension(Extension::WaitGet { keys }),
            )
            .expect("no limit");
        }
        let grown = store.memory() - memory;
        assert!((4 * 5000..4 * 5000 + 2000).contains(&grown), "{grown}");
        store.set_memory_max(Some(store.memory()));
        let full = reply(&mut store, 13, wait(&long));
        assert!(matches!(full, OwnedReply::Full(..)), "{full:?}");
        store.set_memory_max(None);
        on(&mut store, 14, set("k", b"new")).expect("no limit");
        for conn in 11..13 {
            on(&mut store, conn, Request::CancelWait).expect("no limit");
        }
        let left = store.memory();
        assert!(left < 1000, "{left}");
        let bytes = Payload::Borrowed(&long);
        on(&mut store, 14, Request::DeleteKey { key: b"k" }).expect("no limit");
        assert_eq!(store.memory(), 0);

        store.set_memory_max(Some(8 * 6100));
        let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        for conn in 20..22 {
            store.connect(ConnId(conn), peer);
        }
        on(
            &mut store,
            20,
            Request::Extension(Extension::Announce { bytes }),
        )
        .expect("an eighth");
        let announced = store.memory();
        assert!((5000..6100).contains(&announced), "{announced}");
        let bytes = Payload::Borrowed(&long);
        on(
            &mut store,
            21,
            Request::Extension(Extension::Announce { bytes }),
        )
        .expect("it is ignored");
        assert_eq!(store.memory(), announced);
    }

    /// docs/spec/wire.md, MEMORY 3.
    #[test]
    fn waits_have_a_limit_beyond_that_of_writes() {
        let mut store = StoreState::default();
        store.set_memory_max(Some(1 << 20));
        let names: Vec<String> = (0..10_000).map(|name| name.to_string()).collect();
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let keys = Keys::from(&names[..]);
        let refused = handle(&mut store, Request::Wait { keys });
        assert!(matches!(refused, Err(Refusal::MemoryFull { .. })));
        let keys = Keys::from(&names[..100]);
        assert_eq!(
            handle(&mut store, Request::Extension(Extension::WaitGet { keys })),
            Ok(())
        );
        let memory = store.memory();
        assert_eq!(handle(&mut store, Request::CancelWait), Ok(()));
        assert!(memory > 100 * WAIT_BYTES && store.memory() == 0);

        // One eighth more than the limit.
        let mut fits = 0;
        for count in 0..names.len() {
            let keys = Keys::from(&names[count..=count]);
            let request = Request::Wait { keys };
            let mut replies = Recorder::default();
            if store
                .handle(ConnId(count as u64), request, &mut replies)
                .is_err()
            {
                break;
            }
            fits = store.memory();
        }
        let limit = (1 << 20) + (1 << 17);
        assert!((limit - 1000..=limit).contains(&fits), "{fits}");
    }
}
