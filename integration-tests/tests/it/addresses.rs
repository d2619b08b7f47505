//! Two hosts whose names do not lead to each other can start a job, because their nodes get the address at which they
//! have met.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration_tests::hosts::{HostProcess, HostSetup, Hosts};
use integration_tests::launcher::c10d;
use integration_tests::torch::{Feature, PYTHON_VARIABLE, Release};

const LIMIT: Duration = Duration::from_secs(120);

/// The report of the launcher with rank 0 if its name leads elsewhere.
const REPORT: &str = "the workers' store is at ";

/// Two hosts. Rank 0 is on the host called `a`.
struct Names {
    description: &'static str,
    setups: [HostSetup; 2],
    /// Whether the name of the host with rank 0 leads elsewhere.
    is_wrong: bool,
}

/// A host that runs a launcher: `c10d run`, torchrun, or `c10d run` of the release before.
enum Program<'p> {
    Ours,
    Torchrun(&'p Path),
    Before(&'p Path),
}

impl Program<'_> {
    const fn again(&self) -> Self {
        match self {
            Self::Ours => Self::Ours,
            Self::Torchrun(python) => Self::Torchrun(python),
            Self::Before(command) => Self::Before(command),
        }
    }
}

/// The Python with PyTorch.
fn python() -> PathBuf {
    let python = env::var_os(PYTHON_VARIABLE);
    PathBuf::from(python.expect("C10D_TORCH_PYTHON names a Python with PyTorch"))
}

/// The command of the release before.
fn release_before() -> PathBuf {
    let before = env::var_os("C10D_BEFORE");
    PathBuf::from(before.expect("C10D_BEFORE names the command"))
}

/// A job of two nodes.
struct Job<'j> {
    programs: [Program<'j>; 2],
    /// Of each launcher.
    options: [Vec<String>; 2],
}

impl Job<'_> {
    fn new(options: impl Fn(usize) -> Vec<String>) -> Self {
        Self {
            programs: [Program::Ours, Program::Ours],
            options: [options(0), options(1)],
        }
    }
}

/// A job of the `c10d` back end at this endpoint, for the host with this number.
fn meets_at(endpoint: &str, id: &str) -> Vec<String> {
    let endpoint = format!("--rdzv-endpoint={endpoint}");
    vec![
        "--rdzv-backend=c10d".to_owned(),
        endpoint,
        format!("--rdzv-id={id}"),
    ]
}

/// Runs the job, and returns the output of each launcher.
fn run(hosts: &Hosts, job: &Job<'_>) -> [String; 2] {
    finish([0, 1].map(|host| start(hosts, job, host)))
}

/// Starts the launcher on this host. Each worker prints the address of the workers' store, also behind a relay, and asks the
/// store.
fn start(hosts: &Hosts, job: &Job<'_>, host: usize) -> HostProcess {
    let script = format!(
        "echo \"R=$RANK M=${{C10D_MASTER_ADDR:-$MASTER_ADDR}}.\"; {} store ping --timeout 20s && echo reached",
        c10d().display()
    );
    let mut command = match job.programs[host] {
        Program::Ours => hosts.command(host, c10d()),
        Program::Before(path) => hosts.command(host, path),
        Program::Torchrun(python) => hosts.command(host, python),
    };
    match job.programs[host] {
        Program::Torchrun(_) => command.args(["-m", "torch.distributed.run"]),
        _ => command.arg("run"),
    };
    command.args(["--nnodes", "2", "--rdzv-conf", "join_timeout=60"]);
    command.args(&job.options[host]);
    command.args(["--no-python", "sh", "-c", &script]);
    hosts.start_process(&format!("node{host}"), &mut command)
}

