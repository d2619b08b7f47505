//! Tests of the TCP client, against our server and against scripted servers.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::raw::{LONG, serve, wait_until};
use crate::store_contract::{self, Features};
use crate::without_extensions::WithoutExtensions;
use c10d_store::{
    Known, ListenError, ListenOn, Operation, Outcome, PrefixStore, Store, StoreError, StoreExt,
    StoreHandle, TcpStore, TcpStoreOptions, TcpStoreServer, WireLimits, key_from_bytes,
};

fn client(server: &TcpStoreServer) -> TcpStore {
    let options = TcpStoreOptions::default().with_timeout(LONG);
    TcpStore::open("127.0.0.1", server.local_addr().port(), options).expect("the server listens")
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const TCP: Features = Features {
    adds_to_empty: false,
    refuses_empty_barrier: false,
    reports_every_swap: cfg!(feature = "extensions"),
    wakes_on_change: cfg!(feature = "extensions"),
    ..Features::LOCAL
};

#[test]
fn store_contract_holds() {
    let make = || -> Arc<dyn Store> {
        let options = TcpStoreOptions::default().with_master(true);
        Arc::new(TcpStore::open("127.0.0.1", 0, options).expect("a free port"))
    };
    store_contract::all(&make, TCP);
}

/// PyTorch's server has no extensions, and the client works without them.
#[test]
fn store_contract_holds_without_extensions() {
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let round = std::cell::Cell::new(0);
    let make = || -> Arc<dyn Store> {
        // All stores share one server, so each gets its own prefix.
        round.set(round.get() + 1);
        let store = TcpStore::connect("127.0.0.1", proxy.port()).expect("the proxy listens");
        Arc::new(PrefixStore::new(round.get().to_string(), Arc::new(store)))
    };
    let features = Features {
        refuses_empty_barrier: true,
        wakes_on_change: false,
        reports_every_swap: false,
        ..TCP
    };
    store_contract::all(&make, features);
}

// --- waiting ---------------------------------------------------------------------------------

#[test]
fn a_timeout_names_the_missing_key_and_leaves_the_store_usable() {
    let server = serve();
    let store = client(&server);
    store.set("present", b"1").unwrap();
    for _ in 0..5 {
        let started = Instant::now();
        let error = store
            .wait_timeout(&["present", "absent"], Some(ms(30)))
            .unwrap_err();
        assert!(started.elapsed() >= ms(30));
        let StoreError::Timeout { context, timeout } = &error else {
            panic!("unexpected: {error}");
        };
        assert_eq!((context.operation, *timeout), (Operation::Wait, ms(30)));
        assert_eq!(context.keys, "\"absent\"");
        let place = format!("TCP store 127.0.0.1:{}", server.local_addr().port());
        assert!(error.to_string().contains(&place), "{error}");
        assert_eq!(store.get("present").unwrap(), b"1");
    }
    store.set_timeout(Some(ms(20)));
    for (error, text) in [
        (
            store.get("absent").unwrap_err(),
            "timed out after 0.020s: the key does not exist",
        ),
        (
            store.barrier("start", 3).unwrap_err(),
            ": 1 of 3 workers arrived",
        ),
    ] {
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.is_timeout(), "{error}");
    }
    store.set("absent", b"2").unwrap();
    assert_eq!(store.get("absent").unwrap(), b"2");
}

