//! This release beside the one before: servers of one store in etcd, relays, and a directory. Needs etcd (`C10D_ETCD`) and the program
//! of the release before (`C10D_BEFORE`).

use std::io::{Read, Write};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use c10d_store::{Store, StoreError, StoreExt, TcpStore};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::candidates::{Candidate, Paced};
use crate::etcd::Etcd;
use crate::process::{PROGRAM, Running, Server, command_of, run, until};

pub(crate) fn before() -> String {
    std::env::var("C10D_BEFORE").expect("C10D_BEFORE names c10d of the release before")
}

fn client_of(server: &Server) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.address.port()).unwrap()
}

/// Clients of both relays count without a gap or a repetition, while servers of both releases take over from each other.
#[test]
#[ignore = "needs etcd (C10D_ETCD) and the release before (C10D_BEFORE)"]
fn servers_and_relays_of_two_releases_take_over_from_each_other() {
    let (old, new) = (&*before(), PROGRAM);
    let etcd = Etcd::start();
    let place = format!("etcd://{}/job", etcd.client);
    let mut serving = Candidate::start_of(old, &etcd);
    serving.store();
    let relay_of = |program| {
        let words = ["relay", "--listen=127.0.0.1:0", "--upstream", &place];
        Server::start_command(command_of(program, words))
    };
    let relays = [old, new, old, new].map(relay_of);
    let clients: Vec<_> = relays
        .iter()
        .enumerate()
        .map(|(number, relay)| Paced::start(client_of(relay), &format!("sum{number}")))
        .collect();
    let mut epoch = 1;
    for (program, signal) in [
        (new, Signal::KILL),
        (old, Signal::KILL),
        (new, Signal::TERM),
        (old, Signal::TERM),
        (old, Signal::KILL),
        (new, Signal::KILL),
        (new, Signal::TERM),
    ] {
        let mut next = Candidate::start_of(program, &etcd);
        serving.running.signal(signal);
        next.store();
        let code = std::mem::replace(&mut serving, next).running.end().code;
        let is_killed = signal == Signal::KILL;
        assert_eq!(code, (!is_killed).then_some(0), "{program} {signal:?}");
        epoch += 1;
        for client in &clients {
            client.wait_for_calls();
        }
        // Of each release, whichever leads.
        for program in [old, new] {
            let words = ["store", "status", "--json", "--connect", &place];
            let status = Running::start(command_of(program, words)).end();
            let status: Value = serde_json::from_slice(&status.stdout).unwrap();
            assert_eq!(status["leader"]["address"], serving.address, "{status}");
            assert_eq!(status["leader"]["epoch"], epoch, "{status}");
        }
    }
    let sums: Vec<_> = clients.into_iter().map(Paced::end).collect();
    for (number, sum) in sums.into_iter().enumerate() {
        let key = format!("sum{number}");
        let store = client_of(&relays[number % 2]);
        assert_eq!(store.add(&key, 0).unwrap(), sum, "{key}");
    }
}

/// A client that is told of refused writes continues to write when a server takes over that does not tell it, and is told again by the
/// next one.
#[test]
#[ignore = "needs etcd (C10D_ETCD) and the release before (C10D_BEFORE)"]
fn a_client_that_is_told_of_refused_writes_outlives_a_server_of_the_release_before() {
    let (old, new) = (&*before(), PROGRAM);
    let etcd = Etcd::start();
    let place = format!("etcd://{}/job", etcd.client);
    let start_of = |program| Candidate::start_with(program, &etcd, &["--memory-max=2MiB"]);
    let mut serving = start_of(new);
    serving.store();
    let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", "--upstream", &place]);
    let store = client_of(&relay);
    let large = vec![7; 4 << 20];
    for (round, program) in [new, old, new].into_iter().enumerate() {
        if round > 0 {
            let next = start_of(program);
            drop(std::mem::replace(&mut serving, next));
        }
        for count in 0..20 {
            store.set("k", count.to_string()).unwrap();
            assert_eq!(store.get("k").unwrap(), count.to_string().as_bytes());
        }
        if program == new {
            let error = store.set("k", &large).unwrap_err();
            assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
            store.append("k", "!").unwrap();
            assert_eq!(store.get("k").unwrap(), b"19!");
        }
    }
}

/// Each of two releases serves the directory of the other release.
#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn a_directory_is_served_by_two_releases_in_turn() {
    let (old, new) = (&*before(), PROGRAM);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut sum = 0;
    for (program, signal) in [
        (old, Signal::TERM),
        (new, Signal::KILL),
        (old, Signal::KILL),
        (new, Signal::TERM),
    ] {
        let words = ["store", "serve", "--port=0", "--dir", dir];
        let server = Server::start_command(command_of(program, words));
        let store = client_of(&server);
        for _ in 0..100 {
            sum += 1;
            assert_eq!(store.add("sum", 1).unwrap(), sum, "{program}");
        }
        server.running.signal(signal);
        server.end();
    }
}

/// A key of etcd, with this value.
fn put(etcd: &Etcd, key: &str, value: &Value) {
    let encoded = |text: &str| STANDARD.encode(text);
    let body = json!({"key": encoded(key), "value": encoded(&value.to_string())}).to_string();
    let request = format!(
        "POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    until("etcd answers", || {
        answer.clear();
        let Ok(mut stream) = TcpStream::connect(&etcd.client) else {
            return false;
        };
        // A starting server may close it.
        stream
            .write_all(request.as_bytes())
            .and_then(|()| stream.read_to_string(&mut answer))
            .is_ok_and(|_| answer.starts_with("HTTP/1.1 200"))
    });
}

/// A server that cannot read the log reports it, and is not a candidate. Clients can still look up the leading server.
#[test]
#[ignore = "needs etcd (C10D_ETCD) and the release before (C10D_BEFORE)"]
fn a_newer_format_is_refused_by_name() {
    let etcd = Etcd::start();
    let head = json!({
        "format": 2, "store": "07".repeat(16), "epoch": 3, "position": 5, "writer": format!("{:016x}", 9),
        "commit": 1, "snapshot": null,
    });
    put(&etcd, "job/head", &head);
    let leader = json!({
        "format": 1, "address": "node7:29500", "process": 17, "host": "node7", "since": 1, "writer": format!("{:016x}", 9),
    });
    put(&etcd, "job/leader", &leader);
    let members = format!("--etcd={}", etcd.client);
    for program in [&*before(), PROGRAM] {
        let words = ["store", "serve", "--port=0", &members, "--etcd-prefix=job"];
        let ended = Running::start(command_of(program, words)).end();
        assert_eq!(ended.code, Some(5), "{ended:?}");
        // Both releases print these words.
        let text = "has format 2; this program reads up to format 1, so a newer ";
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
    let status = run(["store", "status", "--json", &members, "--etcd-prefix=job"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["candidates"], json!([]), "{status}");
    assert_eq!(status["leader"]["address"], "node7:29500", "{status}");
    assert_eq!(status["format"], 2, "{status}");
}
