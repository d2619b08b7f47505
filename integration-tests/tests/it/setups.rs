//! Networks and host names as users have them, and jobs of two and three nodes in them.
//!
//! In each setup the nodes start their job, and each worker reaches the store at its `MASTER_ADDR`, or one sentence of a
//! launcher explains why they cannot. An ignored test runs torchrun in the same setups, for the table in the manual.

#![expect(
    clippy::print_stdout,
    reason = "measured figures, and tables for the manual"
)]

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use integration_tests::hosts::{HostProcess, HostSetup, Hosts};
use integration_tests::launcher::c10d;
use integration_tests::torch::python;

/// How many setups run at the same time.
const SIDE_BY_SIDE: usize = 4;

/// Longer than any job takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(150);

const PORT: u16 = 29500;

/// The names of the hosts, and the addresses to which the names lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Each host finds the right address for every name.
    Right,
    /// All hosts are called `localhost`.
    Localhost,
    /// Each host resolves only its own name, to 127.0.1.1, like a host with Debian.
    LoopbackAlias,
    /// Each host resolves its own name to 127.0.1.1, and the other hosts have an old address for that name.
    Stale,
    /// The names lead to a network that the other hosts do not reach.
    Foreign,
    /// A host resolves neither its own name nor any other name.
    Unknown,
    /// The names lead to IPv6 addresses first, and the endpoint is a name.
    Ipv6First,
    /// The endpoint and all names are IPv6 addresses.
    Ipv6Only,
    /// All hosts are called `worker`, and all launchers have the same process id, like launchers in containers.
    Containers,
    /// The first host is called `localhost`, and the names of the other hosts are right.
    FirstIsLocalhost,
}

const NAMES: [Names; 10] = [
    Names::Right,
    Names::Localhost,
    Names::LoopbackAlias,
    Names::Stale,
    Names::Foreign,
    Names::Unknown,
    Names::Ipv6First,
    Names::Ipv6Only,
    Names::Containers,
    Names::FirstIsLocalhost,
];

/// Some hosts, and the host among them that serves the store of the rendezvous.
#[derive(Debug, Clone, Copy)]
struct Setup {
    names: Names,
    nodes: usize,
    /// The host that the endpoint names.
    server: usize,
}

/// Returns, for each kind of names, a setup of two hosts whose first host is the server, and one of three hosts whose
/// last host is.
fn setups() -> Vec<Setup> {
    let sizes = [(2, 0), (3, 2)];
    let all = NAMES.into_iter().flat_map(|names| {
        sizes.map(|(nodes, server)| Setup {
            names,
            nodes,
            server,
        })
    });
    all.collect()
}

impl Setup {
    fn hosts(self) -> Vec<HostSetup> {
        (0..self.nodes).map(|host| self.host(host)).collect()
    }

    fn host(self, host: usize) -> HostSetup {
        let name = self.name(host);
        let setup = HostSetup::new(&name, &self.hosts_file(host));
        match self.names {
            Names::Foreign => {
                let address = host + 1;
                setup.with_script(&format!("ip addr add 192.168.77.{address}/32 dev lo"))
            }
            Names::Containers => setup.with_own_pids(),
            _ => setup,
        }
    }

    fn name(self, host: usize) -> String {
        match self.names {
            Names::Localhost => "localhost".to_owned(),
            Names::FirstIsLocalhost if host == 0 => "localhost".to_owned(),
            Names::Containers => "worker".to_owned(),
            _ => format!("node{host}"),
        }
    }

    /// Returns the content of `/etc/hosts` on one host.
    fn hosts_file(self, host: usize) -> String {
        let mut file = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n".to_owned();
        // Writing to memory does not fail.
        let mut all = |prefix: &str| {
            for other in 0..self.nodes {
                let _ = writeln!(file, "{prefix}{} node{other}", other + 1);
            }
        };
        match self.names {
            Names::Right | Names::FirstIsLocalhost => all("10.8.8."),
            Names::Foreign => all("192.168.77."),
            Names::Ipv6Only => all("fd00:8::"),
            Names::Ipv6First => {
                all("fd00:8::");
                all("10.8.8.");
            }
            Names::LoopbackAlias => {
                let _ = writeln!(file, "127.0.1.1 node{host}.example node{host}");
            }
            Names::Stale => {
                for other in 0..self.nodes {
                    match other == host {
                        true => file += &format!("127.0.1.1 node{other}\n"),
                        false => file += &format!("10.8.8.9{other} node{other}\n"),
                    }
                }
            }
            Names::Localhost | Names::Unknown | Names::Containers => {}
        }
        file
    }

    fn endpoint(self) -> String {
        let number = self.server + 1;
        match self.names {
            Names::Ipv6First => format!("node{}:{PORT}", self.server),
            Names::Ipv6Only => format!("[fd00:8::{number}]:{PORT}"),
            _ => format!("10.8.8.{number}:{PORT}"),
        }
    }

