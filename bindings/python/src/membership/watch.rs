//! The thread of a member, and the state that it shares with the thread that calls torch.

use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_membership::{
    Action, Ending, Member, MemberInput, MemberKey, MemberOptions, Membership, RETURN_TIMEOUT_MAX,
    Record, Reply,
};
use c10d_socket::{Cancel, OwnConnections, sleep};
use c10d_store::StoreError;

use crate::call::cancel;

/// How often the connections of a broken mesh are ended until the calling thread is out of it: at first, and at most. One
/// time suffices, unless torch makes the mesh at that moment.
const SWEEP_FIRST: Duration = Duration::from_millis(10);
const SWEEP_MAX: Duration = Duration::from_millis(200);

/// An operation that still waits this long after all connections of its mesh were closed has been lost by gloo, which
/// drops operations that it has begun to send or to receive. Gloo may also leave a connection open, and never notice
/// its end.
const LOST_AFTER: Duration = Duration::from_millis(250);

/// How much later than due an answer is if the service was away: its server or the way to it was lost.
const AWAY_MIN: Duration = Duration::from_secs(1);

/// How often a member checks whether the service is still away.
const AWAY_PAUSE: Duration = Duration::from_millis(100);

/// The margin for a server to notice a silent member, which it checks every 250 ms.
const VERDICT_MARGIN: Duration = Duration::from_secs(2);

/// The service answers at once, so a server that does not answer for this long is lost.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// The identity of this process, and when it counts as silent.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) key: MemberKey,
    /// The time without a sign of life after which the service removes a member.
    pub(super) silence_max: Duration,
}

/// Ends what waits in the mesh, for torch's back ends that can.
#[derive(Clone)]
pub(super) struct Abort(pub(super) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Abort")
    }
}

/// The next event for the calling thread.
#[derive(Debug)]
pub(super) enum News {
    /// Leave the mesh.
    Leave,
    /// Call torch with this list.
    Call(Arc<Record>),
    /// The generation may be used, with this rank.
    Enter(Arc<Record>, usize),
    /// The process is no longer a member.
    Over(Ending),
    /// The service cannot be reached.
    Lost(String),
}

/// The reason why a wait ended without a result.
#[derive(Debug)]
pub(super) enum Waited {
    TimedOut(Duration),
    Interrupted,
}

/// A member with its thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The client for the calling thread, whose calls are cancelled by Ctrl-C.
    service: Membership,
    settings: Settings,
    started: Instant,
    closed: Cancel,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    member: Member,
    /// Whether a thread sends pending messages. Only one thread at a time does so.
    is_sending: bool,
    /// When the thread of the watch has to have the answer that it waits for.
    answer_due: Option<Instant>,
    /// Ends the wait of the calling thread, to look again.
    caller: Cancel,
    /// The handle that cancels calls of the watch's thread.
    watcher: Cancel,
    news: Option<News>,
    must_leave: Option<Leaving>,
    /// To the question that the calling thread has asked: true is Proceed, and StepError.
    answer: Option<bool>,
    ending: Option<Ending>,
    lost: Option<String>,
    mesh: Mesh,
    /// Torch is making a subgroup; these connections were there before.
    before_subgroup: Option<OwnConnections>,
    abort: Option<Abort>,
}

/// The connections of torch.
#[derive(Debug)]
enum Mesh {
    None,
    /// Torch is making them; these were there before.
    Made(OwnConnections),
    /// The connections are known. Later connections are not in the set, which therefore acts as a fence.
    Is(Arc<OwnConnections>),
    /// This process has left it, and others may still use it.
    Left(Arc<OwnConnections>),
}

/// The calling thread has to leave its mesh.
#[derive(Debug)]
struct Leaving {
    /// The mesh is whole, and no rank waits in it.
    is_at_boundary: bool,
    next_sweep: Instant,
    pause: Duration,
    /// When the connections of the mesh were ended first.
    swept: Option<Instant>,
}

