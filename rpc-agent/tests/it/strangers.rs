//! Peers that violate the protocol: only their own connection fails. The tests write and read all bytes directly,
//! which pins the wire format.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use rpc_agent::{
    Agent, AgentOptions, FutureMessage, NotSent, Outcome, Registry, RpcError, RpcFuture,
};

use crate::common::{
    PATIENCE, ask, assert_connection_lost, begin, noise, registry, shared_store, start_all,
    start_one, until, wait,
};
use crate::log_lines;
use crate::own_process::in_own_process_with_many_files;
use crate::raw::{
    ERROR, HELLO, LARGE, REFUSE, REQUEST, REQUEST_PART, RESPONSE, RESPONSE_PART, RawFrame,
    RawWorker, WELCOME, address_of, answer_next, await_closed, connect, frame, header, hello_body,
    large_request, publish, read_frame, request, send, u32_bytes, u64_bytes, welcome,
};

const PART_BYTES: usize = 128 << 10;

/// An agent under test, a second agent that must not be affected, and a raw worker.
struct Group {
    store: Arc<dyn Store>,
    agent: Agent,
    other: Agent,
    raw: RawWorker,
}

impl Group {
    fn new() -> Self {
        Self::with(|options| options, |_| {})
    }

    fn with(
        adjust: impl Fn(AgentOptions) -> AgentOptions,
        fill: impl FnOnce(&mut Registry),
    ) -> Self {
        let store = shared_store();
        let raw = RawWorker::join(&*store, 1, "raw", 0x00c0_ffee_00c0_ffee);
        let options = |name: &str, rank| crate::common::named(name, rank).with_world_size(3);
        let workers = vec![
            (adjust(options("agent", 0)), registry(fill)),
            (options("other", 2), registry(|_| {})),
        ];
        let agents = start_all(&store, workers);
        let mut agents = agents.into_iter().map(Result::unwrap);
        let (agent, other) = (agents.next().unwrap(), agents.next().unwrap());
        Self {
            store,
            agent,
            other,
            raw,
        }
    }

    /// Connects to the agent without sending anything.
    fn stranger(&self) -> TcpStream {
        connect(address_of(&*self.store, 0).0)
    }

    fn incarnation(&self) -> u64 {
        address_of(&*self.store, 0).1
    }

    /// Asserts that the agent and the other agent can still call each other.
    #[track_caller]
    fn assert_serves_others(&self) {
        let payload = noise(1, 1000);
        for (from, to) in [(&self.other, "agent"), (&self.agent, "other")] {
            let answer = ask(from.handle(), to, "echo", payload.clone());
            assert_eq!(answer.unwrap(), payload);
        }
    }

    /// Makes a call to the raw worker, without a timeout.
    fn call_raw(&self, payload: impl Into<Bytes>) -> FutureMessage {
        begin(self.agent.handle(), "raw", "double", payload)
    }
}

