//! Encodes a state as Python does: the order of objects, and which are shared.

use std::collections::HashMap;
use std::sync::Arc;

use super::calendar;
use super::pickle;
use super::pickler::{BATCH, Pickler, Slot};
use crate::values::node::NodeId;
use crate::values::state::{DatetimeStyle, RendezvousState};
use crate::values::timestamp::Timestamp;

/// The approximate size of a state without nodes.
const FIXED_BYTES: usize = 512;
/// The approximate size of a node with a heartbeat and an address of usual length.
const NODE_BYTES: usize = 96;

/// Encodes `state` as a pickle, byte for byte as PyTorch does.
///
/// Equal nodes are written once. Equal addresses are written once if they share memory, which is Python's
/// rule, so a state of PyTorch keeps its bytes through [`decode`](super::decode) and this function. Sets are
/// written in node order; Python's order is random. Times outside of the years 1 to 9999 are clamped.
///
/// ```
/// use elastic_rendezvous::codec::{self, CodecLimits};
/// use elastic_rendezvous::{NodeId, RendezvousState};
///
/// let mut state = RendezvousState::default();
/// state.wait_list.insert(NodeId::new("node0.example.com", 1000, 0));
/// let bytes = codec::encode(&state);
/// assert_eq!(codec::decode(&bytes, &CodecLimits::default()), Ok(state));
/// ```
#[must_use]
pub fn encode(state: &RendezvousState) -> Vec<u8> {
    let nodes = state.participants.len()
        + state.wait_list.len()
        + state.redundancy_list.len().max(state.last_heartbeats.len());
    let mut pickler = Pickler::new(FIXED_BYTES + nodes * NODE_BYTES);
    let module = pickler.str(pickle::RENDEZVOUS_MODULE);
    let mut encoder = Encoder {
        pickler,
        style: state.datetime_style,
        module,
        datetime: None,
        node: None,
        nodes: HashMap::new(),
        addresses: HashMap::new(),
    };
    encoder.class_in(pickle::STATE);
    begin_instance(&mut encoder.pickler);
    encoder.attributes(state);
    end_instance(&mut encoder.pickler);
    encoder.pickler.finish()
}

/// Writes the opcodes between the class and the first attribute.
fn begin_instance(pickler: &mut Pickler) -> Slot {
    pickler.object(pickle::EMPTY_TUPLE);
    pickler.opcode(pickle::NEWOBJ);
    let instance = pickler.memoize();
    pickler.object(pickle::EMPTY_DICT);
    pickler.memoize();
    pickler.opcode(pickle::MARK);
    instance
}

fn end_instance(pickler: &mut Pickler) {
    pickler.opcode(pickle::SETITEMS);
    pickler.opcode(pickle::BUILD);
}

/// The encoder, with the memo slots of the objects that it has written.
struct Encoder<'a> {
    pickler: Pickler,
    style: DatetimeStyle,
    module: Slot,
    datetime: Option<DatetimeSlots>,
    node: Option<NodeSlots>,
    nodes: HashMap<&'a NodeId, Slot>,
    /// The memo slots of addresses, by memory address.
    addresses: HashMap<*const u8, Slot>,
}

#[derive(Clone, Copy)]
struct DatetimeSlots {
    class: Slot,
    /// `timezone.utc`, in aware style.
    utc: Option<Slot>,
}

#[derive(Clone, Copy)]
struct NodeSlots {
    class: Slot,
    addr: Slot,
    pid: Slot,
    local_id: Slot,
}

impl<'a> Encoder<'a> {
    fn attributes(&mut self, state: &'a RendezvousState) {
        self.pickler.str(pickle::ROUND);
        self.pickler.int(state.round);
        self.pickler.str(pickle::COMPLETE);
        self.pickler.bool(state.complete);
        self.pickler.str(pickle::DEADLINE);
        match state.deadline {
            None => self.pickler.object(pickle::NONE),
            Some(deadline) => self.datetime(deadline),
        }
        self.pickler.str(pickle::CLOSED);
        self.pickler.bool(state.closed);
        self.pickler.str(pickle::PARTICIPANTS);
        self.map(state.participants.iter(), |encoder, rank| {
            encoder.pickler.int(*rank);
        });
        self.pickler.str(pickle::WAIT_LIST);
        self.set(state.wait_list.iter());
        self.pickler.str(pickle::REDUNDANCY_LIST);
        self.set(state.redundancy_list.iter());
        self.pickler.str(pickle::LAST_HEARTBEATS);
        self.map(state.last_heartbeats.iter(), |encoder, time| {
            encoder.datetime(*time);
        });
    }