/// Waits for both launchers, which must succeed, and returns their outputs.
fn finish(started: [HostProcess; 2]) -> [String; 2] {
    let mut ended = started.map(|mut process| (process.wait(LIMIT), process.output()));
    let outputs = [0, 1].map(|host| std::mem::take(&mut ended[host].1));
    for (host, (code, _)) in ended.iter().enumerate() {
        assert_eq!(
            *code, 0,
            "host {host}:\n{}\n---\n{}",
            outputs[0], outputs[1]
        );
    }
    outputs
}

/// Returns the MASTER_ADDR of both workers, which have reached the store.
fn master_of(outputs: &[String; 2]) -> String {
    let text = outputs.concat();
    assert_eq!(text.matches("reached").count(), 2, "{text}");
    let mut masters = BTreeSet::new();
    for line in text.lines() {
        if let Some((_, master)) = line.split_once(" M=") {
            masters.insert(master.trim_end_matches('.').to_owned());
        }
    }
    assert_eq!(masters.len(), 1, "{text}");
    masters.pop_first().unwrap()
}

/// Hosts with the common kinds of hosts files, on either side.
fn all_names() -> Vec<Names> {
    let plain = "127.0.0.1 localhost\n";
    let right = "10.8.8.1 a\n10.8.8.2 b\nfd00:8::1 a\nfd00:8::2 b\n";
    let foreign = "ip addr add 192.168.77.5/32 dev lo";
    let mut all = vec![
        Names {
            description: "both are called localhost",
            setups: [(); 2].map(|()| HostSetup::new("localhost", plain)),
            is_wrong: true,
        },
        Names {
            description: "both names lead to their hosts",
            setups: ["a", "b"].map(|name| HostSetup::new(name, right)),
            is_wrong: false,
        },
    ];
    let debian = "127.0.1.1 a.example a\n";
    for (description, own_file, other_file, script) in [
        ("127.0.1.1", debian, plain, ""),
        ("an old address", debian, "10.8.8.77 a.example a\n", ""),
        (
            "another network",
            "192.168.77.5 a\n",
            "192.168.77.5 a\n",
            foreign,
        ),
        ("no entry", plain, plain, ""),
    ] {
        for wrong in [0, 1] {
            let mut setups = [(); 2].map(|()| HostSetup::new("b", other_file));
            setups[wrong] = HostSetup::new("a", own_file).with_script(script);
            all.push(Names {
                description,
                setups,
                is_wrong: true,
            });
        }
    }
    all
}

/// The addresses at which the hosts meet: the store of the rendezvous is on either host, with IPv4 and IPv6.
const ENDPOINTS: [(&str, &str); 4] = [
    ("10.8.8.1:29500", "10.8.8."),
    ("10.8.8.2:29500", "10.8.8."),
    ("[fd00:8::1]:29500", "fd00:8::"),
    ("[fd00:8::2]:29500", "fd00:8::"),
];

/// docs/spec/rendezvous.md, ADDR 1 and 2, IDENTITY 1. All launchers have the process id 1, so two hosts with one name have
/// the same identity.
#[test]
fn nodes_get_the_address_at_which_they_have_met() {
    for names in all_names() {
        let Some(hosts) = Hosts::start(names.setups.map(HostSetup::with_own_pids)) else {
            return;
        };
        for (number, (endpoint, network)) in ENDPOINTS.iter().enumerate() {
            let case = format!("{}, {endpoint}", names.description);
            let outputs = run(
                &hosts,
                &Job::new(|_| meets_at(endpoint, &number.to_string())),
            );
            let master = master_of(&outputs);
            assert!(master.starts_with(network), "{case}: {master}");
            let text = outputs.concat();
            let reports = text.matches(REPORT).count();
            assert_eq!(reports, usize::from(names.is_wrong), "{case}: {text}");
            assert!(!text.contains("all interfaces"), "{case}: {text}");
        }
    }
}

fn is_local(name: &str) -> HostSetup {
    HostSetup::new(name, "127.0.0.1 localhost\n")
}

/// The hosts of two containers.
fn twins() -> Option<Hosts> {
    Hosts::start([(); 2].map(|()| is_local("localhost").with_own_pids()))
}

