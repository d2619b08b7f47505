//! The handler and the launcher of a simulated node, which carry out the requests of its engine, and restart its
//! workers.

use std::time::Duration;

use c10d_store::{ErrorContext, StoreError};

use super::node::{Command, Outcome, SimNode, Stage, Waiting, Watching};
use super::store::{Request, Response};
use super::{ATTEMPT, Event, Faults, UNAWAITED, World, is_long_gone};
use crate::engine::group::Ask as GroupAsk;
use crate::engine::links::READ_INTERVAL;
use crate::engine::{Ask, Reply, decide};
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Entry, Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::state::Part;

/// How often a node polls that does not watch the state.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A node whose connection returns within this time is not lost.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);

/// How long workers wait for other workers that never arrive.
const WORKERS_FAIL_AFTER: Duration = Duration::from_secs(30);

/// A node that waits for at most [`SHORT_WAIT`] more than [`SHORT_WAITS_MAX`] times in a row, without a new
/// state, is in a busy loop.
const SHORT_WAIT: Duration = Duration::from_millis(2);
const SHORT_WAITS_MAX: u32 = 8;

impl World {
    /// Handles a failed request: the node continues, like `handler_loop`.
    pub(super) fn on_failure(&mut self, index: usize) {
        self.store.end_waits(index);
        let error = self.no_reply();
        let node = &mut self.nodes[index];
        node.request_id += 1;
        // The next request makes another connection.
        // If answers are late, or the process was stopped, it may return late.
        node.was_long_gone |= node.was_paused || self.faults != Faults::CALM;
        let closed = node.connection;
        node.connection += 1;
        let closed_at = self.network.last_cut(index).0.max(self.now());
        self.schedule(closed_at, index, Event::Closed(closed));
        let node = &mut self.nodes[index];
        let now = node.clock(self.timeline.now());
        match node.stage {
            Stage::Busy(_) => node.engine_mut().on_outage(now),
            Stage::Member => {
                node.engine_mut().on_failure(&error, now);
                let kept_until = node.engine().is_kept_until();
                if kept_until.is_none_or(|until| until <= now.monotonic) {
                    self.plan_restart(index);
                }
            }
            Stage::NotStarted | Stage::Away | Stage::Ended(_) => {}
        }
        self.turn(index);
    }

    fn no_reply(&self) -> RendezvousError {
        let context = ErrorContext::new(c10d_store::Operation::Get, [], "store", ATTEMPT);
        let timeout = ATTEMPT;
        RendezvousError::connection(
            &self.settings.run_id,
            StoreError::NoReply { context, timeout },
        )
    }

    /// The launcher stops the workers, and joins again.
    fn plan_restart(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !node.restarts || std::mem::replace(&mut node.is_rejoin_planned, true) {
            return;
        }
        // How long it takes to stop the workers.
        let millis = self.random.u64(0..2_000);
        let joins = node.joins.len();
        self.command_in(millis, index, Command::Restart { joins });
    }

    pub(super) fn send(&mut self, index: usize, request: Request) {
        if let Request::Group(ask) = &request {
            self.trace(index, || format!("asks {ask:?}"));
        }
        let is_repeated = self.network.is_doubled(&mut self.random)
            && matches!(&request, Request::Group(ask) if matches!(**ask, GroupAsk::Push(_)));
        let node = &mut self.nodes[index];
        node.request_id += 1;
        node.is_interrupted = false;
        node.waiting = if request.until().is_some() {
            Waiting::Change
        } else {
            Waiting::Response
        };
        let request_id = node.request_id;
        if std::mem::take(&mut node.is_disconnected) {
            return self.schedule(self.now(), index, Event::Failure(request_id));
        }
        let at = self.arrives_at();
        if is_repeated {
            let late = at + Duration::from_millis(self.random.u64(..5000));
            self.schedule(late, index, Event::Request(UNAWAITED, request.clone()));
        }
        self.schedule(at, index, Event::Request(request_id, request));
    }