    fn map<V: 'a>(
        &mut self,
        entries: impl ExactSizeIterator<Item = (&'a NodeId, &'a V)>,
        mut write_value: impl FnMut(&mut Self, &V),
    ) {
        self.pickler.object(pickle::EMPTY_DICT);
        self.pickler.memoize();
        let mut write_entry = |encoder: &mut Self, (node, value): (&'a NodeId, &'a V)| {
            encoder.node(node);
            write_value(encoder, value);
        };
        if entries.len() == 1 {
            entries.for_each(|entry| write_entry(self, entry));
            self.pickler.opcode(pickle::SETITEM);
        } else {
            self.batches(entries, pickle::SETITEMS, write_entry);
        }
    }

    fn set(&mut self, nodes: impl ExactSizeIterator<Item = &'a NodeId>) {
        self.pickler.object(pickle::EMPTY_SET);
        self.pickler.memoize();
        self.batches(nodes, pickle::ADDITEMS, Self::node);
    }

    /// The items of a container, with `end` after each batch.
    fn batches<I: ExactSizeIterator>(
        &mut self,
        mut items: I,
        end: u8,
        mut write: impl FnMut(&mut Self, I::Item),
    ) {
        if items.len() == 0 {
            return;
        }
        loop {
            // Python writes an empty last batch when the count is a multiple of BATCH.
            let batch = items.len().min(BATCH);
            self.pickler.opcode(pickle::MARK);
            items
                .by_ref()
                .take(batch)
                .for_each(|item| write(self, item));
            self.pickler.opcode(end);
            if batch < BATCH {
                return;
            }
        }
    }

    fn node(&mut self, node: &'a NodeId) {
        if let Some(&slot) = self.nodes.get(node) {
            self.pickler.get(slot);
            return;
        }
        let instance = match self.node {
            Some(slots) => {
                self.pickler.get(slots.class);
                let instance = begin_instance(&mut self.pickler);
                self.pickler.get(slots.addr);
                self.addr(&node.addr);
                self.pickler.get(slots.pid);
                self.pickler.int(node.pid);
                self.pickler.get(slots.local_id);
                self.pickler.int(node.local_id);
                instance
            }
            None => self.first_node(node),
        };
        end_instance(&mut self.pickler);
        self.nodes.insert(node, instance);
    }

    fn first_node(&mut self, node: &'a NodeId) -> Slot {
        self.pickler.get(self.module);
        let class = self.class_in(pickle::NODE);
        let instance = begin_instance(&mut self.pickler);
        let addr = self.pickler.str(pickle::ADDR);
        self.addr(&node.addr);
        let pid = self.pickler.str(pickle::PID);
        self.pickler.int(node.pid);
        let local_id = self.pickler.str(pickle::LOCAL_ID);
        self.pickler.int(node.local_id);
        self.node = Some(NodeSlots {
            class,
            addr,
            pid,
            local_id,
        });
        instance
    }

    fn addr(&mut self, addr: &Arc<str>) {
        let place = Arc::as_ptr(addr).cast::<u8>();
        match self.addresses.get(&place) {
            Some(&slot) => self.pickler.get(slot),
            None => {
                let slot = self.pickler.str(addr);
                self.addresses.insert(place, slot);
            }
        }
    }

    fn datetime(&mut self, time: Timestamp) {
        let bytes = calendar::to_bytes(time);
        let utc = match self.datetime {
            Some(slots) => {
                self.pickler.get(slots.class);
                self.pickler.short_bytes(&bytes);
                if let Some(utc) = slots.utc {
                    self.pickler.get(utc);
                }
                slots.utc
            }
            None => self.first_datetime(&bytes),
        };
        let arguments = if utc.is_some() {
            pickle::TUPLE2
        } else {
            pickle::TUPLE1
        };
        self.call_with(arguments);
    }

    /// The class, the bytes and, in aware style, the time zone, which gets a slot.
    fn first_datetime(&mut self, bytes: &[u8; 10]) -> Option<Slot> {
        let module = self.pickler.str(pickle::DATETIME);
        let class = self.class_in(pickle::DATETIME);
        self.pickler.short_bytes(bytes);
        let utc = match self.style {
            DatetimeStyle::Naive => None,
            DatetimeStyle::Aware => {
                self.pickler.get(module);
                self.class_in(pickle::TIMEZONE);
                self.pickler.get(module);
                self.class_in(pickle::TIMEDELTA);
                for _days_seconds_micros in 0..3 {
                    self.pickler.int(0);
                }
                self.call_with(pickle::TUPLE3);
                Some(self.call_with(pickle::TUPLE1))
            }
        };
        self.datetime = Some(DatetimeSlots { class, utc });
        utc
    }

    /// The class of this name in the module that was just written.
    fn class_in(&mut self, name: &str) -> Slot {
        self.pickler.str(name);
        self.pickler.opcode(pickle::STACK_GLOBAL);
        self.pickler.memoize()
    }

    /// A call with the arguments that were just written, which `tuple` combines.
    fn call_with(&mut self, tuple: u8) -> Slot {
        self.pickler.opcode(tuple);
        self.pickler.memoize();
        self.pickler.opcode(pickle::REDUCE);
        self.pickler.memoize()
    }
}