/// A thread sees its own writes, whichever connections its calls use.
#[test]
fn a_thread_sees_its_own_writes_while_others_block() {
    let server = serve();
    let store = Arc::new(client(&server));
    let threads: Vec<JoinHandle<()>> = (0..4)
        .map(|thread| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let key = format!("key{thread}");
                for round in 0..200_u32 {
                    let value = round.to_string();
                    store.set(&key, value.as_bytes()).unwrap();
                    if thread % 2 == 0 {
                        // For a moment, blocks on the connection that other calls would use.
                        let waited =
                            store.wait_timeout(&["never"], Some(Duration::from_micros(500)));
                        assert!(waited.unwrap_err().is_timeout());
                    }
                    assert_eq!(store.get(&key).unwrap(), value.as_bytes());
                    store.set(&key, b"x").unwrap();
                    assert!(store.check(&[&key]).unwrap());
                    assert!(store.delete_key(&key).unwrap());
                    store.append(&key, b"a").unwrap();
                    assert_eq!(store.compare_set(&key, b"a", b"b").unwrap().value(), b"b");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Makes a write and the deadline of a wait coincide: adjusts the delay of the write after each round,
/// so that the write is first in about half of the rounds.
struct Race {
    delay_us: i64,
    successes: u64,
    timeouts: u64,
    deadline: Instant,
}

impl Race {
    const TIMEOUT: Duration = Duration::from_millis(1);

    fn new() -> Self {
        Self {
            delay_us: 1_000,
            successes: 0,
            timeouts: 0,
            deadline: Instant::now() + LONG,
        }
    }

    /// The number of the next round; `None` once each outcome has occurred 100 times.
    fn next_round(&self) -> Option<u64> {
        assert!(
            Instant::now() < self.deadline,
            "only one outcome occurred: {} waits succeeded, {} timed out",
            self.successes,
            self.timeouts
        );
        (self.successes < 100 || self.timeouts < 100).then_some(self.successes + self.timeouts + 1)
    }

    fn pause_before_write(&self) {
        thread::sleep(Duration::from_micros(self.delay_us.max(0).unsigned_abs()));
    }

    fn pause_before_wait(&self) {
        thread::sleep(Duration::from_micros(self.delay_us.min(0).unsigned_abs()));
    }

    fn finish_round(&mut self, succeeded: bool) {
        let step = 40;
        self.delay_us += if succeeded { step } else { -step };
        *(if succeeded {
            &mut self.successes
        } else {
            &mut self.timeouts
        }) += 1;
    }
}

/// A key is set around the deadline of a wait. In either outcome, later replies match their requests.
#[test]
fn replies_stay_in_order_after_the_cancel_race() {
    let server = serve();
    let (waiter, setter) = (client(&server), client(&server));
    let mut race = Race::new();
    while let Some(round) = race.next_round() {
        let key = &format!("race{round}");
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                race.pause_before_write();
                setter.set(key, b"v").unwrap();
                setter.ping().unwrap();
            });
            race.pause_before_wait();
            waiter.wait_timeout(&[key], Some(Race::TIMEOUT))
        });
        if let Err(error) = &result {
            assert!(error.is_timeout(), "round {round}: {error}");
        }
        // The next reply is right only if the wait read exactly its own bytes.
        assert_eq!(waiter.add("step", 1).unwrap(), round as i64);
        race.finish_round(result.is_ok());
    }
    assert_eq!(
        server.connection_count(),
        2,
        "both clients keep their connection"
    );
}

// --- add on a value that is not a number ---------------------------------------------------------

/// docs/spec/wire-extensions.md, TRY_ADD 2: the server replies and keeps the connection open.
#[test]
fn add_to_text_keeps_the_connection() {
    let server = serve();
    let store = client(&server);
    store.set("k", [b'x'; 100]).unwrap();
    let error = store.add("k", 1).unwrap_err();
    let StoreError::NotANumber { value, .. } = &error else {
        panic!("unexpected: {error}");
    };
    assert_eq!(*value, format!("{}... (100 bytes)", "x".repeat(40)));
    assert!(!error.has_unknown_outcome());
    assert_eq!(store.add("n", 1).unwrap(), 1);
    assert_eq!(server.connection_count(), 1);
}

/// A server without extensions closes the connection, as PyTorch's server does. The client reopens only
/// that connection, and a call that waits on another connection continues.
/// docs/spec/wire-extensions.md, TRY_ADD 3.
#[test]
fn add_to_text_without_extensions_reopens_one_connection() {
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let options = TcpStoreOptions::default().with_timeout(LONG);
    let store = Arc::new(TcpStore::open("127.0.0.1", proxy.port(), options).unwrap());
    let observer = client(&server);
    store.set("k", b"text").unwrap();
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            store.add("waiting", 1).unwrap();
            store.get("late")
        })
    };
    observer.wait(&["waiting"]).unwrap();
    for _ in 0..3 {
        let error = store.add("k", 1).unwrap_err();
        assert!(matches!(error, StoreError::NotANumber { .. }), "{error}");
        assert!(error.to_string().contains("\"text\""), "{error}");
        assert_eq!(store.add("n", 0).unwrap(), 0);
    }
    assert!(!waiting.is_finished());
    observer.set("late", b"1").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"1");
}

/// docs/spec/wire.md, CLOSE 7: the server closes the connection. The client reopens only that connection, and learns why.
#[test]
fn barrier_on_text_is_an_error_of_this_call_only() {
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let options = || TcpStoreOptions::default().with_timeout(LONG);
    for (port, options) in [
        (server.local_addr().port(), options()),
        #[cfg(feature = "extensions")]
        (server.local_addr().port(), options().with_resume(LONG)),
        (proxy.port(), options()),
    ] {
        let store = Arc::new(TcpStore::open("127.0.0.1", port, options).unwrap());
        let observer = client(&server);
        store.set("k", b"text").unwrap();
        let waiting = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.barrier("meet", 2))
        };
        wait_until("the barrier waits", || server.waiting_count() == 1);
        for _ in 0..3 {
            let error = store.barrier("k", 2).unwrap_err();
            assert!(matches!(error, StoreError::NotANumber { .. }), "{error}");
            assert!(error.to_string().contains("barrier \"k\""), "{error}");
            assert!(error.to_string().contains("\"text\""), "{error}");
            assert!(!error.has_unknown_outcome());
            assert_eq!(store.get("k").unwrap(), b"text");
        }
        observer.barrier("meet", 2).unwrap();
        waiting.join().unwrap().unwrap();
        store.barrier("k2", 1).unwrap();
        for key in ["k", "k2", "meet"] {
            observer.delete_key(key).unwrap();
        }
    }
}

