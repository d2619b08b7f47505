//! Reports on its own why a job makes no progress: while workers start and run, and when one fails.

mod blame;
mod collectives;
mod explanation;
mod requests;
mod source;
mod watch;

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use c10d_inspect::report_text::TextStyle;
use c10d_inspect::{AnnouncedNode, FindingKind, Report};
use c10d_socket::{Cancel, Silence};

use self::blame::{Absent, FailureReports};
use self::collectives::Collectives;
use self::explanation::Explanation;
use self::requests::NodeRequests;
use self::source::Source;
use self::watch::{Say, Standstill, Watch};
use super::announce::{Flusher, LocalView};
use super::feature::{Feature, JobEnd};
use super::options::{LauncherOptions, Screen};
use super::status_page::Hosted;
use crate::agent::{AgentEvent, AgentListener, StartedWorkers};
use crate::threads::{JoinedThread, lock, thread_cpu_time};

const THREAD: &str = "explain";

/// How long one look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A look takes at most this part of the time of a CPU: a report on 16,384 ranks takes part of a second.
const LOOK_SHARE: u32 = 20;

/// How long the agent waits for the report when a worker has failed, before it stops the other workers.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A report before a failure tells something about it if it is not older.
const RECENT: Duration = Duration::from_secs(5);

/// Longer than any job, and still a time that can be added to the current one.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86400);

/// The live line has the answer for a job that has made no progress for this time.
const LINE_AFTER: Duration = Duration::from_secs(3);

/// Explains until it is dropped, which joins its thread: at once, or within 2 s if a store of this process does not
/// answer.
#[derive(Debug)]
pub(super) struct Explainer {
    messages: Sender<Message>,
    shared: Arc<Shared>,
    _thread: JoinedThread,
}

/// The data that this thread, the agent's thread and the owner share.
#[derive(Debug)]
struct Shared {
    hosted: Arc<Hosted>,
    announcements: Flusher,
    local: LocalView,
    screen: Arc<dyn Screen>,
    /// The source of the workers that run.
    source: Mutex<Option<Source>>,
    /// The last report on a job without progress, and when it was made.
    last_stuck: Mutex<Option<(Instant, Report)>>,
    /// The ranks that were last found to take no part in a collective, and when this was found.
    last_absent: Mutex<Option<(Instant, Absent)>>,
    /// The reports of the last failure.
    failure: Mutex<Option<FailureReports>>,
    /// Ends lookups and questions to other hosts.
    cancel: Cancel,
}

#[derive(Debug)]
enum Message {
    Started(Box<StartedWorkers>),
    Stopping,
    End,
}

impl Explainer {
    /// Starts the thread. It speaks when the job has made no progress for `after`, never if `None`. If workers have debug
    /// servers, it also compares their collectives.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start(
        options: &LauncherOptions,
        hosted: Arc<Hosted>,
        announcements: Flusher,
        local: LocalView,
    ) -> io::Result<Self> {
        let (messages, inbox) = channel();
        let shared = Arc::new(Shared {
            hosted,
            announcements,
            local,
            screen: Arc::clone(&options.screen),
            source: Mutex::default(),
            last_stuck: Mutex::default(),
            last_absent: Mutex::default(),
            failure: Mutex::default(),
            cancel: Cancel::new(),
        });
        let thread = Thread {
            after: options.explain_after,
            has_debug_servers: options.has_debug_servers,
            shared: Arc::clone(&shared),
            inbox,
            epoch: Instant::now(),
            working: None,
            line: None,
        };
        let thread = JoinedThread::start(THREAD, move || thread.run())?;
        Ok(Self {
            messages,
            shared,
            _thread: thread,
        })
    }
}

impl Feature for Explainer {
    /// At the failure of a worker it blocks until the report is made, for about 1 s at most.
    fn agent_listener(&self) -> Option<AgentListener> {
        let messages = self.messages.clone();
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move |event| {
            let message = match event {
                AgentEvent::WorkersStarted(started) => {
                    Message::Started(Box::new((*started).clone()))
                }
                AgentEvent::Stopping => Message::Stopping,
                AgentEvent::WorkerFailed(_) => {
                    shared.announcements.flush(FLUSH_TIMEOUT);
                    shared.note_failure();
                    return;
                }
                AgentEvent::WorkersStuck(_) => {
                    shared.announcements.flush(FLUSH_TIMEOUT);
                    shared.note_failure();
                    shared.print_failure();
                    return;
                }
                _ => return,
            };
            // Fails when the explainer is dropped.
            let _ = messages.send(message);
        }))
    }

    /// Tells what was known when a worker failed last, if one has.
    fn workers_ended(&mut self, end: &mut JobEnd) {
        let reports = lock(&self.shared.failure).clone();
        if let Some(reports) = reports {
            end.why = blame::explain(&reports, end.failures_mut());
        }
    }

    fn ends_with_workers(&self) -> bool {
        true
    }
}

impl Drop for Explainer {
    fn drop(&mut self) {
        // The thread may have panicked.
        let _ = self.messages.send(Message::End);
        self.shared.cancel.cancel();
    }
}

