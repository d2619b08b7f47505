//! The client: against our server, and against peers that a test plays by hand.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::raw::{LONG, wait_until};
use crate::store_contract::{self, Features};
use crate::without_extensions::WithoutExtensions;
use c10d_store::{
    Known, ListenOn, Operation, Outcome, PrefixStore, ServerOptions, Store, StoreError, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port")
}

fn client(server: &TcpStoreServer) -> TcpStore {
    let options = TcpStoreOptions::default().with_timeout(LONG);
    TcpStore::open("127.0.0.1", server.local_addr().port(), options).expect("the server is there")
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const TCP: Features = Features {
    adds_to_empty: false,
    refuses_empty_barrier: false,
    ..Features::LOCAL
};

#[test]
fn it_keeps_the_contract() {
    let make = || -> Arc<dyn Store> {
        let options = TcpStoreOptions::default().with_master(true);
        Arc::new(TcpStore::open("127.0.0.1", 0, options).expect("a free port"))
    };
    store_contract::all(&make, TCP);
}

#[test]
fn it_keeps_the_contract_under_a_prefix() {
    let make = || -> Arc<dyn Store> {
        let options = TcpStoreOptions::default().with_master(true);
        let store = TcpStore::open("127.0.0.1", 0, options).expect("a free port");
        Arc::new(PrefixStore::new("outer", PrefixStore::new("inner", store)))
    };
    // The generic barrier is the prefixed store's.
    let features = Features {
        refuses_empty_barrier: true,
        ..TCP
    };
    store_contract::all(&make, features);
}

/// As PyTorch's server is: what the extensions do is done without them.
#[test]
fn it_keeps_the_contract_without_extensions() {
    let server = serve();
    let front = WithoutExtensions::of(server.local_addr());
    let round = std::cell::Cell::new(0);
    let make = || -> Arc<dyn Store> {
        // One server for all stores, each with keys of its own.
        round.set(round.get() + 1);
        let store = TcpStore::connect("127.0.0.1", front.port()).expect("the server is there");
        Arc::new(PrefixStore::new(round.get().to_string(), store))
    };
    let features = Features {
        refuses_empty_barrier: true,
        wakes_on_change: false,
        tells_every_swap: false,
        ..TCP
    };
    store_contract::all(&make, features);
}

// --- waiting ---------------------------------------------------------------------------------

#[test]
fn two_keys_of_which_one_comes_late() {
    let server = serve();
    let (waiter, setter) = (client(&server), client(&server));
    setter.set("early", b"1").unwrap();
    let waiting = thread::spawn(move || waiter.multi_get(&["early", "late"]));
    wait_until("the wait has arrived", || server.waiting_count() == 1);
    setter.set("late", b"2").unwrap();
    assert_eq!(
        waiting.join().unwrap().unwrap(),
        [b"1".to_vec(), b"2".to_vec()]
    );
}

#[test]
fn a_timeout_leaves_the_store_usable_and_names_what_is_missing() {
    let server = serve();
    let store = client(&server);
    store.set("there", b"1").unwrap();
    for _ in 0..5 {
        let started = Instant::now();
        let error = store
            .wait_timeout(&["there", "absent"], Some(ms(30)))
            .unwrap_err();
        assert!(started.elapsed() >= ms(30));
        let StoreError::Timeout { context, timeout } = &error else {
            panic!("unexpected: {error}");
        };
        assert_eq!((context.operation, *timeout), (Operation::Wait, ms(30)));
        assert_eq!(context.keys, "\"absent\"");
        let place = format!("TCP store 127.0.0.1:{}", server.local_addr().port());
        assert!(error.to_string().contains(&place), "{error}");
        assert_eq!(store.get("there").unwrap(), b"1");
    }
    store.set_timeout(Some(ms(20)));
    assert!(store.get("absent").unwrap_err().is_timeout());
    assert!(store.queue_pop("absent").unwrap_err().is_timeout());
    assert!(
        store
            .multi_get(&["there", "absent"])
            .unwrap_err()
            .is_timeout()
    );
    store.set("absent", b"2").unwrap();
    assert_eq!(store.get("absent").unwrap(), b"2");
}

#[test]
fn a_timeout_of_zero_looks_once() {
    let server = serve();
    let store = client(&server);
    store.set("there", b"1").unwrap();
    store
        .wait_timeout(&["there"], Some(Duration::ZERO))
        .unwrap();
    assert!(
        store
            .wait_timeout(&["absent"], Some(Duration::ZERO))
            .unwrap_err()
            .is_timeout()
    );
    store.set_timeout(Some(Duration::ZERO));
    assert_eq!(store.get("there").unwrap(), b"1");
    assert_eq!(store.add("counter", 1).unwrap(), 1);
}

#[test]
fn a_barrier_that_times_out_says_how_many_came() {
    let server = serve();
    let store = client(&server);
    let error = store.barrier_timeout("start", 3, Some(ms(20))).unwrap_err();
    assert!(
        error.to_string().contains("with 1 of 3 workers arrived"),
        "{error}"
    );
    assert!(error.outcome_is_unknown() && error.is_timeout());
}

#[test]
fn a_wait_in_one_thread_holds_up_no_other_and_uses_a_second_connection_only_then() {
    let server = serve();
    let store = Arc::new(client(&server));
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.get("late"))
    };
    wait_until("the wait has arrived", || server.waiting_count() == 1);
    assert_eq!(server.connection_count(), 1);
    // Each of these has 30 s; with one connection they would need the wait to end first.
    let started = Instant::now();
    for round in 1..=50 {
        store.set("k", b"v").unwrap();
        assert_eq!(store.get("k").unwrap(), b"v", "round {round}");
        assert_eq!(store.add("n", 1).unwrap(), round);
    }
    let second = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.barrier("b", 2))
    };
    store.barrier("b", 2).unwrap();
    second.join().unwrap().unwrap();
    assert!(started.elapsed() < LONG);
    store.set("late", b"x").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"x");
}

