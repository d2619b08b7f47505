//! Workers that share a secret, and peers that do not have it.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rpc_agent::{Agent, AgentOptions, CertificateFiles, Credentials, Outcome, RpcError, Secret};

use crate::common::{PATIENCE, agent_and_raw, ask, noise, pair_with, until};
use crate::raw::{WELCOME, address_of, await_closed, connect, read_frame, request, send};
use crate::sealed::Sealed;

fn secret() -> Secret {
    Secret::random().expect("random numbers")
}

/// Two workers with a secret.
fn secure_pair(secret: &Secret) -> (Agent, Agent) {
    pair_with(|_, options| options.with_secret(secret.clone()), |_| {})
}

#[track_caller]
fn echo(from: &Agent, to: &str, bytes: usize) {
    let payload = noise(bytes as u64, bytes);
    let answer = ask(from.handle(), to, "echo", payload.clone());
    assert!(answer.unwrap() == payload, "other {bytes} bytes");
}

#[test]
fn calls_of_all_lengths_pass_in_both_directions_at_once() {
    let (one, other) = secure_pair(&secret());
    let (kib, mib) = (1 << 10, 1 << 20);
    let lengths = [
        0,
        1,
        64,
        4 * kib,
        16 * kib - 1,
        16 * kib,
        64 * kib,
        200 * kib,
        mib,
        8 * mib + 3,
        33 * mib,
    ];
    thread::scope(|scope| {
        for (from, to) in [(&one, "worker1"), (&other, "worker0")] {
            scope.spawn(move || lengths.iter().for_each(|bytes| echo(from, to, *bytes)));
            for seed in 0..3 {
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..150 {
                        let power = rng.u32(0..19);
                        let bytes = rng.usize(0..1 << power);
                        echo(from, to, bytes);
                    }
                });
            }
        }
    });
    assert_eq!(one.handle().metrics().connections_lost, 0);
}

#[test]
fn calls_that_are_given_up_disturb_no_other() {
    let (one, other) = secure_pair(&secret());
    thread::scope(|scope| {
        for (from, to) in [(&one, "worker1"), (&other, "worker0")] {
            for seed in 0..2 {
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..200 {
                        let power = rng.u32(0..22);
                        let payload = noise(1, rng.usize(0..1 << power));
                        let timeout = Duration::from_micros(rng.u64(0..3000));
                        let call = from.handle().call(to, "echo").with_timeout(timeout);
                        let call = call.send_bytes(payload);
                        if rng.bool() {
                            drop(call.wait());
                        }
                    }
                });
                scope.spawn(move || (0..300).for_each(|bytes| echo(from, to, bytes * 37)));
            }
        }
    });
    assert_eq!(one.handle().metrics().connections_lost, 0);
}

/// The error of a call between two workers whose options differ.
fn error_between(adjust: impl Fn(u32, AgentOptions) -> AgentOptions) -> RpcError {
    let adjust = |rank, options: AgentOptions| {
        adjust(rank, options.with_connect_timeout(Duration::from_secs(1)))
    };
    let (caller, _called) = pair_with(adjust, |_| {});
    let began = Instant::now();
    let error = ask(caller.handle(), "worker1", "echo", "").unwrap_err();
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(error.outcome(), Outcome::NotExecuted, "{error}");
    error
}

#[test]
fn a_call_to_a_worker_with_another_secret_fails_at_once_and_says_so() {
    let (one, other) = (secret(), secret());
    let error = error_between(|rank, options| {
        // Without giving up, the call would fail at the end of this time only.
        let options = options.with_connect_timeout(PATIENCE);
        options.with_secret(if rank == 0 {
            one.clone()
        } else {
            other.clone()
        })
    });
    assert!(error.to_string().contains("a different secret"), "{error}");
}

#[test]
fn workers_with_and_without_a_secret_do_not_meet() {
    let secret = secret();
    let error = error_between(|rank, options| match rank {
        // Without giving up, the call would fail at the end of this time only.
        0 => options
            .with_connect_timeout(PATIENCE)
            .with_secret(secret.clone()),
        _ => options,
    });
    let text = "this worker has a secret, and the one there has none";
    assert!(error.to_string().contains(text), "{error}");
    let error = error_between(|rank, options| match rank {
        // Without giving up, the call would fail at the end of this time only.
        0 => options.with_connect_timeout(PATIENCE),
        _ => options.with_secret(secret.clone()),
    });
    let text = "the worker there has a secret, and this one has none";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn a_new_secret_is_introduced_while_the_old_one_is_in_use() {
    let (old, new) = (secret(), secret());
    let both = Credentials::from_secrets(vec![old.clone(), new.clone()]).unwrap();
    let (one, other) = pair_with(
        |rank, options| match rank {
            0 => options.with_credentials(both.clone()),
            _ => options.with_secret(new.clone()),
        },
        |_| {},
    );
    // The worker with the new secret only has to connect.
    echo(&other, "worker0", 10);
    echo(&one, "worker1", 10);
}

#[test]
fn workers_with_certificates_of_one_authority_meet() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c10d-socket/testdata/tls");
    let credentials = |node: &str, authority: &str| {
        Credentials::from_files(&CertificateFiles {
            certificate: folder.join(format!("{node}.pem")),
            key: folder.join(format!("{node}.key")),
            authorities: folder.join(format!("{authority}.pem")),
        })
        .unwrap()
    };
    let node = credentials("node", "authority");
    let (one, other) = pair_with(|_, options| options.with_credentials(node.clone()), |_| {});
    echo(&one, "worker1", 100_000);
    echo(&other, "worker0", 100_000);
    let stranger = credentials("stranger", "other");
    error_between(|rank, options| match rank {
        0 => options.with_credentials(stranger.clone()),
        _ => options.with_credentials(node.clone()),
    });
}