/// A new server at the address of a stopped one is another, empty store.
/// docs/spec/wire-extensions.md, TRY_ADD 3.
#[test]
fn add_does_not_continue_on_a_new_server_at_the_same_address() {
    let (signal, signaled) = std::sync::mpsc::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let handshake = || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            expect(
                &mut stream,
                &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
            );
            stream.write_all(&ECHO).unwrap();
            stream
        };
        let mut stream = handshake();
        expect(&mut stream, &request_for_k(4));
        drop(stream);
        let mut stream = handshake();
        // CHECK of "/k": missing.
        expect(&mut stream, &[5, 1, 0, 0, 0, 0, 0, 0, 0]);
        expect(&mut stream, &request_for_k(5)[1..]);
        stream.write_all(&[1]).unwrap();
        signaled.recv().unwrap();
    });
    let store = open(port, LONG);
    let error = store.add("k", 1).unwrap_err();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    assert!(error.has_unknown_outcome());
    let error = store.add("k", 1).unwrap_err();
    assert!(error.to_string().contains("earlier: "), "{error}");
    signal.send(()).unwrap();
    serving.join().unwrap();
}

// --- scripted servers ------------------------------------------------------------------------

/// Starts a server that accepts one connection, replies to its handshake and then runs `script`.
fn scripted_server<T: Send + 'static>(
    capabilities: [u8; 4],
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        expect(
            &mut stream,
            &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
        );
        stream.write_all(&capabilities).unwrap();
        script(stream)
    });
    (port, serving)
}

/// The handshake reply of PyTorch's server: the nonce, without any capability.
const ECHO: [u8; 4] = [0, 0, 0x0d, 0xc1];
/// The handshake reply of a server that has only the WAIT_GET extension.
const WAIT_GET: [u8; 4] = [1, 0, 0x0d, 0xc1];
/// The handshake reply of a server that has only the WAIT_CHANGE extension.
const WAIT_CHANGE: [u8; 4] = [2, 0, 0x0d, 0xc1];

fn expect(stream: &mut TcpStream, want: &[u8]) {
    let mut got = vec![0; want.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, want);
}

/// The bytes of a request for the key "k": the opcode and "/k" as a blob. WAIT and WAIT_GET take a
/// list of one key.
fn request_for_k(opcode: u8) -> Vec<u8> {
    let mut bytes = vec![opcode];
    if matches!(opcode, 6 | 0x80) {
        bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, b'/', b'k']);
    bytes
}

fn open(port: u16, timeout: Duration) -> TcpStore {
    let options = TcpStoreOptions::default().with_timeout(timeout);
    TcpStore::open("127.0.0.1", port, options).unwrap()
}

/// docs/spec/wire-extensions.md, CAPABILITY 4.
#[test]
fn get_sends_two_requests_without_wait_get_and_one_with_it() {
    let (port, serving) = scripted_server(ECHO, |mut stream| {
        expect(&mut stream, &request_for_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &request_for_k(3));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'v']).unwrap();
    });
    assert_eq!(open(port, LONG).get("k").unwrap(), b"v");
    serving.join().unwrap();

    let (port, serving) = scripted_server(WAIT_GET, |mut stream| {
        expect(&mut stream, &request_for_k(0x80));
        // Byte by byte, because the network may deliver it this way.
        for byte in [0, 1, 0, 0, 0, 0, 0, 0, 0, b'v'] {
            stream.write_all(&[byte]).unwrap();
        }
    });
    assert_eq!(open(port, LONG).get("k").unwrap(), b"v");
    serving.join().unwrap();
}