    fn pause(&mut self, index: usize, until: Duration, event: fn(u64) -> Event) {
        let node = &mut self.nodes[index];
        node.request_id += 1;
        node.waiting = Waiting::Pause;
        let request_id = node.request_id;
        if let Some(until) = node.in_simulation(until) {
            self.schedule(until.max(self.now()), index, event(request_id));
        }
    }

    /// Makes the node wait for the state as `handler_loop` does.
    fn await_state(&mut self, index: usize, part: Part, until: Duration) {
        let node = &mut self.nodes[index];
        let now = node.clock(self.timeline.now()).monotonic;
        if until.saturating_sub(now) <= SHORT_WAIT {
            node.short_waits += 1;
            let is_busy = node.short_waits > SHORT_WAITS_MAX;
            assert!(!is_busy, "{} is in a busy loop", node.me);
        }
        if node.watching == Watching::Polls {
            return self.pause(index, until.min(now + POLL_INTERVAL), Event::Poll);
        }
        let (state, token) = node.engine().to_write().expect("a node that waits for it");
        let is_participant = state.participants.contains_key(&node.me);
        let is_member = node.stage == Stage::Member;
        let by_round = node.watching == Watching::Round && !is_member && is_participant;
        let part = if by_round { Part::Round } else { part };
        let watched = self.store.watched(token, part);
        self.send(index, Request::AwaitState(watched, until));
    }

    /// Takes up a command, or carries out what the engine asks next.
    fn turn(&mut self, index: usize) {
        loop {
            if self.nodes[index].stage == Stage::Member {
                self.watch_members(index);
            }
            let node = &mut self.nodes[index];
            if node.takes_command() {
                self.begin_command(index);
            }
            let node = &mut self.nodes[index];
            if !matches!(node.stage, Stage::Busy(_) | Stage::Member) {
                node.waiting = Waiting::Pause;
                return;
            }
            let now = node.clock(self.timeline.now());
            let mut ask = node.engine_mut().step(now);
            if node.stage == Stage::Member
                && !node.commands.is_empty()
                && let Some(until) = until_mut(&mut ask)
            {
                // A member that has something to do waits no more.
                *until = now.monotonic;
            }
            match ask {
                Ask::ReadState => return self.send(index, Request::ReadState),
                Ask::CheckState => {
                    let token = node.engine().to_write().and_then(|(_, token)| token);
                    let request = Request::CheckState(token.cloned());
                    return self.send(index, request);
                }
                Ask::WriteState => {
                    let (state, token) = node.engine().to_write().expect("a state");
                    let request = Request::WriteState(Box::new(state.clone()), token.cloned());
                    return self.send(index, request);
                }
                Ask::AwaitState { part, until } => return self.await_state(index, part, until),
                Ask::ReadNotices => {
                    let gone = Reply::Gone(self.gone.clone());
                    node.engine_mut().on_reply(gone, now);
                }
                Ask::ReadEntry { round } => {
                    let entry = self.entry(round);
                    let node = &mut self.nodes[index];
                    node.engine_mut().on_reply(Reply::Entry(round, entry), now);
                }
                Ask::ReadMarks(nodes) => return self.send(index, Request::ReadMarks(nodes)),
                Ask::SetMark => {
                    let mark = Request::SetMark(node.me.clone(), node.connection);
                    return self.send(index, mark);
                }
                Ask::Report => node.engine_mut().on_reply(Reply::Nothing, now),
                Ask::Group(ask) => return self.send(index, Request::Group(Box::new(ask))),
                Ask::Pause { until } => return self.pause(index, until, Event::Wake),
                Ask::StartAnew => return self.send(index, Request::Open),
                Ask::Done(result) => self.on_done(index, result),
            }
        }
    }

    /// The entry that the launchers of the round's members have written (docs/spec/rendezvous.md, section 7.3).
    pub(super) fn entry(&self, round: i64) -> Entry {
        match self.entries.get(&round) {
            Some((_, true)) => Entry::Over,
            Some((started, false)) if self.laws.are_all_of(round, started) => Entry::Open,
            _ => Entry::Unknown,
        }
    }

