//! The interface of the previous release (`C10D_BEFORE`) for scripts and monitors still exists: options, JSON, metrics.
//! Its launchers also form a job with ours. docs/reference/compatibility.md has the promises.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use c10d_store::{Store, StoreExt, TcpStore};
use rustix::process::Signal;
use serde_json::Value;

use crate::process::{PATIENCE, PROGRAM, Running, Server, command_of, free_port, until};
use crate::run::Job;
use crate::run_keep::{MEMBER, assert_kept, generation_in, kill};
use crate::upgrade::before;

/// The table of intentionally removed commands and options. The loss of any other name is a defect.
const REMOVED: &str = include_str!("removed.txt");

/// Returns the names of the old command that the new command lacks.
fn missing(name_all: impl Fn(&str) -> BTreeSet<String>) -> BTreeSet<String> {
    let (old, new) = (name_all(&before()), name_all(PROGRAM));
    assert!(old.len() > 20, "{old:?}");
    old.difference(&new).cloned().collect()
}

/// Returns the names in the table of removed commands and options.
fn removed() -> BTreeSet<String> {
    let names = REMOVED.lines().filter(|line| !line.starts_with('#'));
    names
        .map(|line| line.split("  ").next().unwrap_or(line).trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Each option as `c10d-store-get.1 --connect`, from the manual pages.
fn options(program: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let man = ["man", "--out-dir", folder.path().to_str().unwrap()];
    assert_eq!(Running::start(command_of(program, man)).end().code, Some(0));
    let mut options = BTreeSet::new();
    for page in fs::read_dir(folder.path()).unwrap() {
        let page = page.unwrap();
        let name = page.file_name().into_string().unwrap();
        let text = fs::read_to_string(page.path()).unwrap();
        options.insert(name.clone());
        // The heading of an option has its names, for example `\fB\-r\fR, \fB\-\-redirects\fR \fI<SPEC>\fR`.
        let headings = text.lines().filter(|line| line.starts_with(r"\fB\-"));
        for word in headings.flat_map(|line| line.split([' ', ','])) {
            let word = word.replace(r"\fB", "").replace(r"\fR", "");
            if word.starts_with(r"\-") {
                options.insert(format!("{name} {}", word.replace('\\', "")));
            }
        }
    }
    options
}

#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn options_of_the_release_before_exist() {
    let (missing, removed) = (missing(options), removed());
    let unexpected: Vec<_> = missing.difference(&removed).collect();
    assert!(unexpected.is_empty(), "removed: {unexpected:#?}");
    let present: Vec<_> = removed.difference(&missing).collect();
    assert!(present.is_empty(), "listed as removed: {present:#?}");
}

/// Collects the paths of all fields, such as `why findings[].kind`.
fn add_fields(at: &str, value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{at}.{name}");
                add_fields(&path, value, fields);
                fields.insert(path);
            }
        }
        Value::Array(array) => {
            for value in array {
                add_fields(&format!("{at}[]"), value, fields);
            }
        }
        _ => {}
    }
}

/// Returns metrics and their types, such as `# TYPE c10d_store_keys gauge`. The previous release has only this format.
fn metrics_at(store: SocketAddr) -> Vec<String> {
    let mut connection = TcpStream::connect(store).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection
        .write_all(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\
              Connection: close\r\n\r\n",
        )
        .unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    let types = text.lines().filter(|line| line.starts_with("# TYPE "));
    types.map(str::to_owned).collect()
}

fn fields_and_metrics(program: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let serve = ["store", "serve", "--port=0", "--world-size=2"];
    let server = Server::start_command(command_of(program, serve));
    let address = server.address.to_string();
    let wait = ["store", "wait", "missing", "--connect", &address];
    let waiting = Running::start(command_of(program, wait));
    let json_of = |words: &[&str]| -> Value {
        let words = [words, &["--json", "--connect", &address]].concat();
        let ended = Running::start(command_of(program, words)).end();
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    };
    until("the wait is known", || {
        json_of(&["store", "clients"])
            .to_string()
            .contains("missing")
    });
    for words in [&["store", "clients"][..], &["store", "stats"], &["why"]] {
        add_fields(&words.join(" "), &json_of(words), &mut names);
    }

    names.extend(metrics_at(server.address));
    drop(waiting);

    let run = "run --standalone --nproc-per-node=1 --no-python /bin/sh -c".split(' ');
    let words = run.chain(["echo $MASTER_PORT; exec sleep 60"]);
    let mut launcher = Running::start(command_of(program, words));
    let mut port = String::new();
    BufReader::new(launcher.stdout())
        .read_line(&mut port)
        .unwrap();
    let of_launcher = ([127, 0, 0, 1], port.trim().parse().unwrap());
    names.extend(metrics_at(of_launcher.into()));
    drop(launcher);

    let events = tempfile::NamedTempFile::new().unwrap();
    let log = format!("--events={}", events.path().display());
    // One restart, then the end of the job.
    let run = "run --standalone --nproc-per-node=2 --max-restarts=1 --json --no-python".split(' ');
    let words = run.chain([&*log, "/bin/sh", "-c", "exit 7"]);
    let ended = Running::start(command_of(program, words)).end();
    let outcome = ended.stdout_text().lines().last().unwrap_or_default();
    add_fields("run", &serde_json::from_str(outcome).unwrap(), &mut names);
    for line in fs::read_to_string(events.path()).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let kind = event["event"].as_str().or(event["name"].as_str());
        add_fields(kind.unwrap_or_default(), &event, &mut names);
    }
    names
}

