//! `c10d store lease`: owns a key for as long as this process, or a command that it runs, lives. A lock around a command.

use std::ffi::OsString;
use std::io::Write;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use c10d_socket::{Backoff, BackoffOptions, host_name, printable};
use c10d_store::{StoreExt, StoreHandle};
use clap::Args;
use elastic_agent::{
    CommandLine, Console, ExitKind, GroupPlan, KillSwitch, Signal, StartError, WorkerGroup,
    WorkerPlan,
};

use super::target::{Client, TargetArgs};
use super::values::{self, bytes_of};
use crate::end_signals::EndSignals;
use crate::failure::Failure;
use crate::quantity::parse_duration_from;

/// The longest time between two questions to the server, whether the key is still held.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause while another process holds the key. A key that ends wakes no request (*WAIT_CHANGE 3*).
const TRY_INTERVAL: Duration = Duration::from_millis(100);

/// A third of it, the pause between two heartbeats, is then longer than the 250 ms in which the server notices silence.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The shown characters of another holder's value.
const VALUE_SHOWN_MAX: usize = 80;

/// How long the end of this command waits at most until the key has ended.
const RELEASE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    /// The key, without the prefix.
    key: String,

    /// Give the key this value while it is held. [default: HOST:PID of this process]
    #[arg(long, allow_negative_numbers = true)]
    value: Option<OsString>,

    /// Let the server set this key, without the prefix, to this value when the lease ends for any reason.
    ///
    /// If the key is KEY itself, KEY stays, and no process can hold it until it is deleted.
    #[arg(long, num_args = 2, value_names = ["KEY", "VALUE"], allow_negative_numbers = true)]
    will: Option<Vec<OsString>>,

    /// End the lease after this time without a heartbeat, at least 1s.
    ///
    /// The server also ends it at once when the connection is closed, unless the store is in etcd, or is used in a worker
    /// that has a relay and the secret.
    #[arg(long, value_name = "TIME", value_parser = ttl, default_value = "15s")]
    ttl: Duration,

    /// Run this program with its arguments while the key is held.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    target: TargetArgs,
}

/// Holds the key until the command ends, or without one until a signal arrives.
pub(super) fn run(args: &LeaseArgs) -> Result<(), Failure> {
    let lease = Lease::acquire(args)?;
    let signals = EndSignals::catch(false)?;
    if args.command.is_empty() {
        let json = values::pair(&args.key, &lease.value);
        args.target.answer_line(json, &args.key)?;
        lease.hold(&signals, |signal| signal.map(|_| ()))?;
        lease.release();
        return Ok(());
    }
    let mut command = Command::start(&args.command, &signals)?;
    let held = lease.hold(&signals, |signal| {
        if let Some(signal) = signal {
            command.group.signal(signal);
        }
        command.exit.try_recv().ok()
    });
    // The processes that it has left behind are also stopped, before another client can hold the key.
    let report = command
        .group
        .stop(Signal::TERM, lease.silence(), &KillSwitch::new());
    let exit = held?;
    if !report.abandoned.is_empty() {
        return Err(lease.lost("a process of the command cannot be killed"));
    }
    lease.release();
    let code = match exit {
        ExitKind::Code(code) => code,
        // As shells do.
        ExitKind::Signal { number, .. } => 128 + number,
        ExitKind::Unknown => 1,
    };
    match code {
        0 => Ok(()),
        code => Err(Failure::Command(u8::try_from(code).unwrap_or(1))),
    }
}

/// A key that this process holds.
struct Lease<'a> {
    args: &'a LeaseArgs,
    value: Vec<u8>,
    /// Owns the key.
    holder: Client,
    /// Sees it as others do.
    observer: Client,
}

