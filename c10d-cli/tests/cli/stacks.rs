//! `c10d stacks`, `c10d flight` and `c10d run --debug-server`, with scripted debug servers.

use std::ffi::OsStr;
#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
#[cfg(target_os = "linux")]
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::pages::Pages;
use crate::process::{Ended, PATIENCE, PROGRAM, Running, command, command_of, until};

fn c10d(words: &[&str], address: SocketAddr) -> Ended {
    let mut command = command(words);
    command.args(["--connect", &address.to_string()]);
    Running::start(command).end()
}

/// A debug server whose rank is at this line, in a collective with this number.
fn debug_server(line: u32, number: u64) -> Pages {
    let pages = Pages::start();
    let stacks = format!(
        "Thread 0x01 (most recent call first):\n  File \"train.py\", line {line} in step\n"
    );
    pages.set_text("/handler/dump_traceback", &stacks);
    let entry = json!({
        "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "retired": false,
        "profiling_name": "gloo:all_reduce", "input_sizes": [[8]], "input_dtypes": ["Float"],
        "time_created_ns": 1_000_000_000_u64,
    });
    pages.set("/handler/fr_trace_json", &json!({ "entries": [entry] }));
    pages
}

fn rank(number: usize, server: Option<SocketAddr>, is_suspect: bool) -> Value {
    json!({
        "rank": number, "host": "elsewhere", "is_suspect": is_suspect,
        "debug_url": server.map(|address| format!("http://{address}")),
    })
}

fn store(ranks: &[Value], nodes: &[Value]) -> Pages {
    let pages = Pages::start();
    let report = json!({ "headline": "Somebody waits.", "ranks": ranks, "nodes": nodes });
    pages.set("/why.json", &report);
    pages
}