impl Shared {
    fn note_failure(&self) {
        let source = lock(&self.source).clone();
        let before = lock(&self.last_stuck).clone();
        let before = before.filter(|(at, _)| at.elapsed() < RECENT);
        let absent = lock(&self.last_absent).clone();
        let absent = absent.filter(|(at, _)| at.elapsed() < RECENT);
        let fresh = source.map(|source| source.fresh_report(FAILURE_TIMEOUT));
        let (at_failure, snapshot) = fresh.unwrap_or_default();
        *lock(&self.failure) = Some(FailureReports {
            at_failure,
            before: before.map(|(_, report)| report),
            absent: absent.map(|(_, absent)| absent),
            snapshot,
        });
    }

    /// Prints why the workers wait, if the store reports it.
    fn print_failure(&self) {
        let reports = lock(&self.failure).clone().unwrap_or_default();
        if let Some(report) = reports.at_failure.or(reports.before) {
            let text = report.to_text(TextStyle::PLAIN);
            self.screen
                .message(&format!("when the workers were found stuck: {text}"));
        }
    }
}

/// The workers that run.
#[derive(Debug)]
struct Working {
    watch: Watch,
    source: Source,
    answers: Answers,
    /// `None` unless this process serves the workers' store and they have debug servers.
    collectives: Option<Box<Collectives>>,
    requests: NodeRequests,
    next_look: Instant,
}

impl Working {
    /// Returns the report of the store, or of this launcher if the store does not answer for some time. `None` if the store
    /// is asked again soon. A store that can be asked may have moved, so it is looked up for the next time.
    fn report(&mut self, epoch: Instant, source: &Mutex<Option<Source>>) -> Option<Report> {
        let asked_at = epoch.elapsed();
        if let Some(report) = self.source.report(LOOK_TIMEOUT) {
            self.answers.note_answer();
            return Some(report);
        }
        let can_answer = self.source.can_answer();
        if can_answer {
            self.source.find();
            *lock(source) = Some(self.source.clone());
        }
        if let Some(pause) = self.answers.retry(asked_at, epoch.elapsed(), can_answer) {
            self.next_look = Instant::now() + pause;
            return None;
        }
        Some(self.source.local_report())
    }
}

struct Thread {
    after: Option<Duration>,
    has_debug_servers: bool,
    shared: Arc<Shared>,
    inbox: Receiver<Message>,
    epoch: Instant,
    working: Option<Working>,
    /// The live line.
    line: Option<String>,
}

impl Thread {
    fn run(mut self) {
        loop {
            let next_look = self.working.as_ref().map(|working| working.next_look);
            let patience = next_look.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            match self.inbox.recv_timeout(patience) {
                Ok(Message::Started(started)) => self.work(&started),
                Ok(Message::Stopping) => self.rest(),
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return self.rest(),
                Err(RecvTimeoutError::Timeout) => self.look(),
            }
        }
    }

    fn rest(&mut self) {
        self.working = None;
        *lock(&self.shared.source) = None;
        self.show(None);
    }

    fn work(&mut self, started: &StartedWorkers) {
        let local = self.shared.local.clone();
        let cancel = self.shared.cancel.clone();
        let source = Source::of(started, Arc::clone(&self.shared.hosted), local, cancel);
        *lock(&self.shared.source) = Some(source.clone());
        let after = self.after.unwrap_or(NEVER).min(NEVER);
        let watch = Watch::new(after, source.is_remote());
        let collectives = (self.has_debug_servers && self.after.is_some() && !source.is_remote())
            .then(|| self.shared.hosted.token().map(str::to_owned))
            .map(|token| Box::new(Collectives::new(after, token)));
        let next_look = Instant::now() + watch.next_look(self.epoch.elapsed());
        self.working = Some(Working {
            watch,
            source,
            answers: Answers::default(),
            collectives,
            requests: NodeRequests::new(after, started.node_rank),
            next_look,
        });
    }

