//! `c10d run`: why a job makes no progress, reported while it hangs and when a worker fails.
//!
//! The workers are shells that send the requests of a rank in a gloo group over one connection, as PyTorch does.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Running, Server, command, until};

/// The keys with the addresses of ranks, like on the wire.
const KEYS: [&str; 2] = ["/default_pg/0//cpu//0/0", "/default_pg/0//cpu//0/1"];

/// Rank 0 publishes its address and waits for that of rank 1, in a child of the worker. Rank 1 waits for the file
/// `go`, connects and publishes its address. The launcher makes `$$` of `$$$$`.
pub(crate) const WAITS_FOR_RANK_1: &str = r#"
    [ $RANK = 0 ] || { echo $$$$ > $DIR/pid; until [ -e $DIR/go ]; do sleep 0.5; done; }
    bash -c '
        exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
        {
            printf "\\x00\\xce\\xf7\\x85\\x3c\\x0d"
            for shift in 0 8 16 24; do printf "\\x$(printf %02x $(($$$$ >> shift & 255)))"; done
            cat $DIR/publish$RANK
            [ $RANK = 1 ] || cat $DIR/wait1
        } >&3
        answers() { dd bs=1 count=$1 <&3 2>/dev/null | wc -c; }
        # The nonce.
        [ $(answers 4) = 4 ] || exit 2
        [ $RANK = 1 ] && exit 0
        export -f answers
        [ "$(timeout ${TIMEOUT:-60} bash -c "answers 1")" = 1 ] && exec $C10D store keys > $DIR/keys
        printf "\\x0c" >&3
        echo timed out >&2
        exit 1
    '"#;

/// SET of a rank's address in a group of two, in gloo's form.
fn publish(rank: usize) -> Vec<u8> {
    let mut value = word(2);
    value.extend_from_slice(b"vm");
    value.extend(word(136));
    // The family AF_INET, a port, 127.0.0.1.
    let mut address = vec![2, 0, 0x90, rank as u8, 127, 0, 0, 1];
    address.resize(128, 0);
    value.extend(address);
    value.extend([0xff; 8]);
    value.extend([word(0), word(1)].concat());
    let key = KEYS[rank].as_bytes();
    [&[1][..], &word(key.len()), key, &word(value.len()), &value].concat()
}

/// WAIT for one key.
fn wait(key: &str) -> Vec<u8> {
    [&[6][..], &word(1), &word(key.len()), key.as_bytes()].concat()
}

fn word(number: usize) -> Vec<u8> {
    (0..8).map(|at| (number >> (8 * at)) as u8).collect()
}

/// The folder of a job.
pub(crate) struct Job {
    folder: TempDir,
}