#[test]
fn a_given_address_or_interface_comes_first() {
    let Some(hosts) = twins() else { return };
    for (number, given) in [["10.8.8.1", "10.8.8.2"], ["eth0", "eth0"]]
        .iter()
        .enumerate()
    {
        let outputs = run(
            &hosts,
            &Job::new(|host| {
                let mut options = meets_at("10.8.8.1:29500", &number.to_string());
                options.extend(["--local-addr".to_owned(), given[host].to_owned()]);
                options
            }),
        );
        assert!(master_of(&outputs).starts_with("10.8.8."), "{given:?}");
        assert!(!outputs.concat().contains(REPORT), "{outputs:?}");
    }
}

/// docs/spec/rendezvous.md, ADDR 2. The endpoint leads to loopback on the host of the store, which is no reason to listen on
/// all interfaces.
#[test]
fn a_store_listens_at_a_given_name() {
    let hosts = [
        "127.0.1.1 head\n10.8.8.1 data\n",
        "10.8.8.1 head\n10.8.8.2 data\n",
    ];
    let setups = hosts.map(|names| HostSetup::new("data", names).with_own_pids());
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    let job = Job::new(|_| {
        let mut options = meets_at("head:29500", "1");
        options.extend(["--local-addr".to_owned(), "data".to_owned()]);
        options
    });
    let outputs = run(&hosts, &job).concat();
    assert!(!outputs.contains("all interfaces"), "{outputs}");
}

/// The file that all nodes see is their only way to meet, so the names of the other nodes lead to the route.
#[test]
fn nodes_that_meet_at_a_file_get_an_address_of_their_network() {
    let names = "10.8.8.1 a\n10.8.8.2 b\n";
    for setups in [
        [is_local("localhost"), is_local("localhost")],
        [
            HostSetup::new("a", &format!("127.0.1.1 a\n{names}")),
            HostSetup::new("b", names),
        ],
    ] {
        let Some(hosts) = Hosts::start(setups.map(HostSetup::with_own_pids)) else {
            return;
        };
        let file = hosts.folder().join("rendezvous").display().to_string();
        let job = Job::new(|_| {
            let mut options = meets_at(&file, "1");
            let setting = ["--rdzv-conf", "store_type=file,join_timeout=60"];
            options.extend(setting.map(str::to_owned));
            options
        });
        assert!(master_of(&run(&hosts, &job)).starts_with("10.8.8."));
    }
}

/// docs/spec/rendezvous.md, section 12.2.
#[test]
fn a_static_rendezvous_keeps_the_endpoint_as_it_was_given() {
    let Some(hosts) = twins() else { return };
    let job = Job::new(|host| {
        let words = ["--rdzv-backend=static", "--rdzv-endpoint=10.8.8.1:29500"];
        let mut options: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        options.push(format!("--node-rank={host}"));
        options
    });
    assert_eq!(master_of(&run(&hosts, &job)), "10.8.8.1");
}

/// docs/spec/rendezvous.md, BOOT 10 and ADDR 4.
#[test]
fn the_store_of_the_rendezvous_is_the_workers_at_an_address() {
    let Some(hosts) = twins() else { return };
    let job = Job::new(|_| {
        let mut options = meets_at("10.8.8.1:29500", "1");
        let setting = ["--workers-store", "rendezvous"];
        options.extend(setting.map(str::to_owned));
        options
    });
    assert_eq!(master_of(&run(&hosts, &job)), "10.8.8.1");
}

