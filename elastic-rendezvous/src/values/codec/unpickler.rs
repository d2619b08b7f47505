//! The pickle machine: a stack, a memo, and the opcodes of a state.
//!
//! It builds nodes and containers, and calls only three known classes. Nothing recurses, and no announced
//! length reserves memory.

use std::collections::{HashMap, hash_map};
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian};

use super::error::{CodecLimits, CorruptStateKind as Fault, quoted};
use super::value::{Class, Text, Time, Value};
use super::{calendar, pickle};
use crate::values::node::NodeId;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
const MICROS_PER_DAY: i64 = SECONDS_PER_DAY * MICROS_PER_SECOND;

/// The approximate size of a node and its heartbeat.
const NODE_BYTES: usize = 80;

/// The end of the list of a container's entries.
const NO_ENTRY: u32 = u32::MAX;

/// The machine, between two opcodes.
pub(super) struct Unpickler<'a> {
    input: &'a [u8],
    limits: &'a CodecLimits,
    /// The position of the next opcode.
    position: usize,
    stack: Vec<Value>,
    /// The height of the stack at each open MARK.
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// A node is `None` until it has its attributes.
    nodes: Vec<Option<NodeId>>,
    containers: Vec<Container>,
    entries: Vec<Entry>,
    /// The addresses, by the position of their string, so that each is allocated once.
    addresses: HashMap<u32, Arc<str>>,
    state: StateObject,
}

/// A map or a set: a linked list in [`Unpickler::entries`], in order of insertion.
#[derive(Debug, Clone, Copy)]
struct Container {
    first: u32,
    last: u32,
    len: u32,
}

impl Container {
    const EMPTY: Self = Self {
        first: NO_ENTRY,
        last: NO_ENTRY,
        len: 0,
    };
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Value,
    /// [`Value::None`] in a set.
    value: Value,
    next: u32,
}

/// The progress of the state object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StateObject {
    Absent,
    Fresh,
    /// The object has this map of attributes.
    Built(u32),
}

impl<'a> Unpickler<'a> {
    pub(super) fn new(input: &'a [u8], limits: &'a CodecLimits) -> Self {
        // The input has at most about this many nodes: reserve what each needs in PyTorch's layout.
        let nodes = (input.len() / NODE_BYTES).min(limits.nodes_max);
        Self {
            input,
            limits,
            position: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::with_capacity(6 * nodes),
            nodes: Vec::with_capacity(nodes),
            containers: Vec::with_capacity(nodes),
            entries: Vec::with_capacity(2 * nodes),
            addresses: HashMap::with_capacity(nodes),
            state: StateObject::Absent,
        }
    }

    /// The position of the next opcode.
    pub(super) const fn position(&self) -> usize {
        self.position
    }

    /// Executes one opcode. Returns the map of the state's attributes at the end.
    pub(super) fn step(&mut self) -> Result<Option<u32>, Fault> {
        match self.byte()? {
            pickle::PROTO => self.protocol()?,
            // Frames only matter to readers of files.
            pickle::FRAME => _ = self.bytes(8)?,
            pickle::STOP => return self.stop().map(Some),
            pickle::MARK => {
                self.check_room()?;
                self.marks.push(self.stack.len());
            }
            pickle::NONE => self.push(Value::None)?,
            pickle::NEWTRUE => self.push(Value::Bool(true))?,
            pickle::NEWFALSE => self.push(Value::Bool(false))?,
            pickle::BININT1 => {
                let value = self.byte()?;
                self.push(Value::Int(value.into()))?;
            }
            pickle::BININT2 => {
                let value = LittleEndian::read_u16(self.bytes(2)?);
                self.push(Value::Int(value.into()))?;
            }
            pickle::BININT => {
                let value = LittleEndian::read_i32(self.bytes(4)?);
                self.push(Value::Int(value.into()))?;
            }
            pickle::LONG1 => self.long()?,
            pickle::SHORT_BINBYTES => {
                let len = self.byte()?;
                let bytes = self.bytes(len.into())?;
                let value = bytes
                    .try_into()
                    .map_or(Value::OtherBytes, Value::DatetimeBytes);
                self.push(value)?;
            }
            pickle::SHORT_BINUNICODE => {
                let len = self.byte()?;
                self.text(len.into())?;
            }
            pickle::BINUNICODE => {
                let len = LittleEndian::read_u32(self.bytes(4)?);
                self.text(len)?;
            }
            pickle::EMPTY_TUPLE => self.push(Value::EmptyTuple)?,
            pickle::TUPLE1 => self.tuple1()?,
            pickle::TUPLE2 => self.tuple2()?,
            pickle::TUPLE3 => self.tuple3()?,
            pickle::EMPTY_DICT => {
                let container = self.new_container()?;
                self.push(Value::Map(container))?;
            }
            pickle::EMPTY_SET => {
                let container = self.new_container()?;
                self.push(Value::Set(container))?;
            }
            pickle::SETITEM => self.set_item()?,
            pickle::SETITEMS => self.set_items()?,
            pickle::ADDITEMS => self.add_items()?,
            pickle::STACK_GLOBAL => self.stack_global()?,
            pickle::NEWOBJ => self.new_object()?,
            pickle::BUILD => self.build()?,
            pickle::REDUCE => self.reduce()?,
            pickle::MEMOIZE => self.memoize()?,
            pickle::BINGET => {
                let slot = self.byte()?;
                self.get(slot.into())?;
            }
            pickle::LONG_BINGET => {
                let slot = LittleEndian::read_u32(self.bytes(4)?);
                self.get(slot)?;
            }
            other => return Err(Fault::ForeignOpcode(other)),
        }
        Ok(None)
    }