#[test]
fn suspects_are_shown_beside_one_other_and_equal_stacks_once() {
    let servers = [debug_server(7, 2), debug_server(7, 2), debug_server(9, 1)];
    let ranks: Vec<Value> = (0..3)
        .map(|n| rank(n, Some(servers[n].address), n == 2))
        .collect();
    let store = store(&ranks, &[]);
    c10d(&["stacks"], store.address).assert_prints(
        "Somebody waits.\nThe suspected ranks are shown, and rank 0 for comparison.\n\n\
         Rank 0: train.py:7 in step\n  main thread, most recent call last:\n    train.py:7 in step\n\n\
         Rank 2: train.py:9 in step\n  main thread, most recent call last:\n    train.py:9 in step\n",
    );
    assert!(servers[1].asked().is_empty());
    let all = c10d(&["stacks", "--all", "--json"], store.address);
    let json: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!(json["groups"][0]["ranks"], json!([2]));
    assert_eq!(json["groups"][1]["ranks"], json!([0, 1]));
    assert_eq!(json["unanswered"], json!([]));
    c10d(&["stacks", "3"], store.address).assert_fails(2, "there is no rank 3");

    let flight = c10d(&["flight"], store.address);
    let text = flight.stdout_text();
    let first = "Rank 2 is behind: it has entered 1 collective of group 0 (default_pg), the other ranks 2 \
                 (all_reduce, [8] float, since ";
    assert!(text.starts_with(first), "{text}");
    assert_eq!((flight.code, flight.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_rank_that_does_not_answer_costs_two_seconds_and_hides_no_other() {
    let good = debug_server(7, 2);
    // Only the system accepts the connection, like for a stopped process.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hostile = Pages::start();
    let escape = "Thread 0x1 (most recent call first):\n  File \"\x1b[2J\", line 1 in \u{202e}f\n";
    hostile.set_text("/handler/dump_traceback", escape);
    let ranks = [
        rank(0, Some(good.address), false),
        rank(1, Some(silent.local_addr().unwrap()), false),
        rank(2, Some(hostile.address), false),
        rank(3, None, false),
    ];
    let store = store(&ranks, &[]);
    let started = Instant::now();
    let ended = c10d(&["stacks"], store.address);
    let took = started.elapsed();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(1), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    for part in [
        "\nRank 1 (on elsewhere): its debug server does not answer within 2s.\n",
        "\nRank 3 (on elsewhere): no launcher of c10d run reads its stacks, and it has no debug server.\n",
        "\nRank 0: train.py:7 in step\n",
        "\nRank 2: \\u{1b}[2J:1 in \\u{202e}f\n",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(
        !text.contains('\x1b') && !text.contains('\u{202e}'),
        "{text:?}"
    );
    assert!(
        took >= Duration::from_secs(2) && took < PATIENCE,
        "{took:?}"
    );

    let flight = c10d(&["flight"], store.address);
    assert_eq!(flight.code, Some(1), "{flight:?}");
    let text = flight.stdout_text();
    assert!(
        text.contains("rank 1: its debug server does not answer within 2s\n"),
        "{text}"
    );
    assert!(
        text.contains("rank 2: its debug server has no flight recorder (HTTP status 404)"),
        "{text}"
    );
    assert!(text.contains("rank 3: it has no debug server\n"), "{text}");
}

#[test]
fn the_launcher_of_another_node_answers_for_its_ranks() {
    let launcher = Pages::start();
    let frame = json!({ "file": "train.py\x1b", "line": 3, "function": "f" });
    let stacks = json!({ "threads": [{ "frames": [frame] }] });
    launcher.set("/stacks", &json!({ "rank": 5, "stacks": stacks }));
    launcher.set(
        "/flight",
        &json!({ "pg_status": { "0": { "last_enqueued_collective": "4" } } }),
    );
    let node = json!({ "ranks": [5, 6], "is_connected": true, "debug_address": launcher.address });
    let store = store(&[rank(5, None, true), rank(6, None, true)], &[node]);
    let ended = c10d(&["stacks"], store.address);
    let text = ended.stdout_text();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        text.contains("\nRank 5: train.py\\u{1b}:3 in f\n"),
        "{text}"
    );
    // The answer is that of rank 5.
    assert!(
        text.contains("Rank 6 (on elsewhere): its launcher at 127.0.0.1:"),
        "{text}"
    );
    assert!(text.contains("it answers for rank 5"), "{text}");
    assert!(launcher.asked().contains(&"/stacks?rank=6".to_owned()));
    c10d(&["flight"], store.address).assert_prints(
        "All ranks agree, and are in no collective\n\nrank 5: in no collective; has entered 4 of group 0\n\
         rank 6: in no collective; has entered 4 of group 0\n",
    );
}

/// Workers that run until the test ends, and the address of their store. Rank 1 is at another line, rank 2 a shell around
/// Python, and rank 3 no Python.
#[cfg(target_os = "linux")]
fn python_job(folder: &Path, options: &[&str]) -> (Running, SocketAddr) {
    const SCRIPT: &str = "\
import sys, time
def waits():
    open(sys.argv[2], 'w').close()
    time.sleep(600)
def differs():
    waits()
differs() if sys.argv[1] == '1' else waits()
";
    const WORKER: &str = "echo $MASTER_PORT > $1/port.part; mv $1/port.part $1/port
case $RANK in
    3) echo > $1/ready3; exec sleep 600;;
    2) python3 $1/train.py $RANK $1/ready$RANK; exit 1;;
    *) exec python3 $1/train.py $RANK $1/ready$RANK;;
esac";
    std::fs::write(folder.join("train.py"), SCRIPT).unwrap();
    let mut words = vec!["run", "--standalone", "--nproc-per-node=4", "--no-python"];
    words.extend(options);
    words.extend(["sh", "-c", WORKER, "sh", folder.to_str().unwrap()]);
    let running = Running::start(command(words));
    until("all workers run", || {
        (0..4).all(|rank| folder.join(format!("ready{rank}")).exists())
    });
    let port = std::fs::read_to_string(folder.join("port")).unwrap();
    let port = port.trim().parse().unwrap();
    (running, SocketAddr::from(([127, 0, 0, 1], port)))
}

#[test]
#[cfg(target_os = "linux")]
fn the_stacks_of_workers_are_read_without_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let (running, store) = python_job(folder.path(), &[]);
    let script = folder.path().join("train.py");
    let script = script.display();
    let rank_1 = format!(
        "\n\nRank 1: {script}:4 in waits\n  main thread, most recent call last:\n    {script}:7 in <module>\n    \
         {script}:6 in differs\n    {script}:4 in waits\n\nRanks 0 and 2: {script}:4 in waits\n"
    );
    let rank_3 = "its stacks cannot be read: the process is not a Python program. The process sleeps (state S";
    // A worker reaches its line some time after it reports it.
    until("the stacks are shown", || {
        let ended = c10d(&["stacks", "--all"], store);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let parts = [&*rank_1, rank_3, "It runs: sleep 600\n"];
        parts.iter().all(|it| ended.stdout_text().contains(it))
    });

    // The stacks of a stopped process can also be read.
    let why = c10d(&["why", "--json"], store);
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    let pid = why["ranks"][0]["pid"].as_u64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let ended = c10d(&["stacks", "0"], store);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout_text().contains(":4 in waits\n"), "{ended:?}");
    drop(running);
}

