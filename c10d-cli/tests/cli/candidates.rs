//! Servers of one store in etcd: one serves, another takes over. Needs etcd: `C10D_ETCD`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use c10d_store::{Store, StoreExt, TcpStore};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Running, Server, command, run};

/// One member.
struct Etcd {
    process: Child,
    client: String,
    _folder: TempDir,
}

impl Etcd {
    fn start() -> Self {
        let program = std::env::var("C10D_ETCD").expect("C10D_ETCD names the program etcd");
        let folder = tempfile::tempdir().unwrap();
        // etcd must be told the ports at which others find it.
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = sockets.map(|it| format!("{}", it.local_addr().unwrap()));
        let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
        let process = Command::new(program)
            .args([
                "--name",
                "m",
                "--log-level",
                "error",
                "--unsafe-no-fsync",
                "--data-dir",
            ])
            .arg(folder.path())
            .args([
                "--listen-client-urls",
                &client_url,
                "--advertise-client-urls",
                &client_url,
            ])
            .args([
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
            ])
            .args(["--initial-cluster", &format!("m={peer_url}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        Self {
            process,
            client,
            _folder: folder,
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Candidate {
    running: Running,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Candidate {
    fn start(etcd: &Etcd) -> Self {
        let members = format!("--etcd={}", etcd.client);
        let words = ["store", "serve", "--port=0", &members, "--etcd-prefix=job"];
        let mut running = Running::start(command(words));
        let mut stdout = BufReader::new(running.stdout());
        let address = line(&mut stdout, "standing by on ");
        Self {
            running,
            stdout,
            address,
        }
    }

    /// Waits until it serves.
    fn store(&mut self) -> TcpStore {
        assert_eq!(line(&mut self.stdout, "listening on "), self.address);
        let (host, port) = self.address.rsplit_once(':').unwrap();
        TcpStore::connect(host, port.parse().unwrap()).unwrap()
    }
}

/// The rest of the next line, which begins so.
fn line(stdout: &mut BufReader<ChildStdout>, start: &str) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let rest = line.trim_end().strip_prefix(start);
    rest.unwrap_or_else(|| panic!("the server wrote {line:?}"))
        .to_owned()
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn another_server_takes_over_what_the_first_has_answered() {
    let etcd = Etcd::start();
    let mut first = Candidate::start(&etcd);
    let store = first.store();
    assert_eq!(store.add("sum", 5).unwrap(), 5);
    let mut second = Candidate::start(&etcd);
    // SIGKILL.
    drop(first);

    let store = second.store();
    assert_eq!(store.add("sum", 2).unwrap(), 7);
    let mut third = Candidate::start(&etcd);
    second.running.signal(Signal::TERM);
    assert_eq!(second.running.end().code, Some(0));
    assert_eq!(third.store().add("sum", 1).unwrap(), 8);
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_server_that_was_stopped_answers_nothing_and_stands_by_again() {
    let etcd = Etcd::start();
    let mut first = Candidate::start(&etcd);
    let old = first.store();
    assert_eq!(old.add("sum", 5).unwrap(), 5);
    let mut second = Candidate::start(&etcd);
    first.running.signal(Signal::STOP);
    let new = second.store();
    assert_eq!(new.add("sum", 1).unwrap(), 6);
    first.running.signal(Signal::CONT);
    let answer = old.get("sum");
    assert!(answer.is_err(), "the first one still answers: {answer:?}");
    assert_eq!(line(&mut first.stdout, "standing by on "), first.address);
    // It takes over in its turn.
    drop(second);
    assert_eq!(first.store().add("sum", 1).unwrap(), 7);
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn clients_of_a_relay_do_not_notice_that_another_server_takes_over() {
    let etcd = Etcd::start();
    let place = format!("etcd://{}/job", etcd.client);
    let mut first = Candidate::start(&etcd);
    first.store();
    let mut second = Candidate::start(&etcd);
    let upstream = format!("--upstream={place}");
    let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", &upstream]);
    let client = TcpStore::connect("127.0.0.1", relay.address.port()).unwrap();
    assert_eq!(client.add("sum", 5).unwrap(), 5);
    drop(first);
    assert_eq!(client.add("sum", 2).unwrap(), 7);
    second.store();
    let connect = format!("--connect={place}");
    run(["store", "get", "sum", &connect]).assert_prints("7");
    // It stands by no more.
    second.running.signal(Signal::TERM);
    assert_eq!(second.running.end().code, Some(0));
    let nobody = run(["store", "get", "sum", &connect]);
    nobody.assert_fails(3, "no process serves the store");
}

#[test]
fn a_journal_in_etcd_needs_members_and_a_prefix() {
    for (words, text) in [
        (&["--etcd=127.0.0.1:1"][..], "--etcd-prefix"),
        (&["--etcd-prefix=job"], "--etcd"),
        (&["--etcd=a", "--etcd-prefix=job", "--dir=d"], "--dir"),
        (&["--etcd=a", "--etcd-prefix=a b"], "a space"),
    ] {
        let ended = run([&["store", "serve"], words].concat());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
}