/// A thread sees its own writes, whichever connections its calls use.
#[test]
fn a_thread_sees_what_it_wrote_while_others_block() {
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
                        // Blocks for a moment on the connection that others would use.
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

/// Lets a write and the deadline of a wait meet: the write comes earlier after each round in which the
/// deadline was first, later after each other.
struct Race {
    delay_us: i64,
    won: u64,
    lost: u64,
    deadline: Instant,
}

impl Race {
    const TIMEOUT: Duration = Duration::from_millis(1);

    fn new() -> Self {
        Self {
            delay_us: 1_000,
            won: 0,
            lost: 0,
            deadline: Instant::now() + LONG,
        }
    }

    /// The next round's number, until each side has won often.
    fn next_round(&self) -> Option<u64> {
        assert!(
            Instant::now() < self.deadline,
            "one side only: {} waits won, {} lost",
            self.won,
            self.lost
        );
        (self.won < 100 || self.lost < 100).then_some(self.won + self.lost + 1)
    }

    fn pause_before_write(&self) {
        thread::sleep(Duration::from_micros(self.delay_us.max(0).unsigned_abs()));
    }

    fn pause_before_wait(&self) {
        thread::sleep(Duration::from_micros(self.delay_us.min(0).unsigned_abs()));
    }

    fn finish_round(&mut self, has_won: bool) {
        let step = 40;
        self.delay_us += if has_won { step } else { -step };
        *(if has_won {
            &mut self.won
        } else {
            &mut self.lost
        }) += 1;
    }
}

/// Keys that arrive around the deadline: whatever the outcome, the connection stays in step.
#[test]
fn the_cancel_race_is_survived_whoever_wins() {
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
        // The next answer is the right one only if no byte was left over or taken too many.
        assert_eq!(waiter.add("step", 1).unwrap(), round as i64);
        race.finish_round(result.is_ok());
    }
    assert_eq!(server.connection_count(), 2, "no connection was given up");
}

/// The same for a wait for a change, whose answer brings a value along.
#[test]
fn the_cancel_race_of_a_wait_for_a_change_is_survived_whoever_wins() {
    let server = serve();
    let (waiter, setter) = (client(&server), client(&server));
    let mut known = b"0".to_vec();
    setter.set("k", &known).unwrap();
    setter.ping().unwrap();
    let mut race = Race::new();
    while let Some(round) = race.next_round() {
        let next = round.to_string().into_bytes();
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                race.pause_before_write();
                setter.set("k", &next).unwrap();
                setter.ping().unwrap();
            });
            race.pause_before_wait();
            waiter.wait_change("k", Known::whole(&known), Some(Race::TIMEOUT))
        });
        match &result {
            Ok(seen) => assert_eq!(*seen, next),
            Err(error) => assert!(error.is_timeout(), "round {round}: {error}"),
        }
        // The next answer is the right one only if no byte was left over or taken too many.
        assert_eq!(waiter.add("step", 1).unwrap(), round as i64);
        race.finish_round(result.is_ok());
        known = next;
    }
    assert_eq!(server.connection_count(), 2, "no connection was given up");
}