fn read_exactly(socket: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn large_messages_travel_in_parts_of_128_kib() {
    let group = Group::new();
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    let payload = noise(2, PART_BYTES + 1);
    send(&mut socket, &large_request(3, "echo", payload.len() as u64));
    // Parts may have any length; one of these is short.
    let (first, rest) = payload.split_at(1000);
    let (second, third) = rest.split_at(PART_BYTES - 10_000);
    for part in [first, second, third] {
        send(&mut socket, &frame(REQUEST_PART, 0, 0, 3, part));
    }
    let start = read_frame(&mut socket);
    let expected = RawFrame {
        kind: RESPONSE,
        flags: LARGE,
        aux: 0,
        id: 3,
        body: u64_bytes(payload.len() as u64),
    };
    assert_eq!(start, expected);
    for expected in payload.chunks(PART_BYTES) {
        let part = read_frame(&mut socket);
        assert_eq!((part.kind, part.flags, part.id), (RESPONSE_PART, 0, 3));
        assert!(part.body == expected, "a part of {} bytes", part.body.len());
    }

    // The other direction: the agent sends the large request.
    let call = group.call_raw(payload.clone());
    let start = read_frame(&mut socket);
    assert_eq!((start.kind, start.flags, start.aux), (REQUEST, LARGE, 6));
    let body = [
        &u32_bytes(0),
        u64_bytes(payload.len() as u64).as_slice(),
        b"double",
    ]
    .concat();
    assert_eq!(start.body, body);
    let mut arrived = Vec::new();
    while arrived.len() < payload.len() {
        let part = read_frame(&mut socket);
        assert_eq!((part.kind, part.id), (REQUEST_PART, start.id));
        assert!(part.body.len() <= PART_BYTES);
        arrived.extend_from_slice(&part.body);
    }
    assert!(payload == arrived);
    let total = u64_bytes(payload.len() as u64);
    send(&mut socket, &frame(RESPONSE, LARGE, 0, start.id, &total));
    for part in payload.chunks(PART_BYTES) {
        send(&mut socket, &frame(RESPONSE_PART, 0, 0, start.id, part));
    }
    assert!(wait(&call).unwrap() == payload);
}

#[test]
fn the_error_kind_determines_the_outcome() {
    let group = Group::new();
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    let cases: [(u16, Outcome, &str); 6] = [
        (1, Outcome::Executed, "the function failed: why"),
        (2, Outcome::Executed, "the function panicked: why"),
        (3, Outcome::NotExecuted, "has no function of this name"),
        (4, Outcome::NotExecuted, "was refused by the worker: why"),
        (5, Outcome::Executed, "answer has"),
        (6, Outcome::NotExecuted, "deadline had passed"),
    ];
    for (number, outcome, expected_text) in cases {
        let call = group.call_raw(vec![]);
        let id = read_frame(&mut socket).id;
        send(&mut socket, &frame(ERROR, 0, number, id, b"why"));
        let error = wait(&call).unwrap_err();
        assert_eq!(error.outcome(), outcome, "{error}");
        assert!(error.to_string().contains(expected_text), "{error}");
        assert!(error.to_string().contains("raw"), "{error}");
    }
}

/// The reset makes the write of a later request fail, perhaps before the answer is read. Then the answer has still arrived.
#[test]
fn an_answer_before_a_reset_counts() {
    let group = Group::new();
    let mut lost = 0;
    for _ in 0..50 {
        let answered = group.call_raw(vec![1]);
        let mut link = group.raw.accept_link();
        let id = read_frame(&mut link).id;
        // Longer than the buffers of the system, so that its writer waits.
        let unread = group.call_raw(vec![2; 16 << 20]);
        read_exactly(&mut link, 16);
        send(&mut link, &frame(RESPONSE, 0, 0, id, &[3]));
        // Unread bytes reset the connection.
        drop(link);
        lost += u32::from(wait(&answered).is_err());
        assert_eq!(wait(&unread).unwrap_err().outcome(), Outcome::Unknown);
    }
    assert_eq!(lost, 0, "answers that have arrived");
}

#[test]
fn an_invalid_hello_closes_the_connection() {
    let group = Group::new();
    let me = group.incarnation();
    let good = hello_body(1, 0, group.raw.incarnation, me, 0, "raw");
    let changed = |at: usize, byte: u8| {
        let mut body = good.clone();
        body[at] = byte;
        frame(HELLO, 0, 0, 0, &body)
    };
    let no_hellos = [
        b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n".to_vec(),
        noise(3, 4096).to_vec(),
        changed(0, b'X'),
        header(513, HELLO, 0, 0, 0),
        // Frames that are valid only after the handshake.
        request(1, "echo", b"x"),
        welcome(me, 1),
        // A request that does not wait for the Welcome.
        [group.raw.hello(0, me, 0), request(1, "echo", b"x")].concat(),
    ];
    for bytes in &no_hellos {
        let mut socket = group.stranger();
        send(&mut socket, bytes);
        await_closed(&mut socket);
        group.assert_serves_others();
    }
    // The impersonated worker is not affected.
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    send(&mut socket, &request(1, "echo", b"x"));
    assert_eq!(read_frame(&mut socket).body, b"x");
}

#[test]
fn a_hello_of_or_for_another_worker_is_refused() {
    let group = Group::new();
    let (me, raw) = (group.incarnation(), group.raw.incarnation);
    let other = address_of(&*group.store, 2).1;
    let mut newer = hello_body(1, 0, raw, me, 0, "raw");
    newer[8] = 2;
    // Reasons: 1 another worker, 2 another incarnation, 5 another version.
    let cases = [
        (
            hello_body(1, 2, raw, me, 0, "raw"),
            1,
            "another worker is expected",
        ),
        (
            hello_body(1, 0, raw, me ^ 1, 0, "raw"),
            2,
            "a previous incarnation is expected",
        ),
        (hello_body(1, 0, raw, me, 0, "war"), 1, "an unknown name"),
        (hello_body(1, 0, 5, me, 0, "raw"), 1, "another process"),
        (hello_body(1, 0, 0, me, 0, "raw"), 1, "no process"),
        (
            hello_body(1, 0, other, me, 0, "raw"),
            1,
            "that of another member",
        ),
        (
            hello_body(2, 0, other, me, 0, "raw"),
            1,
            "the name of another id",
        ),
        (hello_body(7, 0, raw, me, 0, "raw"), 1, "an unknown id"),
        (hello_body(0, 0, me, me, 0, "agent"), 1, "the worker itself"),
        (newer, 5, "another version"),
    ];
    for (body, reason, what) in cases {
        let mut socket = group.stranger();
        send(&mut socket, &frame(HELLO, 0, 0, 0, &body));
        let refuse = read_frame(&mut socket);
        assert_eq!(refuse.kind, REFUSE, "{what}");
        assert_eq!(refuse.body[0], reason, "{what}");
        assert_eq!(refuse.body[1..5], [0; 4], "{what}");
        assert!(std::str::from_utf8(&refuse.body[5..]).is_ok(), "{what}");
        await_closed(&mut socket);
        group.assert_serves_others();
    }
}

#[test]
fn another_process_does_not_get_the_calls_to_a_member_of_a_static_group() {
    let group = Group::new();
    let me = group.incarnation();
    let take_its_name = || {
        let mut socket = group.stranger();
        let hello = hello_body(1, 0, 5, me, 7, "raw");
        send(&mut socket, &frame(HELLO, 0, 0, 0, &hello));
        let answer = read_frame(&mut socket);
        assert_eq!((answer.kind, answer.body[0]), (REFUSE, 1));
    };
    // Before the member has connected, while it is connected, and after the loss of the connection.
    take_its_name();
    let call = group.call_raw(vec![1]);
    let mut socket = group.raw.accept_link();
    take_its_name();
    answer_next(&mut socket, &[2]);
    assert_eq!(wait(&call).unwrap(), vec![2]);
    drop(socket);
    until("the loss is noticed", || {
        group.agent.handle().metrics().connections_lost == 1
    });
    take_its_name();
    let call = group.call_raw(vec![3]);
    let mut socket = group.raw.accept_link();
    answer_next(&mut socket, &[6]);
    assert_eq!(wait(&call).unwrap(), vec![6]);
}

#[test]
fn thousands_of_refused_strangers_write_few_lines() {
    const STRANGERS: u64 = 2_000;
    log_lines::record();
    for size in [None, Some(1)] {
        let store = shared_store();
        let mut options = crate::common::named("besieged", 0);
        if let Some(size) = size {
            options = options.with_world_size(size);
        }
        let agent = start_one(&store, options, |_| {});
        let address = match size {
            None => crate::raw::listed_address_of(&*store, 0).0,
            Some(_) => address_of(&*store, 0).0,
        };
        for incarnation in 1..=STRANGERS {
            let mut socket = connect(address);
            let name = format!("stranger{}", incarnation % 3);
            let hello = hello_body(1, 0, incarnation, 0, 0, &name);
            send(&mut socket, &frame(HELLO, 0, 0, 0, &hello));
            assert_eq!(read_frame(&mut socket).kind, REFUSE);
        }
        let metrics = agent.handle().metrics();
        assert_eq!(
            (metrics.connections_opened, metrics.connections_lost),
            (0, 0)
        );
    }
    let mut lines = log_lines::lines();
    lines.retain(|line| line.contains("besieged"));
    assert!(lines.len() < 10, "{lines:#?}");
}

#[test]
fn strangers_do_not_keep_the_store_busy() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let options = crate::common::named("agent", 0);
    let _agent = start_one(&store, options, |_| {});
    let address = crate::raw::listed_address_of(&*store, 0).0;
    let requests = || -> u64 {
        let counters = server.observer().counters(PATIENCE).unwrap();
        counters.requests.iter().map(|(_, count)| count).sum()
    };
    let (began, before) = (Instant::now(), requests());
    for incarnation in 1..=1_000 {
        let mut socket = connect(address);
        let hello = hello_body(1, 0, incarnation, 0, 0, "stranger");
        send(&mut socket, &frame(HELLO, 0, 0, 0, &hello));
        assert_eq!(read_frame(&mut socket).kind, REFUSE);
    }
    // A check of the list is at most two requests.
    let looks = (requests() - before).div_ceil(2);
    let looks_max = began.elapsed().as_millis() / 50 + 2;
    assert!(u128::from(looks) <= looks_max, "{looks} of {looks_max}");
}