/// docs/spec/wire-extensions.md, section 9.3: a request holds the offset, the length of the value (or any) and the bytes.
#[test]
fn wait_change_sends_one_request_with_the_extension() {
    let any_length = [0xff; 8];
    let (port, serving) = scripted_server(WAIT_CHANGE, move |mut stream| {
        let requests: [&[u8]; 3] = [
            &[
                &[0; 8][..],
                &[2, 0, 0, 0, 0, 0, 0, 0],
                &[2, 0, 0, 0, 0, 0, 0, 0],
                b"ab",
            ]
            .concat(),
            &[
                &[1, 0, 0, 0, 0, 0, 0, 0],
                &any_length[..],
                &[2, 0, 0, 0, 0, 0, 0, 0],
                b"bc",
            ]
            .concat(),
            &[&[0xff; 8][..], &any_length, &[0; 8]].concat(),
        ];
        for known in requests {
            expect(&mut stream, &[&request_for_k(0x81), known].concat());
            for byte in [0, 1, 0, 0, 0, 0, 0, 0, 0, b'v'] {
                stream.write_all(&[byte]).unwrap();
            }
        }
    });
    let store = open(port, LONG);
    store.set_timeout(Some(ms(300)));
    assert!(store.has_prompt_watch());
    for known in [
        Known::whole(b"ab"),
        Known::part(b"abcd", 1..3),
        Known::nothing(),
    ] {
        assert_eq!(store.wait_change("k", known, Some(LONG)).unwrap(), b"v");
    }
    serving.join().unwrap();
}

/// A poll is a WAIT, because the key may be missing, and a GET. The client does not poll with WAIT_GET.
#[test]
fn wait_change_polls_once_a_second_without_the_extension() {
    let poll = |capabilities| {
        let (port, serving) = scripted_server(capabilities, |mut stream| {
            for value in [b'1', b'2'] {
                expect(&mut stream, &request_for_k(6));
                stream.write_all(&[0]).unwrap();
                expect(&mut stream, &request_for_k(3));
                stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, value]).unwrap();
            }
        });
        // The store's timeout limits one poll, not the whole wait.
        let store = open(port, LONG);
        store.set_timeout(Some(ms(900)));
        assert!(!store.has_prompt_watch());
        let started = Instant::now();
        let seen = store.wait_change("k", Known::whole(b"1"), None);
        assert_eq!(seen.unwrap(), b"2");
        assert!(started.elapsed() >= Duration::from_secs(1), "one pause");
        assert!(started.elapsed() < LONG / 2);
        serving.join().unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| poll(ECHO));
        scope.spawn(|| poll(WAIT_GET));
    });
}

/// Neither the store's timeout nor the polling interval extends the deadline of the call.
#[test]
fn wait_change_keeps_its_deadline_if_a_poll_is_not_answered() {
    let (port, serving) = scripted_server(ECHO, |mut stream| {
        expect(&mut stream, &request_for_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &request_for_k(3));
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let store = open(port, LONG);
    let started = Instant::now();
    let waited = store.wait_change("k", Known::nothing(), Some(ms(300)));
    let error = waited.unwrap_err();
    assert!(started.elapsed() >= ms(300));
    assert!(started.elapsed() < LONG / 2);
    assert!(matches!(error, StoreError::NoReply { .. }), "{error}");
    drop(store);
    serving.join().unwrap();
}

/// Between two polls other calls can use the connection.
#[test]
fn a_polling_wait_change_does_not_hold_its_connection() {
    let (signal, signaled) = std::sync::mpsc::channel::<()>();
    let (port, serving) = scripted_server(ECHO, move |mut stream| {
        expect(&mut stream, &request_for_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &request_for_k(3));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'1']).unwrap();
        signal.send(()).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        // The server closes the connection during the next poll.
        expect(&mut stream, &request_for_k(6));
    });
    let store = Arc::new(open(port, LONG));
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.wait_change("k", Known::whole(b"1"), Some(LONG)))
    };
    signaled.recv().unwrap();
    assert_eq!(store.num_keys().unwrap(), 5);
    serving.join().unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
}

/// Servers of PyTorch up to 2.4 close the connection on PING.
#[test]
fn a_server_without_ping_gets_a_handshake_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        expect(&mut first, &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d]);
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        expect(&mut second, &[0, 0xce, 0xf7, 0x85, 0x3c]);
        let check_of_nothing = [5, 0, 0, 0, 0, 0, 0, 0, 0];
        expect(&mut second, &check_of_nothing);
        second.write_all(&[0]).unwrap();
        expect(&mut second, &request_for_k(6));
        second.write_all(&[0]).unwrap();
        expect(&mut second, &request_for_k(3));
        second.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'v']).unwrap();
        expect(&mut second, &check_of_nothing);
        second.write_all(&[0]).unwrap();
    });
    let store = open(port, LONG);
    assert_eq!(store.get("k").unwrap(), b"v");
    store.ping().unwrap();
    serving.join().unwrap();
}

/// Repeats a round that times out: on a busy machine the reply to its cancel may be late.
fn in_time<T>(mut round: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 1..10 {
        match round() {
            Err(StoreError::Timeout { .. }) => {}
            result => return result,
        }
    }
    round()
}

