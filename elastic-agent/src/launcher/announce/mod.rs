//! Announces the workers of this node to the workers' store: ranks, processes, connections, exits. While nodes meet,
//! announces the missing nodes to this store and to the rendezvous' store.
//!
//! An announcement is not a key, and the server drops it with its connection, which only the announcer uses. Servers
//! that do not support announcements, such as PyTorch's, receive none.

mod link;
mod meeting;
mod roster;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::agent::{AgentEvent, AgentListener, StartedWorker, StartedWorkers};
use crate::threads::{JoinedThread, lock, thread_cpu_time};
use crate::worker::WorkerExit;
use c10d_inspect::nccl::AnnouncedNccl;
use c10d_inspect::{AnnouncedCause, AnnouncedNode, FindingKind};
use c10d_socket::{Cancel, Credentials, HostPort};
use elastic_rendezvous::Listener;

use super::answers::AnswersPort;
use super::feature::{Feature, JobEnd};
use super::nccl::NcclAsker;
use super::observer::Observations;
use super::processes::{Scanner, StoreAddress};
use link::Link;
use meeting::{Meeting, MeetingReport};
pub(super) use roster::NodeIdentity;
use roster::{EarlyExits, Roster, Step};

const THREAD: &str = "announce";

/// How long the end of the job waits for the last announcement.
const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(300);

/// The maximum age of an answer of NCCL, which is longer than the pause between two answers.
const NCCL_AGE_MAX: Duration = Duration::from_secs(60);

/// Announces the workers of an agent until it is dropped, which joins its thread. The drop takes 300 ms at most.
///
/// A launcher is connected to the rendezvous' store for this only while it waits for nodes.
#[derive(Debug)]
pub(super) struct Announcer {
    messages: Sender<Message>,
    shared: Arc<Shared>,
    /// Interrupts the waits of the thread.
    cancel: Cancel,
    ended: Receiver<()>,
    /// `None` if the workers' NCCL cannot be asked.
    nccl: Option<NcclAsker>,
    _thread: JoinedThread,
}

/// The data that the thread shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    /// The last announcement.
    last: Mutex<AnnouncedNode>,
    /// Whether the current store has taken one.
    is_store_known: AtomicBool,
}

#[derive(Debug)]
enum Message {
    Meeting(MeetingReport),
    Started(Box<StartedWorkers>),
    Replaced(StartedWorker),
    Exited(WorkerExit),
    Stopping,
    Cause(AnnouncedCause),
    /// The report of the workers' NCCL, if there is one.
    Nccl(Option<AnnouncedNccl>),
    Observed(Observations),
    /// Asks for an answer when all earlier messages are announced.
    Flush(Sender<()>),
    End,
}

impl Announcer {
    /// Starts the thread. `answers` is the launcher's port for questions about its workers. `rendezvous` is the store
    /// where nodes meet, with its credentials, if there is one. `nccl` is the address at which the workers' NCCL is
    /// asked.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start(
        identity: NodeIdentity,
        answers: Option<AnswersPort>,
        rendezvous: Option<(HostPort, Option<Credentials>)>,
        nccl: Option<HostPort>,
    ) -> io::Result<Self> {
        let (messages, inbox) = channel();
        let (end, ended) = channel();
        let shared = Arc::<Shared>::default();
        let cancel = Cancel::new();
        let thread = Thread {
            identity,
            inbox,
            shared: Arc::clone(&shared),
            scanner: Scanner::new(PathBuf::from("/proc")),
            link: Link::new(cancel.clone()),
            rendezvous: rendezvous
                .map(|(store, credentials)| Link::to(store, credentials, cancel.clone())),
            meeting: Meeting::default(),
            roster: None,
            early: EarlyExits::default(),
            answers,
            nccl: None,
        };
        let thread = JoinedThread::start(THREAD, move || {
            thread.run();
            drop(end);
        })?;
        let view = LocalView(Arc::clone(&shared));
        let inbox = messages.clone();
        let nccl = nccl.map(|service| {
            // Fails when the announcer is dropped.
            let note = move |said| drop(inbox.send(Message::Nccl(said)));
            NcclAsker::start(service, move || view.get(), note)
        });
        Ok(Self {
            messages,
            shared,
            cancel,
            ended,
            nccl: nccl.transpose()?,
            _thread: thread,
        })
    }

    /// Waits for announcements, from another thread.
    pub(super) fn flusher(&self) -> Flusher {
        Flusher(self.messages.clone())
    }

    /// Returns a sender of observations of the workers, for another thread.
    pub(super) fn observations(&self) -> ObservationSender {
        ObservationSender(self.messages.clone())
    }

    /// Returns the latest facts about this node's workers, which may not have reached the store yet.
    pub(super) fn view(&self) -> LocalView {
        LocalView(Arc::clone(&self.shared))
    }
}

