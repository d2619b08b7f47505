//! `c10d store watch`, `clients` and `stats`, and the commands that explain a job, on a real server.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::ChildStdout;

use serde_json::Value;

use crate::gloo::rank_that_waits;
use crate::process::{Ended, Running, Server, command, run, run_with_input, until};

/// Lines of a command that runs until it is killed.
struct Lines {
    _running: Running,
    stdout: BufReader<ChildStdout>,
}

impl Lines {
    fn of(server: &Server, words: &[&str]) -> Self {
        let mut running = Running::start(command(server.arguments(words)));
        let stdout = BufReader::new(running.stdout());
        Self {
            _running: running,
            stdout,
        }
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.pop(), Some('\n'), "the command ended");
        line
    }

    /// The next line without the time at its start.
    fn next_change(&mut self) -> String {
        let line = self.next();
        let (time, change) = line.split_once("  ").unwrap();
        assert_eq!(
            (time.len(), &time[10..11], &time[23..]),
            (24, "T", "Z"),
            "{line}"
        );
        change.to_owned()
    }
}

#[test]
fn each_change_of_a_key_is_a_line() {
    let server = Server::start();
    server.store(&["set", "k", "one"]).assert_prints("");
    let mut watch = Lines::of(&server, &["watch", "k"]);
    assert_eq!(watch.next_change(), "k  3 B  \"one\"");
    let words = server.arguments(&["set", "k", "-"]);
    run_with_input(words, b"\x1b[2J\xff").assert_prints("");
    assert_eq!(watch.next_change(), "k  5 B  \"\\u{1b}[2J\\xff\"");
    server
        .store(&["set", "k", &"x".repeat(1000)])
        .assert_prints("");
    assert_eq!(
        watch.next_change(),
        format!("k  1000 B  \"{}\" (+920 B)", "x".repeat(80))
    );
}

#[test]
fn a_watch_waits_for_a_key_and_prints_json() {
    let server = Server::start();
    let mut watch = Lines::of(&server, &["watch", "k", "--json", "--prefix", "p"]);
    server.store(&["set", "p/k", "v\u{9b}"]).assert_prints("");
    let line = watch.next();
    assert!(!line.contains('\u{9b}'), "{line:?}");
    let change: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(change["key"], "k");
    assert_eq!(change["value"], "v\u{9b}");
    assert_eq!(change["length"], 3);
}

/// Changes are found by the number of each value with status pages, and by the values themselves
/// without them, like on PyTorch's servers.
#[test]
fn changes_of_all_keys_with_a_prefix_are_lines_without_values() {
    for option in [&[][..], &["--no-status"]] {
        let words = [&["store", "serve", "--port=0"], option].concat();
        let server = Server::start_with(words);
        server.store(&["set", "job/a", "secret"]).assert_prints("");
        server.store(&["set", "other", "v"]).assert_prints("");
        let mut watch = Lines::of(&server, &["watch", "--prefix", "job"]);
        assert_eq!(watch.next_change(), "job/a  6 B");
        server.store(&["set", "job/\u{1b}b", "v"]).assert_prints("");
        assert_eq!(watch.next_change(), "job/\\u{1b}b  1 B");
        server.store(&["set", "job/a", "SECRET"]).assert_prints("");
        assert_eq!(watch.next_change(), "job/a  6 B");
        server.store(&["delete", "job/a"]).assert_prints("");
        assert_eq!(watch.next_change(), "job/a  deleted");
    }
}

#[test]
fn a_watch_ends_with_its_server() {
    let server = Server::start();
    server.store(&["set", "job/a", "v"]).assert_prints("");
    for words in [&["watch", "job/a"][..], &["watch", "--prefix=job"]] {
        let second = Server::start();
        second.store(&["set", "job/a", "v"]).assert_prints("");
        let mut running = Running::start(command(second.arguments(words)));
        let mut line = String::new();
        BufReader::new(running.stdout())
            .read_line(&mut line)
            .unwrap();
        drop(second);
        assert_eq!(running.end().code, Some(3), "{words:?}");
    }
    server.store(&["watch"]).assert_usage("KEY|--prefix PREFIX");
}

impl Ended {
    #[track_caller]
    fn assert_usage(&self, text: &str) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(self.stderr.contains(text), "{self:?}");
    }
}

