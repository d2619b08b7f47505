//! etcd for tests, of the program that `C10D_ETCD` names.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

/// One member, on loopback. Drop kills it.
pub(crate) struct Etcd {
    process: Child,
    pub(crate) client: String,
    _folder: TempDir,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        Self::start_with(|client| format!("http://{client}"), &[])
    }

    /// Starts etcd. The arguments are where it listens for clients, and further options.
    pub(crate) fn start_with(client_urls: impl Fn(&str) -> String, options: &[&str]) -> Self {
        // Another process can take a port before etcd does.
        let mut etcd = (0..9).map(|_| Self::spawn(&client_urls, options));
        let etcd = etcd.find_map(Self::listening);
        etcd.expect("etcd listens")
    }

    fn spawn(client_urls: impl Fn(&str) -> String, options: &[&str]) -> Self {
        let program = std::env::var("C10D_ETCD").expect("C10D_ETCD names the program etcd");
        let folder = tempfile::tempdir().unwrap();
        // etcd must be told the ports at which others find it.
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = sockets.map(|it| format!("{}", it.local_addr().unwrap()));
        let (client_urls, peer_url) = (client_urls(&client), format!("http://{peer}"));
        let process = Command::new(program)
            .args(["--name=m", "--log-level=error", "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &client_urls])
            .args(["--advertise-client-urls", &client_urls])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("m={peer_url}")])
            .args(options)
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

    /// Waits until it listens; `None` if it has ended.
    fn listening(mut self) -> Option<Self> {
        while self.process.try_wait().unwrap().is_none() {
            if TcpStream::connect(&self.client).is_ok() {
                return Some(self);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// The address of a store of this name.
    pub(crate) fn place(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.client)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