    fn protocol(&mut self) -> Result<(), Fault> {
        let protocol = self.byte()?;
        if !(pickle::PROTOCOL..=pickle::PROTOCOL_MAX).contains(&protocol) {
            return Err(Fault::ForeignProtocol(protocol));
        }
        Ok(())
    }

    fn set_item(&mut self) -> Result<(), Fault> {
        let value = self.pop()?;
        let key = self.pop()?;
        let map = self.top_map()?;
        self.insert(map, key, value)
    }

    fn memoize(&mut self) -> Result<(), Fault> {
        let top = self.top()?;
        check_count(self.memo.len(), self.limits.objects_max, "memo slots")?;
        self.memo.push(top);
        Ok(())
    }

    /// Returns the number of entries of a map or set.
    pub(super) fn len(&self, container: u32) -> usize {
        self.containers[container as usize].len as usize
    }

    /// Keys and values of a map or set in the order of insertion, repeated ones included.
    pub(super) fn entries(&self, container: u32) -> impl Iterator<Item = (Value, Value)> {
        let mut next = self.containers[container as usize].first;
        std::iter::from_fn(move || {
            let entry = self.entries.get(next as usize)?;
            next = entry.next;
            Some((entry.key, entry.value))
        })
    }

    /// The UTF-8 of a string.
    pub(super) fn utf8(&self, text: Text) -> &'a [u8] {
        // `text` has checked the bounds.
        let start = text.start as usize;
        &self.input[start..start + text.len as usize]
    }

    /// The node, if it has its attributes.
    pub(super) fn node(&self, node: u32) -> Option<&NodeId> {
        self.nodes[node as usize].as_ref()
    }

    /// The number of nodes; equal ones count each time.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.input.get(self.position).ok_or(Fault::Truncated)?;
        self.position += 1;
        Ok(byte)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let rest = &self.input[self.position..];
        let bytes = rest.get(..len).ok_or(Fault::Truncated)?;
        self.position += len;
        Ok(bytes)
    }

    fn text(&mut self, len: u32) -> Result<(), Fault> {
        let start = self.position;
        let bytes = self.bytes(len as usize)?;
        if str::from_utf8(bytes).is_err() {
            return Err(Fault::NotUtf8);
        }
        let start = start as u32;
        self.push(Value::Text(Text { start, len }))
    }

    fn long(&mut self) -> Result<(), Fault> {
        let len = usize::from(self.byte()?);
        let bytes = self.bytes(len)?;
        let value = match len {
            0 => 0,
            1..=8 => LittleEndian::read_int(bytes, len),
            _ => return Err(Fault::LargeInteger { bytes: len }),
        };
        self.push(Value::Int(value))
    }

    fn tuple1(&mut self) -> Result<(), Fault> {
        let tuple = match self.pop()? {
            Value::Timedelta(micros) => Value::TimezoneArguments(micros),
            Value::DatetimeBytes(bytes) => {
                let moment = calendar::from_bytes(&bytes, 0).ok_or(Fault::ImpossibleDatetime)?;
                let aware = false;
                Value::DatetimeArguments(Time { moment, aware })
            }
            _ => Value::OtherTuple,
        };
        self.push(tuple)
    }

    fn tuple2(&mut self) -> Result<(), Fault> {
        let second = self.pop()?;
        let first = self.pop()?;
        let tuple = match (first, second) {
            (Value::DatetimeBytes(bytes), Value::Timezone(offset)) => {
                let moment =
                    calendar::from_bytes(&bytes, offset).ok_or(Fault::ImpossibleDatetime)?;
                let aware = true;
                Value::DatetimeArguments(Time { moment, aware })
            }
            _ => Value::OtherTuple,
        };
        self.push(tuple)
    }

    fn tuple3(&mut self) -> Result<(), Fault> {
        let third = self.pop()?;
        let second = self.pop()?;
        let first = self.pop()?;
        let micros = match (first, second, third) {
            (Value::Int(days), Value::Int(seconds), Value::Int(micros)) => {
                timedelta_micros(days, seconds, micros)
            }
            _ => None,
        };
        // A timedelta beyond 64 bits is invalid for a time zone.
        self.push(micros.map_or(Value::OtherTuple, Value::TimedeltaArguments))
    }

    fn stack_global(&mut self) -> Result<(), Fault> {
        let name = self.pop_text("the name of a class")?;
        let module = self.pop_text("the module of a class")?;
        let (module, name) = (self.utf8(module), self.utf8(name));
        let class = Class::named(module, name).ok_or_else(|| Fault::ForeignClass {
            module: quoted(module),
            name: quoted(name),
        })?;
        self.push(Value::Class(class))
    }

    fn new_object(&mut self) -> Result<(), Fault> {
        let arguments = self.pop()?;
        if arguments != Value::EmptyTuple {
            return Err(wrong_type("what NEWOBJ takes", "an empty tuple", arguments));
        }
        let object = match self.pop()? {
            Value::Class(Class::State) => {
                if self.state != StateObject::Absent {
                    return Err(Fault::Again("a state"));
                }
                self.state = StateObject::Fresh;
                Value::State
            }
            Value::Class(Class::Node) => {
                check_count(self.nodes.len(), self.limits.nodes_max, "nodes")?;
                let node = self.nodes.len() as u32;
                self.nodes.push(None);
                Value::Node(node)
            }
            other => {
                let expected = "the class of nodes or states";
                return Err(wrong_type("what NEWOBJ makes", expected, other));
            }
        };
        self.push(object)
    }

    fn build(&mut self) -> Result<(), Fault> {
        let attributes = match self.pop()? {
            Value::Map(map) => map,
            other => return Err(wrong_type("what BUILD takes", "a map", other)),
        };
        match self.top()? {
            Value::Node(node) => {
                if self.node(node).is_some() {
                    return Err(Fault::Again("a node's attributes"));
                }
                self.nodes[node as usize] = Some(self.node_with(attributes)?);
                self.empty(attributes);
            }
            Value::State => {
                if self.state != StateObject::Fresh {
                    return Err(Fault::Again("a state's attributes"));
                }
                self.state = StateObject::Built(attributes);
            }
            other => return Err(wrong_type("what BUILD fills", "a node or state", other)),
        }
        Ok(())
    }

    fn node_with(&mut self, attributes: u32) -> Result<NodeId, Fault> {
        let mut addr = None;
        let mut pid = None;
        let mut local_id = None;
        for (key, value) in self.entries(attributes) {
            let Value::Text(name) = key else {
                return Err(wrong_type("the name of an attribute", "a string", key));
            };
            let name = self.utf8(name);
            if name == pickle::ADDR.as_bytes() {
                let Value::Text(text) = value else {
                    return Err(wrong_type("attribute addr", "a string", value));
                };
                set_once(&mut addr, text, pickle::ADDR)?;
            } else if name == pickle::PID.as_bytes() {
                set_once(&mut pid, int(value, "attribute pid")?, pickle::PID)?;
            } else if name == pickle::LOCAL_ID.as_bytes() {
                let value = int(value, "attribute local_id")?;
                set_once(&mut local_id, value, pickle::LOCAL_ID)?;
            }
        }
        let addr = addr.ok_or(Fault::MissingAttribute(pickle::ADDR))?;
        Ok(NodeId {
            addr: self.address(addr)?,
            pid: pid.ok_or(Fault::MissingAttribute(pickle::PID))?,
            local_id: local_id.ok_or(Fault::MissingAttribute(pickle::LOCAL_ID))?,
        })
    }

    /// Allocates each string object once, like Python, so that encoding the state again gives the same bytes.
    fn address(&mut self, text: Text) -> Result<Arc<str>, Fault> {
        let utf8 = self.utf8(text);
        let address = match self.addresses.entry(text.start) {
            hash_map::Entry::Occupied(known) => Arc::clone(known.get()),
            hash_map::Entry::Vacant(new) => {
                let address = str::from_utf8(utf8).map_err(|_| Fault::NotUtf8)?;
                Arc::clone(new.insert(Arc::from(address)))
            }
        };
        Ok(address)
    }

    fn reduce(&mut self) -> Result<(), Fault> {
        let arguments = self.pop()?;
        let called = self.pop()?;
        let result = match (called, arguments) {
            (Value::Class(Class::Timedelta), Value::TimedeltaArguments(micros)) => {
                Value::Timedelta(micros)
            }
            (Value::Class(Class::Timezone), Value::TimezoneArguments(micros)) => {
                if micros <= -MICROS_PER_DAY || micros >= MICROS_PER_DAY {
                    return Err(Fault::ImpossibleTimezone);
                }
                Value::Timezone(micros)
            }
            (Value::Class(Class::Datetime), Value::DatetimeArguments(time)) => {
                Value::Datetime(time)
            }
            (Value::Class(Class::Datetime | Class::Timezone | Class::Timedelta), _) => {
                let expected = "the arguments of the class in a state";
                return Err(wrong_type("what REDUCE takes", expected, arguments));
            }
            _ => {
                let expected = "the class of datetimes, timezones or timedeltas";
                return Err(wrong_type("what REDUCE calls", expected, called));
            }
        };
        self.push(result)
    }

    fn set_items(&mut self) -> Result<(), Fault> {
        let mark = self.pop_mark()?;
        let Some(Value::Map(map)) = self.below(mark) else {
            return Err(self.not_filled(mark, "what SETITEMS fills", "a map"));
        };
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err(Fault::OddItems);
        }
        for item in (mark..self.stack.len()).step_by(2) {
            self.insert(map, self.stack[item], self.stack[item + 1])?;
        }
        self.stack.truncate(mark);
        Ok(())
    }

    fn add_items(&mut self) -> Result<(), Fault> {
        let mark = self.pop_mark()?;
        let Some(Value::Set(set)) = self.below(mark) else {
            return Err(self.not_filled(mark, "what ADDITEMS fills", "a set"));
        };
        for item in mark..self.stack.len() {
            self.insert(set, self.stack[item], Value::None)?;
        }
        self.stack.truncate(mark);
        Ok(())
    }

    fn not_filled(&self, mark: usize, what: &'static str, expected: &'static str) -> Fault {
        match self.below(mark) {
            Some(found) => wrong_type(what, expected, found),
            None => Fault::StackUnderflow,
        }
    }

    fn top_map(&self) -> Result<u32, Fault> {
        match self.top()? {
            Value::Map(map) => Ok(map),
            other => Err(wrong_type("what SETITEM fills", "a map", other)),
        }
    }

    fn new_container(&mut self) -> Result<u32, Fault> {
        check_count(
            self.containers.len(),
            self.limits.objects_max,
            "maps and sets",
        )?;
        self.containers.push(Container::EMPTY);
        // Each container and entry needs a byte of the input, whose length fits 32 bits.
        Ok((self.containers.len() - 1) as u32)
    }

    fn insert(&mut self, container: u32, key: Value, value: Value) -> Result<(), Fault> {
        // Python hashes a key now, which fails for a node without attributes.
        let can_be_key = match key {
            Value::Map(_) | Value::Set(_) | Value::State => false,
            Value::Node(node) => self.node(node).is_some(),
            _ => true,
        };
        if !can_be_key {
            let expected = "a value that is complete and does not change";
            return Err(wrong_type("a key or member", expected, key));
        }
        check_count(
            self.entries.len(),
            self.limits.objects_max,
            "entries of maps and sets",
        )?;
        let entry = self.entries.len() as u32;
        self.entries.push(Entry {
            key,
            value,
            next: NO_ENTRY,
        });
        let container = &mut self.containers[container as usize];
        if container.first == NO_ENTRY {
            container.first = entry;
        } else {
            self.entries[container.last as usize].next = entry;
        }
        container.last = entry;
        container.len += 1;
        Ok(())
    }

    /// Frees the entries of a node's attributes if they are the last ones, for the next node. PyTorch does not
    /// use the map again; another writer's reference would find it empty.
    fn empty(&mut self, container: u32) {
        let container = &mut self.containers[container as usize];
        let first = container.first as usize;
        if first + container.len as usize == self.entries.len() {
            self.entries.truncate(first);
            *container = Container::EMPTY;
        }
    }

    fn stop(&mut self) -> Result<u32, Fault> {
        match (self.pop()?, self.state) {
            (Value::State, StateObject::Built(attributes)) => Ok(attributes),
            (Value::State, _) => Err(Fault::MissingAttribute(pickle::ATTRIBUTES[0])),
            (other, _) => Err(wrong_type("the whole", "a state", other)),
        }
    }

    fn get(&mut self, slot: u32) -> Result<(), Fault> {
        let value = self.memo.get(slot as usize).copied();
        self.push(value.ok_or(Fault::EmptyMemoSlot(slot))?)
    }

    fn check_room(&self) -> Result<(), Fault> {
        let used = self.stack.len() + self.marks.len();
        check_count(used, self.limits.stack_max, "values on the stack")
    }

    fn push(&mut self, value: Value) -> Result<(), Fault> {
        self.check_room()?;
        self.stack.push(value);
        Ok(())
    }

    /// The height of the last MARK, below which opcodes must not pop.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Value, Fault> {
        self.below(self.stack.len()).ok_or(Fault::StackUnderflow)
    }

    /// The value just below this height of the stack.
    fn below(&self, height: usize) -> Option<Value> {
        self.stack[self.floor()..height].last().copied()
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_text(&mut self, what: &'static str) -> Result<Text, Fault> {
        match self.pop()? {
            Value::Text(text) => Ok(text),
            other => Err(wrong_type(what, "a string", other)),
        }
    }

    fn pop_mark(&mut self) -> Result<usize, Fault> {
        self.marks.pop().ok_or(Fault::StackUnderflow)
    }
}

