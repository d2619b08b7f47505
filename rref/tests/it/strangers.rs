//! Requests and answers of a group member that violates the protocol.
//!
//! The stranger is an agent without references. Messages are not authenticated, so it could delete, accept or deny
//! the users of other workers; that is not tested. In these tests it names users and values that do not exist, and
//! existing values under its own users.
//!
//! At a worker it may leave tombstones, and one user for each accepted creation, registration or settlement. Such a
//! user ends when the stranger deletes it or when the stranger's process exits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use c10d_sim::seed;
use fastrand::Rng;
use rpc_agent::{Agent, Context, Registry, RpcError, WorkerId};
use rref::fuzzing::{Answer, DELETES_MAX, ForkData, Message};
use rref::{ForkId, GloballyUniqueId, RRef, RRefError, RRefId};

use crate::common::{
    Alive, Counted, List, PATIENCE, Worker, ask, group_with_stranger, is_empty, make, until,
    until_empty,
};

const CREATE: &str = "rref/create";
const CONTROL: &str = "rref/control";
const FETCH: &str = "rref/fetch";
const AWAIT: &str = "rref/await";
const CALL: &str = "rref/call";
const RUN: &str = "rref/run";
const ALIVE: &str = "rref/alive";
const CONTROLS: &str = "rref/controls";
const FUNCTIONS: [&str; 8] = [CREATE, CONTROL, CONTROLS, FETCH, AWAIT, CALL, RUN, ALIVE];

/// Worker ids. The stranger sends its requests to the target; the third worker holds a value of the target.
const TARGET: u32 = 0;
const THIRD: u32 = 1;
const STRANGER: u32 = 2;

/// Position of the sender's incarnation in a message.
const INCARNATION_BYTES: Range<usize> = 2..10;

/// The stranger's first incarnation.
const INCARNATION: u64 = 77;

/// Timeout of fetches of nonexistent values; the owner parks them for this long.
const SOON: Duration = Duration::from_millis(300);

/// Maximum number of references in one message (docs/reference/rref-functions.md).
const FORKS_MAX: u32 = 65_536;

fn worker(id: u32) -> WorkerId {
    WorkerId::new(id).unwrap()
}

/// A group member that violates the protocol, and the users that it has registered at the target.
struct Stranger {
    agent: Agent,
    incarnation: u64,
    rng: Rng,
    /// Users that the target has accepted, each with its value. The target may keep only these.
    registered: BTreeSet<(RRefId, ForkId)>,
}