impl Feature for Announcer {
    /// Passes the rendezvous' reports on, without blocking.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let messages = self.messages.clone();
        Some(Arc::new(move |event| {
            if let Some(report) = MeetingReport::of(event) {
                // Fails when the announcer is dropped.
                let _ = messages.send(Message::Meeting(report));
            }
        }))
    }

    /// Passes the agent's events on, without blocking.
    fn agent_listener(&self) -> Option<AgentListener> {
        let messages = self.messages.clone();
        Some(Arc::new(move |event| {
            let message = match event {
                AgentEvent::WorkersStarted(started) => {
                    Message::Started(Box::new((*started).clone()))
                }
                AgentEvent::WorkerReplaced(_, worker) => Message::Replaced(**worker),
                AgentEvent::WorkerExited(exit) => Message::Exited(**exit),
                AgentEvent::Stopping => Message::Stopping,
                _ => return,
            };
            // Fails when the announcer is dropped.
            let _ = messages.send(message);
        }))
    }

    /// Announces the root cause of a failure, so that the pages and `c10d why` have the same answer.
    fn workers_ended(&mut self, end: &mut JobEnd) {
        let finding = end.why.as_ref().and_then(|why| why.findings.first());
        if let Some(finding) = finding.filter(|it| it.kind == FindingKind::WorkerEnded) {
            let mut cause = AnnouncedCause::default();
            cause.text.clone_from(&finding.text);
            cause.ranks.clone_from(&finding.culprits);
            cause.victims.clone_from(&finding.waiting);
            // Fails when the thread has panicked.
            let _ = self.messages.send(Message::Cause(cause));
        }
    }

    /// Returns true, because the last announcement contains the exits of the workers.
    fn ends_with_workers(&self) -> bool {
        true
    }
}

/// Announces observations of the workers.
#[derive(Debug, Clone)]
pub(super) struct ObservationSender(Sender<Message>);

impl ObservationSender {
    /// Announces these observations instead of all earlier observations. Does not block.
    pub(super) fn send(&self, found: Observations) {
        // Fails when the announcer is dropped.
        let _ = self.0.send(Message::Observed(found));
    }
}

/// Waits for announcements.
#[derive(Debug, Clone)]
pub(super) struct Flusher(Sender<Message>);

impl Flusher {
    /// Waits until all earlier events have been announced to the store, for at most `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let (done, answer) = channel();
        if self.0.send(Message::Flush(done)).is_ok() {
            // Without an answer, the store may miss the last events.
            let _ = answer.recv_timeout(timeout);
        }
    }
}

/// A launcher's own view of its workers.
#[derive(Debug, Clone)]
pub(super) struct LocalView(Arc<Shared>);

impl LocalView {
    pub(super) fn get(&self) -> AnnouncedNode {
        lock(&self.0.last).clone()
    }

    /// Whether the workers' store has taken an announcement, so that it is a server of this project.
    pub(super) fn is_store_known(&self) -> bool {
        self.0.is_store_known.load(Ordering::Acquire)
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.nccl = None;
        // The thread may have panicked.
        let _ = self.messages.send(Message::End);
        if self.ended.recv_timeout(LAST_WORD_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            self.cancel.cancel();
        }
    }
}

struct Thread {
    identity: NodeIdentity,
    inbox: Receiver<Message>,
    shared: Arc<Shared>,
    scanner: Scanner,
    link: Link,
    /// `None` if nodes do not meet at a store.
    rendezvous: Option<Link>,
    meeting: Meeting,
    roster: Option<Roster>,
    early: EarlyExits,
    answers: Option<AnswersPort>,
    /// The last answer of the workers' NCCL, and when it came.
    nccl: Option<(AnnouncedNccl, Instant)>,
}

impl Thread {
    fn run(mut self) {
        loop {
            // Events are taken first, because they change the next announcement.
            let message = match self.inbox.try_recv() {
                Ok(message) => Some(message),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => match self.step() {
                    None => continue,
                    Some(patience) => match self.inbox.recv_timeout(patience) {
                        Ok(message) => Some(message),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(RecvTimeoutError::Disconnected) => return,
                    },
                },
            };
            if let Some(message) = message
                && !self.take(message)
            {
                return;
            }
        }
    }