/// docs/spec/rendezvous.md, ADDR 3. The certificate has the name of the host, and not its address.
#[test]
fn nodes_with_certificates_check_the_name_behind_the_address() {
    let names = "127.0.0.1 localhost\n10.8.8.1 store.test\n";
    let Some(hosts) = Hosts::start(["store.test", "z"].map(|name| HostSetup::new(name, names)))
    else {
        return;
    };
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c10d-socket/testdata/tls");
    let job = Job::new(|_| {
        let mut options = meets_at("store.test:29500", "1");
        options.push("--relay".to_owned());
        for (option, file) in [
            ("--tls-cert", "node.pem"),
            ("--tls-key", "node.key"),
            ("--tls-ca", "authority.pem"),
        ] {
            options.push(format!("{option}={}", files.join(file).display()));
        }
        options
    });
    assert_eq!(master_of(&run(&hosts, &job)), "10.8.8.1");
}

/// Starts etcd on host 1.
fn start_etcd(hosts: &Hosts) -> HostProcess {
    let program = env::var_os("C10D_ETCD").expect("C10D_ETCD names the program etcd");
    let mut command = hosts.command(1, program);
    command
        .arg("--data-dir")
        .arg(hosts.folder().join("etcd"))
        .args(["--log-level=error", "--unsafe-no-fsync"])
        .args(["--listen-client-urls=http://10.8.8.2:2379"])
        .args(["--advertise-client-urls=http://10.8.8.2:2379"]);
    hosts.start_process("etcd", &mut command)
}

/// A job whose store is in etcd.
fn in_etcd<'j>(name: &str) -> Job<'j> {
    let endpoint = format!("--rdzv-endpoint=etcd://10.8.8.2:2379/c10d/{name}");
    Job::new(|_| vec![endpoint.clone(), "--rdzv-id=1".to_owned()])
}

/// Candidates list an address in etcd, and listen there.
#[test]
#[ignore = "needs etcd: run with C10D_ETCD=... -- --ignored"]
fn a_store_in_etcd_is_listed_with_an_address() {
    let Some(hosts) = twins() else { return };
    let _etcd = start_etcd(&hosts);
    let outputs = run(&hosts, &in_etcd("job"));
    assert!(master_of(&outputs).starts_with("10.8.8."), "{outputs:?}");
    assert!(!outputs.concat().contains("all interfaces"), "{outputs:?}");
}

/// A node of the release before lists its name in etcd if it serves the store.
#[test]
#[ignore = "needs etcd and the release before: run with C10D_ETCD=... C10D_BEFORE=... -- --ignored"]
fn the_release_before_shares_a_store_in_etcd_with_either_rank() {
    let before = release_before();
    let names = "127.0.0.1 localhost\n10.8.8.1 a\n10.8.8.2 b\n";
    let Some(hosts) = Hosts::start(["a", "b"].map(|name| HostSetup::new(name, names))) else {
        return;
    };
    let _etcd = start_etcd(&hosts);
    for other in [0, 1] {
        let mut job = in_etcd(&format!("of{other}"));
        job.programs[other] = Program::Before(&before);
        let master = master_of(&run(&hosts, &job));
        let is_known = master.starts_with("10.8.8.") || master == ["a", "b"][other];
        assert!(is_known, "{other}: {master}");
    }
}

/// Behind address translation each node has its own endpoint.
#[test]
fn nodes_behind_a_forwarder_get_an_address_that_works() {
    let forwarder = "import socket, threading, sys\n\
        s = socket.create_server((\"10.8.8.2\", 30678))\n\
        print(\"ready\", flush=True)\n\
        def pump(a, b):\n\
        \u{20}while d := a.recv(65536): b.sendall(d)\n\
        \u{20}b.shutdown(socket.SHUT_WR)\n\
        while True:\n\
        \u{20}a, _ = s.accept()\n\
        \u{20}try: b = socket.create_connection((\"10.8.8.1\", 29500))\n\
        \u{20}except OSError: a.close(); continue\n\
        \u{20}for x, y in ((a, b), (b, a)): threading.Thread(target=pump, args=(x, y), daemon=True).start()\n";
    for names in [["a", "b"], ["b", "a"]] {
        let setups = names.map(|name| HostSetup::new(name, "127.0.0.1 localhost\n"));
        let Some(hosts) = Hosts::start(setups) else {
            return;
        };
        let mut command = hosts.command(1, "python3");
        let forwarding = hosts.start_process("forwarder", command.args(["-c", forwarder]));
        forwarding.wait_for_output(LIMIT, |output| output == "ready\n");
        let endpoints = ["10.8.8.1:29500", "10.8.8.2:30678"];
        let outputs = run(&hosts, &Job::new(|host| meets_at(endpoints[host], "1")));
        assert!(master_of(&outputs).starts_with("10.8.8."));
    }
}

