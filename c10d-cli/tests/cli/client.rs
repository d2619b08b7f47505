//! `c10d store`: the answer and the exit codes of each client command.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::process::{Running, Server, command, refusing_address, run, run_with_input, until};

/// A value that is not UTF-8, with zeros and newlines.
const BINARY: &[u8] = b"\x00\xff\n\r\x80\n";

#[test]
fn values_come_from_an_argument_a_file_or_standard_input() {
    let server = Server::start();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(BINARY).unwrap();
    let path = file.path().to_str().unwrap();

    server
        .store(&["set", "argument", "a value"])
        .assert_prints("");
    server.store(&["get", "argument"]).assert_prints("a value");
    server.store(&["set", "negative", "-5"]).assert_prints("");
    server.store(&["get", "negative"]).assert_prints("-5");
    server
        .store(&["set", "dash", "--", "--file"])
        .assert_prints("");
    server.store(&["get", "dash"]).assert_prints("--file");
    server.store(&["set", "empty", ""]).assert_prints("");
    server.store(&["get", "empty"]).assert_prints("");
    server
        .store(&["set", "file", "--file", path])
        .assert_prints("");
    server.store(&["get", "file"]).assert_prints(BINARY);
    run_with_input(server.arguments(&["set", "input", "-"]), BINARY).assert_prints("");
    server.store(&["get", "input"]).assert_prints(BINARY);

    let words = server.arguments(&["set", "raw"]);
    let binary = OsStr::from_bytes(b"\xff\xfe");
    run(words.iter().map(OsStr::new).chain([binary])).assert_prints("");
    server.store(&["get", "raw"]).assert_prints(b"\xff\xfe");
}

#[test]
fn numbers() {
    let server = Server::start();
    server.store(&["add", "n"]).assert_prints("1\n");
    server.store(&["add", "n", "41"]).assert_prints("42\n");
    server.store(&["add", "n", "-50"]).assert_prints("-8\n");
    server.store(&["get", "n"]).assert_prints("-8");
    server.store(&["set", "text", "abc"]).assert_prints("");
    server
        .store(&["add", "text", "1"])
        .assert_fails(2, "is not a number; nothing changed");
    server.store(&["get", "text"]).assert_prints("abc");
}

#[test]
fn compare_set_reports_whether_it_wrote() {
    let server = Server::start();
    server
        .store(&["compare-set", "k", "", "one"])
        .assert_prints("one");
    server
        .store(&["compare-set", "k", "one", "two"])
        .assert_prints("two");
    server
        .store(&["compare-set", "k", "two", "two"])
        .assert_prints("two");
    run_with_input(server.arguments(&["compare-set", "k", "two", "-"]), BINARY)
        .assert_prints(BINARY);

    let refused = server.store(&["compare-set", "k", "one", "three"]);
    refused.assert_fails(1, "not written, the key does not have");
    assert_eq!(refused.stdout, BINARY);
    // For a missing key the server answers with the expected value.
    server
        .store(&["compare-set", "missing", "old", "new"])
        .assert_fails(1, "not written, the key does not have");
    server
        .store(&["compare-set", "missing", "same", "same"])
        .assert_fails(1, "not written, the key does not have");
    assert_eq!(server.store(&["check", "missing"]).code, Some(1));
}

#[test]
fn check_wait_delete() {
    let server = Server::start();
    let no = server.store(&["check", "a"]);
    assert_eq!(
        (no.code, no.stdout_text(), no.stderr.as_str()),
        (Some(1), "false\n", "")
    );
    server.store(&["set", "a", "1"]).assert_prints("");
    server.store(&["check", "a"]).assert_prints("true\n");
    assert_eq!(server.store(&["check", "a", "b"]).code, Some(1));

    let waiting = Running::start(command(server.arguments(&[
        "wait",
        "a",
        "b",
        "--timeout=1m",
    ])));
    server.store(&["set", "b", ""]).assert_prints("");
    waiting.end().assert_prints("");

    server.store(&["delete", "a"]).assert_prints("");
    server
        .store(&["delete", "a"])
        .assert_fails(1, "delete \"a\": the key does not exist");
}

