//! The contents of a store according to its journal, for tools; the server applies the effects to its own state.
//! Without sessions, owners and groups.

use std::collections::{BTreeMap, VecDeque};

use super::batch::{BatchWriter, CHUNK_BYTES, Effect};

/// The keys of a store with their values and queues, in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Contents {
    entries: BTreeMap<Box<[u8]>, Entry>,
}

/// The value and the queue of one key.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value, if there is one.
    pub value: Option<Vec<u8>>,
    /// The elements of the queue, first in first out.
    pub queue: VecDeque<Vec<u8>>,
}

impl Contents {
    /// Carries out an effect. Returns `false` if it does not fit the previous effects, because a queue has fewer
    /// elements than the effect takes.
    #[must_use]
    pub fn apply(&mut self, effect: Effect<'_>) -> bool {
        match effect {
            Effect::Put { key, value } => self.entry(key).value = Some(value.to_vec()),
            Effect::Append { key, bytes } => {
                let value = self.entry(key).value.get_or_insert_default();
                value.extend_from_slice(bytes);
            }
            Effect::Push { key, element } => self.entry(key).queue.push_back(element.to_vec()),
            Effect::Delete { key } => {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.value = None;
                    self.drop_if_empty(key);
                }
            }
            Effect::Pop { key, count } => {
                let Some(entry) = self.entries.get_mut(key) else {
                    return false;
                };
                let count = count as usize;
                if entry.queue.len() < count {
                    return false;
                }
                entry.queue.drain(..count);
                self.drop_if_empty(key);
            }
            // Of sessions, owners and groups, which are no contents.
            Effect::Own { .. }
            | Effect::Schedule { .. }
            | Effect::Group { .. }
            | Effect::Silence { .. }
            | Effect::BeginSession { .. }
            | Effect::EndSession { .. }
            | Effect::Executed { .. }
            | Effect::EndClient { .. }
            | Effect::EndWaits { .. } => {}
        }
        true
    }

    /// Returns the keys in order, each with its value and queue.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.entries.iter().map(|(key, entry)| (&**key, entry))
    }

    /// Returns the number of keys with a value or a queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns a snapshot of this position, in chunks.
    #[must_use]
    pub fn to_snapshot(&self, position: u64) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        let mut writer = BatchWriter::default();
        for (key, entry) in self.iter() {
            let value = entry.value.iter().map(|value| Effect::Put { key, value });
            let queue = entry.queue.iter();
            let queue = queue.map(|element| Effect::Push { key, element });
            for effect in value.chain(queue) {
                writer.push(effect);
                if writer.len() >= CHUNK_BYTES {
                    chunks.push(writer.finish(position, Vec::new()));
                }
            }
        }
        if !writer.is_empty() {
            chunks.push(writer.finish(position, Vec::new()));
        }
        chunks
    }

    fn entry(&mut self, key: &[u8]) -> &mut Entry {
        if !self.entries.contains_key(key) {
            self.entries.insert(key.into(), Entry::default());
        }
        self.entries.get_mut(key).expect("found or inserted")
    }

    fn drop_if_empty(&mut self, key: &[u8]) {
        let is_empty = |entry: &Entry| entry.value.is_none() && entry.queue.is_empty();
        if self.entries.get(key).is_some_and(is_empty) {
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::effects;
    use super::*;

    #[test]
    fn a_snapshot_has_the_same_contents() {
        let mut contents = Contents::default();
        let long = vec![7; CHUNK_BYTES];
        for effect in [
            Effect::Put {
                key: b"v",
                value: b"1",
            },
            Effect::Append {
                key: b"v",
                bytes: &long,
            },
            Effect::Append {
                key: b"new",
                bytes: b"",
            },
            Effect::Push {
                key: b"v",
                element: b"e",
            },
            Effect::Push {
                key: b"q",
                element: b"1",
            },
            Effect::Push {
                key: b"q",
                element: b"2",
            },
            Effect::Pop {
                key: b"q",
                count: 1,
            },
            Effect::Delete { key: b"no" },
        ] {
            assert!(contents.apply(effect));
        }
        let chunks = contents.to_snapshot(3);
        assert!(chunks.len() > 1);
        let mut again = Contents::default();
        for chunk in &chunks {
            for effect in effects(3, chunk).expect("intact") {
                assert!(again.apply(effect.expect("intact")));
            }
        }
        assert_eq!(again, contents);
        assert_eq!(contents.len(), 3);
        assert!(!again.apply(Effect::Pop {
            key: b"q",
            count: 2
        }));
        for effect in [
            Effect::Pop {
                key: b"q",
                count: 1,
            },
            Effect::Pop {
                key: b"v",
                count: 1,
            },
            Effect::Delete { key: b"v" },
            Effect::Delete { key: b"new" },
        ] {
            assert!(contents.apply(effect));
        }
        assert!(contents.is_empty());
    }
}