    /// Handles a message. Returns whether the thread continues.
    fn take(&mut self, message: Message) -> bool {
        let now = Instant::now();
        match message {
            Message::Meeting(report) => {
                if self.meeting.note(report, &self.identity, now) {
                    self.announce_meeting();
                }
            }
            Message::Started(started) => {
                self.end_meeting();
                self.nccl = None;
                self.link.aim(&started);
                let early = std::mem::take(&mut self.early);
                self.roster = Some(Roster::new(self.identity.clone(), *started, early, now));
            }
            Message::Replaced(worker) => {
                let early = std::mem::take(&mut self.early);
                if let Some(roster) = &mut self.roster {
                    roster.note_replaced(worker, &early, now);
                }
            }
            Message::Exited(exit) => {
                let is_known = self
                    .roster
                    .as_mut()
                    .is_some_and(|roster| roster.note_exit(&exit, now));
                if !is_known {
                    self.early.note(exit, now);
                }
            }
            Message::Stopping => {
                self.early = EarlyExits::default();
                if let Some(roster) = &mut self.roster {
                    roster.note_stopping();
                }
            }
            Message::Cause(cause) => {
                if let Some(roster) = &mut self.roster {
                    roster.note_cause(cause);
                }
            }
            Message::Nccl(said) => {
                let has_problems = |said: &AnnouncedNccl| !said.problems.is_empty();
                let before = self.nccl.take();
                let had_problems = before.is_some_and(|(said, _)| has_problems(&said));
                let is_news = had_problems || said.as_ref().is_some_and(has_problems);
                self.nccl = said.map(|said| (said, now));
                if let Some(roster) = self.roster.as_mut().filter(|_| is_news) {
                    roster.note_news();
                }
            }
            Message::Observed(found) => {
                if let Some(roster) = &mut self.roster {
                    roster.note_observations(found, now);
                }
            }
            Message::Flush(done) => {
                self.glance();
                if let Some(roster) = &mut self.roster {
                    roster.renew_halted();
                }
                self.announce_news(now);
                self.link.confirm();
                // The asking thread may no longer wait.
                let _ = done.send(());
            }
            Message::End => {
                self.end_meeting();
                self.announce_news(now);
                return false;
            }
        }
        true
    }

    fn announce_meeting(&mut self) {
        let now = Instant::now();
        if let Some(link) = &mut self.rendezvous {
            let node = self.meeting.announcement(&self.identity, now);
            link.send(&serde_json::to_vec(&node).unwrap_or_default());
        }
        // A reader may use only the workers' store of the previous round.
        if self.link.is_open() {
            self.announce();
        }
    }

    fn end_meeting(&mut self) {
        self.meeting.end();
        if let Some(link) = &mut self.rendezvous {
            link.close();
        }
    }

    /// Announces what is new, unless it would take a new connection.
    fn announce_news(&mut self, now: Instant) {
        let is_due = |roster: &Roster| roster.step(now) == Step::Announce;
        if self.roster.as_ref().is_some_and(is_due) && self.link.is_open() {
            self.announce();
        }
    }

    /// Does the next thing, or returns how long to wait for a message.
    fn step(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let Some(roster) = &self.roster else {
            return Some(Duration::MAX);
        };
        match roster.step(now) {
            Step::Look => self.look(),
            Step::Glance => self.glance(),
            Step::Announce => self.announce(),
            Step::Wait(until) => return Some(until.saturating_duration_since(now)),
        }
        None
    }

    fn look(&mut self) {
        let Some(roster) = &mut self.roster else {
            return;
        };
        let started = thread_cpu_time();
        let pids = roster.running();
        let nowhere = StoreAddress::default();
        let store = self.link.address().unwrap_or(&nowhere);
        let found = self.scanner.look(&pids, store);
        let cost = thread_cpu_time().saturating_sub(started);
        roster.note_look(&pids, found, cost, Instant::now());
    }

    fn glance(&mut self) {
        if let Some(roster) = &mut self.roster {
            let states = self.scanner.states(&roster.known());
            roster.note_glance(&states, Instant::now());
        }
    }

    fn announce(&mut self) {
        let Some(roster) = &mut self.roster else {
            return;
        };
        let now = Instant::now();
        let mut node = roster.announcement(now);
        node.meeting = self.meeting.announced(now);
        node.nccl = self.nccl.as_ref().and_then(|it| announced_nccl(it, now));
        node.debug_address = self.answers.as_ref().and_then(AnswersPort::address);
        let bytes = serde_json::to_vec(&node).unwrap_or_default();
        *lock(&self.shared.last) = node;
        self.link.send(&bytes);
        let is_known = self.link.is_open();
        self.shared
            .is_store_known
            .store(is_known, Ordering::Release);
        roster.note_announced(Instant::now());
    }
}

/// Returns the part of an answer that is announced; `None` if the answer is so old that a newer answer should have
/// arrived.
fn announced_nccl((said, at): &(AnnouncedNccl, Instant), now: Instant) -> Option<AnnouncedNccl> {
    let age = now.saturating_duration_since(*at);
    let mut said = said.clone();
    said.asked_ago_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    (age <= NCCL_AGE_MAX).then_some(said)
}