impl Job {
    pub(crate) fn new() -> Self {
        let job = Self {
            folder: TempDir::new().unwrap(),
        };
        for rank in 0..2 {
            fs::write(job.path(&format!("publish{rank}")), publish(rank)).unwrap();
        }
        fs::write(job.path("wait1"), wait(KEYS[1])).unwrap();
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets rank 1 continue.
    pub(crate) fn go(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A launcher whose log is in the file `log`.
    pub(crate) fn command(&self, arguments: &[&str], script: &str, log: &str) -> Command {
        let program = ["--no-python", "sh", "-c", script];
        let mut command = command([&["run"], arguments, &program].concat());
        command
            .env("C10D", env!("CARGO_BIN_EXE_c10d"))
            .env("DIR", self.folder.path())
            .env("OMP_NUM_THREADS", "1")
            .env_remove("TORCHELASTIC_ERROR_FILE")
            .stderr(File::create(self.path(log)).unwrap());
        command
    }

    #[track_caller]
    fn until_log_has(&self, log: &str, text: &str) {
        until(text, || self.text(log).contains(text));
    }
}

#[test]
fn a_standstill_is_explained_with_the_missing_rank_and_its_process() {
    let job = Job::new();
    let options = ["--nproc-per-node=2", "--explain-after=500ms"];
    let running = Running::start(job.command(&options, WAITS_FOR_RANK_1, "log"));
    job.until_log_has("log", "c10d run: the job has made no progress for ");
    job.until_log_has("log", " s\nWaiting for rank 1 ");
    job.until_log_has("log", "Suspects:\n  rank 1 on ");
    let log = job.text("log");
    let pid = job.text("pid");
    let pid = pid.trim_end();
    assert!(log.contains(&format!("pid {pid}")), "{pid}: {log}");
    job.go();
    assert_eq!(running.end().code, Some(0));
    // Announcements are no keys.
    let keys = KEYS.map(|key| format!("{}\n", &key[1..]));
    assert_eq!(job.text("keys"), keys.concat());
}

/// Rank 0 only times out; rank 1 never comes.
#[test]
fn the_rank_that_others_waited_for_is_the_root_cause() {
    let job = Job::new();
    // A launcher on a busy machine may have no report in time when the worker fails, so it needs one of shortly before.
    let options = [
        "--nproc-per-node=2",
        "--json",
        "--redirects=2",
        "--explain-after=1s",
    ];
    let mut command = job.command(&options, WAITS_FOR_RANK_1, "log");
    command
        .env("TIMEOUT", "4")
        .env("TORCHELASTIC_ERROR_FILE", job.path("error.json"));
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let log = job.text("log");
    let (before, report) = log.split_once("Root Cause (").unwrap();
    assert!(before.contains("When the first worker failed: "), "{log}");
    for text in [
        "the first observed failure is of rank 0):\n",
        "rank      : 1 (local_rank: 1)",
        "cause     : alive, but never reached init_process_group",
    ] {
        assert!(report.contains(text), "no {text:?} in {log}");
    }
    assert!(
        before.contains("timed out"),
        "the first error is still shown: {log}"
    );

    let last = ended.stdout_text().lines().last().unwrap();
    let json: Value = serde_json::from_str(last).unwrap();
    let root = json["failures"].as_array().unwrap().iter();
    let root: Vec<&Value> = root
        .filter(|failure| failure["is_root_cause"] == true)
        .collect();
    assert_eq!(root.len(), 1, "{json}");
    assert_eq!(
        (&root[0]["rank"], &root[0]["signal"]),
        (&1.into(), &"SIGTERM".into())
    );
    assert_eq!(
        root[0]["cause"],
        "alive, but never reached init_process_group"
    );
    assert!(
        json["why"]["headline"].as_str().unwrap().contains("rank 1"),
        "{json}"
    );

    let left: Value = serde_json::from_str(&job.text("error.json")).unwrap();
    let message = left["message"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("worker with rank 1 is the root cause: alive"),
        "{message}"
    );
    assert_eq!(left["message"]["errorCode"], 1);
}

/// The launcher of rank 1 does not host the workers' store, so it sends its request to the other launcher.
#[test]
fn a_launcher_on_another_node_explains_too() {
    let job = Job::new();
    let server = Server::start();
    let endpoint = format!("--rdzv-endpoint={}", server.address);
    let options = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--local-addr=127.0.0.1",
        "--explain-after=1s",
        &endpoint,
    ];
    let logs = ["first", "second"];
    let nodes = logs.map(|log| Running::start(job.command(&options, WAITS_FOR_RANK_1, log)));
    for log in logs {
        job.until_log_has(log, " s\nWaiting for rank 1 ");
    }
    job.go();
    assert_eq!(nodes.map(|node| node.end().code), [Some(0); 2]);
}

/// Answers as PyTorch's debug server of a rank that is in the collective with this number.
fn serve_recorder(stream: UnixStream, entered: u64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    let entry = json!({
        "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": entered, "retired": false,
        "profiling_name": "gloo:all_reduce", "time_created_ns": 1_000_000_000_u64,
    });
    let body = json!({ "entries": [entry] }).to_string();
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    reader.into_inner().write_all((head + &body).as_bytes())
}

/// Two workers send no requests to the store. Their debug servers report that one of them skips a collective.
#[test]
fn a_skipped_collective_is_explained_where_debug_servers_run() {
    let job = Job::new();
    let options = [
        "--nproc-per-node=2",
        "--debug-server",
        "--explain-after=2s",
        "--standalone",
    ];
    let script =
        "echo $C10D_DEBUG_SOCKET > $DIR/socket$RANK; until [ -e $DIR/go ]; do sleep 0.01; done";
    let running = Running::start(job.command(&options, script, "log"));
    let entered = [4, 3].map(|number| Arc::new(AtomicU64::new(number)));
    for (rank, entered) in entered.iter().enumerate() {
        let name = format!("socket{rank}");
        until("a worker runs", || job.text(&name).ends_with('\n'));
        let listener = UnixListener::bind(job.text(&name).trim_end()).unwrap();
        let entered = Arc::clone(entered);
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A launcher that ends closes its connection.
                let _ = serve_recorder(stream.unwrap(), entered.load(Ordering::SeqCst));
            }
        });
    }
    job.until_log_has(
        "log",
        "c10d run: the job has made no progress in its collectives for ",
    );
    job.until_log_has(
        "log",
        "\nRank 1 is behind: it has entered 3 collectives of group 0",
    );
    job.until_log_has(
        "log",
        "\n  all ranks: c10d flight; where they are: c10d stacks 1\n",
    );
    for entered in &entered {
        entered.store(5, Ordering::SeqCst);
    }
    job.until_log_has("log", "c10d run: the job continues: ");
    job.go();
    assert_eq!(running.end().code, Some(0));
}
