//! Clients of each kind that open a store in etcd, or keep using it, while another server takes over. Needs etcd: `C10D_ETCD`.

use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_journal::{EtcdDirectory, EtcdOptions};
use c10d_store::{Lookup, Store, StoreAddress, StoreExt, TcpStore, TcpStoreOptions};
use rustix::process::Signal;

use crate::candidates::Candidate;
use crate::etcd::Etcd;
use crate::process::{Running, Server, command, run, until};

/// When the server that leads is killed or stopped; openers begin before and after.
const FAULT_AT: Duration = Duration::from_millis(300);
const BEGINS_MAX: Duration = Duration::from_millis(3000);

/// When openers begin that find a stopped server still listed, until its lease of 2 s ends.
const AFFECTED: Range<Duration> = FAULT_AT..Duration::from_millis(2000);

/// Launchers remove keys with other names from the store, which their workers use.
const KEY: &str = "torch.rendezvous.test/k";
const SUM: &str = "torch.rendezvous.test/n";
const BEAT: &str = "torch.rendezvous.test/beat";
const LOCK: &str = "torch.rendezvous.test/lock";
const MANY: &str = "torch.rendezvous.test/of/";

/// A kind of client that opens the store.
#[derive(Debug, Clone, Copy)]
enum Opener {
    Get,
    Add,
    Stats,
    Clients,
    Why,
    Library,
    Relay,
    Launcher,
}

const OPENERS: [Opener; 8] = [
    Opener::Get,
    Opener::Add,
    Opener::Stats,
    Opener::Clients,
    Opener::Why,
    Opener::Library,
    Opener::Relay,
    Opener::Launcher,
];

impl Opener {
    /// Opens the store at `place`, and uses it. Returns what went wrong.
    fn open(self, place: &str, limit: Duration) -> Result<(), String> {
        let connect = format!("--connect={place}");
        let timeout = format!("--timeout={}s", limit.as_secs());
        let succeeds = |words: &[&str]| {
            let ended = run([words, &[&connect, &timeout]].concat());
            let is_well = ended.code == Some(0);
            is_well.then_some(()).ok_or(ended.stderr)
        };
        match self {
            Self::Get => succeeds(&["store", "get", KEY]),
            Self::Add => succeeds(&["store", "add", SUM]),
            Self::Stats => succeeds(&["store", "stats"]),
            Self::Clients => succeeds(&["store", "clients"]),
            Self::Why => succeeds(&["why"]),
            Self::Library => {
                let store = TcpStore::open_at(
                    &address_of(place),
                    TcpStoreOptions::default().with_timeout(limit),
                );
                value_of(store).map(drop)
            }
            Self::Relay => {
                let upstream = format!("--upstream={place}");
                let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", &upstream]);
                let options = TcpStoreOptions::default().with_timeout(limit);
                value_of(TcpStore::open("127.0.0.1", relay.address.port(), options)).map(drop)
            }
            Self::Launcher => {
                let endpoint = format!("--rdzv-endpoint={place}");
                let id = format!("--rdzv-id={:016x}", fastrand::u64(..));
                let words = [
                    "run",
                    "--nnodes=1",
                    "--nproc-per-node=1",
                    "--store-candidates=0",
                    "--no-python",
                    &endpoint,
                    &id,
                    "true",
                ];
                let ended = run(words);
                let is_well = ended.code == Some(0);
                is_well.then_some(()).ok_or(ended.stderr)
            }
        }
    }
}

fn address_of(place: &str) -> StoreAddress {
    let options: EtcdOptions = place.parse().unwrap();
    StoreAddress::LookedUp(Arc::new(EtcdDirectory::new(options)) as Arc<dyn Lookup>)
}

fn value_of<E: Debug>(store: Result<TcpStore, E>) -> Result<Vec<u8>, String> {
    let store = store.map_err(|error| format!("{error:?}"))?;
    store.get(KEY).map_err(|error| format!("{error:?}"))
}

/// A command that keeps running, and the lines that it has written.
struct Lasting {
    running: Running,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Lasting {
    fn start(words: &[&str], place: &str) -> Self {
        let connect = format!("--connect={place}");
        let end = words.iter().position(|word| *word == "--");
        let (options, rest) = words.split_at(end.unwrap_or(words.len()));
        let mut command = command([options, &[&connect], rest].concat());
        command.stderr(std::process::Stdio::inherit());
        let mut running = Running::start(command);
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&lines);
        let stdout = BufReader::new(running.stdout());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        Self { running, lines }
    }

    #[track_caller]
    fn await_line(&self, is_it: impl Fn(&str) -> bool) {
        until("the command writes the line", || {
            self.lines.lock().unwrap().iter().any(|line| is_it(line))
        });
    }

    #[track_caller]
    fn await_more_lines(&self, count: usize) {
        let before = self.lines.lock().unwrap().len();
        until("the command writes more", || {
            self.lines.lock().unwrap().len() >= before + count
        });
    }
}

