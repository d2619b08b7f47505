//! The flight recorder of one rank, as far as the comparison needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use c10d_membership::Attempt;
use serde::Serialize;
use serde_json::Value;

use crate::text::shown_up_to;

/// The most characters of a name that a rank sent.
const NAME_CHARS_MAX: usize = 64;

/// The most tensors of a collective whose sizes are shown.
const TENSORS_SHOWN: usize = 3;

/// The most collectives of a group that are kept: a job stops soon after ranks do different things.
const COLLECTIVES_KEPT: usize = 512;

/// The name of the default group in keys and recordings.
pub(super) const DEFAULT_GROUP: &str = "0";

/// c10d_rs.torch numbers the first subgroup of generation N by N times this number.
const SUBGROUPS: u64 = 1_000_000;

/// The start of c10d_rs.torch's description of the default group, once a generation of survivors is being created.
const GENERATION: &str = "generation ";

/// The contents of a rank's flight recorder about its current groups. The recorder is a ring: old collectives are missing.
///
/// PyTorch numbers the collectives of a group from 1 again in each generation of survivors: collectives of earlier
/// generations are dropped.
///
/// ```
/// use c10d_inspect::flight::FlightRecording;
///
/// let recording = FlightRecording::parse(br#"{"entries": []}"#)?;
/// assert!(recording.is_empty());
/// assert!(recording.current().is_none());
/// # Ok::<(), c10d_inspect::flight::FlightError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlightRecording {
    pub(super) groups: BTreeMap<String, GroupRecording>,
    /// The generation of survivors that entered these collectives, if the recorder names it.
    pub(super) generation: Option<Attempt>,
    /// The global ranks of groups by their names, from NCCL's recorder. Gloo's recorder does not name the group.
    pub(super) members: BTreeMap<String, BTreeSet<usize>>,
    /// Whether the recorder has dropped all entries of a group, so that the group's name is unknown.
    pub(super) is_partial: bool,
    is_empty: bool,
}

/// The collectives of one group that a rank has entered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupRecording {
    pub(super) description: String,
    /// The number of the last collective that the rank has entered; 0 if none.
    pub(super) entered: u64,
    /// The number of the last collective that has ended at this rank; `None` if it is not recorded.
    pub(super) completed: Option<u64>,
    /// The collectives by number. If a rank has entered several collectives under one number, the last of them.
    pub(super) collectives: BTreeMap<u64, Collective>,
}

/// A collective that a rank has entered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Collective {
    /// The group's name: "0" for the default group.
    pub group: String,
    /// The collective's number in its group, from 1.
    pub number: u64,
    /// The operation, such as "all_reduce".
    pub operation: String,
    /// The backend, such as "gloo"; empty if it is not recorded.
    pub backend: String,
    /// The sizes of its inputs, one list for each tensor.
    pub sizes: Vec<Vec<u64>>,
    /// The types of its inputs, such as "float".
    pub types: Vec<String>,
    /// When the rank entered it, in nanoseconds since 1970 by the rank's clock; 0 if not recorded.
    pub entered_unix_ns: u64,
    /// Whether it has ended at this rank.
    pub is_done: bool,
}

impl fmt::Display for Collective {
    /// Formats the collective, for example as `all_reduce, [1000] float`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        for (index, sizes) in self.sizes.iter().take(TENSORS_SHOWN).enumerate() {
            write!(f, ", {sizes:?}")?;
            if let Some(name) = self.types.get(index) {
                write!(f, " {name}")?;
            }
        }
        match self.sizes.len().saturating_sub(TENSORS_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more tensors"),
        }
    }
}

/// The reason why an answer is not a flight recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlightError {
    /// The answer is not JSON, or not an object.
    #[error("the answer is not a flight recording: {reason}")]
    Malformed {
        /// The problem, as a clause.
        reason: String,
    },
}