#[test]
fn a_hello_may_arrive_slowly_in_pieces() {
    let group = Group::new();
    let mut socket = group.stranger();
    let hello = group.raw.hello(0, group.incarnation(), 0);
    for piece in hello.chunks(7) {
        send(&mut socket, piece);
        // A partial Hello delays no other connection.
        group.assert_serves_others();
    }
    assert_eq!(read_frame(&mut socket).kind, WELCOME);
    send(&mut socket, &request(1, "echo", b"x"));
    assert_eq!(read_frame(&mut socket).body, b"x");
}

#[test]
fn garbage_after_a_hello_closes_the_connection_and_fails_only_its_calls() {
    let group = Group::new();
    let garbage = [
        noise(4, 4096).to_vec(),
        header(u32::MAX, REQUEST, 0, 4, 1),
        frame(ERROR, 0, 99, 1, b"x"),
        frame(REQUEST_PART, 0, 0, 1, b"x"),
        large_request(1, "echo", u64::MAX),
        (0..17)
            .flat_map(|id| large_request(id, "echo", 1 << 20))
            .collect(),
        // A second handshake.
        group.raw.hello(0, group.incarnation(), 0),
    ];
    for (links, bytes) in (0..).zip(&garbage) {
        let mut socket = group.raw.dial(&*group.store, 0, links);
        let call = group.call_raw(vec![1]);
        assert_eq!(read_frame(&mut socket).kind, REQUEST);
        send(&mut socket, bytes);
        let error = wait(&call).unwrap_err();
        assert!(
            matches!(&error, RpcError::ConnectionLost { cause, .. }
                if cause.kind() == ErrorKind::InvalidData),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("on worker raw (id 1)"),
            "{error}"
        );
        assert_eq!(error.outcome(), Outcome::Unknown);
        await_closed(&mut socket);
        group.assert_serves_others();
    }
    assert_eq!(group.agent.handle().metrics().calls_in_flight, 0);
}