/// Kills and stops the server that leads, at random moments for each client that opens the store or keeps using it. Prints its seed.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
#[expect(clippy::print_stdout, reason = "the figures are for readers")]
fn whatever_opens_a_store_reaches_it_through_takeovers() {
    let number = |name, or: u64| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let rounds = number("ROUNDS", 20);
    // On an idle machine 5 s suffice: the lease's 2 s, and 3 s.
    let limit = Duration::from_secs(number("LIMIT_S", 20));
    // An attempt at a stopped server takes 10 s if nothing ends it. Half of the openers must be faster: a busy machine delays some.
    let typical = Duration::from_secs(number("TYPICAL_S", 8));
    let mut rng = fastrand::Rng::with_seed(c10d_sim::seed());
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let mut serving = Candidate::start(&etcd);
    let _ = serving.store();
    let mut other = Candidate::start(&etcd);
    let client = TcpStore::open_at(&address_of(&place), TcpStoreOptions::default()).unwrap();
    client.set(KEY, "v").unwrap();
    let watch = Lasting::start(&["store", "watch", BEAT], &place);
    let watch_prefix = Lasting::start(&["store", "watch", &format!("--prefix={MANY}")], &place);
    let stats = Lasting::start(&["store", "stats", "--interval=200ms"], &place);
    let words = [
        "store",
        "lease",
        LOCK,
        "--value=held",
        "--ttl=60s",
        "--",
        "sleep",
        "10000",
    ];
    let mut lease = Lasting::start(&words, &place);
    assert_eq!(client.get(LOCK).unwrap(), b"held");

    let mut times = vec![Vec::new(); OPENERS.len()];
    let mut slowest = vec![Duration::ZERO; OPENERS.len()];
    let mut failed = Vec::new();
    for round in 0..rounds {
        let is_killed = rng.bool();
        let begins = OPENERS.map(|_| BEGINS_MAX.mul_f64(rng.f64()));
        let openers: Vec<_> = OPENERS
            .into_iter()
            .zip(begins)
            .map(|(opener, begin)| {
                let place = place.clone();
                thread::spawn(move || {
                    thread::sleep(begin);
                    let began = Instant::now();
                    (opener.open(&place, limit), began.elapsed())
                })
            })
            .collect();
        thread::sleep(FAULT_AT);
        match is_killed {
            true => serving.running.signal(Signal::KILL),
            false => serving.running.signal(Signal::STOP),
        }
        let fault = if is_killed { "killed" } else { "stopped" };
        for (index, opener) in openers.into_iter().enumerate() {
            let (result, took) = opener.join().unwrap();
            slowest[index] = slowest[index].max(took);
            if !is_killed && AFFECTED.contains(&begins[index]) {
                times[index].push(took);
            }
            if let Err(error) = result {
                let (opener, begin) = (OPENERS[index], begins[index]);
                let text = format!(
                    "round {round}: {opener:?} begun at {begin:?}, {fault} at {FAULT_AT:?}, failed after {took:?}: {error}"
                );
                println!("{text}");
                failed.push(text);
            }
        }
        let _ = other.store();
        std::mem::swap(&mut serving, &mut other);
        match is_killed {
            true => other = Candidate::start(&etcd),
            false => {
                other.running.signal(Signal::CONT);
                other.await_standby();
            }
        }
        let beat = format!("beat-{round}");
        client.set(BEAT, &beat).unwrap();
        client.set(&format!("{MANY}{round}"), "x").unwrap();
        // The answer shows that they have arrived.
        assert!(client.check(&[BEAT]).unwrap());
        watch.await_line(|line| line.contains(&format!("\"{beat}\"")));
        watch_prefix.await_line(|line| line.contains(&format!("{MANY}{round}  1 B")));
        stats.await_more_lines(2);
        assert!(lease.running.is_running(), "the lease of round {round}");
        assert_eq!(client.get(LOCK).unwrap(), b"held");
    }
    println!(
        "slowest: {:?}",
        OPENERS.iter().zip(slowest).collect::<Vec<_>>()
    );
    assert_eq!(failed, [""; 0]);
    let all = ("all".to_owned(), times.concat());
    let each = OPENERS.map(|opener| format!("{opener:?}"));
    let each = each.into_iter().zip(times);
    for (openers, mut times) in each.chain([all]) {
        // The median of fewer samples is a chance.
        if times.len() >= 10 {
            times.sort_unstable();
            assert!(times[times.len() / 2] < typical, "{openers}: {times:?}");
        }
    }
    // Keys that did not change are not printed, whichever server is asked.
    let lines = watch_prefix.lines.lock().unwrap().clone();
    assert_eq!(lines.len() as u64, rounds, "{lines:#?}");
    // It holds the lock alone, as before.
    let connect = format!("--connect={place}");
    run(["store", "lease", LOCK, "--timeout=5s", &connect])
        .assert_fails(1, "another process holds the key");
    lease.running.signal(Signal::TERM);
    assert_eq!(lease.running.exit_code(), 143);
    assert!(!client.check(&[LOCK]).unwrap());
}
