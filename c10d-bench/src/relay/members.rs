//! A group of members behind relays: how long they take to agree on their first list, and on one without a member that has
//! died, and what the server moves for that.
//!
//! Each member sends what `c10d_store::membership::Membership` does, and waits for each answer. One member reads each list;
//! the others only check that they have got it, as it would take the one thread that simulates all of them minutes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::Opcode;
use c10d_store::membership::codec::{Encode, decode_reply};
use c10d_store::membership::list_change::decode_list;
use c10d_store::membership::{Event, EventNumber, GroupOptions, MemberKey, Message, Record, Reply};
use c10d_store::unstable::RequestBuf;

use super::job::{Shape, expect};
use super::node::{Ask, Scanned};
use super::nodes::{Moved, Nodes, Turns};
use crate::failure::Failure;
use crate::process::Process;
use crate::report::{Goal, Row, Unit};
use crate::store_server::{Access, StoreServer};
use crate::workload::requests;
use crate::workload::setting::Setting;

const GROUP: &str = "bench/members";

/// docs/wire-extensions.md, section 9.13.
const OPEN: u8 = 1;
const SAY_TO_COUNTED: u8 = 8;
const DONE: [u8; 1] = [2];
const REPLY: u8 = 3;

/// Far above what a round takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The rows of `rounds` groups, each with a server of its own.
pub(super) fn members(
    shape: Shape,
    setting: &Setting,
    access: Access,
) -> Result<Vec<Row>, Failure> {
    let first = format!("first list of {} members", shape.ranks());
    let death = "death: all have the new list".to_owned();
    let mut rows: Vec<Row> = [(first, "first list"), (death, "death")]
        .into_iter()
        .flat_map(|(name, step)| {
            let of_step = |what| format!("{step}: {what}");
            [
                (name, Unit::Milliseconds),
                (of_step("processor time of the server"), Unit::Milliseconds),
                (of_step("of relays and members"), Unit::Milliseconds),
                (of_step("sent by the server"), Unit::Bytes),
                (of_step("sent by the relays"), Unit::Bytes),
            ]
        })
        .map(|(name, unit)| Row::new(name, unit))
        .collect();
    rows[5].goal = Some(Goal::AtMost(2000.0));
    rows[8].goal = Some(Goal::AtMost(10e6));
    for _ in 0..setting.rounds {
        let server = StoreServer::start(setting.cores, access)?;
        let setting = Setting {
            server: server.address(),
            ..*setting
        };
        let mut nodes = Nodes::new(setting.server, server.tls()?, shape.ranks_per_node)?;
        let ping = requests::ping();
        let greeting = Ask {
            requests: &[&ping],
            reply_bytes: requests::HELLO_REPLY.len(),
        };
        nodes.connect(shape.nodes, setting.connect_window, greeting, |_| Ok(()))?;
        let mut group = Group::open(nodes, shape)?;
        let formed = Measured::of(&mut group, server.process(), Group::form)?;
        group.wait_for_news()?;
        let told = Measured::of(&mut group, server.process(), Group::one_dies)?;
        let samples = formed.samples().into_iter().chain(told.samples());
        for (row, sample) in rows.iter_mut().zip(samples) {
            row.samples.extend(sample);
        }
    }
    Ok(rows)
}

/// What a step of all members costs.
struct Measured {
    time: Duration,
    server: Option<Duration>,
    /// Of this process, which stands for the relays and the members.
    own: Option<Duration>,
    moved: Moved,
}

impl Measured {
    fn of(
        group: &mut Group,
        server: Process,
        step: impl FnOnce(&mut Group) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let own = Process(std::process::id());
        let cpu_times = || [server.cpu_time(), own.cpu_time()];
        let (moved, before) = (group.nodes.moved(), cpu_times());
        let start = Instant::now();
        step(group)?;
        let time = start.elapsed();
        let after = cpu_times();
        let used = |index: usize| Some(after[index]?.saturating_sub(before[index]?));
        Ok(Self {
            time,
            server: used(0),
            own: used(1),
            moved: group.nodes.moved().since(moved),
        })
    }

