//! `--events`: what happened in each round, and where the time went.

mod torch;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use elastic_rendezvous::{C10D_BACKEND, Listener, RecordedEvent, RendezvousError, RendezvousEvent};
use rustix::fs::OFlags;
use rustix::io::ioctl_fionbio;
use serde_json::{Map, Value, json};

pub(super) use self::torch::JobNames;
use self::torch::{Moment, WorkerPlace};
use super::feature::{Feature, JobEnd};
use crate::agent::{AgentEvent, AgentListener, RoundRecord, StartedWorker, StartedWorkers};
use crate::failure::ProcessFailure;
use crate::queued_writer::{Next, QueuedWriter};
use crate::round::{AgentError, AgentOutcome, RoundCause, RoundEnding};
use crate::threads::lock;
use crate::wording::epoch_ms;

/// Records the rounds of one run. Its listeners write a line at a time and do not wait for readers.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    names: JobNames,
    started: Instant,
    file: EventFile,
    /// The last round, whose workers' ends are the job's.
    last: Mutex<Option<RoundRecord>>,
}

impl Recorder {
    /// Opens the file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn open(file: &Path, names: JobNames) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                names,
                started: Instant::now(),
                file: EventFile::open(file)?,
                last: Mutex::default(),
            }),
        })
    }
}

impl Feature for Recorder {
    /// Records the steps of the rendezvous that change what this node is a part of.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move |event| {
            if let RendezvousEvent::Recorded(event) = event {
                shared.file.write(&torch::rendezvous_event(event));
            }
        }))
    }

    /// Records starts of workers, and rounds.
    fn agent_listener(&self) -> Option<AgentListener> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move |event| match event {
            AgentEvent::WorkersStarted(started) => shared.note_start(started),
            AgentEvent::WorkerReplaced(started, worker) => shared.note_worker(started, worker),
            AgentEvent::RoundEnded(record) => shared.note_round(record),
            _ => {}
        }))
    }

    /// Records that the rendezvous could not be opened. Waits as [`job_ended`](Self::job_ended).
    fn could_not_open(&mut self, error: &RendezvousError, stuck_max: Duration) {
        let shared = &self.shared;
        // PyTorch's other rendezvous records nothing.
        if shared.names.backend != C10D_BACKEND {
            return;
        }
        let event = RecordedEvent::of_failed_creation(&shared.names.run_id, error);
        shared.file.write(&torch::rendezvous_event(&event));
        shared.file.finish(stuck_max);
    }

    /// Records how the job ended on this node. Waits until all is in the file, unless it accepts nothing for some time.
    fn job_ended(&mut self, end: &JobEnd) {
        let (shared, result) = (&self.shared, &end.result);
        let last = lock(&shared.last).take();
        if let Some(last) = last {
            for line in shared.last_events(result, &last) {
                shared.file.write(&line);
            }
            if let Some(has_failed) = torch::has_failed(result) {
                let metrics = torch::metrics(&shared.names, has_failed, &last);
                shared.file.write(&metrics);
            }
        }
        shared.file.finish(end.stuck_max);
    }
}

impl Shared {
    fn note_start(&self, started: &StartedWorkers) {
        let moment = self.moment(started.restarts_used);
        let phases = [
            ("RENDEZVOUS", started.rendezvous),
            ("ASSIGN_WORKER_RANKS", started.ranks),
        ];
        for (phase, time) in phases {
            let line =
                torch::agent_event(&self.names, phase, moment, Some(started), Some(time), None);
            self.file.write(&line);
        }
        for worker in &started.workers {
            self.note_worker(started, worker);
        }
    }

    fn note_worker(&self, started: &StartedWorkers, worker: &StartedWorker) {
        let moment = self.moment(started.restarts_used);
        let place = WorkerPlace::of(started, worker);
        let line = torch::worker_event(&self.names, "START", moment, &place, None);
        self.file.write(&line);
    }

