//! Tests of waits that give way to other calls on the same connection.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw::{LONG, serve, wait_until};
use crate::without_extensions::WithoutExtensions;
use c10d_socket::Cancel;
use c10d_store::{Store, StoreError, StoreExt, StoreHandle, TcpStore, TcpStoreOptions};

fn client(port: u16) -> TcpStore {
    let options = TcpStoreOptions::default().with_timeout(LONG);
    TcpStore::open("127.0.0.1", port, options).expect("the server listens")
}

/// One connection is enough for a wait and any number of other calls.
#[test]
fn a_wait_gives_way_to_a_thousand_requests() {
    let server = serve();
    let store = client(server.local_addr().port());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait_timeout(&["late"], Some(LONG)));
        wait_until("the wait has arrived", || server.waiting_count() == 1);
        let started = Instant::now();
        for round in 1..=1000 {
            match round % 4 {
                0 => store.set("k", round.to_string()).unwrap(),
                1 => assert_eq!(store.add("n", 0).unwrap(), 0),
                2 => assert!(!store.check(&["late"]).unwrap()),
                _ => drop(store.ping().unwrap()),
            }
        }
        assert!(started.elapsed() < LONG / 2);
        assert!(!waiting.is_finished());
        assert_eq!(server.connection_count(), 1);
        wait_until("the wait goes on", || server.waiting_count() == 1);
        store.set("late", b"x").unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(server.connection_count(), 1);
}

/// A `get` of a key that exists does not need a separate connection. docs/spec/wire-extensions.md, WAIT_GET 5.
#[cfg(feature = "extensions")]
#[test]
fn a_get_that_need_not_wait_shares_the_connection_of_a_wait() {
    let server = serve();
    let store = client(server.local_addr().port());
    store.set("a", b"1").unwrap();
    store.set("b", b"2").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            store
                .wait_change("state", c10d_store::Known::nothing(), Some(LONG))
                .unwrap()
        });
        wait_until("the wait has arrived", || server.waiting_count() == 1);
        for _ in 0..20 {
            assert_eq!(store.get("a").unwrap(), b"1");
            let both = store.multi_get(&["a", "b"]).unwrap();
            assert_eq!(both, [b"1".to_vec(), b"2".to_vec()]);
            store.wait(&["a"]).unwrap();
            assert!(
                store
                    .wait_timeout(&["missing"], Some(Duration::ZERO))
                    .unwrap_err()
                    .is_timeout()
            );
        }
        assert_eq!(server.connection_count(), 1);
        store.set("state", b"s").unwrap();
        assert_eq!(waiting.join().unwrap(), b"s");
    });
}

/// A barrier counts each request as an arrival, so it must not be repeated.
#[test]
fn an_arrival_at_a_barrier_counts_once_while_others_use_the_store() {
    let server = serve();
    let store = client(server.local_addr().port());
    thread::scope(|scope| {
        let arrived = scope.spawn(|| store.barrier("b", 3));
        wait_until("the arrival", || server.waiting_count() == 1);
        for _ in 0..100 {
            store.ping().unwrap();
        }
        assert_eq!(store.get("b").unwrap(), b"1");
        let second = scope.spawn(|| store.barrier("b", 3));
        wait_until("the second arrival", || server.waiting_count() == 2);
        store.barrier("b", 3).unwrap();
        arrived.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
}

/// While threads send requests as fast as they can, every wait ends when its key appears, even if the key appears
/// while the wait gives way.
#[test]
fn no_wakeup_is_lost_while_a_wait_gives_way() {
    let server = serve();
    let port = server.local_addr().port();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    for port in [port, proxy.port()] {
        let (store, writer) = (client(port), client(server.local_addr().port()));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        store.ping().unwrap();
                    }
                });
            }
            let writing = scope.spawn(|| {
                for round in 0..300 {
                    writer.get(&format!("ready{round}")).unwrap();
                    writer.set(&format!("wait{round}"), b"w").unwrap();
                    writer.set(&format!("get{round}"), b"g").unwrap();
                    writer.queue_push("queue", round.to_string()).unwrap();
                }
            });
            for round in 0..300 {
                store.set(&format!("ready{round}"), b"").unwrap();
                store.wait(&[&format!("wait{round}")]).unwrap();
                assert_eq!(store.get(&format!("get{round}")).unwrap(), b"g");
                // Elements arrive in order, and none is lost.
                let element = store.queue_pop("queue").unwrap();
                assert_eq!(element, round.to_string().as_bytes());
            }
            is_done.store(true, Ordering::Relaxed);
            writing.join().unwrap();
        });
        assert_eq!(store.queue_len("queue").unwrap(), 0);
        for round in 0..300 {
            for name in ["ready", "wait", "get"] {
                store.delete_key(&format!("{name}{round}")).unwrap();
            }
        }
    }
}

