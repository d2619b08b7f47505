//! Runs the cases of a column against a server.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{ConnectError, ConnectOptions, Deadline, HostPort, connect};

use crate::case::{Answer, MalformedCase};
use crate::column::Column;
use crate::plan::{Plan, plans};
use crate::report::Report;
use crate::request::{Opcode, RequestBytes, length_word};
use crate::script::{Act, Send, Step, commands_and_keys};
use crate::verdict::{Outcome, Verdict};
use crate::worker::{Setting, Worker};

/// Cases in progress at a time. Most of them wait.
const THREADS: usize = 6;

/// The time limit of a run. A case that has not ended at this time has no verdict.
const RUN_TIME_MAX: Duration = Duration::from_secs(19);

/// The error of a run without a report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The requested name is not the name of a case.
    #[error("no case is called {0}: the names are in c10d-conform/cases")]
    NoCase(String),
    /// The cases cannot be read.
    #[error(transparent)]
    Case(#[from] MalformedCase),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A run of cases against a server.
///
/// ```no_run
/// use c10d_conform::{COLUMNS, ServerRun};
///
/// let [newest, ..] = COLUMNS;
/// let report = ServerRun::new("127.0.0.1:29500".parse()?, newest).run(1)?;
/// println!("{}", report.to_text());
/// assert!(report.is_conforming());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it runs"]
pub struct ServerRun {
    target: HostPort,
    column: Column,
    only: Vec<String>,
    time_max: Duration,
}

impl ServerRun {
    /// Creates a run that compares the server at `target` with the server of `column`. Connects to nothing yet.
    pub fn new(target: HostPort, column: Column) -> Self {
        Self {
            target,
            column,
            only: Vec::new(),
            time_max: RUN_TIME_MAX,
        }
    }

    /// Runs only the cases with these names. Default: all.
    pub fn with_only(mut self, names: Vec<String>) -> Self {
        self.only = names;
        self
    }

    /// Runs the cases, and deletes the keys that they have made. `run` is part of the names of the keys: use a
    /// different number for each run against the same server. Blocks for some seconds if the server answers, and for
    /// 20 s at most.
    ///
    /// # Errors
    /// [`RunError`] if the first connection cannot be made, or the run cannot start. Wrong answers of the server are
    /// in the report instead.
    pub fn run(&self, run: u32) -> Result<Report, RunError> {
        let started = Instant::now();
        let run = format!("{run:x}");
        let plans = self.chosen(plans(self.column, &run)?)?;
        let deadline = Deadline::after(started, self.time_max);
        let connect_deadline = Deadline::after(started, self.time_max / 4);
        let once = connect(&self.target, &ConnectOptions::default(), connect_deadline)?;
        // Without a second lookup of the name.
        let target = match once.peer_addr() {
            Ok(at) => HostPort::new(at.ip().to_string(), at.port()),
            Err(_) => self.target.clone(),
        };
        drop(once);
        let setting = Setting {
            target,
            column: self.column,
            fence_key: format!("/conform-{run}/fence"),
            deadline,
        };
        let (alone, beside): (Vec<&Plan>, Vec<&Plan>) = plans.iter().partition(|it| it.is_alone);
        let mut outcomes = HashMap::new();
        let mut worker = Worker::new(&setting);
        for plan in alone {
            outcomes.insert(&*plan.name, outcome(plan, &mut worker));
            delete(&[plan], &mut worker);
        }
        outcomes.extend(run_beside(&beside, &setting)?);
        delete(&beside, &mut worker);
        let outcomes = plans.iter().filter_map(|plan| {
            let verdict = outcomes.remove(&*plan.name)?;
            Some(Outcome {
                name: plan.name.clone(),
                operation: plan.operation.clone(),
                verdict,
            })
        });
        Ok(Report::new(
            self.target.to_string(),
            self.column.name(),
            outcomes.collect(),
            started.elapsed(),
        ))
    }

    fn chosen(&self, mut plans: Vec<Plan>) -> Result<Vec<Plan>, RunError> {
        for name in &self.only {
            if !plans.iter().any(|plan| plan.name == *name) {
                return Err(RunError::NoCase(name.clone()));
            }
        }
        plans.retain(|plan| self.only.is_empty() || self.only.contains(&plan.name));
        Ok(plans)
    }
}

fn run_beside<'p>(
    plans: &[&'p Plan],
    setting: &Setting,
) -> Result<Vec<(&'p str, Verdict)>, RunError> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::with_capacity(plans.len()));
    let work = || {
        let mut worker = Worker::new(setting);
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = outcome(plan, &mut worker);
            let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            verdicts.push((&*plan.name, verdict));
        }
    };
    thread::scope(|scope| {
        for number in 0..THREADS.min(plans.len()) {
            thread::Builder::new()
                .name(format!("conform-{number}"))
                .spawn_scoped(scope, work)
                .map_err(RunError::Thread)?;
        }
        Ok::<(), RunError>(())
    })?;
    Ok(verdicts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// The verdict on the column's answer, or on the second answer that passes.
fn outcome(plan: &Plan, worker: &mut Worker<'_>) -> Verdict {
    let mut first = None;
    for answer in &plan.attempts {
        let verdict = match answer {
            Answer::Skip(why) => Verdict::NotAsked { why: why.clone() },
            Answer::Script(script) => worker.play(script, !plan.is_quirk),
        };
        match (verdict, &first) {
            (Verdict::Same, Some(_)) => return Verdict::Fixed,
            (verdict, None) if verdict.is_pass() => return verdict,
            (verdict, None) => first = Some(verdict),
            (_, Some(_)) => {}
        }
    }
    first.unwrap_or(Verdict::Same)
}

/// Deletes the keys of cases, as far as the server lets it.
fn delete(plans: &[&Plan], worker: &mut Worker<'_>) {
    if !worker.is_answered_at_all() {
        return;
    }
    let step = |act| Step {
        connection: String::new(),
        act,
    };
    let mut script = vec![step(Act::Open {
        has_handshake: true,
    })];
    for answer in plans.iter().flat_map(|plan| &plan.attempts) {
        let Answer::Script(sent) = answer else {
            continue;
        };
        for key in commands_and_keys(sent).1 {
            let request = RequestBytes::new(Opcode::DELETE_KEY).blob(&key).0;
            script.push(step(Act::Send(Send::whole(request))));
            let replies = [0, 1].map(|count| length_word(count).to_vec());
            script.push(step(Act::Receive(replies.to_vec())));
        }
    }
    let _ = worker.play(&script, true);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A run against a server that does this with each connection, in less time than other runs have.
    fn run(serve: fn(TcpStream)) -> Report {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let server = thread::spawn(move || {
            let mut served = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                let mut first = [0];
                // This input terminates the server.
                if stream
                    .peek(&mut first)
                    .is_ok_and(|length| length == 1 && first == *b"!")
                {
                    break;
                }
                served.push(thread::spawn(move || serve(stream)));
            }
            served
                .into_iter()
                .for_each(|it| it.join().expect("no panic"));
        });
        let target = HostPort::new("127.0.0.1", address.port());
        let run = ServerRun {
            time_max: Duration::from_secs(2),
            ..ServerRun::new(target, Column::default())
        };
        let began = Instant::now();
        let report = run.run(1).expect("it accepts");
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "{:?}",
            began.elapsed()
        );
        let mut last = TcpStream::connect(address).expect("it listens");
        last.write_all(b"!").expect("it is accepted");
        server.join().expect("no panic");
        report
    }

    /// Whether no case passes that needs a reply.
    fn assert_fails(report: &Report) {
        let passed = report
            .outcomes()
            .iter()
            .filter(|it| it.verdict == Verdict::Same);
        let closes = |name: &str| ["_close", "_unknown"].iter().any(|it| name.contains(it));
        let passed: Vec<&str> = passed
            .map(|it| &*it.name)
            .filter(|name| !closes(name))
            .collect();
        assert!(passed.is_empty(), "{passed:?}");
        assert!(!report.is_conforming());
    }

    fn read_to_end(mut stream: TcpStream) {
        while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
    }

    #[test]
    fn a_server_that_never_answers_ends_the_run_in_its_time() {
        assert_fails(&run(read_to_end));
    }

    #[test]
    fn a_server_that_closes_or_sends_without_end_is_judged() {
        assert_fails(&run(drop));
        assert_fails(&run(
            |mut stream| {
                while stream.write_all(&[0; 4096]).is_ok() {}
            },
        ));
    }

    #[test]
    fn a_server_that_drips_ends_the_run_in_its_time() {
        assert_fails(&run(|mut stream| {
            let mut drip = || {
                stream.write_all(&[0x5e]).is_ok()
                    && c10d_socket::sleep(Duration::from_millis(50), []).is_ok()
            };
            while drip() {}
        }));
    }
}