    fn note_round(&self, record: &RoundRecord) {
        let line = line(&self.names, record);
        self.file.write(&line);
        *lock(&self.last) = Some(record.clone());
    }

    fn last_events(
        &self,
        result: &Result<AgentOutcome, AgentError>,
        last: &RoundRecord,
    ) -> Vec<Value> {
        let moment = self.moment(last.restarts);
        let mut lines = Vec::new();
        let started = last.started.as_ref();
        if torch::has_failed(result).is_some()
            && let Some(started) = started
        {
            for worker in &started.workers {
                // The last of those that were replaced.
                let outcome = last.outcomes.iter().rfind(|it| it.rank == worker.rank);
                let failed = outcome.filter(|it| !it.exit.is_success());
                let failure = failed.map(ProcessFailure::of);
                let state = torch::state_of(result, failure.is_some());
                let place = WorkerPlace::of(started, worker);
                let line =
                    torch::worker_event(&self.names, state, moment, &place, failure.as_ref());
                lines.push(line);
            }
        }
        let (state, error) = torch::agent_state(result);
        let line = torch::agent_event(&self.names, state, moment, started, None, error);
        lines.push(line);
        lines
    }

    fn moment(&self, restarts: usize) -> Moment {
        Moment {
            epoch_ms: epoch_ms(SystemTime::now()),
            run_seconds: self.started.elapsed().as_secs(),
            restarts,
        }
    }
}

const THREAD: &str = "events";

/// Appends lines, from any thread and without waiting for a disk or a reader. Several launchers may append to one file
/// of this machine: each line is one write.
#[derive(Debug)]
struct EventFile {
    lines: QueuedWriter<Vec<u8>>,
}

impl EventFile {
    /// Opens the file; a new one can only be read by this user. Does not wait for the reader of a pipe.
    ///
    /// # Errors
    /// The error of the operating system, or a pipe without a reader.
    fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let name = path.display().to_string();
        let of_gaps = name.clone();
        let render = move |next| match next {
            Next::Item(line) => line,
            Next::Gap(dropped) => {
                log::warn!("{dropped} events are missing in {of_gaps}, which accepted no more");
                Vec::new()
            }
        };
        let mut has_failed = false;
        let lines = QueuedWriter::start(THREAD, file, Box::new(render), move |error| {
            // The job continues without its events.
            if !std::mem::replace(&mut has_failed, true) {
                log::warn!("cannot write events to {name}: {error}");
            }
        })?;
        Ok(Self { lines })
    }

    /// Appends a line. A failure is logged once.
    fn write(&self, line: &Value) {
        let line = format!("{line}\n").into_bytes();
        self.lines.push(line.len(), line);
    }

    /// Waits until all lines are written, unless the file accepts nothing for `stuck_max`.
    fn finish(&self, stuck_max: Duration) {
        self.lines.finish(stuck_max);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // Otherwise opening a pipe waits for its reader.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match is_pipe {
            true => io::Error::other(format!(
                "no process reads the pipe {}: start its reader first ({error})",
                path.display()
            )),
            false => error,
        })?;
    // The thread that writes may block. Other programs that share the terminal may also expect blocking writes.
    ioctl_fionbio(&file, false)?;
    Ok(file)
}