/// Forces the race of docs/spec/wire.md, 5.6: the server has sent the wakeup when the cancel arrives.
#[test]
fn a_wakeup_that_crosses_the_cancel_ends_the_wait() {
    type Row<'a> = (
        [u8; 4],
        Vec<u8>,
        &'a [u8],
        fn(&TcpStore) -> Result<Vec<u8>, StoreError>,
    );
    let value = [0, 1, 0, 0, 0, 0, 0, 0, 0, b'v', 1];
    let change = [&request_for_k(0x81)[..], &[0xff; 16], &[0; 8]].concat();
    let table: [Row<'_>; 3] = [
        (ECHO, request_for_k(6), &[0, 1], |store| {
            store.wait_timeout(&["k"], ms(20)).map(|()| b"v".to_vec())
        }),
        (WAIT_GET, request_for_k(0x80), &value, |store| {
            store.get_timeout("k", ms(20))
        }),
        (WAIT_CHANGE, change, &value, |store| {
            store.wait_change("k", Known::nothing(), ms(20))
        }),
    ];
    for (capabilities, request, answer, wait) in table {
        let waited = in_time(|| {
            let (request, answer) = (request.clone(), answer.to_vec());
            let (port, serving) = scripted_server(capabilities, move |mut stream| {
                expect(&mut stream, &request);
                expect(&mut stream, &[12]);
                stream.write_all(&answer).unwrap();
                expect(&mut stream, &[7]);
                stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            });
            let store = open(port, LONG);
            let waited = wait(&store);
            let later = store.num_keys().unwrap();
            assert_eq!(later, 5, "later replies match their requests");
            serving.join().unwrap();
            waited
        });
        assert_eq!(waited.unwrap(), b"v");
    }
}

#[test]
fn a_call_keeps_its_deadline_if_the_server_does_not_answer() {
    let (port, serving) = scripted_server(ECHO, |mut stream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let store = open(port, LONG);
    store.set_timeout(Some(ms(300)));
    let started = Instant::now();
    let error = store.add("k", 1).unwrap_err();
    assert!(started.elapsed() >= ms(300));
    assert!(started.elapsed() < LONG / 2);
    assert!(matches!(error, StoreError::NoReply { .. }), "{error}");
    assert!(error.has_unknown_outcome());
    assert!(
        error
            .to_string()
            .contains("add \"k\" at TCP store 127.0.0.1:")
    );
    drop(store);
    assert_eq!(serving.join().unwrap()[0], 4);
}

#[test]
fn a_closed_connection_fails_current_and_later_calls() {
    let (port, serving) = scripted_server(ECHO, |mut stream| {
        expect(&mut stream, &request_for_k(6));
    });
    let store = open(port, LONG);
    let started = Instant::now();
    let error = store.get("k").unwrap_err();
    assert!(started.elapsed() < LONG / 2);
    serving.join().unwrap();
    let StoreError::ConnectionLost {
        context, outcome, ..
    } = &error
    else {
        panic!("unexpected: {error}");
    };
    assert_eq!(
        (context.operation, *outcome),
        (Operation::Get, Outcome::Unknown)
    );

    let error = store.set("k", b"v").unwrap_err();
    let StoreError::ConnectionLost { outcome, .. } = &error else {
        panic!("unexpected: {error}");
    };
    assert_eq!(*outcome, Outcome::NotSent);
    assert!(error.to_string().contains("earlier: "), "{error}");
}

/// PyTorch's client reports success for the first `set` after the server has stopped.
#[test]
fn a_set_fails_after_the_server_has_stopped() {
    let server = serve();
    let store = client(&server);
    store.set("k", b"1").unwrap();
    store.ping().unwrap();
    server.shutdown();
    let error = store.set("k", b"2").unwrap_err();
    assert!(!error.has_unknown_outcome(), "{error}");
}

#[test]
fn a_server_shutdown_fails_every_blocked_call() {
    let server = serve();
    let store = Arc::new(client(&server));
    let blocked: Vec<JoinHandle<StoreError>> = (0..3)
        .map(|index| {
            let store = Arc::clone(&store);
            thread::spawn(move || match index {
                0 => store.get("never").unwrap_err(),
                1 => store.wait(&["never"]).unwrap_err(),
                _ => store.barrier("meet", 2).unwrap_err(),
            })
        })
        .collect();
    wait_until("all three wait", || server.waiting_count() == 3);
    server.shutdown();
    for (index, call) in blocked.into_iter().enumerate() {
        let error = call.join().unwrap();
        // Only the barrier has changed the store.
        let is_barrier = index == 2;
        assert!(!is_barrier || error.has_unknown_outcome(), "{error}");
        assert!(
            matches!(
                error,
                StoreError::ConnectionLost { .. } | StoreError::Connect { .. }
            ),
            "{error}"
        );
    }
}

/// The server has stopped listening. A call that needs a second connection must not retry until its deadline, and the
/// call that waits on the first connection must fail as well.
#[test]
fn a_refused_second_connection_fails_all_calls_at_once() {
    let (signal, signaled) = std::sync::mpsc::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        expect(
            &mut stream,
            &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
        );
        stream.write_all(&ECHO).unwrap();
        let mut barrier = request_for_k(0x12);
        barrier.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        expect(&mut stream, &barrier);
        drop(listener);
        signal.send(()).unwrap();
        // The connection itself stays open until the client ends it.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    });
    let options = TcpStoreOptions::default().with_timeout(LONG);
    let store = Arc::new(TcpStore::open("localhost", port, options).unwrap());
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.barrier("k", 2).unwrap_err())
    };
    signaled.recv().unwrap();
    let started = Instant::now();
    let error = store.add("n", 1).unwrap_err();
    assert!(matches!(error, StoreError::Connect { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("add \"n\" at TCP store localhost:"), "{text}");
    // The client dials the address of the first connection. The name may have other addresses.
    assert!(text.contains("cannot connect to 127.0.0.1:"), "{text}");
    let error = waiting.join().unwrap();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    assert!(started.elapsed() < LONG / 2);
    serving.join().unwrap();
}

/// The reply to the cancel is late. A pop sent before it arrives would read it as its own reply.
#[test]
fn a_pop_is_not_sent_before_a_late_cancel_reply() {
    let (signal, signaled) = std::sync::mpsc::channel::<()>();
    let (port, serving) = scripted_server(ECHO, move |mut stream| {
        expect(&mut stream, &request_for_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &request_for_k(6));
        expect(&mut stream, &[12]);
        signaled.recv().unwrap();
        stream.write_all(&[1]).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, LONG);
    store.set_timeout(Some(ms(1000)));
    let error = store.queue_pop("k").unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    store.set_timeout(Some(LONG));
    signal.send(()).unwrap();
    assert_eq!(store.num_keys().unwrap(), 5);
    serving.join().unwrap();
}

#[test]
fn a_pop_keeps_waiting_if_another_client_takes_the_element() {
    let (port, serving) = scripted_server(ECHO, |mut stream| {
        expect(&mut stream, &request_for_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &request_for_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &request_for_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &request_for_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &request_for_k(15));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'e']).unwrap();
    });
    assert_eq!(open(port, LONG).queue_pop("k").unwrap(), b"e");
    serving.join().unwrap();
}