#[test]
fn keys_and_their_count() {
    let server = Server::start();
    server.store(&["keys"]).assert_prints("");
    server
        .store(&["keys", "--json"])
        .assert_prints("{\"keys\":[]}\n");
    server.store(&["set", "b/2", "x"]).assert_prints("");
    server.store(&["set", "a\n1", "x"]).assert_prints("");
    server.store(&["keys"]).assert_prints("a\n1\nb/2\n");
    server
        .store(&["keys", "--json"])
        .assert_prints("{\"keys\":[\"a\\n1\",\"b/2\"]}\n");
    server.store(&["count"]).assert_prints("2\n");
}

/// Values of other clients cannot control the terminal; a pipe and a file get them unchanged.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_gets_escapes_for_what_is_not_printable() {
    use std::io::Read;

    use crate::pty::terminal;

    let server = Server::start();
    let (key, value) = ("a\n\u{1b}]0;x\u{7}", "\u{1b}[2J1\n2\u{9b}");
    server.store(&["set", key, value]).assert_prints("");
    server.store(&["keys"]).assert_prints(format!("{key}\n"));
    server.store(&["get", key]).assert_prints(value);
    let table: [(&[&str], &str); 3] = [
        (&["keys"], "a\\n\\u{1b}]0;x\\u{7}\r\n"),
        (&["get", key], "\\u{1b}[2J1\r\n2\\u{9b}"),
        (
            &["keys", "--json"],
            "{\"keys\":[\"a\\n\\u001b]0;x\\u0007\"]}\r\n",
        ),
    ];
    for (words, expected) in table {
        let (near, far) = terminal(100, 50);
        let mut command = command(server.arguments(words));
        command.stdout(far);
        assert_eq!(Running::start(command).end().code, Some(0));
        let mut shown = Vec::new();
        // A terminal whose far end is closed fails after its last byte.
        let _ = fs::File::from(near).read_to_end(&mut shown);
        assert_eq!(String::from_utf8_lossy(&shown), expected);
    }
    let json = server.store(&["get", key, "--json"]);
    assert!(
        json.stdout_text().contains("2\\u009b"),
        "{:?}",
        json.stdout_text()
    );
}

#[test]
fn several_keys_at_once() {
    let server = Server::start();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(BINARY).unwrap();
    let path = file.path().to_str().unwrap();
    let words = [
        "multi-set",
        "a",
        "1",
        "b",
        "-",
        "--file",
        "c",
        path,
        "--file",
        "d",
        path,
    ];
    run_with_input(server.arguments(&words), "é".as_bytes()).assert_prints("");

    server.store(&["multi-get", "b", "a"]).assert_prints("é1");
    server
        .store(&["multi-get", "c", "a"])
        .assert_prints([BINARY, b"1"].concat());
    let ended = server.store(&["multi-get", "--json", "a", "b", "c"]);
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let expected = json!({ "values": [
        { "key": "a", "value": "1" },
        { "key": "b", "value": "é" },
        { "key": "c", "base64": "AP8KDYAK" },
    ] });
    assert_eq!((ended.code, json), (Some(0), expected));
    server
        .store(&["multi-get", "a", "missing", "--timeout=0"])
        .assert_fails(1, "timed out");

    server
        .store(&["multi-set", "a", "1", "b"])
        .assert_fails(2, "\"b\" has no value");
    server
        .store(&["multi-set", "a", "-", "b", "-"])
        .assert_fails(2, "only once");
}

#[test]
fn queues() {
    let server = Server::start();
    server.store(&["len", "q"]).assert_prints("0\n");
    server
        .store(&["pop", "q", "--no-wait"])
        .assert_fails(1, "pop \"q\": the queue is empty");
    server
        .store(&["pop", "q", "--timeout=0"])
        .assert_fails(1, "timed out");

    let waiting = Running::start(command(server.arguments(&["pop", "q", "--timeout=1m"])));
    run_with_input(server.arguments(&["push", "q", "-"]), BINARY).assert_prints("");
    waiting.end().assert_prints(BINARY);

    server.store(&["push", "q", "one"]).assert_prints("");
    server.store(&["push", "q", "two"]).assert_prints("");
    server.store(&["len", "q"]).assert_prints("2\n");
    server.store(&["pop", "q"]).assert_prints("one");
    server
        .store(&["pop", "q", "--no-wait"])
        .assert_prints("two");
}