/// A request and its answer.
type Exchange = (&'static str, Bytes, Result<Bytes, RpcError>);

impl Stranger {
    fn new(agent: Agent, rng: Rng) -> Self {
        Self {
            agent,
            incarnation: INCARNATION,
            rng,
            registered: BTreeSet::new(),
        }
    }

    /// An id that no worker has assigned.
    fn id(&mut self, created_on: u32) -> GloballyUniqueId {
        GloballyUniqueId {
            created_on: worker(created_on),
            incarnation: match created_on {
                STRANGER => self.incarnation,
                _ => self.rng.u64(..),
            },
            local_id: self.rng.u64(..),
        }
    }

    fn rref(&mut self) -> RRefId {
        RRefId(self.id(STRANGER))
    }

    /// A new id of one of the stranger's own users.
    fn fork(&mut self) -> ForkId {
        let id = self.id(STRANGER);
        ForkId(GloballyUniqueId {
            local_id: u64::from(STRANGER) << 48 | id.local_id >> 16,
            ..id
        })
    }

    /// A reference to a nonexistent value of the third worker.
    fn fork_data(&mut self) -> ForkData {
        ForkData {
            owner: worker(THIRD),
            owner_incarnation: 0,
            rref: self.rref(),
            fork: self.fork(),
            parent: worker(STRANGER),
            type_name: "i64".into(),
        }
    }

    fn encode(&self, message: &Message) -> Bytes {
        message.encode(self.incarnation).into()
    }

    /// One valid request of each kind, with the function that takes it. `held` is a list that the target owns.
    fn valid(&mut self, held: RRefId) -> Vec<(&'static str, Bytes)> {
        let creation = |this: &mut Self, function: &str, arguments: Vec<u8>| Message::RemoteCall {
            rref: this.rref(),
            fork: this.fork(),
            type_name: "i64".into(),
            function: function.into(),
            arguments: arguments.into(),
        };
        let plain = creation(self, "number", packed(&[], &[14]));
        let fork = self.fork_data();
        let with_fork = creation(self, "forget", packed(&[fork], &[0]));
        let (rref, fork) = (self.rref(), self.fork());
        let control = [
            Message::ForkRequest { rref, fork },
            Message::ChildAccept { fork: self.fork() },
            Message::UserDelete {
                forks: (0..3).map(|_| (self.rref(), self.fork())).collect(),
            },
            Message::Abandon {
                rref: self.rref(),
                fork: self.fork(),
                error: "abandoned".into(),
            },
            Message::Probe {
                rref: self.rref(),
                fork: self.fork(),
            },
            Message::Query {
                rref: self.rref(),
                fork: self.fork(),
            },
        ];
        let asked = Message::Fetch { rref: held };
        let call = Message::Call {
            rref: held,
            function: "push".into(),
            arguments: packed(&[], &[14]).into(),
        };
        let fork = self.fork_data();
        let mut run = b"\x06forget".to_vec();
        run.extend_from_slice(&packed(&[fork], &[0]));
        let mut valid = vec![
            (CREATE, self.encode(&plain)),
            (CREATE, self.encode(&with_fork)),
        ];
        valid.extend(
            control
                .iter()
                .map(|message| (CONTROL, self.encode(message))),
        );
        valid.extend([FETCH, AWAIT].map(|function| (function, self.encode(&asked))));
        valid.push((CALL, self.encode(&call)));
        valid.push((RUN, run.into()));
        valid.push((ALIVE, Bytes::new()));
        valid
    }

    /// Sends all requests concurrently, and waits for all answers.
    #[track_caller]
    fn request_all(&mut self, requests: Vec<(&'static str, Bytes)>, held: RRefId) -> Vec<Exchange> {
        let pending: Vec<_> = requests
            .into_iter()
            .map(|(function, payload)| {
                let timeout = if waits(function, &payload, held) {
                    SOON
                } else {
                    PATIENCE / 2
                };
                let asked = self
                    .agent
                    .handle()
                    .call(worker(TARGET), function)
                    .with_timeout(timeout)
                    .send_bytes(payload.clone());
                (function, payload, asked)
            })
            .collect();
        let asked = pending.into_iter().map(|(function, payload, asked)| {
            let answer = asked.wait_timeout(PATIENCE);
            let answer = answer.unwrap_or_else(|| panic!("{function} hangs on {payload:?}"));
            if !waits(function, &payload, held) {
                assert!(
                    matches!(answer, Ok(_) | Err(RpcError::Remote { .. })),
                    "{function} {payload:?}: {answer:?}"
                );
            }
            self.record_user(function, &payload, &answer);
            (function, payload, answer)
        });
        asked.collect()
    }

    /// Sends one request.
    #[track_caller]
    fn request_one(
        &mut self,
        function: &'static str,
        payload: impl Into<Bytes>,
    ) -> Result<Bytes, RpcError> {
        let unknown = self.rref();
        let asked = self.request_all(vec![(function, payload.into())], unknown);
        let (_, _, answer) = asked.into_iter().next().unwrap();
        answer
    }

    /// Sends a control message and returns its answer.
    #[track_caller]
    fn send_control(&mut self, message: &Message) -> Answer {
        let function = match message {
            Message::RemoteCall { .. } => CREATE,
            _ => CONTROL,
        };
        let payload = self.encode(message);
        let answer = self.request_one(function, payload).unwrap();
        Answer::decode(&answer).unwrap().1
    }

    /// Sends a control message and asserts its answer.
    #[track_caller]
    fn expect(&mut self, message: &Message, answer: &Answer) {
        assert_eq!(self.send_control(message), *answer);
    }

    /// Sends a control message that is refused.
    #[track_caller]
    fn expect_refused(&mut self, message: &Message) {
        let answer = self.send_control(message);
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }

    /// Records a user that the target has registered.
    fn record_user(&mut self, function: &str, payload: &Bytes, answer: &Result<Bytes, RpcError>) {
        let (CREATE | CONTROL, Ok(answer)) = (function, answer) else {
            return;
        };
        let (_, answer) = Answer::decode(answer).unwrap();
        let (_, message) = Message::decode(payload).unwrap();
        let user = match (message, answer) {
            (Message::RemoteCall { rref, fork, .. }, Answer::RemoteAccept)
            | (Message::ForkRequest { rref, fork }, Answer::Ack)
            | (Message::Abandon { rref, fork, .. }, Answer::Abandoned) => (rref, fork),
            _ => return,
        };
        self.registered.insert(user);
    }

    /// Asserts that the target keeps nothing of the stranger except registered users.
    #[track_caller]
    fn check_remaining_users(&self, target: &Worker) {
        let report = target.rrefs.leak_report().unwrap();
        for value in &report.values {
            let its_own = value
                .held_by
                .iter()
                .filter(|holder| holder.worker.id == worker(STRANGER));
            for holder in its_own {
                let user = (value.rref, holder.fork);
                assert!(self.registered.contains(&user), "{user:?}\n{report}");
            }
        }
        let sizes = target.rrefs.sizes().unwrap();
        assert!(
            sizes.pending_owners <= self.registered.len(),
            "{sizes:?}\n{report}"
        );
    }

    /// Takes a new incarnation and contacts the worker `target`, which releases all users of the previous
    /// incarnation.
    #[track_caller]
    fn restart_for(&mut self, target: u32) {
        self.incarnation = self.rng.u64(INCARNATION + 1..);
        let (rref, fork) = (self.rref(), self.fork());
        let query = self.encode(&Message::Query { rref, fork });
        let answer = self
            .agent
            .handle()
            .call(worker(target), CONTROL)
            .with_timeout(PATIENCE)
            .send_bytes(query)
            .wait();
        assert_eq!(Answer::decode(&answer.unwrap()).unwrap().1, Answer::Unknown);
    }

    /// Deletes all registered users.
    #[track_caller]
    fn delete_all(&mut self) {
        let users: Vec<_> = std::mem::take(&mut self.registered).into_iter().collect();
        for forks in users.chunks(DELETES_MAX) {
            let forks = forks.to_vec();
            self.expect(&Message::UserDelete { forks }, &Answer::Ack);
        }
    }
}

fn number(number: u32) -> [u8; 4] {
    let mut bytes = [0; 4];
    LittleEndian::write_u32(&mut bytes, number);
    bytes
}

/// Encodes arguments: references, then an encoded value.
fn packed(forks: &[ForkData], value: &[u8]) -> Vec<u8> {
    let mut bytes = number(u32::try_from(forks.len()).unwrap()).to_vec();
    for fork in forks {
        fork.encode(&mut bytes);
    }
    bytes.extend_from_slice(value);
    bytes
}

/// Whether the request is valid and waits for a value that may still be created.
fn waits(function: &str, payload: &Bytes, held: RRefId) -> bool {
    matches!(function, FETCH | AWAIT | CALL)
        && matches!(
            Message::decode(payload),
            Ok((_, Message::Fetch { rref } | Message::Call { rref, .. })) if rref != held
        )
}

/// Starts a group with a stranger. The target owns a list that the third worker holds.
fn start_group(seed: u64) -> (Vec<Worker>, RRef<List>, Stranger) {
    let (workers, agent) = group_with_stranger(Registry::new(), |functions| {
        functions
            .register("forget", |_, _: RRef<i64>| Ok(0_i64))
            .unwrap();
    });
    let list = workers[1].rrefs.call("worker0", "list").remote(vec![1_i64]);
    let list: RRef<List> = list.unwrap();
    list.wait_ready(Some(PATIENCE)).unwrap();
    (workers, list, Stranger::new(agent, Rng::with_seed(seed)))
}

/// Asserts that the target still serves other workers, no handler has panicked, and nothing leaks. Stops the group.
#[track_caller]
fn check_healthy(workers: &[Worker], list: RRef<List>, mut stranger: Stranger) {
    let [target, third] = workers else {
        panic!("two workers")
    };
    assert_eq!(target.agent.handle().metrics().handler_panics, 0);
    assert_eq!(third.agent.handle().metrics().handler_panics, 0);
    stranger.check_remaining_users(target);
    // Valid requests were served, and the third worker's value exists.
    let items = list.to_here(Some(PATIENCE)).unwrap().into_inner().unwrap();
    assert_eq!(items[0], 1);
    let made: RRef<i64> = make(third, "worker0", "number", 9_i64);
    assert_eq!(made.to_here(Some(PATIENCE)).unwrap(), 9);
    let read: i64 = ask(target, "worker1", "number", 3_i64).unwrap();
    assert_eq!(read, 3);
    drop((made, list));
    stranger.delete_all();
    until_empty(workers);
    end(workers, &stranger);
}

/// Stops all agents; no reference may be held.
#[track_caller]
fn end(workers: &[Worker], stranger: &Stranger) {
    for worker in workers {
        worker.rrefs.leave(Some(PATIENCE)).unwrap();
        assert!(is_empty(worker));
    }
    for worker in workers {
        worker.agent.shutdown_now();
    }
    stranger.agent.shutdown_now();
}

#[test]
fn truncated_requests_are_answered_and_keep_registered_users() {
    let (workers, list, mut stranger) = start_group(seed());
    let kinds = stranger.valid(list.id()).len();
    for kind in 0..kinds {
        let (function, whole) = stranger.valid(list.id()).swap_remove(kind);
        // Each request uses new ids, because the target processes all of them.
        let cut: Vec<_> = (0..whole.len())
            .map(|end| {
                let (function, whole) = stranger.valid(list.id()).swap_remove(kind);
                (function, whole.slice(..end.min(whole.len())))
            })
            .collect();
        let asked = stranger.request_all(cut, list.id());
        // Truncated arguments and lists can be valid; all other truncated requests are errors.
        let has_rest = matches!(
            Message::decode(&whole),
            Ok((
                _,
                Message::RemoteCall { .. } | Message::Call { .. } | Message::UserDelete { .. }
            ))
        );
        if !has_rest && function != RUN {
            for (_, cut, answer) in &asked {
                assert!(answer.is_err(), "{function} {cut:?}: {answer:?}");
            }
        }
        let whole = stranger.request_all(vec![(function, whole)], list.id());
        assert!(whole[0].2.is_ok(), "{:?}", whole[0]);
    }
    check_healthy(&workers, list, stranger);
}

#[test]
fn requests_with_any_one_byte_changed_are_answered_and_keep_registered_users() {
    let (workers, list, mut stranger) = start_group(seed());
    let kinds = stranger.valid(list.id()).len();
    for kind in 0..kinds {
        let len = stranger.valid(list.id())[kind].1.len();
        let is_message = stranger.valid(list.id())[kind].0 != RUN;
        for change in [0x01, 0x80, 0xff] {
            let places = (0..len).filter(|at| !is_message || !INCARNATION_BYTES.contains(at));
            let changed: Vec<_> = places
                .map(|at| {
                    let (function, whole) = stranger.valid(list.id()).swap_remove(kind);
                    let mut bytes = whole.to_vec();
                    bytes[at] ^= change;
                    (function, Bytes::from(bytes))
                })
                .collect();
            stranger.request_all(changed, list.id());
        }
    }
    assert!(!stranger.registered.is_empty());
    check_healthy(&workers, list, stranger);
}

#[test]
fn a_message_for_another_function_is_refused_by_each() {
    let (workers, list, mut stranger) = start_group(seed());
    for (its_function, payload) in stranger.valid(list.id()) {
        // `alive` accepts any bytes, and `run` accepts names.
        let others = [CREATE, CONTROL, FETCH, AWAIT, CALL].into_iter();
        let others: Vec<_> = others
            .filter(|function| match its_function {
                FETCH | AWAIT => !matches!(*function, FETCH | AWAIT),
                its_function => *function != its_function,
            })
            .map(|function| (function, payload.clone()))
            .collect();
        for (function, payload, answer) in stranger.request_all(others, list.id()) {
            assert!(
                matches!(answer, Err(RpcError::Remote { .. })),
                "{its_function} to {function} {payload:?}: {answer:?}"
            );
        }
    }
    assert!(stranger.registered.is_empty());
    check_healthy(&workers, list, stranger);
}

#[test]
fn random_bytes_are_answered_and_keep_registered_users() {
    let (workers, list, mut stranger) = start_group(seed());
    for _ in 0..40 {
        for function in FUNCTIONS {
            let random: Vec<_> = (0..16)
                .map(|_| {
                    let len = stranger.rng.usize(..160);
                    let mut bytes: Vec<u8> = (0..len).map(|_| stranger.rng.u8(..)).collect();
                    // Half of the requests get a valid header.
                    if stranger.rng.bool() && len > INCARNATION_BYTES.end {
                        bytes[0] = 1;
                        bytes[1] = stranger.rng.u8(..10);
                        LittleEndian::write_u64(
                            &mut bytes[INCARNATION_BYTES],
                            stranger.incarnation,
                        );
                    }
                    (function, Bytes::from(bytes))
                })
                .collect();
            stranger.request_all(random, list.id());
        }
    }
    check_healthy(&workers, list, stranger);
}

#[test]
fn counts_and_lengths_are_checked_before_use() {
    let (workers, list, mut stranger) = start_group(seed());
    let run = |arguments: &[u8]| [b"\x06forget", arguments].concat();
    let mut too_many = number(FORKS_MAX + 1).to_vec();
    let fork = stranger.fork_data();
    fork.encode(&mut too_many);
    // Function names that are not UTF-8, and counts of 2^32 - 1 without elements.
    let mut requests = vec![
        (RUN, run(&[0xff; 4])),
        (RUN, run(&[0xff; 300])),
        (RUN, run(&number(FORKS_MAX))),
        (RUN, run(&too_many)),
        (RUN, b"\x02\xff\xfe\0\0\0\0".to_vec()),
        (RUN, vec![0xff]),
    ];
    let (rref, fork) = (stranger.rref(), stranger.fork());
    let header = stranger.encode(&Message::ForkRequest { rref, fork });
    let mut abandon = header.to_vec();
    abandon[1] = 6;
    abandon.extend_from_slice(&[0xff; 4]);
    requests.push((CONTROL, abandon));
    // Several messages in one: none, more than 4096, empty messages, those that end early, and a request for a value.
    let listed = |parts: &[&[u8]]| {
        let parts = parts.iter().map(|part| {
            let len = u32::try_from(part.len()).unwrap();
            [&number(len)[..], part].concat()
        });
        parts.collect::<Vec<_>>().concat()
    };
    let query = stranger.encode(&Message::Query { rref, fork });
    let fetch = stranger.encode(&Message::Fetch { rref });
    requests.push((CONTROLS, Vec::new()));
    requests.push((CONTROLS, vec![0; 4 * 4097]));
    requests.push((CONTROLS, listed(&[&*query; 4097])));
    requests.push((CONTROLS, listed(&[&*query, &[]])));
    requests.push((CONTROLS, listed(&[&*query, &*fetch])));
    requests.push((
        CONTROLS,
        [&listed(&[&*query])[..], &number(u32::MAX)].concat(),
    ));
    let mut create = header.to_vec();
    create[1] = 0;
    create.extend_from_slice(&[0xff; 4]);
    requests.push((CREATE, create));
    let mut names = header.to_vec();
    names[1] = 0;
    names.extend_from_slice(&[3, 0, 0, 0]);
    names.extend_from_slice(b"i64\x02\0\0\0\xff\xfe\0\0\0\0");
    requests.push((CREATE, names));
    let mut deletes = header[..INCARNATION_BYTES.end].to_vec();
    deletes[1] = 5;
    for _ in 0..=DELETES_MAX {
        deletes.extend_from_slice(&header[INCARNATION_BYTES.end..]);
    }
    requests.push((CONTROL, deletes));
    let requests = requests
        .into_iter()
        .map(|(function, payload)| (function, payload.into()));
    for (function, payload, answer) in stranger.request_all(requests.collect(), list.id()) {
        assert!(
            matches!(answer, Err(RpcError::Remote { .. })),
            "{function} {payload:?}: {answer:?}"
        );
    }
    // The owner decodes the arguments of a creation later: a decoding error becomes the value.
    for arguments in [vec![0xff; 4], too_many, b"\x01\0\0\0".to_vec()] {
        let (rref, fork) = (stranger.rref(), stranger.fork());
        let created = stranger.send_control(&Message::RemoteCall {
            rref,
            fork,
            type_name: "i64".into(),
            function: "forget".into(),
            arguments: arguments.into(),
        });
        assert_eq!(created, Answer::RemoteAccept);
        let fetched = stranger.encode(&Message::Fetch { rref });
        let fetched = stranger.request_all(vec![(FETCH, fetched)], rref);
        let answer = fetched[0].2.as_ref().unwrap();
        assert_eq!(answer[0], 4, "the creation failed: {answer:?}");
    }
    check_healthy(&workers, list, stranger);
}

#[test]
fn messages_about_unknown_users_free_no_value_of_another() {
    let alive = Alive::default();
    let runs = Arc::new(AtomicUsize::new(0));
    let (its_alive, its_runs) = (Arc::clone(&alive), Arc::clone(&runs));
    let (workers, agent) = group_with_stranger(Registry::new(), move |functions| {
        let (alive, runs) = (Arc::clone(&its_alive), Arc::clone(&its_runs));
        functions
            .register_opaque("counted", move |_, ()| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok(Counted::new(&alive))
            })
            .unwrap();
        functions
            .register_method("touch", |_, _: &Counted, ()| Ok(()))
            .unwrap();
    });
    let mut stranger = Stranger::new(agent, Rng::with_seed(seed()));
    let value: RRef<Counted> = make(&workers[1], "worker0", "counted", ());
    value.wait_ready(Some(PATIENCE)).unwrap();
    let (r, unknown) = (value.id(), stranger.rref());
    let creation = |rref, fork| Message::RemoteCall {
        rref,
        fork,
        type_name: value.type_name().into(),
        function: "counted".into(),
        arguments: packed(&[], &[]).into(),
    };

    let is_there = || {
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        value.call("touch").run::<_, ()>(()).unwrap();
    };
    // Nonexistent users of an existing value, and nonexistent values.
    for rref in [r, unknown] {
        let forks = (0..8).map(|_| (rref, stranger.fork())).collect();
        stranger.expect(&Message::UserDelete { forks }, &Answer::Ack);
        is_there();
        let fork = stranger.fork();
        stranger.expect(&Message::ChildAccept { fork }, &Answer::Ack);
        let fork = stranger.fork();
        stranger.expect(&Message::Probe { rref, fork }, &Answer::NotReceived);
        let fork = stranger.fork();
        stranger.expect(&Message::Query { rref, fork }, &Answer::Unknown);
        is_there();
    }
    // The existing value is neither created again nor abandoned.
    let fork = stranger.fork();
    stranger.expect_refused(&creation(r, fork));
    let abandon = |rref, fork| Message::Abandon {
        rref,
        fork,
        error: "a false error".into(),
    };
    let fork = stranger.fork();
    stranger.expect_refused(&abandon(r, fork));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    is_there();
    // The stranger registers and deletes its own user.
    let fork = stranger.fork();
    let request = Message::ForkRequest { rref: r, fork };
    stranger.expect(&request, &Answer::Ack);
    stranger.expect(&request, &Answer::Ack);
    let delete = Message::UserDelete {
        forks: vec![(r, fork)],
    };
    stranger.expect(&delete, &Answer::Ack);
    stranger.expect(&delete, &Answer::Ack);
    is_there();
    // A creation in the name of the third worker is refused.
    let rref = RRefId(stranger.id(THIRD));
    let fork = stranger.fork();
    stranger.expect_refused(&creation(rref, fork));
    // A creation in its own name runs, and runs only once.
    let (rref, fork) = (stranger.rref(), stranger.fork());
    stranger.expect(&creation(rref, fork), &Answer::RemoteAccept);
    stranger.expect(&creation(rref, fork), &Answer::RemoteAccept);
    until("the value is created", || alive.load(Ordering::SeqCst) == 2);
    stranger.delete_all();
    until("the created value is freed", || {
        alive.load(Ordering::SeqCst) == 1
    });
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    is_there();

    stranger.check_remaining_users(&workers[0]);
    assert_eq!(workers[0].rrefs.sizes().unwrap().forks, 1);
    drop(value);
    until("the value is freed", || alive.load(Ordering::SeqCst) == 0);
    until_empty(&workers);
    assert_eq!(workers[0].agent.handle().metrics().handler_panics, 0);
    end(&workers, &stranger);
}

#[test]
fn a_strangers_reference_is_answered_for_any_owner_and_parent() {
    let (workers, list, mut stranger) = start_group(seed());
    let nonexistent = 99;
    for owner in [TARGET, THIRD, STRANGER, nonexistent] {
        for parent in [TARGET, THIRD, STRANGER, nonexistent] {
            for type_name in ["i64", "no such"] {
                let fork = ForkData {
                    owner: worker(owner),
                    parent: worker(parent),
                    type_name: type_name.into(),
                    ..stranger.fork_data()
                };
                // The same reference twice in one message is invalid.
                let twice = [fork.clone(), fork.clone()];
                for forks in [&twice[..], &twice[..1]] {
                    let run = [b"\x06forget", &*packed(forks, &[0])].concat();
                    let answer = stranger.request_one(RUN, run);
                    if forks.len() == 2 {
                        assert!(answer.is_err(), "{fork:?}: {answer:?}");
                    } else if let (Ok(answer), "no such") = (answer, type_name) {
                        assert_ne!(answer[0], 0, "{fork:?}: {answer:?}");
                    }
                }
            }
        }
    }
    check_healthy(&workers, list, stranger);
}

#[test]
fn a_reference_sent_to_a_stranger_is_kept_until_its_deletion() {
    let (workers, list, mut stranger) = start_group(seed());
    let number = workers[1].rrefs.call("worker0", "number").remote(5_i64);
    let number: RRef<i64> = number.unwrap();
    number.wait_ready(Some(PATIENCE)).unwrap();
    // The stranger registers a user, sends it to the owner, and gets another user back.
    let (rref, fork) = (number.id(), stranger.fork());
    stranger.expect(&Message::ForkRequest { rref, fork }, &Answer::Ack);
    let sent = ForkData {
        owner: worker(TARGET),
        rref,
        ..stranger.fork_data()
    };
    let run = [b"\x04echo", &*packed(&[sent], &[0])].concat();
    let answer = stranger.request_one(RUN, run).unwrap();
    assert_eq!(answer[..5], [0, 1, 0, 0, 0]);
    let back = ForkData::decode(&mut &answer[5..]).unwrap();
    assert_eq!((back.rref, back.parent), (rref, worker(TARGET)));
    stranger.registered.insert((rref, back.fork));
    drop(number);
    until("two users of the stranger are left", || {
        workers[1].rrefs.sizes().unwrap().confirmed_users == 1
            && workers[0].rrefs.sizes().unwrap().forks == 3
    });
    let fetch = stranger.encode(&Message::Fetch { rref });
    let fetched = stranger.request_all(vec![(FETCH, fetch.clone())], rref);
    assert_eq!(fetched[0].2.as_ref().unwrap()[..], [0, 0, 0, 0, 0, 10]);
    stranger.delete_all();
    let fetched = stranger.request_all(vec![(FETCH, fetch)], rref);
    assert_eq!(fetched[0].2.as_ref().unwrap()[..], [2], "it was freed");
    check_healthy(&workers, list, stranger);
}

#[test]
fn random_answers_of_an_owner_cause_errors_and_leave_no_user() {
    let seed = seed();
    let answers = Arc::new(Mutex::new(Rng::with_seed(seed)));
    let mut registry = Registry::new();
    for function in FUNCTIONS {
        let answers = Arc::clone(&answers);
        let answer =
            move |_: &Context, _: Bytes| Ok(any_answer(function, &mut answers.lock().unwrap()));
        registry.register_bytes(function, answer).unwrap();
    }
    let (workers, agent) = group_with_stranger(registry, |_| {});
    let stranger = Stranger::new(agent, Rng::with_seed(seed));
    let rrefs = &workers[0].rrefs;
    let to = worker(STRANGER);
    for _ in 0..150 {
        let made: RRef<List> = rrefs.call(to, "list").remote(vec![1_i64]).unwrap();
        let own = rrefs.rref(1_i64).unwrap();
        // The results depend on the stranger's answers, but every operation must end.
        let ends = [
            made.wait_confirmed(Some(PATIENCE)),
            made.to_here(Some(PATIENCE)).map(drop),
            made.wait_ready(Some(PATIENCE)),
            made.call("push")
                .with_timeout(PATIENCE / 2)
                .run::<_, usize>(1_i64)
                .map(drop),
            rrefs
                .call(to, "echo")
                .with_timeout(PATIENCE / 2)
                .run::<_, RRef<i64>>(&made)
                .map(drop),
            rrefs
                .call("worker1", "echo")
                .with_timeout(PATIENCE / 2)
                .run::<_, ()>(&made),
            rrefs
                .call(to, "echo")
                .with_timeout(PATIENCE / 2)
                .run::<_, RRef<i64>>(&own)
                .map(drop),
        ];
        let is_late = matches!(ends[0], Err(RRefError::TimedOut { .. }));
        assert!(!is_late, "any answer must end the wait");
        for end in ends {
            let is_late = matches!(&end, Err(RRefError::Rpc(RpcError::Timeout { .. })));
            assert!(!is_late, "{end:?}");
        }
        rrefs.leak_report().unwrap();
    }
    assert_eq!(workers[0].agent.handle().metrics().handler_panics, 0);
    let made: RRef<i64> = make(&workers[1], "worker0", "number", 9_i64);
    assert_eq!(made.to_here(Some(PATIENCE)).unwrap(), 9);
    drop(made);
    // Only references that were sent to the stranger remain, until its agent ends.
    until("only references of the stranger remain", || {
        let report = workers[0].rrefs.leak_report().unwrap();
        let mut holders = report.values.iter().flat_map(|value| &value.held_by);
        holders.all(|holder| holder.worker.id == to)
            && report.values.iter().all(|value| value.handles == 0)
    });
    stranger.agent.shutdown_now();
    until_empty(&workers);
    end(&workers, &stranger);
}

/// A random answer of the first incarnation: valid, truncated, extended, or random bytes.
fn any_answer(function: &str, rng: &mut Rng) -> Bytes {
    let answers = [
        Answer::Ack,
        Answer::RemoteAccept,
        Answer::Created,
        Answer::Abandoned,
        Answer::Received,
        Answer::NotReceived,
        Answer::Known,
        Answer::Deleted,
        Answer::Unknown,
        Answer::Refused("no".into()),
    ];
    // Often a correct answer, so that some users are confirmed.
    let answer = match (rng.bool(), function) {
        (true, CREATE) => Answer::RemoteAccept,
        (true, _) => Answer::Ack,
        (false, _) => answers[rng.usize(..answers.len())].clone(),
    };
    let mut bytes = match function {
        CREATE | CONTROL => answer.encode(INCARNATION),
        _ => [&[rng.u8(..9)][..], &packed(&[], &[1, 2])].concat(),
    };
    match rng.u8(..6) {
        0 => bytes.truncate(rng.usize(..=bytes.len())),
        1 => {
            bytes.iter_mut().for_each(|byte| *byte = rng.u8(..));
            // An invalid version, so that the bytes cannot be an answer of another incarnation.
            bytes[0] |= 2;
        }
        2 => bytes.extend_from_slice(&[0xff; 9]),
        _ => {}
    }
    bytes.into()
}

#[test]
fn an_answer_of_a_process_declared_dead_ends_the_wait() {
    let incarnations = Mutex::new([INCARNATION, INCARNATION + 1, INCARNATION].into_iter());
    let mut registry = Registry::new();
    registry
        .register_bytes(CREATE, move |_, _| {
            let incarnation = incarnations.lock().unwrap().next();
            let incarnation = incarnation.unwrap_or(INCARNATION + 1);
            Ok(Answer::RemoteAccept.encode(incarnation).into())
        })
        .unwrap();
    let (workers, agent) = group_with_stranger(registry, |_| {});
    let stranger = Stranger::new(agent, Rng::new());
    // The second answer has a new incarnation, which replaces the first. The third answer has the first incarnation
    // again, so that creation fails.
    for fails in [false, false, true] {
        let made = workers[0]
            .rrefs
            .call(worker(STRANGER), "number")
            .remote(1_i64);
        let made: RRef<i64> = made.unwrap();
        let confirmed = made.wait_confirmed(Some(PATIENCE / 6));
        assert!(
            !matches!(confirmed, Err(RRefError::TimedOut { .. })),
            "{confirmed:?}"
        );
        assert_eq!(confirmed.is_err(), fails, "{confirmed:?}");
    }
    until_empty(&workers);
    end(&workers, &stranger);
}

#[test]
fn contradictory_requests_are_answered_and_do_not_affect_others() {
    let (workers, list, mut stranger) = start_group(seed());
    // A few ids, each used as a value, as a user, and as a user of all the values.
    let names: Vec<_> = (0..6).map(|_| stranger.id(STRANGER)).collect();
    for _ in 0..2_000 {
        let any = |stranger: &mut Stranger| names[stranger.rng.usize(..names.len())];
        let rref = RRefId(any(&mut stranger));
        let fork = ForkId(any(&mut stranger));
        let message = match stranger.rng.u8(..7) {
            0 => Message::RemoteCall {
                rref,
                fork,
                type_name: "i64".into(),
                function: "number".into(),
                arguments: packed(&[], &[14]).into(),
            },
            1 => Message::ForkRequest { rref, fork },
            2 => Message::ChildAccept { fork },
            3 => Message::UserDelete {
                forks: vec![(rref, fork)],
            },
            4 => Message::Abandon {
                rref,
                fork,
                error: "abandoned".into(),
            },
            5 => Message::Probe { rref, fork },
            _ => Message::Query { rref, fork },
        };
        stranger.send_control(&message);
        if stranger.rng.u8(..8) == 0 {
            let sent = ForkData {
                owner: worker(stranger.rng.u32(..3)),
                rref,
                fork,
                ..stranger.fork_data()
            };
            let run = [b"\x06forget", &*packed(&[sent], &[0])].concat();
            stranger.request_all(vec![(RUN, run.into())], rref);
        }
    }
    stranger.registered.clear();
    for target in [TARGET, THIRD] {
        stranger.restart_for(target);
    }
    check_healthy(&workers, list, stranger);
}

#[test]
fn ids_that_the_target_has_not_assigned_yet_are_refused() {
    let (workers, list, mut stranger) = start_group(seed());
    let target = &workers[0].rrefs;
    let before = target.rref(0_i64).unwrap();
    let next = |count: u64| GloballyUniqueId {
        local_id: before.id().0.local_id + count,
        ..before.id().0
    };
    // Fetch, register with, delete and create the next values before the target assigns their ids.
    let rrefs: Vec<_> = (1..=4).map(|count| RRefId(next(count))).collect();
    let early = stranger.encode(&Message::Fetch { rref: rrefs[0] });
    stranger.request_all(vec![(FETCH, early)], list.id());
    let mut say = |message| {
        let payload = stranger.encode(&message);
        let function = match message {
            Message::RemoteCall { .. } => CREATE,
            _ => CONTROL,
        };
        let _ = stranger.request_one(function, payload);
    };
    let fork = ForkId(GloballyUniqueId {
        created_on: worker(STRANGER),
        ..next(0)
    });
    say(Message::ForkRequest {
        rref: rrefs[1],
        fork,
    });
    say(Message::UserDelete {
        forks: vec![(rrefs[2], ForkId(rrefs[2].0))],
    });
    say(Message::RemoteCall {
        rref: rrefs[3],
        fork: ForkId(GloballyUniqueId {
            local_id: 1,
            ..fork.0
        }),
        type_name: "i64".into(),
        function: "number".into(),
        arguments: packed(&[], &[14]).into(),
    });
    let values: Vec<RRef<i64>> = (1..=4).map(|value| target.rref(value).unwrap()).collect();
    for (value, expected) in values.iter().zip(1..) {
        let read: i64 = target.call("worker1", "read").run(value).unwrap();
        assert_eq!(read, expected);
    }
    drop((before, values));
    for target in [TARGET, THIRD] {
        stranger.restart_for(target);
    }
    stranger.registered.clear();
    check_healthy(&workers, list, stranger);
}