#[test]
fn an_invalid_reply_is_named_in_the_error() {
    let answers: [(&[u8], &str); 3] = [
        (&[0x48, 0x54], "the reply to a wait was 0x48"),
        (
            &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            "bytes, the limit is",
        ),
        (&[0, 0, 0, 0, 0x80, 0, 0, 0, 0], "the limit is"),
    ];
    for (answer, text) in answers {
        let (port, serving) = scripted_server(WAIT_GET, move |mut stream| {
            expect(&mut stream, &request_for_k(0x80));
            stream.write_all(answer).unwrap();
        });
        let error = open(port, LONG).get("k").unwrap_err();
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        serving.join().unwrap();
    }
}

/// A reply that crosses the cancel is followed by that to the cancel.
#[test]
fn an_invalid_reply_to_a_cancel_is_named_in_the_error() {
    for (answer, text) in [
        (&[7][..], "the reply to a wait was 0x07"),
        (&[0, 7], "the reply to CANCEL_WAIT was 0x07"),
        (&[0, 0], "the reply to CANCEL_WAIT was 0x00"),
    ] {
        let waited = in_time(|| {
            let (port, serving) = scripted_server(ECHO, move |mut stream| {
                expect(&mut stream, &request_for_k(6));
                expect(&mut stream, &[12]);
                stream.write_all(answer).unwrap();
            });
            let store = open(port, LONG);
            let waited = store.wait_timeout(&["k"], ms(100));
            serving.join().unwrap();
            waited
        });
        let error = waited.unwrap_err();
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Peers that are not a store, and the error for each.
/// docs/spec/wire-extensions.md, CAPABILITY 3.
#[test]
fn a_peer_that_is_not_a_store_is_reported_within_the_timeout() {
    type Behave = fn(TcpStream) -> Option<TcpStream>;
    let table: [(&str, Behave); 3] = [
        ("did not answer; it may not be a TCPStore server", Some),
        ("closed the connection; it may require a secret", |_| None),
        (
            "does not speak the TCPStore protocol: its reply to PING was 0x50545448",
            |mut stream| {
                stream.write_all(b"HTTP/1.0 400 Bad Request").unwrap();
                Some(stream)
            },
        ),
    ];
    for (text, behave) in table {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let mut kept = Vec::new();
            // A connection that sends "q" stops the loop.
            loop {
                let (stream, _) = listener.accept().unwrap();
                let mut first = [0];
                if stream.peek(&mut first).unwrap_or(0) == 1 && first == *b"q" {
                    return;
                }
                kept.extend(behave(stream));
            }
        });
        let options = TcpStoreOptions::default().with_timeout(ms(300));
        let started = Instant::now();
        let error = TcpStore::open("127.0.0.1", address.port(), options).unwrap_err();
        let elapsed = started.elapsed();
        let shown = error.to_string();
        assert!(elapsed < LONG / 2, "{elapsed:?}: {shown}");
        assert!(shown.contains(text), "{shown}");
        assert!(shown.contains(&address.to_string()), "{shown}");
        // The error shows the configured limit, not the remaining time.
        if shown.contains("limit") {
            assert!(shown.contains("(limit 0.300s)"), "{shown}");
            #[cfg(feature = "extensions")]
            {
                let cause = text.split(';').next().unwrap_or_default();
                let brief = format!("cannot connect to {address} (the peer {cause})");
                assert_eq!(c10d_store::in_brief(&error), brief);
            }
        } else {
            assert!(matches!(error, StoreError::Protocol { .. }), "{shown}");
        }
        TcpStream::connect(address)
            .unwrap()
            .write_all(b"q")
            .unwrap();
        serving.join().unwrap();
    }
}