#[test]
fn an_unexpected_answer_is_dropped_and_counted() {
    let group = Group::new();
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    send(&mut socket, &frame(RESPONSE, 0, 0, 77, b"x"));
    send(&mut socket, &frame(ERROR, 0, 1, u64::MAX, b"x"));
    let large = frame(RESPONSE, LARGE, 0, 78, &u64_bytes(PART_BYTES as u64 + 1));
    send(&mut socket, &large);
    send(
        &mut socket,
        &frame(RESPONSE_PART, 0, 0, 78, &vec![0; PART_BYTES]),
    );
    send(&mut socket, &frame(RESPONSE_PART, 0, 0, 78, &[0]));
    send(&mut socket, &request(1, "echo", b"x"));
    assert_eq!(read_frame(&mut socket).body, b"x");
    assert!(group.agent.handle().metrics().late_responses >= 2);
    // A second answer to the same call is dropped as well.
    let call = group.call_raw(vec![]);
    let id = read_frame(&mut socket).id;
    for answer in [b"1", b"2"] {
        send(&mut socket, &frame(RESPONSE, 0, 0, id, answer));
    }
    assert_eq!(wait(&call).unwrap(), &b"1"[..]);
    group.assert_serves_others();
}

#[test]
fn end_of_stream_is_detected_together_with_the_last_bytes() {
    let socket: Arc<Mutex<Option<TcpStream>>> = Arc::default();
    let group = Group::with(
        |options| options,
        |registry| {
            let socket = Arc::clone(&socket);
            // The thread that runs this function also reads the sockets. At its next read, both the last
            // bytes and the end of the stream have arrived.
            registry
                .register("hang up", move |_, _| {
                    let mut socket = socket.lock().unwrap().take().unwrap();
                    send(&mut socket, &request(1, "echo", &[0; 100])[..50]);
                    Ok(Vec::new())
                })
                .unwrap();
        },
    );
    for links in 0..50 {
        let mut link = group.raw.dial(&*group.store, 0, links);
        let call = group.call_raw(vec![1]);
        assert_eq!(read_frame(&mut link).kind, REQUEST);
        let mut socket = socket.lock().unwrap();
        send(&mut link, &request(1, "hang up", b""));
        *socket = Some(link);
        drop(socket);
        // Polls, because a thread that waits for the call would read the connection itself.
        until("the agent detects the end of the stream", || {
            call.is_complete()
        });
        let error = wait(&call).unwrap_err();
        assert_connection_lost(&error);
    }
    // A loss is counted after its calls have failed.
    until("all losses are counted", || {
        group.agent.handle().metrics().connections_lost == 50
    });
}

