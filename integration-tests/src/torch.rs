//! Controls PyTorch processes step by step.
//!
//! [`Torch`] runs `python/puppet.py`, which opens PyTorch's stores and runs operations on them. Each store has its
//! own Python thread, so several operations can block at the same time, and the test decides their order.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::ChildProcess;

/// The environment variable that names the Python interpreter with PyTorch.
pub const PYTHON_VARIABLE: &str = "C10D_TORCH_PYTHON";

/// The default timeout for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// The timeout for the start of Python and PyTorch, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(180);

type Replies = Arc<Mutex<HashMap<u64, Sender<Value>>>>;

/// A Python process with PyTorch. Drop kills it.
#[derive(Debug)]
pub struct Torch {
    process: Mutex<ChildProcess>,
    stdin: Mutex<Option<ChildStdin>>,
    replies: Replies,
    next_id: AtomicU64,
    next_name: AtomicU64,
    version: String,
}

/// A store inside a [`Torch`] process.
#[derive(Debug, Clone)]
pub struct TorchStore {
    torch: Arc<Torch>,
    name: String,
    thread: String,
    port: u16,
}

/// A running operation in PyTorch.
#[derive(Debug)]
#[must_use = "wait for the operation to get its result"]
pub struct Pending {
    torch: Arc<Torch>,
    id: u64,
    what: String,
    reply: Receiver<Value>,
}

/// A running constructor in PyTorch.
#[derive(Debug)]
#[must_use = "wait for the constructor to get the store"]
pub struct PendingStore {
    pending: Pending,
    name: String,
}

/// A reply of PyTorch.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The result or the exception.
    pub result: Result<Value, TorchError>,
    /// The duration of the operation in the Python process.
    pub elapsed: Duration,
}

/// A Python exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchError {
    /// The class, without the module.
    pub class: String,
    /// The base classes, nearest first.
    pub bases: Vec<String>,
    /// The message, perhaps with a stack trace.
    pub message: String,
}

/// The arguments of a PyTorch `TCPStore`. `None` omits an argument.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "each field is the argument of the same name")]
pub struct TcpArguments {
    pub world_size: Option<i64>,
    pub is_master: Option<bool>,
    pub wait_for_workers: Option<bool>,
    pub multi_tenant: Option<bool>,
    pub use_libuv: Option<bool>,
    pub timeout: Option<Duration>,
}

impl Torch {
    /// Starts Python and waits until PyTorch is loaded.
    ///
    /// # Panics
    /// When the variable [`PYTHON_VARIABLE`] is not set or PyTorch does not start.
    #[must_use]
    pub fn start() -> Arc<Self> {
        let mut process = ChildProcess::start("PyTorch", python().arg(script("puppet.py")));
        let stdin = process.take_stdin();
        let stdout = process.take_stdout();
        let replies = Replies::default();
        let (hello, on_hello) = mpsc::channel();
        lock(&replies).insert(0, hello);
        let to = Arc::clone(&replies);
        thread::Builder::new()
            .name("torch-replies".to_owned())
            .spawn(move || dispatch(stdout, &to))
            .expect("a thread for PyTorch's replies");
        let version = match on_hello.recv_timeout(START_LIMIT) {
            Ok(hello) => hello["value"].as_str().unwrap_or_default().to_owned(),
            Err(error) => panic!("PyTorch did not start ({error}):\n{}", process.stderr()),
        };
        Arc::new(Self {
            process: Mutex::new(process),
            stdin: Mutex::new(Some(stdin)),
            replies,
            next_id: AtomicU64::new(1),
            next_name: AtomicU64::new(1),
            version,
        })
    }