impl FlightRecording {
    /// Parses the answer to `POST /handler/fr_trace_json`. Missing parts, and parts of an unexpected type, are ignored,
    /// because other versions of PyTorch may write them differently.
    ///
    /// # Errors
    /// [`FlightError::Malformed`] if the answer is not a JSON object.
    pub fn parse(json: &[u8]) -> Result<Self, FlightError> {
        let malformed = |reason: String| FlightError::Malformed { reason };
        let value: Value =
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let object = value
            .as_object()
            .ok_or_else(|| malformed("it is not an object".to_owned()))?;
        let mut recording = Self::default();
        let entries = object.get("entries").and_then(Value::as_array);
        // The numbers of groups in `pg_status` differ between processes; the entries tell the names.
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        for entry in entries.into_iter().flatten() {
            recording.add(entry, &mut names);
        }
        let status = object.get("pg_status").and_then(Value::as_object);
        for (id, status) in status.into_iter().flatten() {
            let Ok(id) = id.parse() else { continue };
            let name = match names.get(&id) {
                Some(name) => name.clone(),
                // The first group that a process makes.
                None if id == 0 => DEFAULT_GROUP.to_owned(),
                None => {
                    recording.is_partial = true;
                    continue;
                }
            };
            // Of a group of an earlier generation only the name is left.
            let group = match names.contains_key(&id) {
                true => recording.groups.get_mut(&name),
                false => Some(recording.groups.entry(name).or_default()),
            };
            let Some(group) = group else { continue };
            let entered = number(status.get("last_enqueued_collective"));
            group.entered = group.entered.max(entered.unwrap_or(0));
            group.completed = group
                .completed
                .max(number(status.get("last_completed_collective")));
        }
        let config = object.get("pg_config").and_then(Value::as_object);
        for group in config.into_iter().flat_map(|config| config.values()) {
            let name = group.get("name").and_then(name_of);
            let ranks = group.get("ranks").and_then(Value::as_str);
            let ranks = ranks.and_then(|text| serde_json::from_str(text).ok());
            if let Some((name, ranks)) = name.filter(|name| !name.is_empty()).zip(ranks) {
                recording.members.insert(name, ranks);
            }
        }
        recording.is_empty = recording.groups.is_empty();
        Ok(recording)
    }

    /// The newest generation of a subgroup, which may have filled the recorder alone.
    pub(super) fn generation_of_subgroups(&self) -> Option<u32> {
        let names = self.groups.keys();
        names.filter_map(|name| generation_of_subgroup(name)).max()
    }

    /// Returns the recording without the subgroups of other generations, and without groups of unknown generations.
    pub(super) fn only(&self, generation: Attempt) -> Self {
        let is_of = |name: &str| match generation_of_subgroup(name) {
            Some(number) => number == generation.count(),
            None => self.generation == Some(generation),
        };
        let groups = self.groups.iter().filter(|(name, _)| is_of(name));
        Self {
            groups: groups
                .map(|(name, group)| (name.clone(), group.clone()))
                .collect(),
            is_partial: self.is_partial || self.generation != Some(generation),
            ..self.clone()
        }
    }

    /// The recording of a rank that has entered no collective of its generation.
    pub(super) fn without_collectives(generation: Attempt) -> Self {
        let group = GroupRecording {
            description: format!("{GENERATION}{generation}"),
            ..GroupRecording::default()
        };
        Self {
            groups: BTreeMap::from([(DEFAULT_GROUP.to_owned(), group)]),
            generation: Some(generation),
            ..Self::default()
        }
    }

    /// Whether the rank has recorded nothing: it has made no group, or its recorder is off.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Whether the rank has entered or ended a collective since it recorded `earlier`. Compares no times: those are of
    /// the rank's clock.
    #[must_use]
    pub fn has_moved_since(&self, earlier: &Self) -> bool {
        let progress = |recording: &Self| -> Vec<(u64, Option<u64>, bool)> {
            let groups = recording.groups.values();
            let of_group = |it: &GroupRecording| (it.entered, it.completed, it.open().is_some());
            groups.map(of_group).collect()
        };
        self.generation != earlier.generation
            || !self.groups.keys().eq(earlier.groups.keys())
            || progress(self) != progress(earlier)
    }

    /// Adds the recording of another recorder of the same rank, because each backend may have its own recorder.
    pub fn merge(&mut self, other: Self) {
        self.is_empty &= other.is_empty;
        self.is_partial |= other.is_partial;
        self.members.extend(other.members);
        self.generation = self.generation.max(other.generation);
        for (name, group) in other.groups {
            let mine = self.groups.entry(name).or_default();
            if mine.description.is_empty() {
                mine.description = group.description;
            }
            mine.entered = mine.entered.max(group.entered);
            mine.completed = mine.completed.max(group.completed);
            mine.collectives.extend(group.collectives);
        }
    }

    /// Returns the collective that the rank is in: the last entered collective that has not ended.
    #[must_use]
    pub fn current(&self) -> Option<&Collective> {
        let open = self.groups.values().filter_map(GroupRecording::open);
        open.max_by_key(|collective| collective.entered_unix_ns)
    }