// --- add on a value that is not a number ---------------------------------------------------------

/// docs/wire.md, TRY_ADD: an answer on the same connection.
#[test]
fn add_to_text_is_answered_on_the_same_connection() {
    let server = serve();
    let store = client(&server);
    store.set("k", [b'x'; 100]).unwrap();
    let error = store.add("k", 1).unwrap_err();
    let StoreError::NotANumber { value, .. } = &error else {
        panic!("unexpected: {error}");
    };
    assert_eq!(*value, format!("{}... (100 bytes)", "x".repeat(40)));
    assert!(!error.outcome_is_unknown());
    assert_eq!(store.add("n", 1).unwrap(), 1);
    assert_eq!(server.connection_count(), 1);
}

/// A server without extensions closes the connection, as PyTorch's does: only the lane of that call is
/// made anew, and the call that waits on another one goes on.
#[test]
fn add_to_text_without_extensions_costs_one_connection_and_no_other_call() {
    let server = serve();
    let front = WithoutExtensions::of(server.local_addr());
    let options = TcpStoreOptions::default().with_timeout(LONG);
    let store = Arc::new(TcpStore::open("127.0.0.1", front.port(), options).unwrap());
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

/// What answers at the address of a server that ended is another, empty store.
#[test]
fn add_does_not_go_on_with_another_server_at_the_same_address() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let playing = thread::spawn(move || {
        let greet = || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            expect(
                &mut stream,
                &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
            );
            stream.write_all(&ECHO).unwrap();
            stream
        };
        let mut stream = greet();
        expect(&mut stream, &about_k(4));
        drop(stream);
        let mut stream = greet();
        // CHECK of "/k": missing.
        expect(&mut stream, &[5, 1, 0, 0, 0, 0, 0, 0, 0]);
        expect(&mut stream, &about_k(5)[1..]);
        stream.write_all(&[1]).unwrap();
        told.recv().unwrap();
    });
    let store = open(port, LONG);
    let error = store.add("k", 1).unwrap_err();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    assert!(error.outcome_is_unknown());
    let error = store.add("k", 1).unwrap_err();
    assert!(error.to_string().contains("earlier: "), "{error}");
    tell.send(()).unwrap();
    playing.join().unwrap();
}

// --- a server played by hand -----------------------------------------------------------------

/// A server that plays one connection as the test says.
fn play<T: Send + 'static>(
    capabilities: [u8; 4],
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let playing = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        expect(
            &mut stream,
            &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
        );
        stream.write_all(&capabilities).unwrap();
        script(stream)
    });
    (port, playing)
}

/// What PyTorch's server answers: the nonce.
const ECHO: [u8; 4] = [0, 0, 0x0d, 0xc1];
const WAIT_GET: [u8; 4] = [1, 0, 0x0d, 0xc1];
const WAIT_CHANGE: [u8; 4] = [2, 0, 0x0d, 0xc1];

fn expect(stream: &mut TcpStream, want: &[u8]) {
    let mut got = vec![0; want.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, want);
}

/// The bytes of one request about the key "k": the command, and "/k" as a blob.
fn about_k(opcode: u8) -> Vec<u8> {
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

#[test]
fn get_takes_two_requests_where_the_server_has_no_wait_get_and_one_where_it_has() {
    let (port, playing) = play(ECHO, |mut stream| {
        expect(&mut stream, &about_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &about_k(3));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'v']).unwrap();
    });
    assert_eq!(open(port, LONG).get("k").unwrap(), b"v");
    playing.join().unwrap();

    let (port, playing) = play(WAIT_GET, |mut stream| {
        expect(&mut stream, &about_k(0x80));
        // In pieces, as the network may deliver it.
        for byte in [0, 1, 0, 0, 0, 0, 0, 0, 0, b'v'] {
            stream.write_all(&[byte]).unwrap();
        }
    });
    assert_eq!(open(port, LONG).get("k").unwrap(), b"v");
    playing.join().unwrap();
}