/// Preloaded workers are forked from a template, with the same interpreter.
#[test]
#[cfg(target_os = "linux")]
fn the_stacks_of_preloaded_workers_are_read() {
    const SCRIPT: &str = "\
import os, sys, time
def waits():
    path = os.path.join(sys.argv[1], 'ready' + os.environ['RANK'])
    with open(path + '.part', 'w') as file:
        file.write(os.environ['MASTER_PORT'])
    os.rename(path + '.part', path)
    time.sleep(600)
waits()
";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let mut command = command([
        "run",
        "--standalone",
        "--nproc-per-node=2",
        "--preload=json",
    ]);
    command.arg(&script).arg(folder.path());
    let _running = Running::start(command);
    let ready = [0, 1].map(|rank| folder.path().join(format!("ready{rank}")));
    until("both workers run", || {
        ready.iter().all(|path| path.exists())
    });
    let port = std::fs::read_to_string(&ready[0]).unwrap();
    let store = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let expected = format!("\nRanks 0 and 1: {}:7 in waits\n", script.display());
    until("the stacks are shown", || {
        let ended = c10d(&["stacks", "--all"], store);
        ended.code == Some(0) && ended.stdout_text().contains(&expected)
    });
}

/// Workers that change their user, as root may, and a launcher that may not read the memory of other users. Rank 1 has a
/// debug server.
#[test]
#[cfg(target_os = "linux")]
fn stacks_of_another_user_come_from_the_debug_server_or_have_a_cure() {
    const SCRIPT: &str = "\
import faulthandler, os, socket, sys, tempfile, time
rank = os.environ['RANK']
listener = socket.socket(socket.AF_UNIX)
if rank == '1':
    listener.bind(os.environ['C10D_DEBUG_SOCKET'])
    listener.listen()
with open(os.path.join(sys.argv[1], 'port'), 'w') as file:
    file.write(os.environ['MASTER_PORT'])
dump = tempfile.TemporaryFile()
os.setuid(65534)
open(os.path.join(sys.argv[1], 'ready' + rank), 'w').close()
while rank == '1':
    client, _ = listener.accept()
    # A connection that only checks for a listener sends nothing.
    if not client.recv(65536):
        continue
    dump.seek(0)
    faulthandler.dump_traceback(dump)
    dump.seek(0)
    body = dump.read()
    client.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(body) + body)
    client.close()
time.sleep(600)
";
    if !rustix::process::getuid().is_root() {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: this needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everyone).unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let without = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"];
    let mut command = command_of("setpriv", without);
    command.args([PROGRAM, "run", "--standalone", "--debug-server"]);
    command.args(["--nproc-per-node=2", "--no-python", "python3"]);
    let _running = Running::start({
        command.arg(&script).arg(folder.path());
        command
    });
    let ready = [0, 1].map(|rank| folder.path().join(format!("ready{rank}")));
    until("both workers run", || {
        ready.iter().all(|path| path.exists())
    });
    let port = std::fs::read_to_string(folder.path().join("port")).unwrap();
    let store = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let cure = "its stacks cannot be read: another user runs the process: start the launcher as that user, or as root \
                with the capability SYS_PTRACE";
    let line = SCRIPT
        .lines()
        .zip(1..)
        .find(|(text, _)| text.contains("dump_traceback"))
        .unwrap()
        .1;
    let position = format!("\nRank 1: {}:{line} in <module>\n", script.display());
    let mut text = String::new();
    until("both ranks are shown", || {
        c10d(&["stacks", "--all"], store)
            .stdout_text()
            .clone_into(&mut text);
        text.contains("\nRank 0") && text.contains("\nRank 1")
    });
    assert_eq!(text.matches(cure).count(), 1, "{text}");
    assert!(text.contains(&position), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn no_stacks_are_read_if_that_is_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, store) = python_job(folder.path(), &["--no-stacks"]);
    let expected = "no launcher of c10d run reads its stacks, and it has no debug server. The process sleeps (state S";
    until("the rank is announced", || {
        let ended = c10d(&["stacks", "1"], store);
        ended.code == Some(1) && ended.stdout_text().contains(expected)
    });
    let why = c10d(&["why", "--json"], store);
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    assert_eq!(why["nodes"][0]["debug_address"], Value::Null, "{why}");
}

#[test]
fn workers_find_a_debug_server_on_their_python_path_and_the_socket_of_their_own() {
    let script = "echo \"$PYTHONPATH $C10D_DEBUG_SOCKET\"; cat ${PYTHONPATH%%:*}/*.dist-info/entry_points.txt";
    let mut command = command([
        "run",
        "--debug-server",
        "--standalone",
        "--no-python",
        "sh",
        "-c",
        script,
    ]);
    command.env("PYTHONPATH", "/home/user/lib");
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut lines = ended.stdout_text().lines();
    let (path, socket) = lines.next().unwrap().split_once(' ').unwrap();
    let (own, users) = path.split_once(':').unwrap();
    assert_eq!(users, "/home/user/lib");
    let directory = Path::new(own).parent().unwrap();
    assert_eq!(Path::new(socket), directory.join("0-0"));
    assert_eq!(Path::new(own).file_name(), Some(OsStr::new("python")));
    assert_eq!(lines.next(), Some("[torch.backends]"));
    assert!(!directory.exists(), "{}", directory.display());
}
