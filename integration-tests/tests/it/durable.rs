//! PyTorch ranks behind relays, whose store is killed and started again with its directory.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{Deadline, HostPort, Relay, RelayOptions};
use c10d_store::{Secret, StoreExt, TcpStore, TcpStoreOptions};
use integration_tests::launcher::c10d;
use integration_tests::process::ChildProcess;
use integration_tests::torch;
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(400);
const NODES: usize = 4;
const RANKS_PER_NODE: usize = 2;
const WORLD_SIZE: usize = NODES * RANKS_PER_NODE;
const KILLS: usize = 20;

/// Longer than Python starts and a group forms on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(120);

/// Starts the store on this port, 0 for any, with what is in the directory.
fn serve(folder: &Path, secret: &Path, port: u16) -> (ChildProcess, SocketAddr) {
    let mut command = Command::new(c10d());
    command
        .args(["store", "serve", "--host=127.0.0.1", "--end-with-parent"])
        .arg(format!("--port={port}"))
        .arg(format!("--dir={}", folder.display()))
        .arg(format!("--secret-file={}", secret.display()));
    let mut server = ChildProcess::start("c10d store serve", &mut command);
    let line = server.read_line();
    let address = line.strip_prefix("listening on ");
    let address = address.and_then(|address| address.parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address: {line} {}", server.stderr()));
    (server, address)
}

fn start_rank(rank: usize, relay: &Relay) -> ChildProcess {
    let port = relay.local_addrs()[0].port();
    torch::start_rank("durable_rank.py", rank, WORLD_SIZE, port)
}

/// Four nodes with two ranks each, that train with DDP. The losses are those of a run in which nothing was killed.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
#[expect(clippy::print_stderr, reason = "the seed repeats the kills")]
fn no_rank_notices_twenty_kills_of_the_store() {
    let _watchdog = Watchdog::start("no_rank_notices_twenty_kills_of_the_store", LIMIT);
    let seed = std::env::var("C10D_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    eprintln!("C10D_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let folder = tempfile::tempdir().expect("a folder");
    let secret = Secret::random().expect("random numbers");
    let secret_file = folder.path().join("secret");
    write_secret(&secret_file, &secret);
    let store_folder = folder.path().join("store");
    let (mut server, address) = serve(&store_folder, &secret_file, 0);
    let relays: Vec<Relay> = (0..NODES)
        .map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let options = RelayOptions::default().with_secret(secret.clone());
            let store = HostPort::new("127.0.0.1", address.port());
            let relay = Relay::start(store, vec![listener], options).expect("a relay");
            let soon = Deadline::after(Instant::now(), END_LIMIT);
            relay
                .wait_until_connected(soon, &c10d_socket::Cancel::NEVER)
                .expect("a session");
            relay
        })
        .collect();
    let mut ranks: Vec<ChildProcess> = (0..WORLD_SIZE)
        .map(|rank| start_rank(rank, &relays[rank / RANKS_PER_NODE]))
        .collect();

    // The first while Python starts and the group forms.
    for kill in 0..KILLS {
        thread::sleep(Duration::from_millis(random.u64(50..700)));
        server.kill();
        if kill % 5 == 4 {
            thread::sleep(Duration::from_millis(random.u64(..3000)));
        }
        server = serve(&store_folder, &secret_file, address.port()).0;
        if kill == KILLS / 4 {
            for rank in &mut ranks {
                rank.read_json();
            }
        }
    }
    let options = TcpStoreOptions::default().with_secret(secret);
    let store = TcpStore::open("127.0.0.1", address.port(), options).expect("a client");
    store.set("stop", b"1").expect("set");
    let mut steps = Vec::new();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let result = process.read_json();
        assert_eq!(result["same"], true, "rank {rank}: {result}");
        steps.push(result["steps"].as_u64().unwrap_or_default());
        let status = process.wait(END_LIMIT);
        assert!(status.success(), "rank {rank}: {}", process.stderr());
    }
    assert!(
        steps[0] > 0 && steps.iter().all(|it| *it == steps[0]),
        "{steps:?}"
    );
    drop(server);
}

fn write_secret(path: &Path, secret: &Secret) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(secret.to_text().as_bytes()));
    written.expect("a file");
}