/// Maximum bytes in flight to a peer that does not read: in the socket buffers and in the agent.
const BACKLOG_BYTES_MAX: u64 = 2 << 20;

#[test]
fn a_peer_that_does_not_read_answers_costs_bounded_memory() {
    const ANSWER_BYTES: usize = 1 << 20;
    const CALLS: u64 = 200;
    const HANDLER_THREADS: usize = 4;
    let runs = Arc::new(AtomicU64::new(0));
    let group = Group::with(
        |options| {
            options
                .with_backlog_bytes_max(BACKLOG_BYTES_MAX)
                .with_handler_threads(HANDLER_THREADS)
        },
        |registry| {
            let answer = noise(5, ANSWER_BYTES);
            let runs = Arc::clone(&runs);
            registry
                .register_bytes("big", move |_, _| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    Ok(answer.clone())
                })
                .unwrap();
        },
    );
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    for id in 0..CALLS {
        send(&mut socket, &request(id, "big", b""));
    }
    until("all requests have arrived", || {
        group.agent.handle().metrics().requests_received == CALLS
    });
    for _ in 0..20 {
        group.assert_serves_others();
        // Sent bytes are in the socket buffers. Each thread may have started one more run before the
        // backlog limit was reached.
        let sent = group.agent.handle().metrics().bytes_sent;
        let runs = runs.load(Ordering::SeqCst);
        let with_agent = (runs * ANSWER_BYTES as u64).saturating_sub(sent);
        let bound = BACKLOG_BYTES_MAX + (HANDLER_THREADS as u64 + 1) * ANSWER_BYTES as u64;
        assert!(with_agent <= bound, "{with_agent} bytes are queued");
        assert!(runs < CALLS, "{runs} runs");
    }
    // When the peer reads at last, it receives the answers to all requests.
    let expected = noise(5, ANSWER_BYTES);
    let mut answers: Vec<Vec<u8>> = vec![Vec::new(); usize::try_from(CALLS).unwrap()];
    let mut complete = 0;
    while complete < CALLS {
        let frame = read_frame(&mut socket);
        let answer = &mut answers[usize::try_from(frame.id).unwrap()];
        match (frame.kind, frame.flags) {
            (RESPONSE, LARGE) => assert_eq!(frame.body, u64_bytes(ANSWER_BYTES as u64)),
            (RESPONSE_PART, 0) => answer.extend_from_slice(&frame.body),
            _ => panic!("{:?}", (frame.kind, frame.flags)),
        }
        if answer.len() == ANSWER_BYTES {
            assert!(*answer == expected);
            *answer = Vec::new();
            complete += 1;
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), CALLS);
    group.assert_serves_others();
}