#[test]
fn a_handshake_may_arrive_byte_by_byte() {
    /// Sends single bytes.
    struct Trickle(TcpStream);
    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(&bytes[..1])
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let secret = secret();
    let (_agent, raw, store) = agent_and_raw(|options| options.with_secret(secret.clone()));
    let (address, incarnation) = address_of(&*store, 0);
    let mut peer = Sealed::new(connect(address), &secret.into());
    let mut trickle = Trickle(peer.stream.try_clone().unwrap());
    while peer.layer.is_handshaking() {
        peer.layer.send(&mut trickle).unwrap();
        peer.receive().unwrap();
    }
    let hello = IoSlice::new(&raw.hello(0, incarnation, 0)).to_vec();
    assert_eq!(peer.layer.seal(&[IoSlice::new(&hello)]), hello.len());
    peer.layer.send(&mut trickle).unwrap();
    assert_eq!(read_frame(&mut peer).kind, WELCOME);
    send(&mut peer, &request(1, "echo", b"abc"));
    assert_eq!(read_frame(&mut peer).body, b"abc");
}

#[test]
fn bytes_of_strangers_close_their_connection() {
    let secret = secret();
    let (agent, raw, store) = agent_and_raw(|options| options.with_secret(secret.clone()));
    let (address, incarnation) = address_of(&*store, 0);
    let plain_hello = raw.hello(0, incarnation, 0);
    let alert = [0x15, 3, 3, 0, 2, 2, 40];
    let mut of_tls = vec![0x16, 3, 1, 0x40, 0];
    of_tls.extend_from_slice(&noise(3, 1 << 14));
    let long = noise(4, 1 << 20);
    let garbage: [&[u8]; 6] = [
        &plain_hello,
        &alert,
        &of_tls,
        &long,
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 3, 1, 0, 0],
    ];
    for bytes in garbage {
        let mut socket = connect(address);
        // The agent may have closed the connection already.
        let _ = socket.write_all(bytes);
        await_closed(&mut socket);
    }
    // The right secret, and then garbage.
    let credentials = Credentials::from(secret);
    let mut peer = Sealed::new(connect(address), &credentials);
    peer.shake_hands().unwrap();
    peer.stream.write_all(&noise(5, 1000)).unwrap();
    await_closed(&mut peer.stream);
    // Replayed bytes of an established connection.
    let mut peer = Sealed::new(connect(address), &credentials);
    peer.shake_hands().unwrap();
    send(&mut peer, &plain_hello);
    assert_eq!(read_frame(&mut peer).kind, WELCOME);
    peer.layer.seal(&[IoSlice::new(&request(1, "echo", b""))]);
    let mut wire = Vec::new();
    peer.layer.send(&mut wire).unwrap();
    peer.stream.write_all(&wire).unwrap();
    assert_eq!(read_frame(&mut peer).id, 1);
    peer.stream.write_all(&wire).unwrap();
    await_closed(&mut peer.stream);
    until("the connection is lost", || {
        agent.handle().metrics().connections_lost == 1
    });
    assert_eq!(agent.handle().metrics().requests_received, 1);
}

#[test]
fn a_handshake_of_tls_that_stops_is_closed_after_the_time_limit() {
    let secret = secret();
    let (_agent, _raw, store) = agent_and_raw(|options| options.with_secret(secret.clone()));
    let (address, _) = address_of(&*store, 0);
    let credentials = Credentials::from(secret);
    let silent = connect(address);
    let mut half = Sealed::new(connect(address), &credentials);
    let mut hello = Vec::new();
    half.layer.send(&mut hello).unwrap();
    half.stream.write_all(&hello[..hello.len() / 2]).unwrap();
    let mut answered = Sealed::new(connect(address), &credentials);
    answered.layer.send(&mut answered.stream).unwrap();
    let mut no_hello = Sealed::new(connect(address), &credentials);
    no_hello.shake_hands().unwrap();
    let began = Instant::now();
    for mut socket in [silent, half.stream, answered.stream, no_hello.stream] {
        await_closed(&mut socket);
    }
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(9) && took < Duration::from_secs(30),
        "{took:?}"
    );
}

#[test]
fn an_address_whose_handshakes_fail_has_to_wait() {
    // Each costs the agent its public-key operations; then it stops, or sends a bad record in the same segment.
    for has_bad_record in [false, true] {
        let secret = secret();
        let (agent, _raw, store) = agent_and_raw(|options| options.with_secret(secret.clone()));
        let (address, _) = address_of(&*store, 0);
        let credentials = Credentials::from(secret);
        let is_answered = || {
            let mut peer = Sealed::new(connect(address), &credentials);
            let mut bytes = Vec::new();
            peer.layer.send(&mut bytes).unwrap();
            if has_bad_record {
                bytes.extend_from_slice(&[0x17, 3, 3, 0, 20]);
                bytes.extend_from_slice(&[7; 20]);
            }
            if peer.stream.write_all(&bytes).is_err() {
                return false;
            }
            match peer.stream.read(&mut [0; 4096]) {
                Ok(count) => count > 0,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    false
                }
            }
        };
        let answered = (0..300).filter(|_| is_answered()).count();
        assert!((64..250).contains(&answered), "{answered} {has_bad_record}");
        // The address is served again, the sooner the fewer of its handshakes fail.
        until("a handshake succeeds", || {
            thread::sleep(Duration::from_millis(50));
            let mut peer = Sealed::new(connect(address), &credentials);
            peer.shake_hands().is_ok()
        });
        drop(agent);
    }
}