/// Runs jobs beside other programs: with names that lead to their hosts, and with a name of our node that does not.
fn beside(other: &Program<'_>) {
    // The node with the first name has rank 0.
    for (ours, theirs, own_address) in [
        ("b", "a", "10.8.8.1"),
        ("b", "c", "10.8.8.1"),
        ("b", "c", "127.0.1.1"),
    ] {
        let file = format!("10.8.8.2 {theirs}\n{own_address} {ours}\n");
        let setups = [
            HostSetup::new(ours, &file),
            HostSetup::new(theirs, &format!("10.8.8.2 {theirs}\n10.8.8.1 {ours}\n")),
        ];
        let Some(hosts) = Hosts::start(setups) else {
            return;
        };
        let file = hosts.folder().join("rendezvous").display().to_string();
        for (number, endpoint) in ["10.8.8.1:29500", "10.8.8.2:29500", &file]
            .into_iter()
            .enumerate()
        {
            let mut job = Job::new(|_| {
                let mut options = meets_at(endpoint, &number.to_string());
                if endpoint == file {
                    let setting = ["--rdzv-conf", "store_type=file,join_timeout=60"];
                    options.extend(setting.map(str::to_owned));
                }
                options
            });
            job.programs[1] = other.again();
            let master = master_of(&run(&hosts, &job));
            // The other program publishes its name.
            assert!(["10.8.8.1", "a"].contains(&&*master), "{master}");
        }
        let mut job = Job::new(|host| {
            let words = ["--rdzv-backend=static", "--rdzv-endpoint=10.8.8.2:29600"];
            let mut options: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            options.push(format!("--node-rank={}", 1 - host));
            options
        });
        job.programs[1] = other.again();
        assert_eq!(master_of(&run(&hosts, &job)), "10.8.8.2");
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_takes_part_with_either_rank() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    beside(&Program::Torchrun(&python()));
}

#[test]
#[ignore = "needs the release before: run with C10D_BEFORE=... -- --ignored"]
fn the_release_before_takes_part_with_either_rank() {
    beside(&Program::Before(&release_before()));
}

/// Runs jobs in which the other program has rank 0 on a host whose name leads elsewhere, and our node serves the store of the
/// rendezvous.
fn published_name_is_replaced(other: &Program<'_>) {
    let plain = "127.0.0.1 localhost\n";
    for (own_file, other_file) in [
        ("127.0.1.1 a.example a\n", plain),
        ("127.0.1.1 a.example a\n", "10.8.8.77 a.example a\n"),
        ("10.8.8.1 a\n", "10.8.8.77 a\n"),
    ] {
        let setups = [
            HostSetup::new("a", own_file),
            HostSetup::new("b", other_file),
        ];
        let Some(hosts) = Hosts::start(setups) else {
            return;
        };
        let mut job = Job::new(|_| meets_at("10.8.8.2:29500", "1"));
        job.programs[0] = other.again();
        let [theirs, ours] = run(&hosts, &job);
        assert!(theirs.contains("R=0 M=a") && theirs.contains("reached"));
        assert!(ours.contains("R=1 M=10.8.8.1."), "{other_file}: {ours}");
        assert!(ours.contains("reached") && ours.contains("does not answer at a"));
    }
}

/// docs/spec/rendezvous.md, BOOT 15.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_name_of_torchrun_that_leads_elsewhere_is_replaced() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    published_name_is_replaced(&Program::Torchrun(&python()));
}

