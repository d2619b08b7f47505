//! The store of a simulated rendezvous: the state with a fencing token, the keys of the group, and who waits for them.
//!
//! The state is the text of a real store, so every one passes through the codec.

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::engine::Reply;
use crate::engine::group::Ask as GroupAsk;
use crate::engine::links::{Mark, Marks};
use crate::values::codec::{self, CodecLimits, WatchRanges};
use crate::values::node::NodeId;
use crate::values::state::{Part, RendezvousState, Token, Written};

/// A stored state.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) token: Token,
    pub(super) state: RendezvousState,
    /// Computed when a node first waits for a change.
    ranges: OnceCell<Option<WatchRanges>>,
    /// When each listed node wrote its heartbeat, in simulated time.
    pub(super) written_at: BTreeMap<NodeId, Duration>,
}

#[derive(Debug, Clone)]
pub(super) enum Request {
    ReadState,
    /// Whether the state is still the one of this token, apart from heartbeats.
    CheckState(Option<Token>),
    WriteState(Box<RendezvousState>, Option<Token>),
    /// A wait until a time of the node's monotonic clock.
    AwaitState(Watched, Duration),
    Group(Box<GroupAsk>),
    ReadMarks(Vec<NodeId>),
    /// Sets the mark over this connection of the node.
    SetMark(NodeId, u32),
    /// Restarts a handler: it creates a missing key of the state, and takes an index.
    Open,
    /// The time of the wait is over.
    EndWait,
}

/// The characters of a part of the state, for which a node waits to change.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    token: Token,
    /// `None` for no state.
    range: Option<Range<usize>>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "its event boxes it")]
pub(super) enum Response {
    State(Answer),
    /// The answer to a write.
    Written(Answer),
    /// The state has disappeared from the store.
    Lost,
    /// The index of the handler.
    Opened(u32),
    Group(Reply),
}

/// The stored state after a request for it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) version: Option<Rc<Version>>,
    /// Whether the version is the version that the node has just written.
    pub(super) is_ours: bool,
    /// When the store answered.
    pub(super) at: Duration,
}

#[derive(Debug)]
pub(super) struct Wait {
    pub(super) node: usize,
    pub(super) request_id: u64,
    /// The node's number in the group.
    pub(super) index: u32,
    pub(super) request: Request,
}

#[derive(Debug, Default)]
pub(super) struct SimStore {
    current: Option<Rc<Version>>,
    /// The store was emptied, and no node has found it yet.
    is_lost: bool,
    lease: Vec<u8>,
    queue: VecDeque<Vec<u8>>,
    summary: Vec<u8>,
    answers: BTreeMap<u32, Vec<u8>>,
    heartbeats: BTreeMap<u32, Vec<u8>>,
    /// The mark of each node, and the connection that has set it.
    marks: BTreeMap<NodeId, (Mark, u32)>,
    /// How many nodes have taken an index.
    count: u32,
    waits: Vec<Wait>,
    pub(super) writes: usize,
    pub(super) written_bytes: usize,
}

impl Request {
    /// The time until which the store may wait, by the node's monotonic clock; `None` if it answers at once.
    pub(super) fn until(&self) -> Option<Duration> {
        match self {
            Self::AwaitState(_, until) => Some(*until),
            Self::Group(ask) => ask.clone().until_mut().copied(),
            _ => None,
        }
    }
}

impl Watched {
    fn differs_from(&self, current: Option<&Version>) -> bool {
        let old = self.token.as_bytes();
        match (current, &self.range) {
            (None, _) => !old.is_empty(),
            (Some(version), None) => version.token.as_bytes() != old,
            (Some(version), Some(range)) => {
                version.token.as_bytes().get(range.clone()) != old.get(range.clone())
            }
        }
    }
}

impl Answer {
    pub(super) fn stored(&self) -> Option<(RendezvousState, Token)> {
        let version = self.version.as_ref()?;
        Some((version.state.clone(), version.token.clone()))
    }

    pub(super) fn written(&self) -> Written {
        match &self.version {
            Some(version) if self.is_ours => Written::Ours(version.token.clone()),
            Some(version) => {
                Written::Theirs(Box::new(version.state.clone()), version.token.clone())
            }
            None => Written::Nothing,
        }
    }
}

