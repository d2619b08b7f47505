//! Groups of members over the wire, without sockets and in virtual time: docs/spec/wire-extensions.md, section 9.13.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::Opcode;
use c10d_store::sim::SimServer;
use c10d_store::unstable::{ReplyScan, RequestBuf};

use crate::list_change::decode_list;
use crate::request::{GroupReply, GroupRequest, Opening};
use crate::{
    Attempt, Cause, EndReason, Event, EventNumber, GroupOptions, GroupStage, Leave, Limit,
    MemberKey, Message, Reason, Record, Reply, groups,
};

const LAUNCHER: u64 = 100;

fn member(id: u64) -> MemberKey {
    MemberKey::new(id, 1)
}

/// Generations of at least two members; the first generation has `size_first`.
fn opening(size_first: usize) -> Opening {
    let mut options = GroupOptions::new(2);
    options.size_first = size_first;
    Opening {
        options,
        key_prefix: b"/reconfigure/"[..].into(),
    }
}

fn hello(handle: &str) -> Message {
    Message::Hello {
        handle: handle.into(),
        step: 0,
    }
}

const fn poll(after: EventNumber) -> Message {
    Message::Poll {
        after,
        is_leaving: false,
    }
}

fn bytes_of(group: &str, opcode: Opcode, request: &GroupRequest) -> Vec<u8> {
    let value = request.encode();
    let mut bytes = RequestBuf::new();
    bytes.opcode(opcode).user_key(group).value(&value);
    bytes.to_bytes()
}

fn key_request(opcode: Opcode, key: &str) -> Vec<u8> {
    let mut bytes = RequestBuf::new();
    match opcode {
        Opcode::Wait => bytes.opcode(opcode).user_keys(&[key]),
        Opcode::Set => bytes.opcode(opcode).user_key(key).value(b""),
        _ => bytes.opcode(opcode).user_key(key),
    };
    bytes.to_bytes()
}

/// A server, whose members each have the connection of their id, counted from the first one.
struct World {
    server: SimServer,
    group: &'static str,
    first_conn: u64,
    now: Duration,
    /// By member: the newest list, and the number of the last event.
    lists: BTreeMap<u64, Arc<Record>>,
    seen: BTreeMap<u64, EventNumber>,
    /// By member: the bytes of the last list that it has read.
    list_bytes: BTreeMap<u64, usize>,
    /// The digits of the member that follow its handle. Without them, the list of all members takes only a few bytes.
    suffix_digits: usize,
}

impl World {
    fn new(members: u64, size_first: usize) -> Self {
        let mut server = SimServer::new(groups(1));
        for conn in (0..members).chain([LAUNCHER]) {
            server.open(conn);
        }
        let mut world = Self {
            server,
            group: "g",
            first_conn: 0,
            now: Duration::ZERO,
            lists: BTreeMap::new(),
            seen: BTreeMap::new(),
            list_bytes: BTreeMap::new(),
            suffix_digits: 0,
        };
        let opened = world.ask(LAUNCHER, &GroupRequest::Open(opening(size_first)));
        assert_eq!(opened, GroupReply::Done);
        world
    }

    fn ask(&mut self, conn: u64, request: &GroupRequest) -> GroupReply {
        // Any split of a request is the same request.
        let bytes = bytes_of(self.group, Opcode::Membership, request);
        for piece in bytes.chunks(7) {
            self.server.send(conn, piece);
        }
        let bytes = self.server.take(conn);
        self.read(None, Opcode::Membership, &bytes)
    }