#[test]
fn requests_are_served_with_the_smallest_backlog() {
    const CALLS: u64 = 200;
    let group = Group::with(|options| options.with_backlog_bytes_max(1), |_| {});
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    let requests: Vec<u8> = (0..CALLS)
        .flat_map(|id| request(id, "echo", b"x"))
        .collect();
    send(&mut socket, &requests);
    for _ in 0..CALLS {
        assert_eq!(read_frame(&mut socket).kind, RESPONSE);
    }
}

#[test]
fn a_peer_that_does_not_read_refusals_loses_its_connection() {
    let group = Group::with(
        |options| {
            options
                .with_backlog_bytes_max(64 << 10)
                .with_requests_queued_max(100)
        },
        |_| {},
    );
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    let requests: Vec<u8> = (0..10_000).flat_map(|id| request(id, "no", b"")).collect();
    // Refusals of all these requests would take 64 MB on the wire, and several times as much memory.
    let ended = (0..400).find_map(|_| socket.write_all(&requests).err());
    let error = ended.expect("the agent closes the connection first");
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{error:?}"
    );
    assert_eq!(group.agent.handle().metrics().connections_lost, 1);
    group.assert_serves_others();

    // A peer that reads its refusals keeps its connection.
    let mut socket = group.raw.dial(&*group.store, 0, 1);
    let some: Vec<u8> = (0..100).flat_map(|id| request(id, "no", b"")).collect();
    for _ in 0..50 {
        send(&mut socket, &some);
        for _ in 0..100 {
            let refusal = read_frame(&mut socket);
            assert_eq!((refusal.kind, refusal.aux), (ERROR, 3));
        }
    }
}

#[test]
fn calls_to_a_peer_that_does_not_read_fail_at_their_deadlines_or_at_once() {
    let group = Group::with(
        |options| options.with_backlog_bytes_max(BACKLOG_BYTES_MAX),
        |_| {},
    );
    let socket = group.raw.dial(&*group.store, 0, 0);
    let payload = noise(6, 256 << 10);
    let mut calls = Vec::new();
    let refused = loop {
        let timeout = Duration::from_millis(200);
        let call = group.agent.handle().call("raw", "double");
        let call = call.with_timeout(timeout).send_bytes(payload.clone());
        match call.try_get() {
            // Calls that expired before the backlog limit was reached fail with a timeout.
            Some(Err(error)) if !matches!(error, RpcError::Timeout { .. }) => break error,
            _ => calls.push(call),
        }
        group.assert_serves_others();
    };
    assert!(
        matches!(
            refused,
            RpcError::NotSent {
                cause: NotSent::Backlog {
                    max_bytes: BACKLOG_BYTES_MAX,
                    ..
                },
                ..
            }
        ),
        "{refused:?}"
    );
    let mut unsent = 0;
    for call in &calls {
        let error = wait(call).unwrap_err();
        assert!(matches!(error, RpcError::Timeout { .. }), "{error:?}");
        if error.outcome() == Outcome::NotExecuted {
            assert!(error.to_string().contains("never sent"), "{error}");
            unsent += 1;
        }
    }
    assert!(unsent > 0, "none of {} was withdrawn", calls.len());
    assert!(unsent < calls.len(), "the first ones were sent");
    // Withdrawn requests free their space in the backlog.
    let call = group.call_raw(payload);
    assert!(call.try_get().is_none());
    group.assert_serves_others();
    drop(socket);
    let error = wait(&call).unwrap_err();
    assert!(!matches!(error, RpcError::Timeout { .. }), "{error:?}");
}