impl SimStore {
    pub(super) fn emptied(&mut self) {
        *self = Self {
            is_lost: true,
            ..Self::default()
        };
    }

    pub(super) fn marks_of(&self, nodes: &[NodeId]) -> Marks {
        let mark_of = |node: &NodeId| {
            self.marks
                .get(node)
                .map_or(Mark::Missing, |(mark, _)| *mark)
        };
        nodes
            .iter()
            .map(|node| (node.clone(), mark_of(node)))
            .collect()
    }

    pub(super) fn set_mark(&mut self, node: NodeId, connection: u32) {
        self.marks.insert(node, (Mark::Connected, connection));
    }

    /// This connection of the node has closed.
    pub(super) fn on_closed(&mut self, node: &NodeId, connection: u32) {
        if let Some((mark, owner)) = self.marks.get_mut(node)
            && *owner == connection
        {
            *mark = Mark::Closed;
        }
    }

    /// Removes the mark of a node whose process has exited with a goodbye.
    pub(super) fn remove_mark(&mut self, node: &NodeId) {
        self.marks.remove(node);
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Starts a handler: it creates a missing key of the state, and takes an index.
    pub(super) fn open(&mut self) -> u32 {
        self.is_lost = false;
        self.count += 1;
        self.count
    }

    pub(super) const fn current(&self) -> Option<&Rc<Version>> {
        self.current.as_ref()
    }

    /// The stored state; the initial one while there is none.
    pub(super) fn state(&self) -> RendezvousState {
        self.current
            .as_ref()
            .map(|version| version.state.clone())
            .unwrap_or_default()
    }

    pub(super) fn answer(&self, is_ours: bool, at: Duration) -> Answer {
        Answer {
            version: self.current.clone(),
            is_ours,
            at,
        }
    }

    /// The part of the state that a node with this token waits to change.
    pub(super) fn watched(&self, token: Option<&Token>, part: Part) -> Watched {
        let token = token.cloned().unwrap_or_else(|| Token::new([]));
        let parse = || codec::watch_ranges(token.as_bytes());
        let current = self.current.as_ref().filter(|it| it.token == token);
        let ranges = current.map_or_else(parse, |it| it.ranges.get_or_init(parse).clone());
        let range = ranges.map(|ranges| match part {
            Part::Round => ranges.header,
            Part::Members => ranges.members,
        });
        Watched { token, range }
    }

    /// Whether a write with `token` succeeds.
    pub(super) fn accepts(&self, token: Option<&Token>) -> bool {
        self.current.as_ref().map(|version| &version.token) == token
    }

    pub(super) fn put(&mut self, state: &RendezvousState, now: Duration) {
        let text = codec::to_text(state);
        let limits = CodecLimits::default();
        let state = codec::from_text(&text, &limits).expect("the state was just encoded");
        let before = self.current.as_ref();
        let written_at = state.last_heartbeats.iter().map(|(node, heartbeat)| {
            let is_old =
                |version: &&Rc<Version>| version.state.last_heartbeats.get(node) == Some(heartbeat);
            let at = before
                .filter(is_old)
                .and_then(|version| version.written_at.get(node));
            (node.clone(), at.copied().unwrap_or(now))
        });
        self.writes += 1;
        self.written_bytes += text.len();
        self.current = Some(Rc::new(Version {
            written_at: written_at.collect(),
            ranges: OnceCell::new(),
            token: Token::new(text),
            state,
        }));
    }

    pub(super) fn is_same(&self, token: Option<&Token>) -> bool {
        let len = |token: &Token| token.as_bytes().len();
        let current = self.current.as_ref().map(|version| len(&version.token));
        token.map(len) == current
    }

    pub(super) fn wait(&mut self, wait: Wait) {
        self.waits.push(wait);
    }

    /// Ends the waits of a node.
    pub(super) fn end_waits(&mut self, node: usize) {
        self.waits.retain(|wait| wait.node != node);
    }

    /// Ends this wait; returns whether it was one.
    pub(super) fn end_wait(&mut self, node: usize, request_id: u64) -> bool {
        let is_this = |wait: &Wait| (wait.node, wait.request_id) == (node, request_id);
        let position = self.waits.iter().position(is_this);
        position.map(|it| self.waits.swap_remove(it)).is_some()
    }

    /// Takes the waits that are over, with their responses.
    pub(super) fn take_ready(&mut self, now: Duration) -> Vec<(Wait, Response)> {
        let mut ready = Vec::new();
        for wait in std::mem::take(&mut self.waits) {
            let response = match &wait.request {
                Request::AwaitState(watched, _) => self.changed(watched, now),
                Request::Group(ask) => self.perform(wait.index, ask).map(Response::Group),
                _ => None,
            };
            match response {
                Some(response) => ready.push((wait, response)),
                None => self.waits.push(wait),
            }
        }
        ready
    }

    /// Returns the state if it differs from the watched part. A missing key is waited for.
    pub(super) fn changed(&self, watched: &Watched, now: Duration) -> Option<Response> {
        let is_changed = !self.is_lost && watched.differs_from(self.current.as_deref());
        is_changed.then(|| Response::State(self.answer(false, now)))
    }

    /// Carries out a request of the node with this index; `None` if it waits.
    pub(super) fn perform(&mut self, index: u32, ask: &GroupAsk) -> Option<Reply> {
        Some(match ask {
            GroupAsk::WriteHeartbeat(heartbeat) => {
                let text = heartbeat.to_string().into_bytes();
                self.heartbeats.insert(index, text);
                Reply::Done
            }
            GroupAsk::ReadLease => Reply::Value(some(&self.lease)),
            // The store answers so if the key is missing.
            GroupAsk::Claim { expected, .. } if self.lease.is_empty() && !expected.is_empty() => {
                Reply::Value(Some(expected.clone()))
            }
            GroupAsk::Claim { expected, lease } => {
                if self.lease == *expected {
                    self.lease.clone_from(lease);
                }
                Reply::Value(some(&self.lease))
            }
            GroupAsk::Push(request) => {
                self.queue.push_back(request.clone());
                Reply::Done
            }
            GroupAsk::TakeRequests { .. } if self.queue.is_empty() => return None,
            GroupAsk::TakeRequests { .. } => Reply::Requests(self.queue.drain(..).collect()),
            GroupAsk::ReadSummary => Reply::Value(some(&self.summary)),
            GroupAsk::ReadAnswer => Reply::Value(self.answers.get(&index).cloned()),
            GroupAsk::CountNodes => Reply::Count(self.count),
            GroupAsk::WriteAnswers(answers) => {
                self.answers.extend(answers.iter().cloned());
                Reply::Done
            }
            GroupAsk::WriteSummary(text) => {
                assert!(!text.is_empty(), "an empty summary replaces one");
                self.summary.clone_from(text);
                Reply::Done
            }
            GroupAsk::ReadHeartbeats(indices) => {
                let heartbeats = indices.iter().map(|index| self.heartbeats.get(index));
                Reply::Heartbeats(
                    heartbeats
                        .map(|it| it.cloned().unwrap_or_default())
                        .collect(),
                )
            }
            GroupAsk::AwaitAnswer { known, .. } => {
                let text = self.answers.get(&index).filter(|it| *it != known)?;
                Reply::Value(Some(text.clone()))
            }
            GroupAsk::AwaitSummary { known, .. } => {
                Reply::Value(Some(some(&self.summary).filter(|it| it != known)?))
            }
            GroupAsk::ReadState
            | GroupAsk::CheckState
            | GroupAsk::WriteState
            | GroupAsk::ReadMarks(_)
            | GroupAsk::SetMark
            | GroupAsk::Idle
            | GroupAsk::Done(_) => unreachable!("the engine's own"),
        })
    }

    /// The group's keys, for a person.
    pub(super) fn describe(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let answers = self.answers.iter();
        let answers: BTreeMap<u32, String> = answers.map(|(to, it)| (*to, text(it))).collect();
        let (lease, summary) = (text(&self.lease), text(&self.summary));
        let queued = self.queue.len();
        format!("lease {lease:?}, summary {summary:?}, {queued} queued, answers {answers:?}")
    }
}

fn some(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}