/// docs/wire.md, 9.3: the offset, the length of the value (or that it does not matter), the bytes.
#[test]
fn a_wait_for_a_change_is_one_request_where_the_server_has_it() {
    let any_length = [0xff; 8];
    let (port, playing) = play(WAIT_CHANGE, move |mut stream| {
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
            expect(&mut stream, &[&about_k(0x81), known].concat());
            for byte in [0, 1, 0, 0, 0, 0, 0, 0, 0, b'v'] {
                stream.write_all(&[byte]).unwrap();
            }
        }
    });
    let store = open(port, ms(300));
    assert!(store.wakes_on_change());
    for known in [
        Known::whole(b"ab"),
        Known::part(b"abcd", 1..3),
        Known::nothing(),
    ] {
        assert_eq!(store.wait_change("k", known, Some(LONG)).unwrap(), b"v");
    }
    playing.join().unwrap();
}

/// Also one that has the other extension. A look is a WAIT, as the key may be missing, and a GET.
#[test]
fn a_wait_for_a_change_looks_once_a_second_where_the_server_does_not_have_it() {
    let look = |capabilities| {
        let (port, playing) = play(capabilities, |mut stream| {
            for value in [b'1', b'2'] {
                expect(&mut stream, &about_k(6));
                stream.write_all(&[0]).unwrap();
                expect(&mut stream, &about_k(3));
                stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, value]).unwrap();
            }
        });
        // The time of the store is that of one look, not of the whole wait.
        let store = open(port, ms(300));
        assert!(!store.wakes_on_change());
        let started = Instant::now();
        let seen = store.wait_change("k", Known::whole(b"1"), None);
        assert_eq!(seen.unwrap(), b"2");
        assert!(started.elapsed() >= Duration::from_secs(1), "one pause");
        assert!(started.elapsed() < LONG / 2);
        playing.join().unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| look(ECHO));
        scope.spawn(|| look(WAIT_GET));
    });
}

/// Neither the store's timeout nor the interval of looks makes such a wait last longer than it may.
#[test]
fn a_server_that_stops_answering_looks_costs_the_wait_its_deadline_and_no_more() {
    let (port, playing) = play(ECHO, |mut stream| {
        expect(&mut stream, &about_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &about_k(3));
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
    playing.join().unwrap();
}

/// Between two looks the connection is free for others.
#[test]
fn a_wait_for_a_change_that_only_looks_keeps_no_connection() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (port, playing) = play(ECHO, move |mut stream| {
        expect(&mut stream, &about_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &about_k(3));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'1']).unwrap();
        tell.send(()).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        // The next look, during which the connection ends.
        expect(&mut stream, &about_k(6));
    });
    let store = Arc::new(open(port, LONG));
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.wait_change("k", Known::whole(b"1"), Some(LONG)))
    };
    told.recv().unwrap();
    assert_eq!(store.num_keys().unwrap(), 5);
    playing.join().unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
}

/// PyTorch's servers up to 2.4 do not know PING and close on it.
#[test]
fn a_server_without_ping_is_greeted_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let playing = thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        expect(&mut first, &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d]);
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        expect(&mut second, &[0, 0xce, 0xf7, 0x85, 0x3c]);
        let check_of_nothing = [5, 0, 0, 0, 0, 0, 0, 0, 0];
        expect(&mut second, &check_of_nothing);
        second.write_all(&[0]).unwrap();
        expect(&mut second, &about_k(6));
        second.write_all(&[0]).unwrap();
        expect(&mut second, &about_k(3));
        second.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'v']).unwrap();
        expect(&mut second, &check_of_nothing);
        second.write_all(&[0]).unwrap();
    });
    let store = open(port, LONG);
    assert_eq!(store.get("k").unwrap(), b"v");
    store.ping().unwrap();
    playing.join().unwrap();
}