/// docs/spec/rendezvous.md, BOOT 15 and 16.
#[test]
#[ignore = "needs the release before: run with C10D_BEFORE=... -- --ignored"]
fn a_name_of_the_release_before_that_leads_elsewhere_is_replaced() {
    let before = release_before();
    let before = Program::Before(&before);
    published_name_is_replaced(&before);
    // It listens only where its name leads to.
    let file = "192.168.77.5 a\n";
    let foreign = "ip addr add 192.168.77.5/32 dev lo";
    let setups = [
        HostSetup::new("a", file).with_script(foreign),
        HostSetup::new("b", file),
    ];
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    for endpoint in ["10.8.8.1:29500", "10.8.8.2:29500"] {
        let mut job = Job::new(|_| {
            let mut options = meets_at(endpoint, "1");
            let setting = ["--rdzv-conf", "join_timeout=8,read_timeout=8"];
            options.extend(setting.map(str::to_owned));
            options
        });
        job.programs[0] = before.again();
        let _theirs = start(&hosts, &job, 0);
        let mut ours = start(&hosts, &job, 1);
        let code = ours.wait(LIMIT);
        let output = ours.output();
        assert_eq!(code, 1, "{output}");
        assert!(!output.contains("R=1"), "a worker has started: {output}");
        for part in [
            "cannot reach the workers' store of a: tried a:",
            "10.8.8.1:",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
}

/// Runs two jobs of two containers with one name and one process id. The other program starts first in one job and last in
/// the other job.
fn is_another_node_than(other: &Program<'_>) {
    let setups = [1, 2].map(|number| {
        let file = format!("10.8.8.{number} worker\n");
        HostSetup::new("worker", &file).with_own_pids()
    });
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    for starts_first in [true, false] {
        // Our node serves the store of the rendezvous.
        let mut job = Job::new(|_| meets_at("10.8.8.2:29500", "1"));
        job.programs[0] = other.again();
        let outputs = match starts_first {
            true => {
                let theirs = start(&hosts, &job, 0);
                finish([theirs, start(&hosts, &job, 1)])
            }
            false => {
                let ours = start(&hosts, &job, 1);
                ours.wait_for_output(LIMIT, |output| output.contains("1 of 2 nodes"));
                finish([start(&hosts, &job, 0), ours])
            }
        };
        let text = outputs.concat();
        assert_eq!(text.matches("reached").count(), 2, "{text}");
        assert!(text.contains("R=0 ") && text.contains("R=1 "), "{text}");
    }
}

/// With relays, every node must be `c10d run`.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_in_a_job_with_relays_is_reported() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    let names = "10.8.8.1 a\n10.8.8.2 b\n";
    let Some(hosts) = Hosts::start(["a", "b"].map(|name| HostSetup::new(name, names))) else {
        return;
    };
    let python = python();
    let mut job = Job::new(|_| meets_at("10.8.8.2:29500", "1"));
    job.programs[0] = Program::Torchrun(&python);
    job.options[1].push("--relay".to_owned());
    let _theirs = start(&hosts, &job, 0);
    let ours = start(&hosts, &job, 1);
    let is_reported = |output: &str| output.contains("every node needs --relay");
    let output = ours.wait_for_output(LIMIT, is_reported);
    assert!(output.contains("1 of 2 nodes take part") || output.contains("0 of 2 nodes take part"));
}

/// docs/spec/rendezvous.md, IDENTITY 4.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_with_the_name_and_process_id_of_our_node_takes_part() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    is_another_node_than(&Program::Torchrun(&python()));
}

/// docs/spec/rendezvous.md, IDENTITY 4.
#[test]
#[ignore = "needs the release before: run with C10D_BEFORE=... -- --ignored"]
fn the_release_before_with_the_name_and_process_id_of_our_node_takes_part() {
    is_another_node_than(&Program::Before(&release_before()));
}
