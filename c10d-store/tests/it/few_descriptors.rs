//! A server with few descriptors, in a separate process, and strangers that hold all of them. The tests of
//! `c10d-relay` and `rpc-agent` also use this file.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Set in the process of the server, to the test's message for it.
const TOLD: &str = "C10D_TEST_FEW_DESCRIPTORS";

/// More than the server has descriptors.
const STRANGERS: usize = 100;

const STRANGERS_MAX: usize = 2000;

/// In the process of the server: the message of the test.
pub(crate) fn told() -> Option<String> {
    env::var(TOLD).ok()
}

/// In the process of the server: sends the test the address, and returns when the test has ended.
pub(crate) fn serve(address: SocketAddr) {
    writeln!(io::stdout(), "listening on {address}").expect("a pipe");
    let _ = io::stdin().read(&mut [0]);
}

/// A server with 64 descriptors.
pub(crate) struct Attacked {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Attacked {
    /// Runs this test, of the given name, in a separate process, where [`told`] returns the text and [`serve`] is to
    /// be called.
    pub(crate) fn start(test: &str, text: &str) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(env::current_exe().expect("a test program"))
            .args([test, "--exact", "--nocapture"])
            .env(TOLD, text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut printed = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let address = printed.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, address) = line.split_once("listening on ")?;
            address.parse().ok()
        });
        thread::spawn(move || printed.for_each(drop));
        Self {
            process,
            address: address.expect("the server listens"),
        }
    }

    /// Runs `client` while strangers that have sent these bytes take each descriptor that is free.
    pub(crate) fn besieged<T>(&self, first_bytes: &[u8], client: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        let connect = || {
            let mut stranger = TcpStream::connect(self.address).expect("the server listens");
            // It may be closed already.
            let _ = stranger.write_all(first_bytes);
            stranger
        };
        let mut strangers: Vec<_> = (0..STRANGERS).map(|_| connect()).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && strangers.len() < STRANGERS_MAX {
                    strangers.push(connect());
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let result = client();
            is_over.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Ends the server.
    pub(crate) fn end(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait();
        assert!(status.expect("the server's process").success());
    }
}