    fn say_on(&mut self, conn: u64, key: MemberKey, message: Message) -> Reply {
        let known = None;
        let request = GroupRequest::Say {
            member: key,
            known,
            message,
        };
        match self.ask(conn, &request) {
            GroupReply::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn say(&mut self, id: u64, message: Message) -> Reply {
        self.say_on(self.first_conn + id, member(id), message)
    }

    fn start_poll_on(&mut self, conn: u64, id: u64, after: EventNumber) {
        let known = self.lists.get(&id).map(|list| list.attempt);
        let request = GroupRequest::Say {
            member: member(id),
            known,
            message: poll(after),
        };
        let bytes = bytes_of(self.group, Opcode::MembershipPoll, &request);
        self.server.send(conn, &bytes);
    }

    fn start_poll(&mut self, id: u64, after: EventNumber) {
        self.start_poll_on(self.first_conn + id, id, after);
    }

    /// The answer to a member's poll; `None` if it waits.
    fn answer(&mut self, id: u64) -> Option<Reply> {
        let bytes = self.server.take(self.first_conn + id);
        if bytes.is_empty() {
            return None;
        }
        match self.read(Some(id), Opcode::MembershipPoll, &bytes) {
            GroupReply::Reply(reply) => Some(reply),
            other => panic!("{other:?}"),
        }
    }

    fn event(&mut self, id: u64) -> (EventNumber, Event) {
        match self.answer(id) {
            Some(Reply::Event(number, event)) => {
                self.seen.insert(id, number);
                (number, event)
            }
            other => panic!("member {id}: {other:?}"),
        }
    }

    /// Reads a whole reply, and the list in it.
    fn read(&mut self, id: Option<u64>, opcode: Opcode, bytes: &[u8]) -> GroupReply {
        let mut scan = ReplyScan::new(opcode, 1).expect("it has a reply");
        let mut rest = bytes;
        assert_eq!(scan.advance(&mut rest), Ok(true), "{bytes:?}");
        assert!(rest.is_empty());
        let mut rest = &bytes[usize::from(opcode == Opcode::MembershipPoll)..];
        let mut blob = || {
            let (length, bytes) = rest.split_first_chunk::<8>().expect("a length");
            let (blob, after) = bytes.split_at(LittleEndian::read_u64(length) as usize);
            rest = after;
            blob
        };
        let (reply, list) = (blob(), blob());
        let known = id.and_then(|id| self.lists.get(&id).cloned());
        let list = match list {
            [] => known,
            bytes => {
                self.list_bytes.extend(id.map(|id| (id, bytes.len())));
                let list = decode_list(bytes, known.as_ref());
                Some(Arc::new(list.expect("a list")))
            }
        };
        if let (Some(id), Some(list)) = (id, &list) {
            self.lists.insert(id, Arc::clone(list));
        }
        GroupReply::decode(reply, |_| list).expect("a reply")
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.server.at(self.now);
    }

    /// The handle that torch has for a member in its last list.
    fn handle(&self, id: u64) -> String {
        let list = self.lists.get(&id);
        let place = list.and_then(|list| Some((list.rank_of(member(id))?, list.attempt.uuid())));
        let (rank, uuid) = match place {
            Some((rank, uuid)) => (rank as u64, uuid.to_string()),
            None => (id, "-1".to_owned()),
        };
        let mut suffix = format!("{id:0>0$}", self.suffix_digits);
        suffix.truncate(self.suffix_digits);
        format!("gloo:{rank}:{uuid}:{id}:10.0.0.1:29500{suffix}")
    }

    /// Members send their hellos, and agree on a list.
    fn form(&mut self, ids: Range<u64>) -> Arc<Record> {
        for id in ids.clone() {
            assert_eq!(self.say(id, hello(&self.handle(id))), Reply::Accepted);
        }
        for id in ids.clone() {
            self.start_poll(id, EventNumber::NONE);
        }
        self.agree(ids)
    }

    /// A member whose poll has been answered with a proposal is ready, after this number of steps, and polls again.
    fn be_ready(&mut self, id: u64, step: u64) {
        let (number, event) = self.event(id);
        let Event::Propose { attempt, .. } = event else {
            panic!("{event:?}");
        };
        let ready = Message::Ready {
            attempt,
            handle: self.handle(id).into(),
            step,
        };
        assert_eq!(self.say(id, ready), Reply::Accepted);
        self.start_poll(id, number);
    }

    /// The member is called: returns the list of the attempt.
    fn called(&mut self, id: u64) -> (EventNumber, Arc<Record>) {
        match self.event(id) {
            (number, Event::Call { record, .. }) => (number, record),
            other => panic!("member {id}: {other:?}"),
        }
    }

    fn acknowledge(&mut self, id: u64, attempt: Attempt, is_ok: bool) {
        let ack = Message::Ack { attempt, is_ok };
        assert_eq!(self.say(id, ack), Reply::Accepted);
    }

    /// Members whose polls have been answered with a proposal agree.
    fn agree(&mut self, ids: impl IntoIterator<Item = u64> + Clone) -> Arc<Record> {
        for id in ids.clone() {
            self.be_ready(id, id);
        }
        for id in ids.clone() {
            let (number, record) = self.called(id);
            self.acknowledge(id, record.attempt, true);
            self.start_poll(id, number);
        }
        let mut committed = None;
        for id in ids {
            let (number, event) = self.event(id);
            let Event::Commit { record } = event else {
                panic!("{event:?}");
            };
            self.start_poll(id, number);
            committed = Some(record);
        }
        committed.expect("members")
    }

    fn key(attempt: Attempt, rest: &str) -> String {
        format!("reconfigure/{}/{rest}", attempt.uuid())
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 4 to 7: the remaining members get an event in the same step in which a connection
/// closes, and their waits in torch's call return.
#[test]
fn the_end_of_a_connection_is_that_of_its_member() {
    let mut world = World::new(4, 3);
    let record = world.form(0..3);
    assert_eq!(record.seats.len(), 3);
    // A further member joins at a boundary.
    world.say(3, hello("gloo:3"));
    world.start_poll(3, EventNumber::NONE);
    for id in 0..3 {
        let (number, event) = world.event(id);
        let Event::Propose { leave, .. } = event else {
            panic!("{event:?}");
        };
        assert_eq!(leave, Leave::AtBoundary { step: Some(0) });
        let boundary = Message::Boundary {
            generation: record.attempt,
            step: 7,
        };
        assert!(matches!(world.say(id, boundary), Reply::Change(_)));
        // As if it had not seen the event.
        world.start_poll(id, EventNumber(number.0 - 1));
    }
    let record = world.agree(0..4);
    assert_eq!(record.seats.len(), 4);

    world.server.close(3);
    for id in [0, 1, 2] {
        let (_, event) = world.event(id);
        let Event::Propose { attempt, leave, .. } = event else {
            panic!("{event:?}");
        };
        assert!(attempt > record.attempt);
        let lost = Cause::Lost(member(3), Reason::Silent);
        assert_eq!(leave, Leave::Now(lost));
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 12 and 13.
#[test]
fn members_are_sent_a_list_in_few_bytes() {
    let mut world = World::new(64, 64);
    let record = world.form(0..64);
    let few = |world: &World, ids: &[u64]| ids.iter().all(|id| world.list_bytes[id] < 160);
    assert!(few(&world, &[61, 62, 63]), "{:?}", world.list_bytes);
    for id in 0..64 {
        assert_eq!(world.lists[&id], record, "member {id}");
    }
    world.server.close(40);
    let survivors = (0..64).filter(|id| *id != 40);
    // All read the same list; the steps differ.
    let record = world.agree(survivors.clone());
    assert_eq!(record.seats.len(), 63);
    assert!(few(&world, &[61, 62, 63]), "{:?}", world.list_bytes);
    for id in survivors.clone() {
        assert_eq!(world.lists[&id], record, "member {id}");
    }

    // An attempt fails after all members have received its list: the next list is sent as a change of that list.
    world.server.close(62);
    let survivors = survivors.filter(|id| *id != 62);
    for id in survivors.clone() {
        world.be_ready(id, 9);
    }
    let mut failed = None;
    for id in survivors.clone() {
        let (number, record) = world.called(id);
        world.start_poll(id, number);
        failed = Some(record);
    }
    world.server.close(0);
    let survivors = survivors.filter(|id| *id != 0);
    let record = world.agree(survivors);
    assert!(record.attempt > failed.expect("it was called").attempt);
    assert_eq!(record.seats.len(), 61);
    assert!(few(&world, &[61, 63]), "{:?}", world.list_bytes);
    // A member that has lost its list gets the whole list.
    for id in [61, 63] {
        world.lists.remove(&id);
        world.start_poll(id, EventNumber(world.seen[&id].0 - 1));
        let (_, event) = world.event(id);
        let record = Arc::clone(&record);
        assert_eq!(event, Event::Commit { record });
    }
    for id in [61, 63] {
        assert!(world.list_bytes[&id] < 500, "{:?}", world.list_bytes);
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 5.
#[test]
fn a_member_lives_as_long_as_one_of_its_connections() {
    let mut world = World::new(3, 2);
    world.form(0..2);
    world.server.open(7);
    // Another connection speaks for the member, and its poll replaces the earlier poll.
    world.start_poll_on(7, 0, world.seen[&0]);
    assert_eq!(world.server.take(0), [1]);
    // Its cancel has crossed the end.
    world.server.send(0, &[0x0c]);
    assert!(world.server.take(0).is_empty());
    world.server.close(0);
    assert_eq!(world.answer(1), None);
    world.server.close(7);
    let (_, event) = world.event(1);
    assert!(matches!(event, Event::Break { .. }), "{event:?}");
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 5.
#[test]
fn a_silent_connection_stops_to_speak_for_its_members() {
    let mut world = World::new(3, 3);
    for id in [0, 1] {
        assert_eq!(
            world.ask(id, &GroupRequest::KeepAlive(1000)),
            GroupReply::Done
        );
    }
    world.form(0..3);
    let half = Duration::from_millis(500);
    world.pass(half);
    world.pass(half);
    assert_eq!(world.answer(2), None, "a request may be on its way");
    assert_eq!(world.server.take(0), [0_u8; 0]);
    // The poll continues after a heartbeat.
    world.server.send(0, &[0x0c]);
    assert_eq!(world.server.take(0), [1]);
    assert_eq!(
        world.ask(0, &GroupRequest::KeepAlive(1000)),
        GroupReply::Done
    );
    world.pass(Duration::from_millis(100));
    let (_, event) = world.event(2);
    let Event::Propose { leave, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(leave, Leave::Now(Cause::Lost(member(1), Reason::Silent)));
    assert_eq!(world.answer(1), Some(Reply::Evicted(Reason::Silent)));
    assert_eq!(
        world.ask(1, &GroupRequest::KeepAlive(1000)),
        GroupReply::WasSilent
    );
    assert!(!world.server.is_closed(1));
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 8.
#[test]
fn waits_of_an_attempt_end_with_it_and_its_keys_are_deleted() {
    let mut world = World::new(3, 3);
    let first = world.form(0..3).attempt;
    for conn in [10, 11, 12] {
        world.server.open(conn);
    }
    let old = World::key(first, "0/0");
    world.server.send(10, &key_request(Opcode::Set, &old));
    // A member that makes a subgroup waits for another member, which dies.
    let subgroup = World::key(first, "groups/7/2");
    world.server.send(11, &key_request(Opcode::Wait, &subgroup));
    assert!(world.server.take(11).is_empty());
    world.server.close(2);
    assert_eq!(world.server.take(11), [1]);
    for id in [0, 1] {
        world.be_ready(id, 0);
    }
    let (number, record) = world.called(0);
    world.called(1);
    let second = record.attempt;
    // One waits in torch's call for the other, which fails.
    let waited = World::key(second, "0/1");
    world.server.send(10, &key_request(Opcode::Wait, &waited));
    world
        .server
        .send(11, &key_request(Opcode::Wait, "reconfigure"));
    assert!(world.server.take(10).is_empty());
    world.acknowledge(1, second, false);
    assert_eq!(world.server.take(10), [1]);
    assert!(
        world.server.take(11).is_empty(),
        "not one of the group's keys"
    );
    // A later wait returns at once; a wait of the next attempt does not.
    world.server.send(12, &key_request(Opcode::Wait, &waited));
    assert_eq!(world.server.take(12), [1]);
    let third = Attempt::from_uuid(second.uuid() + 1).expect("63 bits");
    let next = World::key(third, "0/1");
    world.server.send(12, &key_request(Opcode::Wait, &next));
    assert!(world.server.take(12).is_empty());

    world.start_poll(0, number);
    world.start_poll(1, number);
    world.server.send(10, &key_request(Opcode::Set, &next));
    assert_eq!(world.server.take(12), [0]);
    let record = world.agree(0..2);
    assert_eq!(record.attempt, third);
    world.server.send(10, &key_request(Opcode::Get, &old));
    assert_eq!(world.server.take(10), [0; 8], "deleted");
    world.server.send(10, &[Opcode::GetNumKeys as u8]);
    assert_eq!(world.server.take(10)[0], 1, "that of the generation stays");
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 3.
#[test]
fn a_group_is_opened_once_and_other_options_are_told_so() {
    let mut world = World::new(2, 2);
    let ask = |world: &mut World, opening| world.ask(LAUNCHER, &GroupRequest::Open(opening));
    assert_eq!(ask(&mut world, opening(2)), GroupReply::Done);
    let there = GroupReply::OpenOtherwise(opening(2));
    assert_eq!(ask(&mut world, opening(3)), there);
    let other_keys = Opening {
        key_prefix: b"/other/"[..].into(),
        ..opening(2)
    };
    assert_eq!(ask(&mut world, other_keys), there);

    let unknown = MemberKey::new(9, 1);
    assert_eq!(
        world.say_on(0, unknown, poll(EventNumber::NONE)),
        Reply::Unknown
    );
    assert_eq!(
        world.ask(LAUNCHER, &GroupRequest::Dead(unknown)),
        GroupReply::Done
    );
    let evicted = Reply::Evicted(Reason::Dead);
    assert_eq!(world.say_on(0, unknown, hello("gloo:9")), evicted);
    let long = Reply::Refused(Limit::HandleBytes(256));
    assert_eq!(world.say(0, hello(&"h".repeat(257))), long);

    world.form(0..2);
    let GroupReply::Status(status) = world.ask(LAUNCHER, &GroupRequest::Status) else {
        panic!("no status");
    };
    assert_eq!((status.stage, status.size), (GroupStage::Committed, 2));
    assert_eq!(status.generation, Some(status.attempt));
    let ranks: Vec<_> = status
        .members
        .iter()
        .map(|it| (it.member, it.rank))
        .collect();
    assert_eq!(ranks, [(member(0), Some(0)), (member(1), Some(1))]);

    assert_eq!(world.ask(LAUNCHER, &GroupRequest::End), GroupReply::Done);
    for id in [0, 1] {
        assert_eq!(world.answer(id), Some(Reply::Ended(EndReason::Closed)));
    }
    assert_eq!(
        ask(&mut world, opening(2)),
        GroupReply::Done,
        "it stays ended"
    );
    assert_eq!(
        world.say(1, hello("gloo:1")),
        Reply::Ended(EndReason::Closed)
    );
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 9: the server's clock ends what a group waits for.
#[test]
fn members_that_are_not_ready_in_time_are_evicted() {
    let mut world = World::new(3, 3);
    for id in 0..3 {
        world.say(id, hello(&format!("gloo:{id}")));
        world.start_poll(id, EventNumber::NONE);
    }
    for id in 0..2 {
        world.be_ready(id, 0);
    }
    let (number, event) = world.event(2);
    let Event::Propose { deadline, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(deadline, Duration::from_secs(10), "the time that is left");
    world.start_poll(2, number);
    world.pass(Duration::from_secs(9));
    assert_eq!(world.answer(0), None);
    let at = world.server.next_group_timer();
    assert_eq!(at, Some(Duration::from_secs(10)));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.answer(2), Some(Reply::Evicted(Reason::NotReady)));
    for id in 0..2 {
        world.called(id);
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 2.
#[test]
fn a_server_has_a_limited_number_of_groups_and_forgets_those_that_serve_nobody() {
    let mut server = SimServer::new(groups(1));
    server.open(0);
    let mut ask = |group: &str, request: &GroupRequest| {
        let value = request.encode();
        let mut bytes = RequestBuf::new();
        let bytes = bytes.opcode(Opcode::Membership).user_key(group);
        server.send(0, &bytes.value(&value).to_bytes());
        let reply = server.take(0);
        GroupReply::decode(&reply[8..reply.len() - 8], |_| None).expect("a reply")
    };
    let said = |id| GroupRequest::Say {
        member: member(id),
        known: None,
        message: hello("gloo"),
    };
    for group in 0..1024 {
        assert_eq!(
            ask(&format!("g{group}"), &GroupRequest::Open(opening(2))),
            GroupReply::Done
        );
    }
    for group in (0..1024).filter(|group| *group != 3) {
        let reply = GroupReply::Reply(Reply::Accepted);
        assert_eq!(ask(&format!("g{group}"), &said(1)), reply);
    }
    let open = GroupRequest::Open(opening(2));
    assert_eq!(
        ask("new", &open),
        GroupReply::Done,
        "instead of an unused one"
    );
    assert_eq!(ask("g3", &GroupRequest::Status), GroupReply::NotOpen);
    assert_eq!(ask("new", &said(1)), GroupReply::Reply(Reply::Accepted));
    assert_eq!(ask("g3", &open), GroupReply::TooMany);
    assert_eq!(ask("g5", &GroupRequest::End), GroupReply::Done);
    assert_eq!(ask("g3", &open), GroupReply::Done);
    assert_eq!(ask("g5", &said(1)), GroupReply::NotOpen);
}

/// docs/spec/wire.md, MEMORY 4: a list that several replies share counts once, while one of them is not read.
#[test]
fn replies_that_share_a_list_count_it_once() {
    let mut world = World::new(8, 8);
    world.suffix_digits = 200;
    world.form(0..8);
    let lent_bytes = |world: &mut World| world.server.memory().1;
    for id in 0..7 {
        world.lists.remove(&id);
        world.start_poll(id, EventNumber(world.seen[&id].0 - 1));
    }
    assert_eq!(lent_bytes(&mut world), 0, "the newest list counts as data");

    // Over other connections, the members agree on another list.
    world.server.close(7);
    world.first_conn = 10;
    for id in 0..7 {
        world.server.open(10 + id);
        world.start_poll(id, world.seen[&id]);
    }
    world.agree(0..7);
    let lent = lent_bytes(&mut world);
    assert!((1600..3200).contains(&lent), "{lent} bytes");
    for conn in 0..7 {
        assert_eq!(lent_bytes(&mut world), lent);
        assert!(world.server.take(conn).len() > 1600);
    }
    assert_eq!(lent_bytes(&mut world), 0, "every peer has read it");

    // Another group takes the place of the closed group.
    world.lists.remove(&0);
    world.start_poll(0, EventNumber(world.seen[&0].0 - 1));
    world.ask(LAUNCHER, &GroupRequest::End);
    assert_eq!(lent_bytes(&mut world), 0);
    for number in 0..1024 {
        let request = GroupRequest::Open(opening(2));
        let name = format!("other {number}");
        world
            .server
            .send(LAUNCHER, &bytes_of(&name, Opcode::Membership, &request));
    }
    assert!(lent_bytes(&mut world) > 1600);
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 2; docs/spec/membership.md, COST 3: members that join and leave, 1,000
/// times or `ROUNDS`.
#[test]
fn changes_leave_memory_flat() {
    let rounds = std::env::var("ROUNDS").map_or(1000, |rounds| rounds.parse().expect("a number"));
    let mut opening = opening(3);
    opening.options.evicted_max = 16;
    let mut world = World::new(0, 3);
    world.ask(LAUNCHER, &GroupRequest::End);
    world.group = "changing";
    let opened = world.ask(LAUNCHER, &GroupRequest::Open(opening));
    assert_eq!(opened, GroupReply::Done);
    let mut members: Vec<u64> = vec![0, 1, 2];
    for id in &members {
        world.server.open(*id);
    }
    world.form(0..3);
    let mut flat = None;
    for round in 0..rounds {
        // Addresses of torch, as each attempt leaves them.
        let attempt = world.lists[&members[0]].attempt;
        for rest in ["claimed", "0/0", "0/1", "0/2"] {
            let set = key_request(Opcode::Set, &World::key(attempt, rest));
            world.server.send(LAUNCHER, &set);
        }
        // A member dies, at any position in the list, and a new member joins.
        let dead = members.remove(round % 3);
        let new = 200 + round as u64;
        world.server.close(dead);
        world.lists.remove(&dead);
        world.seen.remove(&dead);
        world.server.open(new);
        world.say(new, hello(&format!("gloo:{new}")));
        world.start_poll(new, EventNumber::NONE);
        members.push(new);
        // The new one is ready before all are that the attempt waits for.
        let record = world.agree(members.iter().rev().copied());
        assert_eq!(record.seats.len(), 3);
        // Handles grow with the numbers in them.
        if round == 900 || round + 1 == rounds && flat.is_none() {
            flat = Some(world.server.memory().0);
        }
    }
    let now = world.server.memory().0;
    let before = flat.expect("a first look");
    assert!(now < before + 256, "{before} bytes, then {now}");
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 10.
#[test]
fn what_is_no_request_to_a_group_closes_the_connection() {
    let say = |message| GroupRequest::Say {
        member: member(0),
        known: None,
        message,
    };
    let cut = |request: &GroupRequest| {
        let mut value = request.encode();
        value.pop();
        value
    };
    let cases = [
        (Opcode::Membership, vec![]),
        (Opcode::Membership, vec![9]),
        (
            Opcode::Membership,
            [GroupRequest::End.encode(), vec![0]].concat(),
        ),
        (Opcode::Membership, cut(&GroupRequest::Dead(member(0)))),
        (Opcode::Membership, cut(&say(hello("gloo")))),
        (Opcode::MembershipPoll, say(hello("gloo")).encode()),
        (Opcode::MembershipPoll, GroupRequest::Status.encode()),
    ];
    for (opcode, value) in cases {
        let mut world = World::new(1, 2);
        let mut bytes = RequestBuf::new();
        bytes.opcode(opcode).user_key("g").value(&value);
        world.server.send(0, &bytes.to_bytes());
        assert!(world.server.is_closed(0), "{opcode:?} {value:?}");
        assert!(world.server.take(0).is_empty());
    }
}