#[test]
fn workers_meet_at_a_barrier() {
    let server = Server::start();
    for prefix in [&[][..], &["--prefix", "p"]] {
        let arrive = |name: &str| {
            let words = ["barrier", name, "--world-size", "2", "--timeout", "1m"];
            let words = [&words[..], prefix].concat();
            Running::start(command(server.arguments(&words)))
        };
        let first = arrive("b");
        let second = arrive("b");
        first.end().assert_prints("");
        second.end().assert_prints("");
    }
    server
        .store(&["barrier", "alone", "--world-size=2", "--timeout=10ms"])
        .assert_fails(1, "timed out");
}

#[test]
fn a_prefix_is_a_store_of_its_own() {
    let server = Server::start();
    let with_prefix = |words: &[&str]| server.store(&[words, &["--prefix", "job/1"]].concat());
    server.store(&["set", "outside", "0"]).assert_prints("");
    with_prefix(&["set", "k", "1"]).assert_prints("");
    with_prefix(&["get", "k"]).assert_prints("1");
    with_prefix(&["keys"]).assert_prints("k\n");
    with_prefix(&["push", "q", "2"]).assert_prints("");
    with_prefix(&["len", "q"]).assert_prints("1\n");
    server.store(&["keys"]).assert_prints("job/1/k\noutside\n");
    server.store(&["get", "job/1/k"]).assert_prints("1");
}

#[test]
fn every_command_can_answer_with_one_json_object() {
    let server = Server::start();
    let table = [
        (&["set", "a", "1"][..], 0, json!({ "key": "a" })),
        (&["append", "a", "2"], 0, json!({ "key": "a" })),
        (&["get", "a"], 0, json!({ "key": "a", "value": "12" })),
        (&["add", "a", "-2"], 0, json!({ "key": "a", "value": 10 })),
        (
            &["compare-set", "a", "10", "b"],
            0,
            json!({ "key": "a", "value": "b", "written": true }),
        ),
        (
            &["compare-set", "a", "10", "c"],
            1,
            json!({ "key": "a", "value": "b", "written": false }),
        ),
        (&["check", "a"], 0, json!({ "keys": ["a"], "exist": true })),
        (
            &["check", "a", "none"],
            1,
            json!({ "keys": ["a", "none"], "exist": false }),
        ),
        (&["wait", "a"], 0, json!({ "keys": ["a"] })),
        (
            &["multi-set", "b", "1", "c", "2"],
            0,
            json!({ "keys": ["b", "c"] }),
        ),
        (
            &["multi-get", "b"],
            0,
            json!({ "values": [{ "key": "b", "value": "1" }] }),
        ),
        (&["delete", "c"], 0, json!({ "key": "c", "deleted": true })),
        (&["delete", "c"], 1, json!({ "key": "c", "deleted": false })),
        (&["keys"], 0, json!({ "keys": ["a", "b"] })),
        (&["count"], 0, json!({ "count": 2 })),
        (&["push", "q", "x"], 0, json!({ "key": "q" })),
        (&["len", "q"], 0, json!({ "key": "q", "length": 1 })),
        (&["pop", "q"], 0, json!({ "key": "q", "value": "x" })),
        (
            &["pop", "q", "--no-wait"],
            1,
            json!({ "key": "q", "value": null }),
        ),
        (
            &["barrier", "meet", "--world-size=1"],
            0,
            json!({ "key": "meet", "world_size": 1 }),
        ),
    ];
    for (words, code, expected) in table {
        let ended = server.store(&[words, &["--json"]].concat());
        let answer: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!((ended.code, answer), (Some(code), expected), "{words:?}");
        assert_eq!(ended.stdout_text().matches('\n').count(), 1);
    }
    let ended = server.store(&["ping", "--json"]);
    let answer: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(answer["round_trip_ms"].as_f64().unwrap() > 0.0);

    let words = server.arguments(&["set", "binary", "-"]);
    run_with_input(words, BINARY).assert_prints("");
    let ended = server.store(&["get", "binary", "--json"]);
    let answer: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(answer, json!({ "key": "binary", "base64": "AP8KDYAK" }));
    let failed = server.store(&["get", "none", "--json", "--timeout=0"]);
    failed.assert_fails(1, "none");
    assert_eq!(failed.stdout, b"");
}

