//! Runs a client's command against each scenario, one line at a time.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, printable, sleep, wait_for_input, wait_for_output};

use crate::client::scenario::{Scenario, Step, UNSUPPORTED, scenarios};
use crate::client::serve::Serving;
use crate::client::service::Service;
use crate::report::Report;
use crate::runner::RunError;
use crate::verdict::{Outcome, Verdict};

/// Commands at a time: all.
const THREADS: usize = 8;

/// For the line `ready`. With the other limits, the worst client takes 20 s.
const START_TIMEOUT: Duration = Duration::from_secs(14);

/// For one operation, of which the longest wait is of 3 s.
const LINE_TIME_MAX: Duration = Duration::from_secs(5);

/// For the end of the command after that of its input.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// A longer line is no answer.
const LINE_BYTES_MAX: usize = 8 << 20;

/// POSIX's `PIPE_BUF` on Linux.
const PIPE_BYTES: usize = 4096;

/// As much of a line as a report has.
const SHOWN_CHARS_MAX: usize = 100;

/// The answers of a client of the newest release are expected.
const WHO: &str = "torch-2.15";

/// Runs a client's command against stores that behave as PyTorch's within its rights.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it runs"]
pub struct ClientRun {
    command: Vec<OsString>,
    only: Vec<String>,
    start_timeout: Option<Duration>,
    cancel: Cancel,
}

impl ClientRun {
    /// The command and its arguments.
    pub fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            only: Vec::new(),
            start_timeout: Some(START_TIMEOUT),
            cancel: Cancel::NEVER,
        }
    }

    /// Runs only the scenarios with these names. Default: all.
    pub fn with_only(mut self, names: Vec<String>) -> Self {
        self.only = names;
        self
    }

    /// How long the command may take to connect and print `ready`; `None` for any time. Default: 14 s. Those of all scenarios
    /// start at the same time, and an interpreter may have much to load.
    pub fn with_start_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.start_timeout = timeout.into();
        self
    }

    /// Ends the run early. Default: no.
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Runs the command once for each scenario, at the same time. Blocks until all have ended or were killed, with the default
    /// of the start 20 s at most.
    ///
    /// # Errors
    /// The command cannot be started, or a thread. What the client does wrong is in the report.
    pub fn run(&self) -> Result<Report, RunError> {
        let started = Instant::now();
        let mut scenarios = scenarios()?;
        if let Some(name) = self
            .only
            .iter()
            .find(|name| !scenarios.iter().any(|it| it.name == **name))
        {
            return Err(RunError::NoCase(name.clone()));
        }
        scenarios.retain(|it| self.only.is_empty() || self.only.contains(&it.name));
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(scenario) = scenarios.get(index) else {
                    return;
                };
                let result = self.play(scenario);
                results
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((index, result));
            }
        };
        thread::scope(|scope| {
            for number in 0..THREADS.min(scenarios.len()) {
                thread::Builder::new()
                    .name(format!("conform-{number}"))
                    .spawn_scoped(scope, work)
                    .map_err(RunError::Thread)?;
            }
            Ok::<(), RunError>(())
        })?;
        if self.cancel.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(index, _)| *index);
        let mut outcomes = Vec::new();
        for (index, result) in results {
            outcomes.push(Outcome {
                name: scenarios[index].name.clone(),
                operation: "client".to_owned(),
                verdict: result?,
            });
        }
        let words: Vec<_> = self
            .command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        Ok(Report::new(
            words.join(" "),
            "client",
            WHO,
            outcomes,
            started.elapsed(),
        ))
    }

    fn play(&self, scenario: &Scenario) -> Result<Verdict, RunError> {
        let read_late = Duration::from_millis(scenario.manners.read_late_ms);
        let serving =
            Serving::start(Service::new(scenario.manners), read_late).map_err(RunError::Thread)?;
        let port = serving.address.port().to_string();
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command
            .args(words)
            .env("MASTER_ADDR", serving.address.ip().to_string())
            .env("MASTER_PORT", port)
            .env("C10D_CONFORM_SCENARIO", &scenario.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let client = Client::start(&mut command, &self.cancel);
        let mut wrong = Vec::new();
        let mut unsupported = Vec::new();
        let played = client.map(|mut client| {
            match client.play(scenario, self.start_timeout, &mut unsupported) {
                Ok(()) => client.end(),
                Err(why) => Err(why),
            }
        });
        let service = serving.stop();
        let played = played.map_err(|source| RunError::Command {
            command: self.command.first().cloned().unwrap_or_default(),
            source,
        })?;
        let is_played = played.is_ok();
        wrong.extend(played.err());
        if let Some(service) = service {
            // The first is what the client sent, from which the rest may follow.
            wrong.splice(0..0, service.wrong().iter().cloned());
            // What follows from an operation that failed is no finding of its own.
            if is_played {
                wrong.extend(differences(scenario, &service, &unsupported));
            }
        }
        Ok(match wrong.is_empty() {
            true => Verdict::Same,
            false => Verdict::Wrong { why: wrong },
        })
    }
}