#[test]
fn a_thread_that_reads_from_a_busy_peer_returns_at_the_deadline() {
    /// Answers to calls that no thread waits for, written in one go.
    const ANSWERS: u64 = 10_000;
    let group = Group::new();
    let endless = group.call_raw(vec![]);
    let mut socket = group.raw.accept_link();
    let answers = frame(RESPONSE, 0, 0, 1 << 40, b"").repeat(ANSWERS as usize);
    let mut sent = 0;
    // Either the poller or the waiting thread reads the answers, depending on which one starts first.
    for _ in 0..5 {
        let (start, is_over) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                start.wait();
                let began = Instant::now();
                loop {
                    send(&mut socket, &answers);
                    sent += ANSWERS;
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    assert!(
                        began.elapsed() < PATIENCE / 3,
                        "the wait continues after the deadline"
                    );
                }
            });
            start.wait();
            assert!(endless.wait_timeout(Duration::from_millis(10)).is_none());
            is_over.store(true, Ordering::SeqCst);
            flood.join().unwrap();
        });
        until("the agent has read all answers", || {
            group.agent.handle().metrics().late_responses == sent
        });
    }
    assert!(!endless.is_complete());
}

#[test]
fn an_address_of_another_process_is_dialed_until_the_connect_timeout() {
    let group = Group::with(
        |options| options.with_connect_timeout(Duration::from_millis(50)),
        |_| {},
    );
    // The raw worker's published address belongs to the other agent.
    let (other, _) = address_of(&*group.store, 2);
    publish(&*group.store, 1, "raw", other.port(), 5);
    let error = wait(&group.call_raw(vec![])).unwrap_err();
    assert!(
        matches!(
            &error,
            RpcError::NotSent { cause: NotSent::Connect(cause), .. } if cause.contains("refused")
        ),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    group.assert_serves_others();
}

#[test]
fn a_flood_of_connections_closes_the_oldest_silent_ones() {
    let name = "strangers::a_flood_of_connections_closes_the_oldest_silent_ones";
    if !in_own_process_with_many_files(name) {
        return;
    }
    const SILENT_MAX: usize = 1024;
    const CONNECTIONS: usize = 1100;
    log_lines::record();
    let group = Group::new();
    let mut sockets: Vec<TcpStream> = (0..CONNECTIONS).map(|_| group.stranger()).collect();
    group.assert_serves_others();
    // During the flood, a valid worker can connect.
    let mut socket = group.raw.dial(&*group.store, 0, 0);
    send(&mut socket, &request(1, "echo", b"x"));
    assert_eq!(read_frame(&mut socket).body, b"x");
    let (oldest, others) = sockets.split_at_mut(CONNECTIONS - SILENT_MAX);
    for socket in oldest {
        await_closed(socket);
    }
    let last = others.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    let read: io::Result<usize> = last.read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
    group.assert_serves_others();
    drop(sockets);
    group.assert_serves_others();
    // One line for each of the oldest would also flood the log; the last line has their number.
    log_lines::wait_for("were not logged");
    let lines = log_lines::lines();
    assert!((2..=20).contains(&lines.len()), "{lines:?}");
}

#[test]
fn after_shutdown_a_hello_is_refused_and_the_port_is_closed() {
    let group = Group::new();
    let (address, _) = address_of(&*group.store, 0);
    let mut open = group.raw.dial(&*group.store, 0, 0);
    let call: RpcFuture<Bytes> = group.call_raw(vec![]);
    assert_eq!(read_frame(&mut open).kind, REQUEST);
    group.agent.shutdown_now();
    // A Goodbye: the agent left without a connection failure.
    assert_eq!(read_frame(&mut open).kind, crate::raw::GOODBYE);
    await_closed(&mut open);
    let error = wait(&call).unwrap_err();
    assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
    // A child process of another test may hold the port for a moment longer.
    until("the port is closed", || {
        TcpStream::connect(address).is_err()
    });
}