    /// The process that all tests of a test program share, because loading PyTorch takes seconds.
    ///
    /// The first call starts it. Tests that kill or stop their PyTorch use [`start`](Self::start).
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: LazyLock<Arc<Torch>> = LazyLock::new(Torch::start);
        Arc::clone(&SHARED)
    }

    /// `torch.__version__`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Opens a `TCPStore` that is a client of the server at `address`.
    ///
    /// # Panics
    /// When the store cannot be opened.
    #[must_use]
    pub fn tcp_client(self: &Arc<Self>, address: SocketAddr) -> TorchStore {
        self.open_tcp(address, &TcpArguments::default())
            .unwrap_or_else(|error| panic!("cannot open a TCPStore at {address}: {error}"))
    }

    /// Opens a `TCPStore` that hosts its server, with the libuv backend or the older one.
    ///
    /// # Panics
    /// When the store cannot be opened.
    #[must_use]
    pub fn tcp_server(self: &Arc<Self>, use_libuv: bool) -> TorchStore {
        let arguments = TcpArguments {
            is_master: Some(true),
            use_libuv: Some(use_libuv),
            ..TcpArguments::default()
        };
        self.open_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), &arguments)
            .unwrap_or_else(|error| panic!("cannot open a TCPStore as server: {error}"))
    }

    /// Opens a `TCPStore`. With port 0 a server chooses its port.
    ///
    /// # Errors
    /// When the constructor raises an exception.
    pub fn open_tcp(
        self: &Arc<Self>,
        address: SocketAddr,
        arguments: &TcpArguments,
    ) -> Result<TorchStore, TorchError> {
        self.begin_open_tcp(address, arguments).finish()
    }

    /// Like [`open_tcp`](Self::open_tcp), but does not wait for the constructor.
    pub fn begin_open_tcp(
        self: &Arc<Self>,
        address: SocketAddr,
        arguments: &TcpArguments,
    ) -> PendingStore {
        let name = self.new_name();
        let pending = self.begin(
            &name,
            json!({
                "op": "open",
                "kind": "tcp",
                "store": name,
                "host": address.ip().to_string(),
                "port": address.port(),
                "world_size": arguments.world_size,
                "is_master": arguments.is_master,
                "wait_for_workers": arguments.wait_for_workers,
                "multi_tenant": arguments.multi_tenant,
                "use_libuv": arguments.use_libuv,
                "timeout_ms": arguments.timeout.map(milliseconds),
            }),
        );
        PendingStore { pending, name }
    }

    /// Opens a `FileStore` on `path`. Without a world size the file is never removed.
    ///
    /// # Panics
    /// When the store cannot be opened.
    #[must_use]
    pub fn file_store(self: &Arc<Self>, path: &Path, world_size: Option<usize>) -> TorchStore {
        self.open(json!({
            "kind": "file",
            "path": path.to_str().expect("a test's path is UTF-8"),
            "world_size": world_size.map_or(-1, |size| i64::try_from(size).unwrap_or(i64::MAX)),
        }))
    }

    /// Opens a new `HashStore`.
    ///
    /// # Panics
    /// When the store cannot be opened.
    #[must_use]
    pub fn hash_store(self: &Arc<Self>) -> TorchStore {
        self.open(json!({"kind": "hash"}))
    }

    /// Kills the process, as in a crash, and waits until it has exited.
    ///
    /// # Panics
    /// When the process does not exit.
    pub fn kill(&self) -> ExitStatus {
        let mut process = lock(&self.process);
        process.kill();
        process.wait(REPLY_LIMIT)
    }

    /// Stops the process. Its connections stay open.
    pub fn pause(&self) {
        lock(&self.process).pause();
    }

    /// Continues the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        lock(&self.process).resume();
    }

    fn open(self: &Arc<Self>, mut request: Value) -> TorchStore {
        let name = self.new_name();
        request["op"] = json!("open");
        request["store"] = json!(name);
        let what = request.to_string();
        self.begin(&name, request)
            .wait()
            .result
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        TorchStore {
            torch: Arc::clone(self),
            thread: name.clone(),
            name,
            port: 0,
        }
    }

    fn new_name(&self) -> String {
        format!("store-{}", self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    fn begin(self: &Arc<Self>, thread: &str, mut request: Value) -> Pending {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let what = format!("{} on {}", request["op"], request["store"]);
        request["id"] = json!(id);
        request["thread"] = json!(thread);
        let (sender, reply) = mpsc::channel();
        lock(&self.replies).insert(id, sender);
        let mut line = request.to_string();
        line.push('\n');
        let mut stdin = lock(&self.stdin);
        let pipe = stdin.as_mut().expect("the pipe is open until the drop");
        if let Err(error) = pipe.write_all(line.as_bytes()) {
            panic!("{what}: PyTorch has ended ({error}):\n{}", self.stderr());
        }
        drop(stdin);
        Pending {
            torch: Arc::clone(self),
            id,
            what,
            reply,
        }
    }

    fn stderr(&self) -> String {
        lock(&self.process).stderr()
    }
}

impl TorchStore {
    /// The server's port; 0 for a store without a server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The server's address on loopback.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The process of this store.
    #[must_use]
    pub const fn torch(&self) -> &Arc<Torch> {
        &self.torch
    }

    /// Starts operation `op`, and does not wait for it.
    pub fn begin(&self, op: &str, arguments: Value) -> Pending {
        let mut request = arguments;
        request["op"] = json!(op);
        request["store"] = json!(self.name);
        self.torch.begin(&self.thread, request)
    }

    /// Runs operation `op`.
    ///
    /// # Errors
    /// When the operation raises an exception.
    pub fn call(&self, op: &str, arguments: Value) -> Result<Value, TorchError> {
        self.begin(op, arguments).wait().result
    }

    /// The same Python object, used from another Python thread.
    #[must_use]
    pub fn on_another_thread(&self) -> Self {
        Self {
            thread: self.torch.new_name(),
            ..self.clone()
        }
    }

    /// Opens a `PrefixStore` around this store.
    ///
    /// # Panics
    /// When the store cannot be opened.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        let wrapper = self
            .torch
            .open(json!({"kind": "prefix", "prefix": prefix, "base": self.name}));
        Self {
            port: self.port,
            ..wrapper
        }
    }

    /// Clones the store in Python.
    ///
    /// # Panics
    /// When `clone` raises an exception.
    #[must_use]
    pub fn cloned(&self) -> Self {
        let clone = self.torch.open(json!({"kind": "clone", "base": self.name}));
        Self {
            port: self.port,
            ..clone
        }
    }

    /// Drops the Python object, which also stops a server that it hosts.
    ///
    /// # Panics
    /// When the drop raises an exception.
    pub fn close(self) {
        self.call("close", json!({}))
            .unwrap_or_else(|error| panic!("close: {error}"));
    }
}