/// What the store should have in the end, and has not.
fn differences(scenario: &Scenario, service: &Service, unsupported: &[&str]) -> Vec<String> {
    let is_asked = |key: &str| {
        !unsupported
            .iter()
            .any(|it| it.split(' ').any(|word| word == key))
    };
    let state = scenario.state().filter(|(key, _)| is_asked(key));
    let differs = state.filter_map(|(key, expected)| {
        let value = service.value(format!("/{key}").as_bytes());
        let shown = match value {
            Some(value) if value == expected.as_bytes() => return None,
            Some(value) => format!("has {}", shown(value)),
            None => "is missing".to_owned(),
        };
        Some(format!(
            "left key {key} in the store, which {shown} instead of {}",
            self::shown(expected.as_bytes())
        ))
    });
    differs.collect()
}

fn shown(text: &[u8]) -> String {
    match text {
        [] => "\"\"".to_owned(),
        text => printable(text, SHOWN_CHARS_MAX).to_string(),
    }
}

/// The running command; killed if it does not end.
struct Client<'r> {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    unread: Vec<u8>,
    cancel: &'r Cancel,
}

enum Line {
    Printed(String),
    Ended,
    Late,
}

impl<'r> Client<'r> {
    fn start(command: &mut Command, cancel: &'r Cancel) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(missing)?;
        Ok(Self {
            child,
            stdin,
            stdout,
            unread: Vec::new(),
            cancel,
        })
    }

    /// Up to the first operation that fails. Notes those that the client does not have.
    fn play<'s>(
        &mut self,
        scenario: &'s Scenario,
        start_timeout: Option<Duration>,
        unsupported: &mut Vec<&'s str>,
    ) -> Result<(), String> {
        match self.line(start_timeout) {
            Line::Printed(line) if line == "ready" => {}
            Line::Printed(line) => {
                return Err(format!(
                    "printed {} instead of ready",
                    shown(line.as_bytes())
                ));
            }
            Line::Ended => return Err("ended before it printed ready".to_owned()),
            Line::Late => return Err("did not connect and print ready in time".to_owned()),
        }
        for step in &scenario.steps {
            if self.step(step)? == UNSUPPORTED {
                unsupported.push(&step.operation);
            }
        }
        Ok(())
    }

    /// The line that the client has printed.
    fn step(&mut self, step: &Step) -> Result<String, String> {
        let operation = shown(step.operation.as_bytes());
        let began = Instant::now();
        let line = format!("{}\n", step.operation);
        self.write(line.as_bytes())
            .map_err(|_| format!("ended before {operation}, or does not read its input"))?;
        let expected: Vec<String> = step
            .prints()
            .iter()
            .map(|it| shown(it.as_bytes()))
            .collect();
        let expected = expected.join(" or ");
        match self.line(Some(LINE_TIME_MAX)) {
            Line::Printed(line) if !step.is_passed_by(&line) => Err(format!(
                "{operation} printed {} instead of {expected}",
                shown(line.as_bytes())
            )),
            Line::Printed(line)
                if line != UNSUPPORTED
                    && began.elapsed() < Duration::from_millis(step.after_ms) =>
            {
                let took_ms = began.elapsed().as_millis();
                Err(format!(
                    "{operation} ended after {took_ms} ms, before it could"
                ))
            }
            Line::Printed(line) => Ok(line),
            Line::Ended => Err(format!(
                "ended in {operation}, instead of printing {expected}"
            )),
            Line::Late => Err(format!(
                "hung in {operation}, instead of printing {expected}"
            )),
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = Deadline::after(Instant::now(), LINE_TIME_MAX);
        let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
        let stdin = self.stdin.as_mut().ok_or_else(ended)?;
        while !bytes.is_empty() {
            let left = deadline.remaining(Instant::now());
            if !wait_for_output(&*stdin, left, self.cancel)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A pipe that has room takes so much without blocking.
            let length = stdin.write(&bytes[..bytes.len().min(PIPE_BYTES)])?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    fn line(&mut self, limit: Option<Duration>) -> Line {
        let deadline = Deadline::after(Instant::now(), limit);
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return Line::Printed(line.trim_end_matches(['\r', '\n']).to_owned());
            }
            let left = deadline.remaining(Instant::now());
            let has_input = wait_for_input(&self.stdout, left, self.cancel);
            if !has_input.unwrap_or(false) || self.unread.len() > LINE_BYTES_MAX {
                return Line::Late;
            }
            let mut buffer = vec![0; 1 << 16];
            match self.stdout.read(&mut buffer) {
                Ok(0) | Err(_) => return Line::Ended,
                Ok(length) => self.unread.extend(&buffer[..length]),
            }
        }
    }

    /// Ends the input, and waits for the command's end.
    fn end(mut self) -> Result<(), String> {
        self.stdin = None;
        let until = Instant::now() + END_TIME_MAX;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) if !status.success() => {
                    return Err(format!("ended with {status}"));
                }
                Ok(Some(_)) | Err(_) => return Ok(()),
                Ok(None) => {}
            }
            if sleep(Duration::from_millis(5), [self.cancel]).is_err() {
                break;
            }
        }
        Err("did not end after the end of its input".to_owned())
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
