//! `c10d why`: its answer and exit codes.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};

use crate::pages::{Pages, stuck_report};
use crate::process::{Ended, Running, Server, after, command, run};

fn why(address: SocketAddr, words: &[&str]) -> Ended {
    let address = address.to_string();
    run([&["why", "--connect", &address], words].concat())
}

#[test]
fn the_first_line_names_the_missing_rank_and_the_exit_code_is_4() {
    let pages = Pages::start();
    pages.set("/why.json", &stuck_report());
    let ended = why(pages.address, &[]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(4), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    let first = "Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store.\n";
    assert!(text.starts_with(first), "{text}");
    assert!(
        text.contains("\nSuspects:\n  rank 2: has never connected\n"),
        "{text}"
    );
    assert!(
        !text.contains('\x1b'),
        "no colors outside of a terminal: {text:?}"
    );
    assert_eq!(pages.asked(), ["/why.json"]);
}

#[test]
fn a_job_in_which_nobody_waits_has_exit_code_0() {
    let pages = Pages::start();
    pages.set(
        "/why.json",
        &json!({ "headline": "Nobody waits.", "is_stuck": false }),
    );
    why(pages.address, &[]).assert_prints("Nobody waits.\n");
    let ended = why(pages.address, &["--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn json_is_the_report_as_it_is_without_control_characters() {
    let pages = Pages::start();
    let mut report = stuck_report();
    report["headline"] = "\u{1b}[2J\u{9b}31m\u{202e}".into();
    pages.set("/why.json", &report);
    let ended = why(pages.address, &["--json"]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(4), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    report["store"] = pages.address.to_string().into();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), report);
    assert!(text.ends_with('\n'));
    let is_safe = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
    assert!(text.chars().all(is_safe), "{text:?}");
    assert_eq!(pages.asked(), ["/why.json?ranks=all"]);
}

/// PyTorch's older server closes the connection on data of other protocols; the server with libuv waits for
/// more bytes, as measured with 2.15.
#[test]
fn a_pytorch_server_is_named_as_such() {
    for is_silent in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || serve_as_pytorch(stream, is_silent));
            }
        });
        let ended = why(address, &[]);
        ended.assert_fails(3, &format!("the server at {address} is PyTorch's"));
        assert!(ended.stderr.contains("c10d store serve"), "{ended:?}");
    }
}

/// Echoes a PING after the handshake.
fn serve_as_pytorch(mut stream: TcpStream, is_silent: bool) {
    let mut hello = [0; 10];
    if stream.read_exact(&mut hello).is_err() {
        return;
    }
    let is_store = hello[0] == 0;
    if is_store && stream.write_all(&hello[6..]).is_err() {
        return;
    }
    if is_store || is_silent {
        // Until the command ends.
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

#[test]
fn a_server_that_is_no_store_or_missing_has_exit_code_3() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    why(address, &["--timeout=1s"]).assert_fails(3, "or it is not a store");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    thread::spawn(move || {
        for stream in other.incoming() {
            // A command that has ended.
            let _ = stream.unwrap().write_all(b"220 ready\r\n");
        }
    });
    why(address, &["--timeout=1s"]).assert_fails(3, "is not a store");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    why(address, &["--timeout=300ms"]).assert_fails(3, &format!("{address} does not answer"));
    drop(silent);
    why(address, &[]).assert_fails(3, &format!("cannot connect to {address}"));
    run(["why"]).assert_fails(2, "no store given");
}

#[test]
fn an_answer_that_cannot_be_used_has_exit_code_3() {
    let pages = Pages::start();
    why(pages.address, &[]).assert_fails(3, "HTTP status 404: there is no such page");
    pages.set("/why.json", &json!({ "is_stuck": "perhaps" }));
    why(pages.address, &[]).assert_fails(3, "are both c10d of the same version?");
    let evil = json!({ "ranks": [{ "state": "\u{1b}[2J" }] });
    pages.set("/why.json", &evil);
    why(pages.address, &[]).assert_fails(3, "unknown variant `\\u{1b}[2J`");
    pages.set("/why.json", &json!([1, 2]));
    why(pages.address, &["--json"]).assert_fails(3, "cannot understand the answer");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_not_taken_for_a_missing_rank() {
    let pages = Pages::start();
    pages.set("/why.json", &stuck_report());
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut why = command(["why", "--connect", &pages.address.to_string()]);
    why.stdout(Stdio::from(full));
    Running::start(why)
        .end()
        .assert_fails(3, "cannot write to standard output");
}

/// Clients that have completed the handshake take all places.
#[test]
fn a_store_without_file_descriptors_is_named_as_such() {
    let serve = command(["store", "serve", "--port=0"]);
    let server = Server::start_command(after("ulimit -n 40", &serve));
    let mut clients = Vec::new();
    loop {
        let mut client = server.connect();
        let hello = b"\x00\xce\xf7\x85\x3c\x0d\x01\x00\x00\x00";
        let is_served = client.write_all(hello).is_ok() && client.read_exact(&mut [0; 4]).is_ok();
        if !is_served {
            break;
        }
        clients.push(client);
        assert!(clients.len() < 100, "it has room for all");
    }
    why(server.address, &["--timeout=1s"])
        .assert_fails(3, "it has no file descriptor or no place left");
    let first = clients.pop();
    drop(first);
    crate::process::until("a place is free", || {
        why(server.address, &["--timeout=1s"]).code == Some(0)
    });
}