#[test]
fn the_environment_names_the_server() {
    let server = Server::start();
    let mut get = command(["store", "add", "k"]);
    get.env("MASTER_ADDR", server.address.ip().to_string())
        .env("MASTER_PORT", server.address.port().to_string());
    Running::start(get).end().assert_prints("1\n");
}

#[test]
fn a_key_that_is_missing_until_the_timeout_has_exit_code_1() {
    let server = Server::start();
    server
        .store(&["get", "k", "--timeout=50ms"])
        .assert_fails(1, "get \"k\" at TCP store");
    server
        .store(&["get", "k", "--timeout=0"])
        .assert_fails(1, "timed out");
    server
        .store(&["wait", "k", "l", "--timeout=0.05s"])
        .assert_fails(1, "timed out");
    let start = Instant::now();
    server
        .store(&["pop", "k", "--timeout=100ms"])
        .assert_fails(1, "timed out");
    assert!(start.elapsed() >= Duration::from_millis(90));
}

#[test]
fn invalid_arguments_have_exit_code_2() {
    let server = Server::start();
    let long_key = "k".repeat(8192);
    server
        .store(&["set", &long_key, "v"])
        .assert_fails(2, "the limit is 8191");
    server
        .store(&["set", "k", "--file", "/no/such/file"])
        .assert_fails(2, "cannot read /no/such/file");
    run(["store", "get", "k"]).assert_fails(2, "no store given");
    for words in [
        &["get"][..],
        &["set", "k"],
        &["set", "k", "v", "--file", "f"],
        &["add", "k", "one"],
        &["wait"],
        &["multi-set"],
        &["barrier", "k"],
        &["barrier", "k", "--world-size=0"],
        &["get", "k", "--timeout=-1s"],
        &["get", "k", "--connect=nowhere"],
        &["no-such-command"],
    ] {
        let ended = run(["store"].iter().chain(words));
        assert_eq!(
            (ended.code, ended.stdout.as_slice()),
            (Some(2), &b""[..]),
            "{words:?}"
        );
    }
}

#[test]
fn a_missing_server_has_exit_code_3_after_the_timeout() {
    let (_held, address) = refusing_address();
    let words = [
        "store",
        "get",
        "k",
        "--timeout=300ms",
        "--connect",
        &address,
    ];
    let ended = run(words);
    ended.assert_fails(3, &format!("cannot connect to {address}"));
    assert!(ended.stderr.contains(" attempts in "), "{ended:?}");
}

#[test]
fn a_client_that_retries_to_connect_logs_until_when() {
    let (_held, address) = refusing_address();
    let words = ["store", "get", "k", "--connect", &address];
    // Killed at the end of the test, long before its timeout.
    let mut client = Running::start(command(words));
    let notice = client.line_of_stderr();
    for text in ["still connecting to", &address, "refused", "; trying for "] {
        assert!(notice.contains(text), "{text}: {notice}");
    }
}

#[test]
fn a_server_that_never_answers_has_exit_code_3() {
    // The system accepts the connection, and no process reads.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let start = Instant::now();
    let words = [
        "store",
        "get",
        "k",
        "--timeout=200ms",
        "--connect",
        &address,
    ];
    run(words).assert_fails(3, &address);
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_server_that_disconnects_has_exit_code_3() {
    let server = Server::start();
    let words = ["barrier", "b", "--world-size=2", "--timeout=1m"];
    let waiting = Running::start(command(server.arguments(&words)));
    until("the barrier has its first arrival", || {
        server.store(&["check", "b"]).code == Some(0)
    });
    server.running.signal(Signal::TERM);
    assert_eq!(server.end().code, Some(0));
    waiting
        .end()
        .assert_fails(3, "the connection to the server was lost");
}