impl<'a> Lease<'a> {
    fn acquire(args: &'a LeaseArgs) -> Result<Self, Failure> {
        let value = match &args.value {
            Some(value) => values::argument(value)?,
            None => format!("{}:{}", host_name(), process::id()).into_bytes(),
        };
        let will = match args.will.as_deref() {
            Some([key, value]) => Some((values::key(key)?, bytes_of(value))),
            _ => None,
        };
        let observer = args.target.connect()?;
        let holder = args.target.connect()?;
        let deadline = holder.tcp().timeout().map(|it| Instant::now() + it);
        let intervals = BackoffOptions::default().with_max(TRY_INTERVAL);
        let mut pauses = Backoff::new(intervals, fastrand::u64(..));
        holder.store().keep_alive(Some(args.ttl))?;
        while let Some(other) = holder.store().set_ephemeral(&args.key, &value, will)? {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Failure::No(format!(
                    "lease {:?} timed out: another process holds the key, whose value is \"{}\"",
                    args.key,
                    printable(&other, VALUE_SHOWN_MAX)
                )));
            }
            let pause = pauses.next_delay();
            thread::sleep(left.map_or(pause, |left| pause.min(left)));
        }
        Ok(Self {
            args,
            value,
            holder,
            observer,
        })
    }

    /// A third of the time to live. A lease lost in silence is detected after two thirds, and the command has one third
    /// to exit.
    fn silence(&self) -> Duration {
        self.args.ttl / 3
    }

    /// Holds the key until `is_done` returns something, which is called after each signal and end of a process.
    ///
    /// # Errors
    /// The key is lost.
    fn hold<T>(
        &self,
        signals: &EndSignals,
        mut is_done: impl FnMut(Option<Signal>) -> Option<T>,
    ) -> Result<T, Failure> {
        let interval = self.silence().min(ASK_INTERVAL);
        // The server counts from the heartbeat that it got last.
        let mut kept_at = Instant::now();
        let mut next = kept_at + interval;
        loop {
            if let Some(done) = is_done(signals.take()) {
                return Ok(done);
            }
            let now = Instant::now();
            if now >= next {
                self.ask(kept_at + self.silence() * 2)?;
                (kept_at, next) = (now, now + interval);
            }
            let until = next.saturating_duration_since(now);
            signals.wait(until)?;
        }
    }

    /// Sends a heartbeat, and checks that the key still belongs to this process. Waits for the answers until `by`, the
    /// longest time for a takeover of a store in etcd.
    fn ask(&self, by: Instant) -> Result<(), Failure> {
        let limit = |client: &Client| {
            let left = by.saturating_duration_since(Instant::now());
            client.tcp().set_timeout(Some(left));
        };
        limit(&self.holder);
        let is_kept = self.holder.store().keep_alive(Some(self.args.ttl));
        if !is_kept.map_err(|error| self.lost(error))? {
            return Err(self.lost("the server received no heartbeat of this process in time"));
        }
        limit(&self.observer);
        let value = self.observer.store().try_get(&self.args.key);
        if value.map_err(|error| self.lost(error))?.as_ref() != Some(&self.value) {
            return Err(self.lost("another client has deleted or changed the key"));
        }
        Ok(())
    }

    fn lost(&self, why: impl std::fmt::Display) -> Failure {
        Failure::LeaseLost {
            key: self.args.key.clone(),
            why: why.to_string(),
        }
    }

    /// Releases the lease, and waits until this is visible to other clients. If the server cannot be reached, it lets
    /// the lease expire.
    fn release(self) {
        let deadline = Instant::now() + RELEASE_MAX;
        drop(self.holder);
        let is_held = || {
            let value = self.observer.store().try_get(&self.args.key);
            value.is_ok_and(|value| value.as_ref() == Some(&self.value))
        };
        while is_held() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A command that runs in its own session, and is killed when this process exits.
struct Command {
    group: WorkerGroup,
    exit: Receiver<ExitKind>,
}

impl Command {
    fn start(words: &[OsString], signals: &EndSignals) -> Result<Self, Failure> {
        let system = |error| Failure::system("cannot start the command")(error);
        let (program, arguments) = words.split_first().expect("clap wants a value");
        let command = CommandLine::new(program, arguments.iter().cloned());
        let mut plan = WorkerPlan::new(0, 0, command);
        plan.environment = env::vars_os().collect();
        let (exits, exit) = mpsc::channel();
        let wake = signals.waker().map_err(system)?;
        let started = WorkerGroup::start(
            GroupPlan::new(vec![plan]),
            Console::inherited(),
            move |ended| {
                let _ = exits.send(ended.exit);
                let _ = (&wake).write(&[0]);
            },
        );
        let group = started.map_err(|error| match error {
            StartError::Program {
                program, source, ..
            } => Failure::Usage(format!("cannot start {}: {source}", program.display())),
            other => system(std::io::Error::other(other)),
        })?;
        Ok(Self { group, exit })
    }
}

fn ttl(text: &str) -> Result<Duration, String> {
    parse_duration_from(TTL_MIN, text)
}
