//! Processes of a group, for tests: each has the state machine of a member and a handle. Tests of the relay include this
//! file, and use a part of it.

#![allow(dead_code, reason = "see above")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_membership::{
    Action, Ending, GroupOptions, Member, MemberInput, MemberKey, MemberOptions, Membership,
    Message, Record, Reply,
};
use c10d_store::TcpStore;

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(120);

pub(crate) const KEYS: &str = "default_pg/0//cpu//reconfigure/";

/// Generations of at least two members; the first generation has `size_first`.
pub(crate) fn options(size_first: usize) -> GroupOptions {
    let mut options = GroupOptions::new(2);
    options.size_first = size_first;
    // On a busy machine, members take long.
    options.ready_timeout = LONG;
    options.ack_timeout = LONG;
    options.return_timeout = LONG;
    options
}

/// A process whose torch calls always succeed.
pub(crate) struct Rank {
    pub(crate) group: Membership,
    pub(crate) key: MemberKey,
    pub(crate) member: Member,
    started: Instant,
    /// How often it has left a mesh.
    handles: u32,
    pub(crate) generations: Vec<Arc<Record>>,
    /// Whether it is in the last one, and how many steps it has done there.
    is_inside: bool,
    step: u64,
}

impl Rank {
    pub(crate) fn new(store: &TcpStore, id: u64, options: &GroupOptions) -> Self {
        let group = Membership::connect(store, "workers").expect("a group");
        group.open(options, KEYS).expect("the same options");
        let key = MemberKey::new(id, 1);
        let mut rank = Self {
            group,
            key,
            member: Member::new(key, MemberOptions::default()),
            started: Instant::now(),
            handles: 0,
            generations: Vec::new(),
            is_inside: false,
            step: 0,
        };
        let (handle, step) = (rank.new_handle(), 0);
        rank.input(MemberInput::Join { handle, step });
        rank
    }

    fn new_handle(&mut self) -> Arc<str> {
        self.handles += 1;
        format!("gloo:{}:{}", self.key.id.0, self.handles).into()
    }

    /// Takes an input and carries out the actions. Returns the ending, if the member has ended.
    fn input(&mut self, input: MemberInput) -> Option<Ending> {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.member.step(self.started.elapsed(), input) {
                match action {
                    Action::LeaveMesh { .. } => {
                        self.is_inside = false;
                        let (handle, step) = (self.new_handle(), 0);
                        inputs.push(MemberInput::Left { handle, step });
                    }
                    Action::Call { .. } => inputs.push(MemberInput::Called { is_ok: true }),
                    Action::Enter { record, rank } => {
                        assert_eq!(record.seats[rank].member, self.key);
                        self.generations.push(record);
                        self.is_inside = true;
                        self.step = 0;
                    }
                    Action::Over(ending) => return Some(ending),
                    _ => {}
                }
            }
        }
        None
    }

    /// Continues until the process has entered this number of generations.
    pub(crate) fn enter(&mut self, generations: usize) -> Result<Arc<Record>, Ending> {
        while self.generations.len() < generations {
            self.talk()?;
        }
        Ok(Arc::clone(self.generations.last().expect("at least one")))
    }

    /// Works until it is in a generation of these members, in the order of their ids. Stops at any boundary.
    pub(crate) fn work_until(&mut self, members: &[u64]) -> Result<(), Ending> {
        loop {
            if self.is_inside {
                let mut here = self.generations.last().map_or_else(Vec::new, |it| ids(it));
                here.sort_unstable();
                if here == members {
                    return Ok(());
                }
                self.step += 1;
                self.input(MemberInput::Boundary(self.step));
            }
            self.talk()?;
        }
    }

    /// Sends the message that it owes, or polls.
    fn talk(&mut self) -> Result<(), Ending> {
        let owed = self.member.owed();
        let message = owed.or_else(|| self.member.poll()).expect("it is a member");
        let reply = self.group.ask(self.key, &message, LONG);
        let reply = reply.expect("an answer");
        assert_ne!(reply, Reply::NotYet, "{message:?} of {}", self.key);
        match self.input(MemberInput::Reply(message, reply)) {
            Some(ending) => Err(ending),
            None => Ok(()),
        }
    }
}

/// All enter another generation.
pub(crate) fn all_enter(ranks: &mut [Rank]) -> Vec<Result<Arc<Record>, Ending>> {
    thread::scope(|scope| {
        let ranks = ranks.iter_mut();
        let threads = ranks.map(|rank| {
            let next = rank.generations.len() + 1;
            scope.spawn(move || rank.enter(next))
        });
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.expect("no panic")).collect()
    })
}

pub(crate) fn ids(record: &Record) -> Vec<u64> {
    record.seats.iter().map(|seat| seat.member.id.0).collect()
}

impl Rank {
    /// Continues until the process is ready for an attempt.
    pub(crate) fn until_called(&mut self) {
        loop {
            let owed = self.member.owed();
            if matches!(owed, Some(Message::Ack { .. })) {
                return;
            }
            let is_ready = matches!(owed, Some(Message::Ready { .. }));
            let message = owed.or_else(|| self.member.poll()).expect("it is a member");
            let reply = self.group.ask(self.key, &message, LONG).expect("an answer");
            self.input(MemberInput::Reply(message, reply));
            if is_ready {
                return;
            }
        }
    }
}