impl Pending {
    /// Waits for the reply.
    ///
    /// # Panics
    /// When no reply arrives within a minute, or the process has ended.
    #[must_use]
    pub fn wait(self) -> Reply {
        self.wait_at_most(REPLY_LIMIT)
    }

    /// Waits for the reply, for at most `limit`.
    ///
    /// # Panics
    /// When no reply arrives in time, or the process has ended.
    #[must_use]
    pub fn wait_at_most(self, limit: Duration) -> Reply {
        let reply = match self.reply.recv_timeout(limit) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => panic!(
                "{}: no answer from PyTorch within {limit:?}; its stderr:\n{}",
                self.what,
                self.torch.stderr()
            ),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{}: PyTorch has ended:\n{}", self.what, self.torch.stderr())
            }
        };
        let elapsed = Duration::from_secs_f64(reply["elapsed"].as_f64().unwrap_or_default());
        let result = match reply["error"].as_str() {
            None => Ok(reply["value"].clone()),
            Some(class) => Err(TorchError {
                class: class.to_owned(),
                bases: strings(&reply["bases"]),
                message: reply["message"].as_str().unwrap_or_default().to_owned(),
            }),
        };
        Reply { result, elapsed }
    }

    /// Whether the operation still runs.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        lock(&self.torch.replies).contains_key(&self.id)
    }
}