    fn add(&mut self, entry: &Value, names: &mut BTreeMap<u64, String>) {
        let group = entry.get("process_group");
        let Some(name) = group.and_then(|group| name_at(group, 0)) else {
            return;
        };
        if let Some(id) = number(entry.get("pg_id")) {
            names.insert(id, name.clone());
        }
        let mut description = group.and_then(|group| name_at(group, 1));
        if let Some(generation) = description.as_deref().and_then(generation) {
            if self.generation != Some(generation) {
                // Subgroups belong to the generation in which they were made.
                self.groups.clear();
            }
            self.generation = Some(generation);
            description = Some(format!("{GENERATION}{generation}"));
        }
        let recording = self.groups.entry(name.clone()).or_default();
        if let Some(description) = description {
            recording.description = description;
        }
        // Sends and receives have separate numbers, which only the two ranks share.
        if entry.get("is_p2p").and_then(Value::as_bool) == Some(true) {
            return;
        }
        let Some(number) = number(entry.get("collective_seq_id")) else {
            return;
        };
        let collective = Collective::read(entry, name, number);
        // NCCL records several under one number, if they are coalesced.
        let is_again = recording.entered == number && collective.backend == "gloo";
        if number < recording.entered || is_again {
            recording.collectives.clear();
        }
        recording.entered = number;
        recording.collectives.insert(number, collective);
        if recording.collectives.len() > COLLECTIVES_KEPT {
            recording.collectives.pop_first();
        }
    }
}

fn generation_of_subgroup(name: &str) -> Option<u32> {
    let number: u64 = name.parse().ok()?;
    u32::try_from(number / SUBGROUPS).ok().filter(|&it| it > 0)
}

/// The generation that a description names.
fn generation(description: &str) -> Option<Attempt> {
    let uuid = description.strip_prefix(GENERATION)?.parse().ok()?;
    Attempt::from_uuid(uuid)
}

impl GroupRecording {
    /// The last collective, if it has not ended.
    pub(super) fn open(&self) -> Option<&Collective> {
        let (_, last) = self.collectives.last_key_value()?;
        (!last.is_done).then_some(last)
    }
}

impl Collective {
    fn read(entry: &Value, group: String, number: u64) -> Self {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let full_name = shown_up_to(
            text("profiling_name").unwrap_or("collective").as_bytes(),
            NAME_CHARS_MAX,
        );
        let (backend, operation) = full_name.split_once(':').unwrap_or(("", &full_name));
        let tensors = entry.get("input_sizes").and_then(Value::as_array);
        let sizes = tensors.into_iter().flatten().map(|sizes| {
            let sizes = sizes.as_array().into_iter().flatten();
            sizes.filter_map(|size| self::number(Some(size))).collect()
        });
        let types = entry.get("input_dtypes").and_then(Value::as_array);
        let types = types.into_iter().flatten().filter_map(Value::as_str);
        Self {
            group,
            number,
            operation: operation.to_owned(),
            backend: backend.to_owned(),
            sizes: sizes.collect(),
            types: types
                .map(|name| shown_up_to(name.to_lowercase().as_bytes(), NAME_CHARS_MAX))
                .collect(),
            entered_unix_ns: self::number(entry.get("time_created_ns")).unwrap_or(0),
            // `state` of gloo's collectives is "scheduled" until the end of the process.
            is_done: entry.get("retired").and_then(Value::as_bool) == Some(true)
                || text("state") == Some("completed"),
        }
    }

    /// Whether this collective matches `other`, which another rank has entered under the same number. Sizes and types
    /// are compared only where all ranks must agree on them: for example, the inputs of a gather can have any size.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        if self.operation != other.operation || self.backend != other.backend {
            return false;
        }
        if !self.needs_equal_inputs() {
            return true;
        }
        self.types == other.types && self.element_counts().eq(other.element_counts())
    }

    fn needs_equal_inputs(&self) -> bool {
        let name = self.operation.replace('_', "");
        let is_reduce = name.contains("reduce") || name.starts_with("broadcast");
        // NCCL's may differ: it sends them as broadcasts.
        is_reduce || (self.backend == "gloo" && name.contains("allgather"))
    }

    /// Returns the numbers of elements, because only these must be equal, not the shapes.
    fn element_counts(&self) -> impl Iterator<Item = u64> {
        let product = |sizes: &Vec<u64>| sizes.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
        self.sizes.iter().map(product)
    }
}

/// A number that is written as one, or as text. Negative numbers mean "none".
fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

fn name_at(list: &Value, index: usize) -> Option<String> {
    list.get(index).and_then(name_of)
}

fn name_of(value: &Value) -> Option<String> {
    Some(shown_up_to(value.as_str()?.as_bytes(), NAME_CHARS_MAX))
}