/// Ranks 0, 1 and 3 of 4, which wait for rank 2.
fn without_rank_2(server: &Server) -> Vec<TcpStream> {
    [0, 1, 3]
        .map(|rank| rank_that_waits(server, rank, 4, 2))
        .into()
}

fn why(server: &Server, words: &[&str]) -> Ended {
    let address = server.address.to_string();
    run([&["why", "--connect", &address], words].concat())
}

#[test]
fn why_names_the_missing_rank_of_a_real_server() {
    let server = Server::start();
    let ended = why(&server, &[]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );

    let ranks = without_rank_2(&server);
    let mut stuck = None;
    until("the wait is old enough to be a problem", || {
        let ended = why(&server, &[]);
        assert!(matches!(ended.code, Some(0 | 4)), "{ended:?}");
        stuck = Some(ended).filter(|ended| ended.code == Some(4));
        stuck.is_some()
    });
    let stuck = stuck.unwrap();
    let first = stuck.stdout_text().lines().next().unwrap();
    assert!(first.contains("rank 2"), "{first}");
    for innocent in ["rank 0", "rank 1", "rank 3"] {
        assert!(!first.contains(innocent), "{first}");
    }
    let json = why(&server, &["--json"]);
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json.code, Some(4));
    let suspects = report["ranks"].as_array().unwrap().iter();
    let suspects: Vec<&Value> = suspects.filter(|rank| rank["is_suspect"] == true).collect();
    assert_eq!(suspects.len(), 1, "{report:#}");
    assert_eq!(suspects[0]["rank"], 2);
    drop(ranks);
}

#[test]
fn clients_are_listed_with_their_rank_and_what_they_wait_for() {
    let server = Server::start();
    let _ranks = without_rank_2(&server);
    let _get = Running::start(command(server.arguments(&["get", "none", "--timeout=1m"])));
    let mut text = String::new();
    until("all four connections wait", || {
        let ended = server.store(&["clients"]);
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{ended:?}"
        );
        text = ended.stdout_text().to_owned();
        text.matches(" for ").count() == 4
    });
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("PEER "), "{text}");
    for (line, rank) in lines[1..].iter().zip([0, 1, 3]) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words[0].starts_with("127.0.0.1:"), "{line}");
        let pid = (4000 + rank).to_string();
        assert_eq!(words[1..3], [pid, rank.to_string()], "{line}");
        assert!(line.contains("WAIT /default_pg/0//cpu//0/2, "), "{line}");
    }
    assert!(lines[4].contains(" /none for "), "{text}");

    let ended = server.store(&["clients", "--json"]);
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let clients = json["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 4, "{json}");
    assert_eq!(
        (&clients[2]["rank"], &clients[2]["pid"]),
        (&3.into(), &4003.into())
    );

    server.store(&["count"]).assert_prints("4\n");
    until("a connection that has closed is listed", || {
        let closed = server.store(&["clients", "--closed"]);
        closed.stdout_text().contains("closed (peer)")
    });
}

#[test]
fn stats_are_totals_or_rates() {
    let server = Server::start();
    for value in ["1", "2", "3"] {
        server.store(&["set", "k", value]).assert_prints("");
    }
    let ended = server.store(&["stats"]);
    let text = ended.stdout_text();
    let number = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(
        (number("keys"), number("  SET"), number("waits ")),
        (1, 3, 0),
        "{text}"
    );
    let json: Value = serde_json::from_slice(&server.store(&["stats", "--json"]).stdout).unwrap();
    assert_eq!(json["keys"], 1);

    let mut lines = Lines::of(&server, &["stats", "--interval=100ms"]);
    let heading = lines.next();
    let line = lines.next();
    assert_eq!(heading.split_whitespace().next(), Some("TIME"));
    assert_eq!(line.split_whitespace().nth(3), Some("1"), "keys: {line}");
    let mut lines = Lines::of(&server, &["stats", "--interval=100ms", "--json"]);
    for _ in 0..2 {
        let json: Value = serde_json::from_str(&lines.next()).unwrap();
        assert_eq!(json["rates"]["requests"], 0.0, "{json}");
    }
    server
        .store(&["stats", "--interval=1ms"])
        .assert_usage("at least 100ms");
}

#[test]
fn a_server_without_status_pages_has_no_clients_and_stats() {
    let server = Server::start_with(["store", "serve", "--port=0", "--no-status"]);
    for word in ["clients", "stats"] {
        server
            .store(&[word])
            .assert_fails(3, "it runs with --no-status");
    }
}