    fn look(&mut self) {
        let started = thread_cpu_time();
        let now = self.epoch.elapsed();
        let Some(working) = &mut self.working else {
            return;
        };
        let Some(report) = working.report(self.epoch, &self.shared.source) else {
            return;
        };
        let node = self.shared.local.get();
        if working.requests.is_asking_due(now, &report) {
            working
                .source
                .ask_for_samples(&report.nodes, requests::is_asked);
        }
        let alarm = requests::alarm(&report);
        let waits = Standstill::of(&report);
        // The store's report has precedence, because it is the cause when collectives hang as well.
        let collectives = working
            .collectives
            .as_mut()
            .filter(|_| waits.is_none() || alarm.is_some())
            .and_then(|it| it.look(now, &report, &node));
        let stuck = Explanation::of(
            &report,
            alarm,
            collectives.as_ref(),
            working.requests.leads(&report),
        );
        let recorded = stuck.recorded();
        let recorded = recorded.map(|it| Standstill::of_collectives(&it.report, it.lasted));
        let seen = match (waits, recorded) {
            // The recorders may be compared only after the first report.
            (Some(waits), Some(recorded)) => Some(waits.explained_by(recorded)),
            (waits, recorded) => waits.or(recorded),
        };
        let say = working.watch.look(now, seen);
        let is_own_quiet = node.workers.iter().any(|worker| worker.sample.is_some());
        let mut pause = working.watch.next_look(now);
        if let Some(sooner) = working.requests.next_look(&report, is_own_quiet) {
            pause = pause.min(sooner);
        }
        let cost = thread_cpu_time().saturating_sub(started);
        working.next_look = Instant::now() + pause.max(cost * LOOK_SHARE);
        let busy = working.requests.busy(&report);
        let line = working
            .watch
            .unchanged_for(now)
            .filter(|lasted| report.is_stuck && *lasted >= LINE_AFTER)
            .map(|_| report.headline_text());
        let text = match say {
            Say::Nothing => None,
            Say::All(lasted) => Some(stuck.text(lasted)),
            Say::Unchanged(lasted) => Some(stuck.unchanged(lasted)),
            // The job has not resumed: a rank that has exited does not wait any more.
            Say::Continues { .. } if has_ended(&node, &report) => None,
            Say::Continues { is_partial } => Some(continuation(&report, is_partial)),
        };
        if let Some(absent) = stuck.absent() {
            *lock(&self.shared.last_absent) = Some((Instant::now(), absent));
        }
        if waits.is_some() {
            *lock(&self.shared.last_stuck) = Some((Instant::now(), report));
        }
        for text in text.into_iter().chain(busy) {
            self.say(&text);
        }
        self.show(line);
    }

    fn say(&self, text: &str) {
        self.shared.screen.message(text);
    }

    /// Changes the live line. It is drawn only when it changes: the workers write to the same terminal.
    fn show(&mut self, line: Option<String>) {
        if self.line == line || !self.shared.screen.is_live() {
            return;
        }
        match &line {
            Some(line) => self.shared.screen.show(line),
            None => self.shared.screen.hide(),
        }
        self.line = line;
    }
}

/// Returns whether a worker has exited.
fn has_ended(node: &AnnouncedNode, report: &Report) -> bool {
    let mut workers = node.workers.iter();
    let mut findings = report.findings.iter();
    workers.any(|worker| worker.end.is_some())
        || findings.any(|finding| finding.kind == FindingKind::WorkerEnded)
}

/// Whether a hang would not show in the store.
fn is_outside_store(report: &Report) -> bool {
    let mut findings = report.findings.iter();
    findings.any(|finding| finding.kind == FindingKind::NotInTheStore)
}

/// A store on a busy host may answer late.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// How long after a missing answer the store is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The answers of a store to the requests for reports.
#[derive(Debug, Default)]
struct Answers {
    has_answered: bool,
    /// The silence since the first request without an answer.
    silence: Option<Silence<Duration>>,
}

impl Answers {
    const fn note_answer(&mut self) {
        self.has_answered = true;
        self.silence = None;
    }

    /// Notes that there was no answer at `now` to the request of `asked`. Returns when to ask again before anything is
    /// reported. `None` if the store has been silent for too long, or if it never answers: without `can_answer`, it has
    /// to have answered before.
    fn retry(&mut self, asked: Duration, now: Duration, can_answer: bool) -> Option<Duration> {
        self.has_answered |= can_answer;
        let silence = self.silence.get_or_insert(Silence::new(asked, SILENT_MAX));
        (self.has_answered && !silence.is_lost(now)).then_some(RETRY_INTERVAL)
    }
}

/// Returns the line about a job that makes progress again.
fn continuation(report: &Report, is_partial: bool) -> String {
    let who = match is_partial {
        true => "the observed ranks continue",
        false => "the job continues",
    };
    // The store reports of a running job only that all ranks are idle.
    match is_outside_store(report) {
        true => format!("{who}\n"),
        false => format!("{who}: {}\n", report.headline_text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_store_that_answers_late_is_asked_again_for_5_s() {
        let mut answers = Answers::default();
        answers.note_answer();
        let again = Some(RETRY_INTERVAL);
        assert_eq!(answers.retry(seconds(30), seconds(32), false), again);
        answers.note_answer();
        assert_eq!(answers.retry(seconds(60), seconds(62), false), again);
        assert_eq!(answers.retry(seconds(64), seconds(66), false), None);
        assert_eq!(answers.retry(seconds(90), seconds(90), false), None);
    }

    #[test]
    fn a_store_that_never_answers_delays_nothing() {
        let mut answers = Answers::default();
        assert_eq!(answers.retry(seconds(5), seconds(5), false), None);
        // The launcher has reached it now.
        let mut answers = Answers::default();
        let again = Some(RETRY_INTERVAL);
        assert_eq!(answers.retry(seconds(5), seconds(5), true), again);
        assert_eq!(answers.retry(seconds(7), seconds(7), false), again);
        assert_eq!(answers.retry(seconds(9), seconds(10), false), None);
    }
}