/// Takers that give way to other calls, time out and are cancelled get each element once, in order.
#[test]
fn no_element_is_lost_while_a_take_gives_way() {
    const ELEMENTS: u32 = 2000;
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    for port in [server.local_addr().port(), proxy.port()] {
        let (store, writer) = (client(port), client(server.local_addr().port()));
        let is_done = AtomicBool::new(false);
        // Without QUEUE_TAKE, a take consists of several requests, and a cancelled request may have had its effect.
        let is_cancelled = port == server.local_addr().port();
        let current = Mutex::new(Cancel::NEVER);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    store.ping().unwrap();
                    current.lock().unwrap().cancel();
                }
            });
            scope.spawn(|| {
                for number in 0..ELEMENTS {
                    writer.queue_push("queue", number.to_string()).unwrap();
                    if number % 3 == 0 {
                        writer.ping().unwrap();
                    }
                }
            });
            let mut next = 0;
            while next < ELEMENTS {
                let timeout = Duration::from_micros(u64::from(next % 7) * 100);
                let cancel = if is_cancelled {
                    Cancel::new()
                } else {
                    Cancel::NEVER
                };
                *current.lock().unwrap() = cancel.clone();
                let taken = store
                    .with_cancel(&cancel)
                    .queue_take("queue", 5, Some(timeout));
                match taken {
                    Ok(elements) => {
                        for element in elements {
                            assert_eq!(element, next.to_string().as_bytes());
                            next += 1;
                        }
                    }
                    Err(StoreError::Interrupted { .. }) => {}
                    Err(error) => assert!(error.is_timeout(), "{error}"),
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(store.queue_len("queue").unwrap(), 0);
    }
}

#[test]
fn closing_ends_a_wait_that_gives_way() {
    let server = serve();
    let store = client(server.local_addr().port());
    for _ in 0..20 {
        let store = client(server.local_addr().port());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get("never"));
            let sending = scope.spawn(|| {
                loop {
                    if let Err(error) = store.ping() {
                        return error;
                    }
                }
            });
            wait_until("the wait has arrived", || server.waiting_count() >= 1);
            store.close();
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
            let error = sending.join().unwrap();
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        });
    }
    store.ping().unwrap();
}

/// A server that is too busy to answer a cancel in time: neither the call for which the wait was to give way nor the
/// wait, which continues, mistakes the late answer for another.
#[test]
fn a_late_answer_to_a_cancel_is_not_taken_for_another() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let (arrived, unanswered) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = listener.accept().expect("a connection");
            let mut hello = [0; 10];
            peer.read_exact(&mut hello).expect("VALIDATE and PING");
            peer.write_all(&hello[6..]).expect("the nonce");
            let (mut first, mut second, mut cancel) = ([0; 22], [0; 22], [0; 1]);
            peer.read_exact(&mut first).expect("WAIT");
            assert!(first.ends_with(b"/late"));
            arrived.wait();
            peer.read_exact(&mut cancel).expect("CANCEL_WAIT");
            unanswered.wait();
            peer.write_all(&[1]).expect("the late answer");
            peer.read_exact(&mut second).expect("WAIT again");
            assert_eq!(second, first);
            peer.write_all(&[0]).expect("the key is there");
        });
        let store = client(port);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| store.wait_timeout(&["late"], Some(LONG)));
            arrived.wait();
            store.set_timeout(Some(Duration::from_millis(1)));
            let error = store.check(&["other"]).unwrap_err();
            assert!(matches!(error, StoreError::NoReply { .. }), "{error}");
            unanswered.wait();
            waiting.join().unwrap().unwrap();
        });
    });
}