impl Watch {
    pub(super) fn start(service: Membership, settings: Settings) -> io::Result<Self> {
        let closed = Cancel::new();
        let mut options = MemberOptions::default();
        let lost_after = settings.silence_max.max(RETURN_TIMEOUT_MAX);
        options.verdict_timeout = lost_after.saturating_add(VERDICT_MARGIN);
        let member = Member::new(settings.key, options);
        let of_thread = service.with_cancel(&closed);
        let shared = Arc::new(Shared {
            service,
            settings,
            started: Instant::now(),
            closed,
            state: Mutex::new(State {
                member,
                is_sending: false,
                answer_due: None,
                caller: Cancel::NEVER,
                watcher: Cancel::NEVER,
                news: None,
                must_leave: None,
                answer: None,
                ending: None,
                lost: None,
                mesh: Mesh::None,
                before_subgroup: None,
                abort: None,
            }),
        });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("c10d-membership".to_owned())
            .spawn(move || {
                let run = AssertUnwindSafe(|| watched.run(&of_thread));
                if catch_unwind(run).is_err() {
                    watched.lose("its thread has panicked".to_owned());
                }
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Tells the member what has happened, and the service what follows.
    pub(super) fn tell(&self, input: MemberInput) {
        self.shared.step(input);
        self.shared.send_owed(&self.shared.service);
    }

    pub(super) fn wait_for_news(&self, timeout: Option<Duration>) -> Result<News, Waited> {
        self.shared.wait(timeout, State::take_news)
    }

    /// Asks a question, and waits for its answer or for other news.
    ///
    /// Returns whether the answer has arrived: at a boundary, that the program proceeds; after an exception, that it is
    /// the program's own.
    pub(super) fn ask(&self, question: MemberInput) -> Result<bool, Waited> {
        if self.must_leave() {
            return Ok(false);
        }
        self.shared.lock().answer = None;
        self.tell(question);
        self.shared.wait(None, |state| {
            if state.has_news() {
                return Some(false);
            }
            state.answer.take()
        })
    }

    /// Waits until all members have done their last step. Returns `false` if this process has to leave its mesh before.
    pub(super) fn finish(&self, timeout: Option<Duration>) -> Result<bool, Waited> {
        self.tell(MemberInput::Finish);
        self.shared.wait(timeout, |state| {
            let is_over = state.ending.is_some() || state.lost.is_some();
            state.has_news().then_some(is_over)
        })
    }

    pub(super) fn must_leave(&self) -> bool {
        self.shared.lock().has_news()
    }

    pub(super) fn has_change(&self) -> bool {
        self.shared.lock().member.has_change()
    }

    /// Whether operations that still wait in the mesh can never end.
    pub(super) fn is_abandoned(&self) -> bool {
        let state = self.shared.lock();
        let swept = state.must_leave.as_ref().and_then(|leaving| leaving.swept);
        swept.is_some_and(|swept| swept.elapsed() >= LOST_AFTER)
    }

    /// Makes the thread call this function instead of closing connections.
    pub(super) fn free_by(&self, abort: Abort) {
        self.shared.lock().abort = Some(abort);
    }

    pub(super) fn leave_mesh(&self) {
        let mut state = self.shared.lock();
        state.mesh = match mem::replace(&mut state.mesh, Mesh::None) {
            Mesh::Is(mesh) if state.abort.is_none() => Mesh::Left(mesh),
            _ => Mesh::None,
        };
    }

    /// Closes the mesh that all members have left, and begins a new mesh.
    ///
    /// Torch closes the old mesh when it has the new mesh. Gloo then waits for up to 10 ms, the pause of its thread,
    /// for each connection that is still whole, but not for connections that this thread has closed.
    pub(super) fn call_begins(&self) -> io::Result<()> {
        let made = Mesh::Made(OwnConnections::now()?);
        let before = mem::replace(&mut self.shared.lock().mesh, made);
        if let Mesh::Left(before) = before {
            before.end_receiving()?;
        }
        Ok(())
    }

    pub(super) fn call_ends(&self, is_ok: bool) -> io::Result<()> {
        let now = OwnConnections::now()?;
        let mut state = self.shared.lock();
        state.mesh = match mem::replace(&mut state.mesh, Mesh::None) {
            Mesh::Made(before) if is_ok => Mesh::Is(Arc::new(now.since(&before))),
            _ => Mesh::None,
        };
        Ok(())
    }

    /// Torch begins to make a subgroup of this generation.
    pub(super) fn subgroup_begins(&self) -> io::Result<()> {
        self.shared.lock().before_subgroup = Some(OwnConnections::now()?);
        Ok(())
    }

    /// Adds the connections that torch has made since then to the mesh.
    pub(super) fn subgroup_ends(&self) -> io::Result<()> {
        let now = OwnConnections::now()?;
        let mut state = self.shared.lock();
        if let Some(before) = state.before_subgroup.take()
            && let Mesh::Is(mesh) | Mesh::Left(mesh) = &mut state.mesh
        {
            Arc::make_mut(mesh).add(now.since(&before));
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.closed.cancel();
        if let Some(thread) = self.thread.take() {
            // It has caught its panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, input: MemberInput) {
        let now = self.started.elapsed();
        let mut state = self.lock();
        let actions = state.member.step(now, input);
        for action in actions {
            state.take(action);
        }
        let (caller, watcher) = (state.caller.clone(), state.watcher.clone());
        drop(state);
        caller.cancel();
        watcher.cancel();
    }

    fn lose(&self, text: String) {
        let mut state = self.lock();
        state.lost.get_or_insert(text);
        state.begin_to_leave(false);
        let caller = state.caller.clone();
        drop(state);
        caller.cancel();
    }

    /// Sends what the service has not answered, unless another thread does.
    fn send_owed(&self, service: &Membership) {
        loop {
            let message = {
                let mut state = self.lock();
                match state.member.owed() {
                    Some(message) if !state.is_sending && state.lost.is_none() => {
                        state.is_sending = true;
                        message
                    }
                    _ => return,
                }
            };
            let reply = service.ask(self.settings.key, &message, ANSWER_MAX);
            self.lock().is_sending = false;
            match reply {
                Ok(reply) => self.step(MemberInput::Reply(message, reply)),
                // The caller raises an exception, or the watch has ended. Pending messages stay pending.
                Err(StoreError::Interrupted { .. }) => return,
                Err(error) => return self.lose(error.to_string()),
            }
        }
    }

    /// Waits until `take` returns something. On the calling thread.
    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Waited> {
        let begun = Instant::now();
        let signals = cancel();
        loop {
            let news = Cancel::new();
            let (mut wake_at, is_away) = {
                let mut state = self.lock();
                if let Some(taken) = take(&mut state) {
                    return Ok(taken);
                }
                state.caller = news.clone();
                let is_away = state.answer_due.is_some_and(|due| Instant::now() >= due);
                (state.member.wake_at(), is_away)
            };
            let now = self.started.elapsed();
            if is_away {
                // It cannot know what a service would say that is away.
                wake_at = wake_at.map(|wake_at| wake_at.max(now + AWAY_PAUSE));
            }
            if wake_at.is_some_and(|wake_at| now >= wake_at) {
                self.step(MemberInput::Tick);
                continue;
            }
            if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                return Err(Waited::TimedOut(begun.elapsed()));
            }
            let until_tick = wake_at.map(|wake_at| wake_at.saturating_sub(now));
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let pause = until_tick.into_iter().chain(left).min();
            let pause = pause.unwrap_or(Duration::MAX);
            if sleep(pause, [&signals, &news]).is_err() && !news.is_cancelled() {
                return Err(Waited::Interrupted);
            }
        }
    }

    /// The thread of the watch: waits for events, frees the calling thread, says that this process is alive.
    fn run(&self, service: &Membership) {
        let silence_max = self.settings.silence_max;
        let mut alive_at = Instant::now();
        while !self.closed.is_cancelled() {
            self.send_owed(service);
            self.sweep();
            if Instant::now() >= alive_at {
                alive_at = Instant::now() + silence_max / 4;
                // Whether it was silent for too long, it learns by the poll.
                if let Err(error) =
                    self.answered(Duration::ZERO, || service.keep_alive(silence_max))
                {
                    return self.stop(error);
                }
            }
            let changed = Cancel::new();
            let (poll, sweep_at) = {
                let mut state = self.lock();
                if state.ending.is_some() {
                    return;
                }
                state.watcher = changed.clone();
                let leaving = state.must_leave.as_ref();
                let leaving = leaving.filter(|leaving| !leaving.is_at_boundary);
                (
                    state.member.poll(),
                    leaving.map(|leaving| leaving.next_sweep),
                )
            };
            let due = sweep_at.map_or(alive_at, |sweep_at| sweep_at.min(alive_at));
            let pause = due.saturating_duration_since(Instant::now());
            match poll {
                None => {
                    // Either wakes it.
                    let _ = sleep(pause, [&self.closed, &changed]);
                }
                Some(message) => {
                    let asks = || service.ask(self.settings.key, &message, pause);
                    match self.answered(pause, asks) {
                        Ok(Reply::NotYet) => {}
                        Ok(reply) => self.step(MemberInput::Reply(message, reply)),
                        Err(error) => return self.stop(error),
                    }
                }
            }
        }
    }

    /// Calls the service, which answers within `pause` unless it is away. On the thread of the watch.
    fn answered<T>(&self, pause: Duration, call: impl FnOnce() -> T) -> T {
        let due = Instant::now() + pause + AWAY_MIN;
        self.lock().answer_due = Some(due);
        let answer = call();
        if Instant::now() >= due {
            self.step(MemberInput::ServiceReturned);
        }
        self.lock().answer_due = None;
        answer
    }

    fn stop(&self, error: StoreError) {
        if !self.closed.is_cancelled() {
            self.lose(error.to_string());
        }
        // The calling thread may still have to be freed.
        while !self.closed.is_cancelled() && self.lock().must_leave.is_some() {
            self.sweep();
            let _ = sleep(SWEEP_MAX, [&self.closed]);
        }
    }

    /// Ends the connections of the mesh that the calling thread has to leave, if that is due, or has the back end end it, once.
    fn sweep(&self) {
        let (mesh, abort) = {
            let mut state = self.lock();
            let Some(leaving) = &mut state.must_leave else {
                return;
            };
            let now = Instant::now();
            if leaving.is_at_boundary || now < leaving.next_sweep {
                return;
            }
            leaving.next_sweep = now + leaving.pause;
            leaving.pause = (leaving.pause * 2).min(SWEEP_MAX);
            let is_first = leaving.swept.is_none();
            match &state.mesh {
                Mesh::Is(_) if state.abort.is_some() && !is_first => return,
                Mesh::Is(mesh) => (Arc::clone(mesh), state.abort.clone()),
                Mesh::None | Mesh::Made(_) | Mesh::Left(_) => return,
            }
        };
        let is_done = match abort {
            Some(Abort(abort)) => {
                abort();
                true
            }
            None => mesh.end_receiving().is_ok(),
        };
        if is_done && let Some(leaving) = &mut self.lock().must_leave {
            leaving.swept.get_or_insert_with(Instant::now);
        }
    }
}

impl State {
    fn take(&mut self, action: Action) {
        match action {
            Action::LeaveMesh { is_at_boundary } => {
                self.news = None;
                self.begin_to_leave(is_at_boundary);
            }
            Action::Call { record, .. } => self.news = Some(News::Call(record)),
            Action::Enter { record, rank } => self.news = Some(News::Enter(record, rank)),
            Action::Proceed | Action::StepError => self.answer = Some(true),
            Action::Over(ending) => self.ending = Some(ending),
            // Pending messages are sent anyway.
            _ => {}
        }
    }

    fn begin_to_leave(&mut self, is_at_boundary: bool) {
        self.must_leave.get_or_insert(Leaving {
            is_at_boundary,
            next_sweep: Instant::now(),
            pause: SWEEP_FIRST,
            swept: None,
        });
    }

    fn has_news(&self) -> bool {
        self.must_leave.is_some() || self.ending.is_some() || self.lost.is_some()
    }

    fn take_news(&mut self) -> Option<News> {
        if let Some(ending) = self.ending {
            self.must_leave = None;
            return Some(News::Over(ending));
        }
        if let Some(text) = &self.lost {
            self.must_leave = None;
            return Some(News::Lost(text.clone()));
        }
        if self.must_leave.take().is_some() {
            return Some(News::Leave);
        }
        self.news.take()
    }
}