impl PendingStore {
    /// Whether the constructor still runs.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_pending()
    }

    /// Waits for the constructor.
    ///
    /// # Errors
    /// When the constructor raises an exception.
    ///
    /// # Panics
    /// When the constructor does not return within a minute, or the process has ended.
    pub fn finish(self) -> Result<TorchStore, TorchError> {
        let torch = Arc::clone(&self.pending.torch);
        let value = self.pending.wait().result?;
        let port = value["port"].as_u64().and_then(|p| u16::try_from(p).ok());
        Ok(TorchStore {
            torch,
            thread: self.name.clone(),
            name: self.name,
            port: port.expect("an open TCPStore has a port"),
        })
    }
}

impl TorchError {
    /// Whether the exception is an instance of `class` or of a class derived from it.
    #[must_use]
    pub fn is_a(&self, class: &str) -> bool {
        self.class == class || self.bases.iter().any(|base| base == class)
    }

    /// The first line of the message. PyTorch may append a stack trace.
    #[must_use]
    pub fn first_line(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

impl fmt::Display for TorchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

impl std::error::Error for TorchError {}

/// A release of PyTorch, and its features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    version: String,
    minor: u32,
}

/// A feature that some of the tested releases lack (docs/spec/wire.md, 10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// `queue_push`, `queue_pop`, `queue_len`.
    Queues,
    /// `Store.clone`.
    Clone,
    /// `Store.barrier`.
    Barrier,
    /// `Store.list_keys`.
    ListKeys,
    /// The error messages of PyTorch 2.15 clients.
    ErrorTexts,
    /// The PING command. The raw client uses it to wait until its requests were executed.
    Ping,
    /// A wait that timed out reports "wait timeout after" instead of "Socket Timeout".
    WaitTimeoutText,
    /// The contract in `contract.rs` holds in full between PyTorch's own client and server.
    Contract,
    /// Times with a time zone in rendezvous states.
    AwareTimes,
    /// Elastic jobs with gloo groups exit reliably. In 2.4.1 the destructor of a group may hang, also under torchrun
    /// (see `process_group.py`).
    ElasticJobs,
    /// Ranks read each other's addresses one by one, so that the store sees how far each has come. In 2.4.1 the tests
    /// of jobs that hang do not see the requests that they wait for.
    StepsOfInit,
    /// Workers have the variable `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    SignalsVariable,
}

impl Release {
    /// The release that [`PYTHON_VARIABLE`] names. Read once, without loading PyTorch.
    ///
    /// # Panics
    /// When the variable is not set, or names a Python without a supported release.
    #[must_use]
    pub fn tested() -> &'static Self {
        static TESTED: LazyLock<Release> = LazyLock::new(|| {
            let code = "import importlib.metadata as m; print(m.version('torch'))";
            let output = python().args(["-c", code]).output();
            let output = output.unwrap_or_else(|e| panic!("{PYTHON_VARIABLE}: {e}"));
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Release::new(&version).unwrap_or_else(|| {
                panic!(
                    "{PYTHON_VARIABLE}: PyTorch {version:?} is not supported by the tests: {}",
                    String::from_utf8_lossy(&output.stderr)
                )
            })
        });
        &TESTED
    }

    fn new(version: &str) -> Option<Self> {
        let mut numbers = version.split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?.parse().ok()?);
        // Other releases have not been tested.
        (major == "2" && [4, 9, 15].contains(&minor)).then(|| Self {
            version: version.to_owned(),
            minor,
        })
    }

    /// `torch.__version__`, perhaps without the local part after `+`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether the release has `feature`.
    #[must_use]
    pub const fn has(&self, feature: Feature) -> bool {
        self.minor >= feature.since()
    }

    /// Whether the release has `feature`. If not, prints that the calling test skips it.
    #[must_use]
    pub fn allows(&self, feature: Feature) -> bool {
        let has = self.has(feature);
        if !has {
            print_skipped(&format!(
                "{feature:?}, which PyTorch {} does not have",
                self.version
            ));
        }
        has
    }
}