    /// Returns the arguments of a launcher, which are the same for `c10d run` and torchrun.
    fn arguments(self) -> Vec<String> {
        let worker = format!(
            "{} store ping --timeout 10s && echo rank $RANK reaches $MASTER_ADDR; sleep 2",
            c10d().display()
        );
        let nodes = format!("--nnodes={}", self.nodes);
        let endpoint = format!("--rdzv-endpoint={}", self.endpoint());
        let words = [
            &nodes,
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            &endpoint,
            "--rdzv-conf=join_timeout=40",
            "--no-python",
            "sh",
            "-c",
            &worker,
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Runs the job, and returns the exit codes and outputs of its nodes. `None` without namespaces.
    fn run(self, launcher: impl Fn(&Hosts, usize) -> Command) -> Option<Vec<(i32, String)>> {
        let hosts = Hosts::start(self.hosts())?;
        let mut nodes: Vec<HostProcess> = (0..self.nodes)
            .map(|host| {
                let mut command = launcher(&hosts, host);
                command.args(self.arguments());
                hosts.start_process(&format!("node{host}"), &mut command)
            })
            .collect();
        let ends = nodes.iter_mut().map(|node| {
            let code = node.wait(LIMIT);
            (code, node.output())
        });
        Some(ends.collect())
    }
}

/// How a job ended in a setup.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// All workers reach the store.
    Started,
    /// The launchers started no workers, and each of them wrote one sentence.
    Explained(String),
    /// Any other outcome, with a line that shows it.
    Failed(String),
}

fn outcome(ends: &[(i32, String)]) -> Outcome {
    let has_started = |(code, output): &(i32, String)| *code == 0 && output.contains(" reaches ");
    if ends.iter().all(has_started) {
        return Outcome::Started;
    }
    let sentences = ends.iter().map(|(code, output)| {
        let mut errors = output.lines().filter(|line| line.starts_with("c10d: "));
        let has_workers = output.contains("started rank");
        let sentence = errors.next()?.to_owned();
        (*code != 0 && !has_workers && errors.next().is_none()).then_some(sentence)
    });
    match sentences.collect::<Option<Vec<String>>>() {
        Some(sentences) => Outcome::Explained(sentences[0].clone()),
        None => Outcome::Failed(telling_line(ends)),
    }
}

/// The last line of the first node that failed.
fn telling_line(ends: &[(i32, String)]) -> String {
    let failed = ends.iter().find(|(code, _)| *code != 0);
    let (code, output) = failed.unwrap_or(&ends[0]);
    let mut lines = output.lines().filter(|line| line.contains("rror"));
    format!(
        "exit code {code}: {}",
        lines.next_back().unwrap_or_default()
    )
}

/// Runs all setups, and returns what happened in each of them. `None` without namespaces.
fn run_all(
    launcher: impl Fn(&Hosts, usize) -> Command + Sync,
) -> Option<Vec<(Setup, Outcome, String)>> {
    let setups = setups();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(setup) = setups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(ends) = setup.run(&launcher) else {
                        return;
                    };
                    let outcome = outcome(&ends);
                    let outputs = ends
                        .into_iter()
                        .map(|(code, output)| format!("{output}rc {code}\n"));
                    let outputs: Vec<String> = outputs.collect();
                    let mut outcomes = outcomes.lock().expect("no panic");
                    outcomes.push((*setup, outcome, outputs.join("---- next node\n")));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no panic");
    outcomes.sort_by_key(|(setup, ..)| {
        let place = NAMES.iter().position(|names| *names == setup.names);
        (place, setup.nodes)
    });
    (!outcomes.is_empty()).then_some(outcomes)
}

fn table(outcomes: &[(Setup, Outcome, String)]) -> String {
    let mut table = String::new();
    for (setup, outcome, _) in outcomes {
        let names = format!("{:?}", setup.names);
        let _ = writeln!(table, "{names:17} {} nodes: {outcome:?}", setup.nodes);
    }
    table
}

#[test]
fn jobs_start_in_each_setup_or_explain_why_not() {
    let Some(outcomes) = run_all(|hosts, host| {
        let mut command = hosts.command(host, c10d());
        command.arg("run");
        command
    }) else {
        return;
    };
    println!("{}", table(&outcomes));
    for (setup, outcome, output) in &outcomes {
        assert_eq!(outcome, &Outcome::Started, "{setup:?}:\n{output}");
    }
}

/// Prints the outcomes for the list in `docs/how-to/addresses.md`.
#[test]
#[ignore = "needs PyTorch (C10D_TORCH_PYTHON)"]
fn torchrun_in_the_same_setups() {
    let Some(outcomes) = run_all(|hosts, host| {
        // If the nodes do not meet, torchrun waits for longer than its timeout.
        let mut command = hosts.command(host, "timeout");
        command.arg("75").arg(python().get_program());
        command.args(["-m", "torch.distributed.run"]);
        command
    }) else {
        return;
    };
    println!("{}", table(&outcomes));
    for (setup, outcome, output) in &outcomes {
        if *outcome != Outcome::Started {
            println!("==== {setup:?}\n{output}");
        }
        // With right names both launchers start their workers.
        assert!(
            setup.names != Names::Right || *outcome == Outcome::Started,
            "{output}"
        );
    }
}