    /// The launcher restarts if the round of the node has changed.
    fn watch_members(&mut self, index: usize) {
        if self.nodes[index].is_rejoin_planned {
            return;
        }
        let disagrees = self.disagrees(index);
        let node = &mut self.nodes[index];
        let since = disagrees.then(|| *node.disagrees_since.get_or_insert(self.timeline.now()));
        node.disagrees_since = since;
        let has_failed = since.is_some_and(|at| at + WORKERS_FAIL_AFTER < self.timeline.now());
        if node.must_restart() || (has_failed && node.is_torch()) {
            self.plan_restart(index);
        }
    }

    /// Whether others joined the same round with another world size: their workers never come together.
    ///
    /// So it is among nodes of PyTorch if a member has died shortly before the round was complete: those that read the
    /// state after its last heartbeat became too old leave it out.
    fn disagrees(&self, index: usize) -> bool {
        let place = |node: &SimNode| {
            let answer = node.joins.last()?;
            Some((answer.round, answer.joined.as_ref()?.world_size))
        };
        let node = &self.nodes[index];
        let Some((round, size)) = place(node).filter(|_| node.is_torch()) else {
            return false;
        };
        let members = self.nodes.iter().filter(|it| it.stage == Stage::Member);
        let mut places = members.filter_map(place);
        places.any(|(other, other_size)| other == round && other_size != size)
    }

    fn on_done(&mut self, index: usize, result: Result<Answer, OperationError>) {
        let run_id = self.settings.run_id.clone();
        let node = &mut self.nodes[index];
        let Stage::Busy(operation) = node.stage else {
            // A heartbeat has failed.
            let now = node.clock(self.timeline.now());
            let error = RendezvousError::ShutDown { run_id };
            return node.engine_mut().on_failure(&error, now);
        };
        node.stage = match (operation, result) {
            (Operation::Join | Operation::Enter, Ok(answer)) => {
                return self.on_joined(index, answer);
            }
            (Operation::Exit, Ok(_)) => Stage::Away,
            (Operation::Leave, result) => {
                if result.is_ok() {
                    self.laws.on_left(&node.me, self.timeline.now());
                }
                Stage::Ended(Outcome::Left)
            }
            (Operation::Close, _) => Stage::Ended(Outcome::Closed),
            (_, Err(failure)) => Stage::Ended(Outcome::Failed(failure)),
            (Operation::KeepAlive, Ok(_)) => unreachable!("no operation of a handler"),
        };
        self.worlds.on_stop(&node.me);
        if matches!(node.stage, Stage::Ended(_)) {
            self.store.remove_mark(&node.me);
        }
        if let Some(ask) = node.engine_mut().release() {
            let at = self.arrives_at();
            let request = Request::Group(Box::new(ask));
            self.schedule(at, index, Event::Request(UNAWAITED, request));
        }
    }

    fn on_joined(&mut self, index: usize, answer: Answer) {
        let node = &mut self.nodes[index];
        let joined = answer.joined.as_ref().expect("the answer to a join");
        // PyTorch's node may read a round that other nodes have left; our node waits for the next round.
        if !node.is_torch() || decide::has_every_rank(node.state()) {
            self.laws.on_joined(&node.me, answer.round, joined);
        }
        if let Some(invariants) = &mut self.invariants {
            invariants.on_joined(&node.me, node.is_torch(), node.state());
        }
        if node.keeps && !joined.has_entered {
            let started = &mut self.entries.entry(answer.round).or_default().0;
            started.insert(node.me.clone());
        }
        // A paused launcher stops no workers.
        if !node.is_torch() && node.restarts {
            let world = (self.emptied, answer.round);
            self.worlds.on_start(&node.me, world, self.timeline.now());
        }
        // A node that comes back after it has left for good is a member again only now.
        self.gone.remove(&node.me);
        node.joins.push(answer);
        node.stage = Stage::Member;
    }