/// Prints once what the calling test skips, and why.
///
/// Writes directly to standard error, because libtest discards the captured output of tests that pass.
pub fn print_skipped(what: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let thread = thread::current();
    let line = format!("skipped in {}: {what}", thread.name().unwrap_or("a test"));
    if lock(&PRINTED).insert(line.clone()) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

impl Feature {
    /// The minor version of the first tested release with this feature.
    const fn since(self) -> u32 {
        match self {
            Self::Ping
            | Self::ElasticJobs
            | Self::StepsOfInit
            | Self::Queues
            | Self::Clone
            | Self::Contract
            | Self::WaitTimeoutText
            | Self::AwareTimes => 9,
            Self::Barrier | Self::ListKeys | Self::ErrorTexts | Self::SignalsVariable => 15,
        }
    }
}

/// A command that runs Python with the environment of the tests.
///
/// # Panics
/// When the variable [`PYTHON_VARIABLE`] is not set.
#[must_use]
pub fn python() -> Command {
    let Some(python) = env::var_os(PYTHON_VARIABLE) else {
        panic!("set {PYTHON_VARIABLE} to a Python that has torch, see integration-tests/README.md");
    };
    let mut command = Command::new(python);
    command
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TORCH_CPP_LOG_LEVEL", "ERROR")
        // PyTorch's server stands still while it looks up the name of a peer, which takes 5 s if the question is lost.
        .env("RES_OPTIONS", "timeout:1 attempts:1")
        .env("OMP_NUM_THREADS", "1");
    command
}

/// Starts a rank that runs a script and reaches its store on this port of 127.0.0.1, as under a launcher.
///
/// # Panics
/// As [`python`], and when it cannot be started.
#[must_use]
pub fn start_rank(name: &str, rank: usize, world_size: usize, port: u16) -> ChildProcess {
    let mut command = python();
    command
        .arg(script(name))
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env("TORCHELASTIC_RESTART_COUNT", "0")
        .env("GLOO_SOCKET_IFNAME", "lo");
    ChildProcess::start(format!("rank {rank}"), &mut command)
}

/// The path of a script in `python/`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("python")
        .join(name)
}

/// Encodes bytes for the Python scripts.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// Decodes bytes from the Python scripts.
///
/// # Panics
/// When `text` is not hexadecimal.
#[must_use]
pub fn from_hex(text: &str) -> Vec<u8> {
    let nibble = |digit: u8| match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => panic!("not a hexadecimal digit: {digit:#04x}"),
    };
    let pairs = text.as_bytes().chunks_exact(2);
    assert!(pairs.remainder().is_empty(), "odd number of digits");
    pairs
        .map(|pair| nibble(pair[0]) << 4 | nibble(pair[1]))
        .collect()
}

/// The strings of a JSON array.
pub(crate) fn strings(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| item.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Encodes a duration for the Python scripts.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn dispatch(stdout: BufReader<ChildStdout>, replies: &Replies) {
    for line in stdout.lines() {
        let Ok(line) = line else { break };
        // Libraries may print other lines to standard output.
        let Ok(reply) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let sender = reply["id"]
            .as_u64()
            .and_then(|id| lock(replies).remove(&id));
        if let Some(sender) = sender {
            let _ = sender.send(reply);
        }
    }
    // Dropping the senders ends all waits.
    lock(replies).clear();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Feature, Release, from_hex, to_hex};

    #[test]
    fn the_version_determines_the_features_of_a_release() {
        let features = [Feature::Queues, Feature::Barrier];
        for (version, has) in [
            ("2.4.1+cu121", [false, false]),
            ("2.9.1", [true, false]),
            ("2.15.0", [true, true]),
        ] {
            let release = Release::new(version).expect("it is tested");
            assert_eq!(
                features.map(|feature| release.has(feature)),
                has,
                "{version}"
            );
        }
        for version in ["2.16.0", "1.15.0", "", "2", "2.x"] {
            assert_eq!(Release::new(version), None, "{version:?}");
        }
    }

    #[test]
    fn hexadecimal_round_trips() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(to_hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(from_hex(&to_hex(&all)), all);
    }
}