#[test]
fn limits_are_checked_before_anything_is_sent() {
    let server = serve();
    let store = client(&server);
    let long_key = "k".repeat(8192);
    let long_value = vec![0; (8 << 20) + 1];
    for error in [
        store.set(&long_key, b"").unwrap_err(),
        store.set("k", &long_value).unwrap_err(),
        store.compare_set("k", &long_value, b"").unwrap_err(),
        store.multi_set(&[("k", &long_value)]).unwrap_err(),
        store.check(&vec!["k"; 131_073]).unwrap_err(),
        store
            .multi_set(&vec![("k", &b""[..]); 131_073])
            .unwrap_err(),
        store
            .wait_change("k", Known::whole(&long_value), Some(LONG))
            .unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::LimitExceeded { .. }), "{error}");
        assert!(!error.has_unknown_outcome());
    }
    store.set(&long_key[1..], b"at the limit").unwrap();
    assert_eq!(store.get(&long_key[1..]).unwrap(), b"at the limit");
}

#[test]
fn limits_count_the_bytes_on_the_wire() {
    let server = serve();
    let mut limits = WireLimits::default();
    limits.request_bytes_max = 1000;
    let options = TcpStoreOptions::default()
        .with_limits(limits)
        .with_timeout(LONG);
    let store = TcpStore::open("127.0.0.1", server.local_addr().port(), options).unwrap();
    // In Rust, each of these bytes is a character of four.
    store.set(&key_from_bytes(&[0xff; 900]), b"").unwrap();
    let error = store.set(&key_from_bytes(&[0xff; 1000]), b"").unwrap_err();
    assert!(matches!(error, StoreError::LimitExceeded { .. }), "{error}");
}

// --- hosting ---------------------------------------------------------------------------------

fn master() -> TcpStoreOptions {
    TcpStoreOptions::default()
        .with_master(true)
        .with_timeout(LONG)
}