    pub(super) fn on_response(&mut self, index: usize, response: Response) {
        let answer = match response {
            Response::Group(reply) => return self.on_reply(index, reply),
            Response::Lost => return self.send(index, Request::Open),
            Response::Opened(group_index) => return self.start_anew(index, group_index),
            Response::State(ref answer) | Response::Written(ref answer) => answer,
        };
        let reply = if matches!(response, Response::Written(_)) {
            Reply::Written(answer.written())
        } else {
            Reply::State(answer.stored())
        };
        let node = &mut self.nodes[index];
        let now = node.clock(self.timeline.now());
        let token_before = node.engine().to_write().and_then(|(_, token)| token);
        let token = answer.version.as_ref().map(|version| &version.token);
        if token_before != token {
            node.short_waits = 0;
        }
        node.reply(reply, now);
        let lost = node.engine_mut().take_newly_lost(now).into_iter();
        node.lost.extend(lost.map(|lost| lost.node));
        // Only the stored round never decreases. In its own copy a node may drop the last member of a round, which
        // opens the next round, and then read that the member has written.
        let version = answer.version.as_deref();
        let round = version.map_or(0, |version| version.state.round);
        assert!(
            node.round <= round,
            "{} has read round {round} after round {}",
            node.me,
            node.round
        );
        node.round = round;
        if let (Some(version), Some(invariants)) = (version, &mut self.invariants)
            && !node.is_torch()
        {
            let node = &self.nodes[index];
            let may_be_lost = |node: &NodeId| is_long_gone(&self.nodes, node);
            invariants.on_adopt(&node.me, version, answer.at, node.state(), &may_be_lost);
        }
        self.nodes[index].request_id += 1;
        self.turn(index);
    }

    pub(super) fn on_reply(&mut self, index: usize, reply: Reply) {
        let node = &mut self.nodes[index];
        node.request_id += 1;
        let now = node.clock(self.timeline.now());
        node.reply(reply, now);
        self.turn(index);
    }

    /// Restarts the node after the store was emptied, like `handler_loop`.
    fn start_anew(&mut self, index: usize, group_index: u32) {
        self.trace(index, || "starts anew".to_owned());
        let node = &mut self.nodes[index];
        node.start(group_index, &self.settings, self.timeline.now());
        if let Some(invariants) = &mut self.invariants {
            invariants.on_new(&node.me);
        }
        if let Stage::Busy(operation) = node.stage {
            let (deadline, now) = (node.deadline, node.clock(self.timeline.now()));
            node.engine_mut().begin(operation, deadline, now);
        } else {
            node.stage = Stage::Away;
            self.plan_restart(index);
        }
        self.turn(index);
    }