    fn samples(&self) -> [Option<f64>; 5] {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        [
            Some(millis(self.time)),
            self.server.map(millis),
            self.own.map(millis),
            Some(self.moved.received as f64),
            Some(self.moved.sent as f64),
        ]
    }
}

struct Group {
    nodes: Nodes,
    members: Vec<Member>,
    shape: Shape,
    /// The last list, of those that read it.
    list: Option<Arc<Record>>,
}

/// Where a member is.
#[derive(Debug, Clone)]
struct Member {
    /// The attempt of its newest list.
    known: Option<u64>,
    rank: usize,
    after: EventNumber,
    handle: String,
    step: u64,
    is_polling: bool,
}

impl Group {
    fn open(mut nodes: Nodes, shape: Shape) -> Result<Self, Failure> {
        let mut options = GroupOptions::new(1);
        options.size_first = shape.ranks();
        (options.ready_timeout, options.ack_timeout) = (PATIENCE, PATIENCE);
        let mut value = vec![OPEN];
        options.encode(&mut value);
        value.extend(b"/bench/reconfigure/");
        nodes.ask_one(0, request(Opcode::Membership, &value))?;
        let address = nodes.address();
        let expected = [requests::blob(&DONE), requests::blob(&[])].concat();
        nodes.run(Turns::Together, |_, reply| {
            if reply == expected {
                return Ok(None::<Scanned>);
            }
            Err(wrong(address, format!("to open: {reply:02x?}")))
        })?;
        let members = (0..shape.ranks()).map(|id| Member {
            known: None,
            rank: id,
            after: EventNumber::NONE,
            handle: format!("gloo:{id}:-1:{id}:{}", store_of(id / shape.ranks_per_node)),
            step: 0,
            is_polling: false,
        });
        Ok(Self {
            nodes,
            members: members.collect(),
            shape,
            list: None,
        })
    }

    /// All say hello: until all know that the first generation has begun.
    fn form(&mut self) -> Result<(), Failure> {
        for id in 0..self.members.len() {
            let hello = Message::Hello {
                handle: self.members[id].handle.as_str().into(),
                step: 0,
            };
            let hello = self.members[id].say(id, &hello);
            self.nodes.ask_one(id, hello)?;
        }
        self.agree(self.members.len())
    }

    /// All poll, at a step of the first generation.
    fn wait_for_news(&mut self) -> Result<(), Failure> {
        let ping = requests::ping();
        for id in 0..self.members.len() {
            let poll = self.members[id].poll(id);
            // The answer to a PING behind the poll proves that it waits.
            let ask = Ask {
                requests: &[&poll.request, &ping],
                reply_bytes: requests::HELLO_REPLY.len(),
            };
            self.nodes.ask_one(id, ask)?;
        }
        let address = self.nodes.address();
        self.nodes.run(Turns::Together, |_, reply| {
            expect(address, reply, requests::HELLO_REPLY)
        })?;
        let dead = self.to_die();
        for (id, member) in self.members.iter_mut().enumerate() {
            member.step = 7;
            let (rank, uuid) = (member.rank, member.known.unwrap_or_default());
            let store = store_of(id / self.shape.ranks_per_node);
            member.handle = format!("gloo:{rank}:{uuid}:{id}:{store}");
            member.rank -= usize::from(id > dead);
        }
        self.nodes.expect_scanned(Opcode::MembershipPoll, dead);
        Ok(())
    }

    /// A member dies while all poll: until all others know that the next generation has begun.
    fn one_dies(&mut self) -> Result<(), Failure> {
        self.nodes.close(self.to_die())?;
        self.agree(self.members.len() - 1)
    }