/// The fields that docs/reference/exit-codes.md describes. The phases add up to the total, in milliseconds.
fn line(names: &JobNames, record: &RoundRecord) -> Value {
    let (began, began_why) = cause(&record.cause);
    let (ended, ended_why) = ending(&record.ending);
    let began_at = record
        .began_at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut line = json!({
        "event": "round",
        "run_id": names.run_id,
        "host": names.host,
        "time": seconds(began_at),
        "began": began,
        "began_why": began_why,
        "ended": ended,
        "ended_why": record.reason.as_deref().or(ended_why),
        "seconds": phases(record),
        "last_step": record.last_step,
        "restarts_used": record.restarts,
        "restarts_left": record.restarts_left,
    });
    if let Some(started) = &record.started {
        let ranks: Vec<usize> = started.workers.iter().map(|worker| worker.rank).collect();
        line["round"] = started.round.into();
        line["nodes"] = started.nodes.into();
        line["node_rank"] = started.node_rank.into();
        line["ranks"] = ranks.into();
        line["preloaded"] = started.are_preloaded.into();
        line["world_size"] = started.world_size.into();
        let codes = record.outcomes.iter();
        line["exit_codes"] = codes
            .map(|end| (end.rank.to_string(), Value::from(end.exit.code())))
            .collect::<Map<_, _>>()
            .into();
        let is_replaced = |pid| started.workers.iter().all(|worker| worker.pid != pid);
        let replaced = record.outcomes.iter().filter(|it| is_replaced(it.pid));
        let replaced: Vec<usize> = replaced.map(|end| end.rank).collect();
        if !replaced.is_empty() {
            line["replaced"] = replaced.into();
        }
    }
    line
}

fn phases(record: &RoundRecord) -> Value {
    let phases = &record.phases;
    let parts = [
        ("rendezvous", phases.rendezvous),
        ("ranks", phases.ranks),
        ("start", phases.start),
        ("run", phases.run),
        ("stop", phases.stop),
    ];
    let total: u128 = parts.iter().map(|(_, time)| time.as_millis()).sum();
    let mut object: Map<String, Value> = parts
        .into_iter()
        .map(|(name, time)| (name.to_owned(), seconds(time)))
        .collect();
    object.insert("total".to_owned(), thousandths(total));
    let progress = [
        ("first_output", record.first_output),
        ("first_progress", record.first_progress),
        ("last_progress", record.last_progress),
    ];
    for (name, time) in progress {
        if let Some(time) = time {
            object.insert(name.to_owned(), seconds(time));
        }
    }
    object.into()
}

fn seconds(time: Duration) -> Value {
    thousandths(time.as_millis())
}

fn thousandths(ms: u128) -> Value {
    Value::from(ms as f64 / 1000.0)
}

fn cause(cause: &RoundCause) -> (&'static str, Option<&str>) {
    match cause {
        RoundCause::Start => ("start", None),
        RoundCause::Failure => ("failure", None),
        RoundCause::Stuck => ("stuck", None),
        RoundCause::MembersChanged(why) => ("members_changed", Some(why)),
    }
}

/// A word for programs, and a text for people.
fn ending(ending: &RoundEnding) -> (&'static str, Option<&str>) {
    match ending {
        RoundEnding::Succeeded => ("succeeded", None),
        RoundEnding::Failed => ("failed", None),
        RoundEnding::Stuck => ("stuck", None),
        RoundEnding::MembersChanged(why) => ("members_changed", Some(why)),
        RoundEnding::JobEnded(why) => ("job_ended", Some(why)),
        RoundEnding::Signalled => ("signalled", None),
        RoundEnding::NotStarted(why) => ("not_started", Some(why)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pipe_without_a_reader_is_refused_and_one_that_is_not_read_delays_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &path,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        let error = EventFile::open(&path).unwrap_err();
        assert!(
            error.to_string().contains("no process reads the pipe"),
            "{error}"
        );

        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .unwrap();
        let file = EventFile::open(&path).unwrap();
        // More than a pipe takes.
        for number in 0..4096 {
            file.write(&json!({ "n": number, "text": "x".repeat(100) }));
        }
        file.finish(Duration::from_millis(1));
        drop(reader);
    }

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        for number in 0..2 {
            let file = EventFile::open(&path).unwrap();
            file.write(&json!({ "n": number, "text": "a\nb" }));
            file.finish(LONG);
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"n\":0,\"text\":\"a\\nb\"}\n{\"n\":1,\"text\":\"a\\nb\"}\n"
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(EventFile::open(&folder.path().join("none/events")).is_err());
    }
}