    pub(super) fn on_command(&mut self, index: usize, command: Command) {
        self.trace(index, || format!("{command:?}"));
        let node = &mut self.nodes[index];
        match command {
            Command::Cut { time, is_silent } => {
                node.was_cut = true;
                let (now, (cut_until, was_silent)) =
                    (self.timeline.now(), self.network.last_cut(index));
                // A short return may not be seen.
                let has_returned = cut_until + READ_INTERVAL * 2 < now;
                if has_returned {
                    node.cut_since = now;
                }
                // A silent connection loses whole requests here. If the request that sets the mark again is lost, the mark stays
                // closed for longer than the cuts.
                let noticed_at = cut_until + ATTEMPT + READ_INTERVAL * 2;
                node.was_long_gone |= was_silent && now <= noticed_at;
                node.was_long_gone |= is_silent && !has_returned;
                self.network.cut(index, now + time, is_silent);
                let cut_until = self.network.last_cut(index).0;
                node.was_long_gone |= cut_until - node.cut_since > RETURNS_WITHIN;
                if !is_silent {
                    self.lose_connection(index);
                }
            }
            Command::Crash => {
                self.worlds.on_stop(&node.me);
                self.laws.on_death(&node.me, self.timeline.now());
                node.request_id += 1;
                node.stage = Stage::Ended(Outcome::Crashed);
                node.was_long_gone = true;
                self.store.on_closed(&node.me, node.connection);
                self.store.end_waits(index);
            }
            Command::Pause(duration) => {
                node.was_paused = true;
                node.paused_until = node.paused_until.max(self.timeline.now() + duration);
                // A paused launcher stops no workers.
                self.worlds.on_stop(&node.me);
                self.laws.on_stop(&node.me, node.paused_until);
            }
            Command::Jump(seconds) => node.skew += seconds,
            Command::Start if node.stage == Stage::NotStarted => {
                let group_index = self.store.open();
                node.start(group_index, &self.settings, self.timeline.now());
                self.push_command(index, Command::Rejoin);
            }
            Command::Start => {}
            Command::Restart { joins } => {
                if node.joins.len() == joins {
                    self.worlds.on_stop(&node.me);
                    self.on_command(index, Command::Rejoin);
                }
            }
            Command::Rejoin => {
                let is_joining = matches!(node.stage, Stage::Busy(it) if it.is_join());
                // The invariants do not know nodes that come back although they have left for good.
                let may_return = self.invariants.is_none();
                let has_left = may_return && node.stage == Stage::Ended(Outcome::Left);
                if has_left {
                    node.stage = Stage::Away;
                }
                if node.is_alive() && !is_joining {
                    self.push_command(index, command);
                }
            }
            Command::Exit | Command::GiveUp | Command::Leave | Command::Close => {
                if node.is_alive() {
                    self.push_command(index, command);
                }
            }
        }
    }

    /// Gives the node a command, and interrupts its wait.
    fn push_command(&mut self, index: usize, command: Command) {
        let node = &mut self.nodes[index];
        node.commands.push_back(command);
        match node.waiting {
            _ if !matches!(node.stage, Stage::Busy(_) | Stage::Member) => self.turn(index),
            Waiting::Pause => self.on_reply(index, Reply::Nothing),
            Waiting::Change if self.store.end_wait(index, node.request_id) => {
                let (request_id, nothing) = (node.request_id, Response::Group(Reply::Nothing));
                self.respond(index, request_id, nothing, true);
            }
            Waiting::Change => node.is_interrupted = true,
            Waiting::Response => {}
        }
    }

    /// Begins the next command of a node.
    fn begin_command(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        // The workers have stopped.
        self.worlds.on_stop(&node.me);
        let settings = &self.settings;
        let (operation, timeout) = match node.commands.pop_front() {
            Some(Command::Leave) => {
                // PyTorch's nodes never do this.
                self.gone.insert(node.me.clone());
                (Operation::Leave, settings.close_timeout)
            }
            Some(Command::Close) => (Operation::Close, settings.close_timeout),
            Some(Command::Exit) => (Operation::Exit, settings.join_timeout),
            command => {
                node.is_rejoin_planned = false;
                // One rejoin replaces all queued rejoins.
                node.commands
                    .retain(|command| !matches!(command, Command::Rejoin));
                self.laws.on_join(&node.me);
                let is_first = node.joins.is_empty();
                let enters = is_first || matches!(command, Some(Command::GiveUp));
                if node.keeps && enters {
                    (Operation::Enter, settings.join_timeout)
                } else {
                    (Operation::Join, settings.join_timeout)
                }
            }
        };
        let now = node.clock(self.timeline.now());
        node.deadline = now.monotonic + timeout;
        node.stage = Stage::Busy(operation);
        let deadline = node.deadline;
        node.engine_mut().begin(operation, deadline, now);
    }
}

/// The time until which the node waits, in the store or not.
const fn until_mut(ask: &mut Ask) -> Option<&mut Duration> {
    match ask {
        Ask::AwaitState { until, .. } | Ask::Pause { until } => Some(until),
        Ask::Group(ask) => ask.until_mut(),
        _ => None,
    }
}