    /// The member that dies: one in the middle.
    const fn to_die(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Answers events until all have got a commit.
    fn agree(&mut self, size: usize) -> Result<(), Failure> {
        let Self {
            nodes,
            members,
            shape,
            list,
        } = self;
        let address = nodes.address();
        let mut committed = 0;
        nodes.run(Turns::Together, |id, reply| {
            let wrong = |detail: &str| wrong(address, format!("member {id}: {detail}"));
            let member = &mut members[id];
            let (answer, new) = member.parts(reply).ok_or_else(|| wrong("no answer"))?;
            if id % shape.ranks_per_node == 0 && !new.is_empty() {
                let read = match list.as_ref().map(|it| it.attempt.uuid()) {
                    uuid if uuid == attempt_of(new) => list.clone(),
                    _ => decode_list(new, list.as_ref()).ok().map(Arc::new),
                };
                let read = read.filter(|it| it.seats.len() == size);
                *list = Some(read.ok_or_else(|| wrong("no list"))?);
            }
            member.known = attempt_of(new).or(member.known);
            let known = member.known;
            let stand_in = |attempt| list.clone().filter(|it| it.attempt == attempt);
            let reply = decode_reply(answer, stand_in).map_err(|_| wrong("no reply"))?;
            Ok(match reply {
                Reply::Accepted => Some(member.poll(id)),
                Reply::Event(number, event) => {
                    member.after = number;
                    match event {
                        Event::Propose { attempt, .. } => {
                            let ready = Message::Ready {
                                attempt,
                                handle: member.handle.as_str().into(),
                                step: member.step,
                            };
                            Some(member.say(id, &ready))
                        }
                        Event::Call { record, .. } if Some(record.attempt.uuid()) == known => {
                            let ack = Message::Ack {
                                attempt: record.attempt,
                                is_ok: true,
                            };
                            Some(member.say(id, &ack))
                        }
                        Event::Commit { record } if Some(record.attempt.uuid()) == known => {
                            committed += 1;
                            None
                        }
                        Event::Break { .. } => Some(member.poll(id)),
                        other => return Err(wrong(&format!("{other:?}"))),
                    }
                }
                other => return Err(wrong(&format!("{other:?}"))),
            })
        })?;
        if committed == size {
            return Ok(());
        }
        Err(wrong(
            address,
            format!("{committed} of {size} members have a list"),
        ))
    }
}

impl Member {
    fn say(&mut self, id: usize, message: &Message) -> Scanned {
        self.is_polling = matches!(message, Message::Poll { .. });
        let mut value = vec![SAY_TO_COUNTED];
        MemberKey::new(id as u64, 1).encode(&mut value);
        let mut known = [0; 8];
        LittleEndian::write_u64(&mut known, self.known.unwrap_or(u64::MAX));
        value.extend(known);
        message.encode(&mut value);
        let opcode = match self.is_polling {
            true => Opcode::MembershipPoll,
            false => Opcode::Membership,
        };
        request(opcode, &value)
    }

    fn poll(&mut self, id: usize) -> Scanned {
        let poll = Message::Poll {
            after: self.after,
            is_leaving: false,
        };
        self.say(id, &poll)
    }

    /// The reply to a message, and the list, or its first bytes.
    fn parts<'r>(&self, reply: &'r [u8]) -> Option<(&'r [u8], &'r [u8])> {
        let reply = match self.is_polling {
            true => reply.strip_prefix(&requests::STOP_WAITING)?,
            false => reply,
        };
        let (length, rest) = reply.split_first_chunk::<8>()?;
        let length = usize::try_from(LittleEndian::read_u64(length)).ok()?;
        let (answer, list) = rest.split_at_checked(length)?;
        Some((answer.strip_prefix(&[REPLY])?, list.get(8..)?))
    }
}

/// The attempt of a list, whether it is whole or a change.
fn attempt_of(list: &[u8]) -> Option<u64> {
    let word = list.first_chunk::<8>()?;
    Some(LittleEndian::read_u64(word) & !(1 << 63))
}

/// How the members of a node name the store in their handles.
fn store_of(node: usize) -> String {
    format!("10.0.{}.{}:29500", node >> 8, node & 0xff)
}

fn request(opcode: Opcode, value: &[u8]) -> Scanned {
    let mut request = RequestBuf::new();
    request.opcode(opcode).user_key(GROUP).value(value);
    Scanned {
        opcode,
        request: request.to_bytes(),
    }
}

fn wrong(address: SocketAddr, detail: String) -> Failure {
    Failure::wrong_answer(address, "a member's request", detail)
}
