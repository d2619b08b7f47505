//! A worker of the job that runs all the time: a member of its group until it is killed.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use c10d_store::membership::{
    Attempt, Event, EventNumber, GroupOptions, Leave, MemberKey, Membership, Message, Reply,
};
use c10d_store::{StoreExt as _, TcpStore, TcpStoreOptions};

use crate::failure::{Context as _, Failure};

/// Longer than any pause of the other members.
const PATIENCE: Duration = Duration::from_secs(60);

struct Member {
    group: Membership,
    key: MemberKey,
    handle: String,
    after: EventNumber,
    generation: Option<Attempt>,
}

/// Fails when the group has ended; its launcher starts another process then.
pub(crate) fn run() -> Result<(), Failure> {
    let mut member = Member::join()?;
    loop {
        member.next()?;
    }
}

fn variable<T: FromStr>(name: &str) -> Result<T, Failure> {
    let text = env::var(name).with_context(|| name.to_owned())?;
    let unread = |_| Failure::new(format!("{name} is {text:?}"));
    text.parse().map_err(unread)
}

impl Member {
    fn join() -> Result<Self, Failure> {
        let host: String = variable("MASTER_ADDR")?;
        let store = TcpStore::open(&host, variable("MASTER_PORT")?, TcpStoreOptions::default())?;
        let group = store.membership(&variable::<String>("C10D_MEMBERSHIP_GROUP")?)?;
        let mut options = GroupOptions::new(variable("C10D_MEMBERS_MIN")?);
        options.size_first = variable("C10D_MEMBERS_FIRST")?;
        options.ready_timeout = PATIENCE;
        options.ack_timeout = PATIENCE;
        options.below_min_timeout = PATIENCE;
        group.open(&options, "torch/")?;
        let member = Self {
            group,
            key: MemberKey::new(
                variable("C10D_MEMBER_ID")?,
                variable("C10D_MEMBER_INCARNATION")?,
            ),
            handle: variable("C10D_MEMBER_SERIAL")?,
            after: EventNumber::NONE,
            generation: None,
        };
        member.say(Message::Hello {
            handle: member.handle.as_str().into(),
            step: 0,
        })?;
        Ok(member)
    }

    fn say(&self, message: Message) -> Result<Reply, Failure> {
        Ok(self.group.ask(self.key, &message, PATIENCE)?)
    }

    /// Takes part in what the group does next.
    fn next(&mut self) -> Result<(), Failure> {
        let poll = Message::Poll {
            after: self.after,
            is_leaving: false,
        };
        let event = match self.say(poll)? {
            Reply::NotYet => return Ok(()),
            Reply::Event(number, event) => {
                self.after = number;
                event
            }
            other => return Err(Failure::new(format!("the group answers {other:?}"))),
        };
        match event {
            Event::Propose { attempt, leave, .. } => {
                if let (Leave::AtBoundary { .. }, Some(generation)) = (leave, self.generation) {
                    let mut step = u64::from(attempt.count());
                    while self.say(Message::Boundary { generation, step })? == Reply::Proceed {
                        step += 1;
                    }
                }
                let handle = self.handle.as_str().into();
                self.say(Message::Ready {
                    attempt,
                    handle,
                    step: 0,
                })?;
            }
            Event::Call { record, .. } => {
                let attempt = record.attempt;
                self.say(Message::Ack {
                    attempt,
                    is_ok: true,
                })?;
            }
            Event::Commit { record } => self.generation = Some(record.attempt),
            Event::Break { .. } => {}
            other => return Err(Failure::new(format!("the group says {other:?}"))),
        }
        Ok(())
    }
}