/// The race of the specification, forced: the wake is on its way when the cancel arrives.
#[test]
fn a_key_that_comes_while_the_cancel_is_under_way_counts_as_there() {
    let (port, playing) = play(ECHO, |mut stream| {
        expect(&mut stream, &about_k(6));
        expect(&mut stream, &[12]);
        stream.write_all(&[0, 1]).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, LONG);
    store.wait_timeout(&["k"], Some(ms(20))).unwrap();
    assert_eq!(store.num_keys().unwrap(), 5, "still in step");
    playing.join().unwrap();

    let (port, playing) = play(WAIT_GET, |mut stream| {
        expect(&mut stream, &about_k(0x80));
        expect(&mut stream, &[12]);
        stream
            .write_all(&[0, 1, 0, 0, 0, 0, 0, 0, 0, b'v', 1])
            .unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, ms(20));
    assert_eq!(store.get("k").unwrap(), b"v");
    assert_eq!(store.num_keys().unwrap(), 5, "still in step");
    playing.join().unwrap();

    let (port, playing) = play(WAIT_CHANGE, |mut stream| {
        expect(&mut stream, &about_k(0x81));
        expect(&mut stream, &[0xff; 16]);
        expect(&mut stream, &[0; 8]);
        expect(&mut stream, &[12]);
        stream
            .write_all(&[0, 1, 0, 0, 0, 0, 0, 0, 0, b'v', 1])
            .unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, LONG);
    let seen = store.wait_change("k", Known::nothing(), Some(ms(20)));
    assert_eq!(seen.unwrap(), b"v");
    assert_eq!(store.num_keys().unwrap(), 5, "still in step");
    playing.join().unwrap();
}

/// The answer to a cancel that is late is taken in by the next call, on the same connection.
#[test]
fn a_server_that_is_slow_to_confirm_a_cancel_delays_nobody_and_stays_in_step() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (port, playing) = play(ECHO, move |mut stream| {
        expect(&mut stream, &about_k(6));
        expect(&mut stream, &[12]);
        gone.recv().unwrap();
        stream.write_all(&[0, 1]).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, LONG);
    let started = Instant::now();
    assert!(
        store
            .wait_timeout(&["k"], Some(ms(20)))
            .unwrap_err()
            .is_timeout()
    );
    assert!(started.elapsed() < LONG / 2);
    go.send(()).unwrap();
    assert_eq!(store.num_keys().unwrap(), 5);
    playing.join().unwrap();
}

#[test]
fn a_server_that_stops_answering_costs_a_call_its_deadline_and_no_more() {
    let (port, playing) = play(ECHO, |mut stream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let store = open(port, ms(300));
    let started = Instant::now();
    let error = store.add("k", 1).unwrap_err();
    assert!(started.elapsed() >= ms(300));
    assert!(started.elapsed() < LONG / 2);
    assert!(matches!(error, StoreError::NoReply { .. }), "{error}");
    assert!(error.outcome_is_unknown());
    assert!(
        error
            .to_string()
            .contains("add \"k\" at TCP store 127.0.0.1:")
    );
    drop(store);
    assert_eq!(playing.join().unwrap()[0], 4);
}

#[test]
fn a_server_that_closes_in_the_middle_ends_calls_at_once_and_for_good() {
    let (port, playing) = play(ECHO, |mut stream| {
        expect(&mut stream, &about_k(6));
    });
    let store = open(port, LONG);
    let started = Instant::now();
    let error = store.get("k").unwrap_err();
    assert!(started.elapsed() < LONG / 2);
    playing.join().unwrap();
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

/// PyTorch's client lets the first `set` after the server's death pass.
#[test]
fn a_set_after_the_servers_death_fails() {
    let server = serve();
    let store = client(&server);
    store.set("k", b"1").unwrap();
    store.ping().unwrap();
    server.shutdown();
    let error = store.set("k", b"2").unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
}

#[test]
fn a_killed_server_ends_every_blocked_call() {
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
    for call in blocked {
        let error = call.join().unwrap();
        assert!(
            matches!(
                error,
                StoreError::ConnectionLost { .. } | StoreError::Connect { .. }
            ),
            "{error}"
        );
    }
}

/// A call that needs a further connection when the server has gone must not dial a dead port until its
/// deadline, and the call that still waits on the first connection must not wait on.
#[test]
fn a_further_connection_that_is_refused_ends_the_store_at_once() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let playing = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        expect(
            &mut stream,
            &[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1],
        );
        stream.write_all(&ECHO).unwrap();
        expect(&mut stream, &about_k(6));
        drop(listener);
        tell.send(()).unwrap();
        // The connection itself stays open until the client ends it.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    });
    let options = TcpStoreOptions::default().with_timeout(LONG);
    let store = Arc::new(TcpStore::open("localhost", port, options).unwrap());
    let waiting = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.get("k").unwrap_err())
    };
    told.recv().unwrap();
    let started = Instant::now();
    let error = store.add("n", 1).unwrap_err();
    assert!(matches!(error, StoreError::Connect { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("add \"n\" at TCP store localhost:"), "{text}");
    // The address that answered before, not the name, which may stand for others as well.
    assert!(text.contains("cannot connect to 127.0.0.1:"), "{text}");
    let error = waiting.join().unwrap();
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    assert!(started.elapsed() < LONG / 2);
    playing.join().unwrap();
}

/// The answer to the cancel comes late: a pop sent then would take it for its own.
#[test]
fn a_blocking_pop_stays_in_step_when_the_cancel_is_confirmed_late() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (port, playing) = play(ECHO, move |mut stream| {
        expect(&mut stream, &about_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &about_k(6));
        expect(&mut stream, &[12]);
        gone.recv().unwrap();
        stream.write_all(&[1]).unwrap();
        expect(&mut stream, &[7]);
        stream.write_all(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    });
    let store = open(port, ms(300));
    let error = store.queue_pop("k").unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    go.send(()).unwrap();
    assert_eq!(store.num_keys().unwrap(), 5);
    playing.join().unwrap();
}

#[test]
fn a_pop_whose_element_is_taken_by_another_waits_on() {
    let (port, playing) = play(ECHO, |mut stream| {
        expect(&mut stream, &about_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &about_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &about_k(15));
        stream.write_all(&[0; 8]).unwrap();
        expect(&mut stream, &about_k(6));
        stream.write_all(&[0]).unwrap();
        expect(&mut stream, &about_k(15));
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'e']).unwrap();
    });
    assert_eq!(open(port, LONG).queue_pop("k").unwrap(), b"e");
    playing.join().unwrap();
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
        let (port, playing) = play(WAIT_GET, move |mut stream| {
            expect(&mut stream, &about_k(0x80));
            stream.write_all(answer).unwrap();
        });
        let error = open(port, LONG).get("k").unwrap_err();
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        playing.join().unwrap();
    }
}

/// Peers that are not a store, and the error for each.
#[test]
fn a_peer_that_is_not_a_store_is_reported_within_the_timeout() {
    type Behave = fn(TcpStream) -> Option<TcpStream>;
    let table: [(&str, Behave); 3] = [
        ("did not answer; it may not speak", Some),
        ("closed the connection; it may not speak", |_| None),
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
        let playing = thread::spawn(move || {
            let mut kept = Vec::new();
            // Ends with the connection that says "q".
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
        // The limit as it was given, not what was left of it.
        if shown.contains("limit") {
            assert!(shown.contains("(limit 0.300s)"), "{shown}");
        } else {
            assert!(matches!(error, StoreError::Protocol { .. }), "{shown}");
        }
        TcpStream::connect(address)
            .unwrap()
            .write_all(b"q")
            .unwrap();
        playing.join().unwrap();
    }
}

#[test]
fn a_get_that_times_out_says_that_the_key_is_missing() {
    let server = serve();
    let store = client(&server);
    store.set_timeout(Some(ms(20)));
    let text = store.get("absent").unwrap_err().to_string();
    assert!(
        text.ends_with("timed out (limit 0.020s): the key is missing"),
        "{text}"
    );
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
            .wait_change("k", Known::whole(&long_value), Some(LONG))
            .unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::LimitExceeded { .. }), "{error}");
        assert!(!error.outcome_is_unknown());
    }
    store.set(&long_key[1..], b"as long as it may be").unwrap();
    assert_eq!(store.get(&long_key[1..]).unwrap(), b"as long as it may be");
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
fn a_taken_port_is_told() {
    let server = serve();
    let port = server.local_addr().port();
    let error = TcpStore::open("127.0.0.1", port, master()).unwrap_err();
    assert!(
        matches!(&error, StoreError::Listen(error) if error.is_address_in_use()),
        "{error}"
    );
}

#[test]
fn tenants_of_one_port_share_a_server_which_ends_with_the_last() {
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

/// One tenant goes while the next one comes, in another thread.
#[test]
fn a_tenant_may_come_while_the_last_one_goes() {
    let port = serve().local_addr().port();
    let tenant = || TcpStore::open("127.0.0.1", port, master().with_multi_tenant(true));
    let mut last = tenant().unwrap();
    for _ in 0..50 {
        let leaving = thread::spawn(move || drop(last));
        // Either the same server, which then goes on, or a new one on the port just left.
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

#[test]
fn close_ends_calls_in_other_threads() {
    let server = serve();
    let store = Arc::new(client(&server));
    let blocked = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.barrier("never", 2))
    };
    let observer = client(&server);
    wait_until("it waits", || server.waiting_count() == 1);
    store.close();
    let error = blocked.join().unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    let error = store.set("k", b"v").unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    observer.set("k", b"v").unwrap();
}

#[test]
fn a_clone_is_independent() {
    let server = serve();
    let store = client(&server);
    let clone = store.clone_store().unwrap();
    clone.set_timeout(Some(ms(10)));
    assert_eq!(store.timeout(), Some(LONG));
    store.close();
    clone.set("k", b"v").unwrap();
    assert_eq!(clone.get("k").unwrap(), b"v");
}