#[test]
fn a_master_listens_on_its_hosts_address_only() {
    let store = TcpStore::open("127.0.0.1", 0, master()).unwrap();
    let address = store.server().unwrap().local_addr();
    assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert_eq!(store.port(), address.port());
    assert_ne!(store.port(), 0);

    let store = TcpStore::open("localhost", 0, master()).unwrap();
    assert_eq!((store.host(), store.port() > 0), ("localhost", true));
    let addresses = store.server().unwrap().local_addrs();
    assert!(addresses.iter().all(|address| address.ip().is_loopback()));

    let everywhere = master().with_listen_on(ListenOn::AllInterfaces);
    let store = TcpStore::open("127.0.0.1", 0, everywhere).unwrap();
    assert!(store.server().unwrap().local_addr().ip().is_unspecified());
    store.set("k", b"v").unwrap();

    let here = ListenOn::Address(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
    let store = TcpStore::open("127.0.0.1", 0, master().with_listen_on(here)).unwrap();
    assert_eq!(
        store.server().unwrap().local_addr().ip().to_string(),
        "127.0.0.2"
    );
    store.set("k", b"v").unwrap();
}

#[test]
fn a_master_does_not_listen_for_a_name_that_is_not_known() {
    for is_multi_tenant in [false, true] {
        let options = master()
            .with_timeout(Duration::from_millis(300))
            .with_multi_tenant(is_multi_tenant);
        let unknown = "does-not-exist.invalid";
        let error = TcpStore::open(unknown, 0, options.clone()).unwrap_err();
        assert!(
            matches!(error, StoreError::Listen(ListenError::Lookup { .. })),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with("cannot look up does-not-exist.invalid to listen on it: "),
            "{text}"
        );

        // A launcher has another address of this machine.
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let options = options.with_timeout(LONG);
        let store = TcpStore::open(unknown, 0, options.with_listen_also_on(vec![address]));
        store.unwrap().set("k", b"v").unwrap();
    }
}

#[test]
fn a_master_takes_over_a_bound_socket() {
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = bound.local_addr().unwrap().port();
    let store = TcpStore::open("127.0.0.1", port, master().with_listener(bound)).unwrap();
    assert_eq!(store.port(), port);
    TcpStore::connect("127.0.0.1", port)
        .unwrap()
        .set("k", b"v")
        .unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");

    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = TcpStore::open("127.0.0.1", 1, master().with_listener(bound)).unwrap_err();
    assert!(
        error.to_string().contains("expected to be bound to port 1"),
        "{error}"
    );
}

#[test]
fn tenants_share_a_server_until_the_last_one_closes() {
    let port = serve().local_addr().port();
    let tenant = || TcpStore::open("127.0.0.1", port, master().with_multi_tenant(true));
    let first = tenant().unwrap();
    first.set("k", b"v").unwrap();
    first.ping().unwrap();
    let second = tenant().unwrap();
    assert_eq!(second.get("k").unwrap(), b"v");
    drop(first);
    assert_eq!(second.get("k").unwrap(), b"v");
    drop(second);
    let third = tenant().unwrap();
    assert!(!third.check(&["k"]).unwrap(), "a new server");
}

#[test]
fn a_tenant_shares_the_server_whose_port_the_system_chose() {
    let tenant = |port| TcpStore::open("127.0.0.1", port, master().with_multi_tenant(true));
    let first = tenant(0).unwrap();
    first.set("k", b"v").unwrap();
    first.ping().unwrap();
    assert_eq!(tenant(first.port()).unwrap().get("k").unwrap(), b"v");
    assert_ne!(tenant(0).unwrap().port(), first.port());
}

/// Another thread closes the last tenant while a new one opens.
#[test]
fn a_tenant_can_open_while_the_last_one_closes() {
    let port = serve().local_addr().port();
    let tenant = || TcpStore::open("127.0.0.1", port, master().with_multi_tenant(true));
    let mut last = tenant().unwrap();
    for _ in 0..50 {
        let leaving = thread::spawn(move || drop(last));
        // The new tenant shares the server or starts a new one on the freed port.
        last = tenant().unwrap();
        leaving.join().unwrap();
        last.set("k", b"v").unwrap();
        assert_eq!(last.get("k").unwrap(), b"v");
    }
}

#[test]
fn the_host_waits_for_all_workers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosting = thread::spawn(move || {
        let options = master().with_world_size(3).with_listener(listener);
        TcpStore::open("127.0.0.1", port, options)
    });
    let worker = || {
        let options = TcpStoreOptions::default()
            .with_world_size(3)
            .with_timeout(LONG);
        TcpStore::open("127.0.0.1", port, options).unwrap()
    };
    let first = worker();
    first.set("k", b"v").unwrap();
    first.ping().unwrap();
    assert!(!hosting.is_finished(), "two of three");
    let _second = worker();
    let host = hosting.join().unwrap().unwrap();
    assert_eq!(host.get("k").unwrap(), b"v");
    assert_eq!(host.num_keys().unwrap(), 2, "the count of workers is a key");
    assert_eq!(host.list_keys().unwrap(), ["k"], "but not a user's");
}

#[test]
fn missing_workers_are_counted_in_the_error() {
    let options = master().with_world_size(3).with_timeout(ms(200));
    let started = Instant::now();
    let error = TcpStore::open("127.0.0.1", 0, options).unwrap_err();
    assert!(started.elapsed() >= ms(200));
    assert!(
        matches!(
            error,
            StoreError::WorkersMissing {
                joined: 1,
                world_size: 3,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("1 of 3 workers joined"),
        "{error}"
    );
    let error = TcpStore::open("127.0.0.1", 1, master().with_world_size(0)).unwrap_err();
    assert!(
        matches!(error, StoreError::InvalidArgument { .. }),
        "{error}"
    );
}
