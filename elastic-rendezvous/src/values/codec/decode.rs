//! Decodes a state from the values of the pickle machine.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::error::{CodecLimits, CorruptState, CorruptStateKind as Fault};
use super::pickle;
use super::unpickler::{Unpickler, int, set_once, wrong_type};
use super::value::{Time, Value};
use super::watch::Layout;
use crate::values::node::NodeId;
use crate::values::state::{DatetimeStyle, RendezvousState};
use crate::values::timestamp::Timestamp;

/// Decodes the pickle of a state, and never executes its input.
///
/// Accepts what PyTorch writes: attributes in any order, shared or repeated objects, any fixed time zone or
/// none, no `redundancy_list` (old releases), unknown attributes (dropped), and any bytes after the end. One
/// time without a zone makes the state [`Naive`](DatetimeStyle::Naive); a state without times is
/// [`Aware`](DatetimeStyle::Aware).
///
/// # Errors
/// [`CorruptState`] when the bytes are not a state or exceed `limits`.
///
/// ```
/// use elastic_rendezvous::codec::{self, CodecLimits};
///
/// // Python would run a command.
/// let hostile = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.";
/// let error = codec::decode(hostile, &CodecLimits::default()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rendezvous state, byte 17: class posix.system is not part of a rendezvous state"
/// );
/// ```
pub fn decode(bytes: &[u8], limits: &CodecLimits) -> Result<RendezvousState, CorruptState> {
    decode_with_layout(bytes, limits).map(|(state, _)| state)
}

/// Decodes like [`decode`], and returns the layout of the state if it is PyTorch's.
pub(super) fn decode_with_layout(
    bytes: &[u8],
    limits: &CodecLimits,
) -> Result<(RendezvousState, Option<Layout>), CorruptState> {
    let bytes_max = limits.pickle_bytes_max();
    if bytes.len() > bytes_max {
        return Err(CorruptState {
            offset: 0,
            kind: Fault::TooLong {
                bytes: bytes.len(),
                bytes_max,
            },
        });
    }
    let mut machine = Unpickler::new(bytes, limits);
    loop {
        let offset = machine.position();
        let done = machine.step().and_then(|attributes| {
            attributes
                .map(|attributes| state_with(&machine, attributes))
                .transpose()
        });
        match done {
            Ok(None) => {}
            Ok(Some((state, name_places))) => {
                return Ok((state, Layout::of(bytes, &name_places)));
            }
            Err(kind) => return Err(CorruptState { offset, kind }),
        }
    }
}

/// Builds the state from its attributes. Also returns the positions of their names in the input.
fn state_with(
    machine: &Unpickler<'_>,
    attributes: u32,
) -> Result<(RendezvousState, Vec<usize>), Fault> {
    let mut values = [None; pickle::ATTRIBUTES.len()];
    let mut name_places = Vec::new();
    for (key, value) in machine.entries(attributes) {
        let Value::Text(text) = key else {
            return Err(wrong_type("the name of an attribute", "a string", key));
        };
        let name = machine.utf8(text);
        let known = pickle::ATTRIBUTES
            .iter()
            .zip(&mut values)
            .find(|(known, _)| known.as_bytes() == name);
        if let Some((known, slot)) = known {
            set_once(slot, value, known)?;
        }
        name_places.push(text.start as usize);
    }
    let [
        round,
        complete,
        deadline,
        closed,
        participants,
        wait_list,
        redundancy_list,
        last_heartbeats,
    ] = values;
    let mut reader = Reader {
        machine,
        style: DatetimeStyle::Aware,
    };
    let state = RendezvousState {
        round: int(present(round, pickle::ROUND)?, "attribute round")?,
        complete: bool(present(complete, pickle::COMPLETE)?, "attribute complete")?,
        deadline: match present(deadline, pickle::DEADLINE)? {
            Value::None => None,
            value => Some(reader.moment(value, "attribute deadline")?),
        },
        closed: bool(present(closed, pickle::CLOSED)?, "attribute closed")?,
        participants: reader.map(
            present(participants, pickle::PARTICIPANTS)?,
            "attribute participants",
            |_, value| int(value, "a rank"),
        )?,
        wait_list: reader.set(
            present(wait_list, pickle::WAIT_LIST)?,
            "attribute wait_list",
        )?,
        redundancy_list: match redundancy_list {
            // Old PyTorch has none.
            None => BTreeSet::new(),
            Some(value) => reader.set(value, "attribute redundancy_list")?,
        },
        last_heartbeats: reader.map(
            present(last_heartbeats, pickle::LAST_HEARTBEATS)?,
            "attribute last_heartbeats",
            |reader, value| reader.moment(value, "a heartbeat"),
        )?,
        datetime_style: reader.style,
    };
    Ok((state, name_places))
}

/// Converts values of the machine to attributes.
struct Reader<'m, 'a> {
    machine: &'m Unpickler<'a>,
    /// The style of the times so far.
    style: DatetimeStyle,
}

impl Reader<'_, '_> {
    fn map<V>(
        &mut self,
        value: Value,
        what: &'static str,
        mut read_value: impl FnMut(&mut Self, Value) -> Result<V, Fault>,
    ) -> Result<IndexMap<NodeId, V>, Fault> {
        let Value::Map(container) = value else {
            return Err(wrong_type(what, "a map", value));
        };
        let machine = self.machine;
        // A node may be repeated.
        let nodes = machine.len(container).min(machine.node_count());
        let mut map = IndexMap::with_capacity(nodes);
        for (key, value) in machine.entries(container) {
            map.insert(self.node(key)?, read_value(self, value)?);
        }
        Ok(map)
    }

    fn set(&self, value: Value, what: &'static str) -> Result<BTreeSet<NodeId>, Fault> {
        let Value::Set(container) = value else {
            return Err(wrong_type(what, "a set", value));
        };
        let entries = self.machine.entries(container);
        entries.map(|(member, _)| self.node(member)).collect()
    }

    fn node(&self, value: Value) -> Result<NodeId, Fault> {
        let node = match value {
            Value::Node(node) => self.machine.node(node),
            _ => None,
        };
        node.cloned()
            .ok_or_else(|| wrong_type("a key or member", "a node", value))
    }

    fn moment(&mut self, value: Value, what: &'static str) -> Result<Timestamp, Fault> {
        let Value::Datetime(Time { moment, aware }) = value else {
            return Err(wrong_type(what, "a datetime", value));
        };
        if !aware {
            self.style = DatetimeStyle::Naive;
        }
        Ok(moment)
    }
}

fn present(value: Option<Value>, name: &'static str) -> Result<Value, Fault> {
    value.ok_or(Fault::MissingAttribute(name))
}

const fn bool(value: Value, what: &'static str) -> Result<bool, Fault> {
    match value {
        Value::Bool(value) => Ok(value),
        other => Err(wrong_type(what, "a bool", other)),
    }
}