#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn fields_and_metrics_of_the_release_before_exist() {
    let missing = missing(fields_and_metrics);
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn exit_codes_of_the_release_before_are_kept() {
    let server = Server::start();
    let address = server.address.to_string();
    server.store(&["set", "key", "value"]).assert_prints("");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let worker = |script| {
        let words = "run --standalone --nproc-per-node=2 --no-python /bin/sh -c".split(' ');
        words.chain([script]).collect::<Vec<_>>()
    };
    let to =
        |address, words: &[&'static str]| [words, &["--timeout=2s", "--connect", address]].concat();
    let cases = [
        (0, to(&address, &["store", "get", "key"])),
        (1, to(&address, &["store", "get", "missing"])),
        (
            1,
            to(&address, &["store", "compare-set", "key", "other", "new"]),
        ),
        (2, to(&address, &["store", "add", "key", "1x"])),
        (2, vec!["store", "gett"]),
        // Its value is not a number.
        (2, to(&address, &["store", "add", "key", "1"])),
        (3, to(&closed, &["store", "get", "key"])),
        (3, to(&closed, &["why"])),
        (0, worker("exit 0")),
        (1, worker("exit 7")),
        (2, vec!["run", "--nproc-per-node=x", "script"]),
    ];
    for (code, words) in cases {
        for program in [&*before(), PROGRAM] {
            let ended = Running::start(command_of(program, &words)).end();
            assert_eq!(ended.code, Some(code), "{program} {words:?}: {ended:?}");
        }
    }
}

/// Fails in the first round, once all have begun, and prints its rank in the second. The argument is a file.
const FAILS_ONCE: &str = "
    test $WORLD_SIZE = 4 || exit 8
    if test -e $0; then echo rank $RANK; exit 0; fi
    touch $0.$RANK
    test $RANK = 3 || exec sleep 60
    until test -e $0.0 && test -e $0.1 && test -e $0.2; do sleep 0.1; done
    touch $0
    exit 9";

/// Two nodes of two releases, whichever serves the rendezvous and whichever asks first, through a restart.
#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn launchers_of_two_releases_form_one_job() {
    let (old, new) = (&*before(), PROGRAM);
    for (host, first, second) in [
        (old, old, new),
        (old, new, old),
        (new, old, new),
        (new, new, old),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let failed = folder.path().join("failed");
        let server = Server::start_command(command_of(host, ["store", "serve", "--port=0"]));
        let endpoint = format!("--rdzv-endpoint={}", server.address);
        let start = |program| {
            let options = "--nproc-per-node=2 --rdzv-backend=c10d --rdzv-conf=is_host=0 --max-restarts=1 --no-python";
            let words = ["run", "--nnodes=2", "--rdzv-id=job", &endpoint]
                .into_iter()
                .chain(options.split(' '))
                .chain(["/bin/sh", "-c", FAILS_ONCE, failed.to_str().unwrap()]);
            Running::start(command_of(program, words))
        };
        let one = start(first);
        let store = TcpStore::connect("127.0.0.1", server.address.port()).unwrap();
        store.wait(&["torch.rendezvous.job"]).unwrap();
        let nodes = [one, start(second)].map(Running::end);
        let mut ranks = BTreeSet::new();
        for node in &nodes {
            assert_eq!(node.code, Some(0), "{nodes:#?}");
            ranks.extend(node.stdout_text().lines().map(str::to_owned));
        }
        let expected = [0, 1, 2, 3].map(|rank| format!("rank {rank}"));
        assert_eq!(ranks, BTreeSet::from(expected), "{nodes:#?}");
    }
}

/// Both with --keep-workers, which this release switches off beside the release before.
#[test]
#[ignore = "needs the release before (C10D_BEFORE)"]
fn workers_of_two_releases_are_one_group() {
    let (old, new) = (&*before(), PROGRAM);
    for (programs, is_static) in [
        ([old, new], true),
        ([new, old], true),
        ([old, new], false),
        ([new, old], false),
    ] {
        let job = Job::with_server();
        let port = free_port();
        let start = |rank: usize, script| {
            let node = match is_static {
                true => format!("--master-addr=127.0.0.1 --master-port={port} --node-rank={rank}"),
                false => {
                    let endpoint = job.server().address;
                    format!(
                        "--rdzv-backend=c10d --rdzv-id=job --rdzv-conf=is_host=0 --rdzv-endpoint={endpoint}"
                    )
                }
            };
            let common = "--keep-workers --nnodes=2 --nproc-per-node=2 --max-restarts=3";
            let options: Vec<&str> = common.split(' ').chain(node.split(' ')).collect();
            let mut command = job.command_of(programs[rank], &options, script);
            command.env("MEMBER", std::env::current_exe().unwrap());
            Running::start(command)
        };
        let [first, mut second] = [0, 1].map(|rank| start(rank, MEMBER));
        let mut members = generation_in(&job, 4, &[]);
        if is_static {
            // The release before keeps the other workers of its node.
            let old_rank = if programs[0] == old { 0 } else { 2 };
            let dead = members.remove(&old_rank).unwrap();
            kill(dead);
            assert_kept(&members, &generation_in(&job, 4, &[dead]));
        }
        if is_static && programs[1] == new {
            // It does not count twice when it is started again, as the first process of a container.
            second.signal(Signal::KILL);
            second.end();
            let store = TcpStore::connect("127.0.0.1", port).unwrap();
            assert!(store.delete_key("none/c10d/static/1").unwrap());
            second = start(1, "exit 0");
        }
        fs::write(job.path("finish"), "").unwrap();
        let ended = [first, second].map(Running::end);
        for (program, ended) in programs.iter().zip(&ended) {
            assert_eq!(ended.code, Some(0), "{programs:?}: {ended:?}");
            let is_off = ended.stderr.contains("--keep-workers is off in this round");
            assert_eq!(is_off, *program == new, "{programs:?}: {ended:?}");
        }
    }
}