/// An integer; a bool is refused.
pub(super) const fn int(value: Value, what: &'static str) -> Result<i64, Fault> {
    match value {
        Value::Int(value) => Ok(value),
        other => Err(wrong_type(what, "an integer", other)),
    }
}

/// Sets an attribute, which must not be set yet.
pub(super) fn set_once<T>(
    attribute: &mut Option<T>,
    value: T,
    name: &'static str,
) -> Result<(), Fault> {
    match attribute.replace(value) {
        None => Ok(()),
        Some(_) => Err(Fault::DuplicateAttribute(name)),
    }
}

pub(super) const fn wrong_type(what: &'static str, expected: &'static str, found: Value) -> Fault {
    Fault::WrongType {
        what,
        expected,
        found: found.kind(),
    }
}

const fn check_count(count: usize, max: usize, what: &'static str) -> Result<(), Fault> {
    if count < max {
        Ok(())
    } else {
        Err(Fault::TooMany { what, max })
    }
}

fn timedelta_micros(days: i64, seconds: i64, micros: i64) -> Option<i64> {
    let seconds = days.checked_mul(SECONDS_PER_DAY)?.checked_add(seconds)?;
    seconds.checked_mul(MICROS_PER_SECOND)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::encode::encode;
    use super::*;
    use crate::values::state::RendezvousState;
    use crate::values::timestamp::Timestamp;

    impl Unpickler<'_> {
        /// Invariants after each opcode, for any input.
        fn check_invariants(&self) {
            let Self { input, limits, .. } = self;
            assert!(self.position <= input.len());
            assert!(self.stack.len() + self.marks.len() <= limits.stack_max);
            assert!(self.marks.is_sorted());
            assert!(self.floor() <= self.stack.len());
            let objects_max = limits.objects_max.min(self.position);
            assert!(self.memo.len() <= objects_max);
            assert!(self.containers.len() <= objects_max);
            assert!(self.entries.len() <= objects_max);
            assert!(self.nodes.len() <= limits.nodes_max.min(self.position));
            assert!(self.addresses.len() <= self.nodes.len());
            let lens = self.containers.iter().map(|container| container.len);
            assert_eq!(lens.sum::<u32>() as usize, self.entries.len());
            for place in 0..self.containers.len() {
                assert_eq!(self.entries(place as u32).count(), self.len(place as u32));
            }
        }
    }

    /// Runs the machine to its end, and returns how many bytes it has read.
    fn run(input: &[u8], limits: &CodecLimits) -> Result<usize, Fault> {
        let mut machine = Unpickler::new(input, limits);
        loop {
            let before = machine.position;
            let done = machine.step();
            machine.check_invariants();
            if done?.is_some() {
                return Ok(machine.position);
            }
            assert!(machine.position > before);
        }
    }

    fn state() -> RendezvousState {
        let mut state = RendezvousState::default();
        for pid in 0..3 {
            let node = NodeId::new("node0.example.com", pid, 0);
            state.participants.insert(node.clone(), 0);
            state
                .last_heartbeats
                .insert(node, Timestamp::from_micros(0));
        }
        state
    }

    fn few() -> CodecLimits {
        CodecLimits {
            stack_max: 12,
            objects_max: 10,
            nodes_max: 2,
            ..CodecLimits::default()
        }
    }

    /// All opcodes, with plausible operands.
    fn opcodes() -> impl Strategy<Value = Vec<u8>> {
        let plain = [
            pickle::MARK,
            pickle::NONE,
            pickle::NEWTRUE,
            pickle::EMPTY_TUPLE,
            pickle::TUPLE1,
            pickle::TUPLE2,
            pickle::TUPLE3,
            pickle::EMPTY_DICT,
            pickle::SETITEM,
            pickle::SETITEMS,
            pickle::EMPTY_SET,
            pickle::ADDITEMS,
            pickle::STACK_GLOBAL,
            pickle::NEWOBJ,
            pickle::BUILD,
            pickle::REDUCE,
            pickle::MEMOIZE,
        ];
        let node = [
            &[
                pickle::SHORT_BINUNICODE,
                pickle::RENDEZVOUS_MODULE.len() as u8,
            ],
            pickle::RENDEZVOUS_MODULE.as_bytes(),
            b"\x8c\x09_NodeDesc\x93)\x81",
        ];
        let pieces = [
            &b"K\x01"[..],
            b"\x8c\x01a",
            b"h\x00",
            b"h\x05",
            b"\x8a\x00",
            b"}(\x8c\x04addr\x8c\x01a\x8c\x03pidK\x01\x8c\x08local_idK\x00ub",
            &node.concat(),
        ]
        .map(<[u8]>::to_vec);
        prop_oneof![
            prop::sample::select(plain.to_vec()).prop_map(|opcode| vec![opcode]),
            prop::sample::select(pieces.to_vec()),
        ]
    }

    #[test]
    fn a_state_ends_the_machine_at_its_end() {
        let bytes = encode(&state());
        let limits = CodecLimits::default();
        assert_eq!(run(&bytes, &limits), Ok(bytes.len()));
        // The bytes after a pickle are not part of it.
        let followed = [&bytes[..], b"more"].concat();
        assert_eq!(run(&followed, &limits), Ok(bytes.len()));
        assert!(run(&bytes[..bytes.len() - 1], &limits).is_err());
    }

    #[test]
    fn an_address_that_is_fetched_again_shares_its_memory() {
        let addr: Arc<str> = Arc::from("localhost");
        let mut state = RendezvousState::default();
        for (pid, addr) in [Arc::clone(&addr), addr, Arc::from("localhost")]
            .iter()
            .enumerate()
        {
            let node = NodeId::new(Arc::clone(addr), pid as i64, 0);
            state.participants.insert(node, 0);
        }
        let bytes = encode(&state);
        let limits = CodecLimits::default();
        let mut machine = Unpickler::new(&bytes, &limits);
        while machine.step().expect("a state").is_none() {}
        let [first, second, third] = [0, 1, 2].map(|node| machine.node(node).expect("built"));
        assert!(Arc::ptr_eq(&first.addr, &second.addr));
        assert!(!Arc::ptr_eq(&first.addr, &third.addr));
    }

    proptest! {
        #[test]
        fn invariants_hold_for_opcodes_in_any_order(
            opcodes in prop::collection::vec(opcodes(), 0..300),
            is_limited: bool,
        ) {
            let limits = if is_limited { few() } else { CodecLimits::default() };
            let _ = run(&opcodes.concat(), &limits);
        }

        /// Mostly valid opcodes, so that the limits are reached.
        #[test]
        fn invariants_hold_for_a_state_with_changed_bytes(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            is_limited: bool,
        ) {
            let mut bytes = encode(&state());
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let limits = if is_limited { few() } else { CodecLimits::default() };
            let _ = run(&bytes, &limits);
        }
    }
}
