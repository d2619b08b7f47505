//! The limit on open files: the launcher raises its own, and everything that it starts has the one of its caller.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::process::after;

/// Sends the store a greeting and a ping, and reads the answer.
fn is_served(port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(crate::process::PATIENCE))
        .ok()?;
    let (greeting, ping) = ([0x00, 0xce, 0xf7, 0x85, 0x3c], [0x0d, 1, 2, 3, 4]);
    stream.write_all(&[greeting, ping].concat()).ok()?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).ok()?;
    (answer == [1, 2, 3, 4]).then_some(stream)
}

#[test]
fn a_store_serves_more_clients_than_the_callers_soft_limit_and_programs_keep_that_limit() {
    let job = Job::new();
    let script = "
        ulimit -Sn > $C10D_TEST_FOLDER/worker-$RANK
        echo $MASTER_PORT > $C10D_TEST_FOLDER/port
        until [ -e $C10D_TEST_FOLDER/go ]; do sleep 0.02; done";
    let check = format!(
        "--health-check=ulimit -Sn > {}",
        job.path("health").display()
    );
    let arguments = ["--standalone", "--nproc-per-node=2", &check];
    let launcher = Running::start(after("ulimit -Sn 256", &job.command(&arguments, script)));
    let port = job.line("port").parse().unwrap();
    let clients: Vec<_> = (0..400).map(|_| is_served(port)).collect();
    let served = clients.iter().flatten().count();
    let limits = ["health", "worker-0", "worker-1"].map(|name| job.line(name));
    // The process that cleans up after a killed launcher has the same limit.
    let of_processes: Vec<String> = job
        .processes()
        .into_iter()
        .filter(|pid| u32::try_from(*pid) != Ok(launcher.id()))
        .filter_map(|pid| {
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
            let line = limits.lines().find(|line| line.contains("open files"))?;
            line.split_whitespace().nth(3).map(str::to_owned)
        })
        .collect();
    fs::write(job.path("go"), "").unwrap();
    drop(clients);
    let ended = launcher.end();
    assert_succeeded(&ended);
    assert_eq!(served, 400, "{ended:?}");
    assert_eq!(limits, ["256"; 3]);
    if cfg!(target_os = "linux") {
        assert!(of_processes.iter().all(|limit| limit == "256"));
        assert!(!of_processes.is_empty());
    }
}
