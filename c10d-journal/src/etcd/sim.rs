//! A simulated etcd: revisions, transactions, leases, compaction and watches. It has no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::{
    Answer, Compare, Event, Failure, KeyValue, Keys, Op, Range, Request, Txn, Watched, code,
};

/// One cluster, as its clients see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimEtcd {
    revision: u64,
    keys: BTreeMap<String, Held>,
    /// Lifetime and end.
    leases: BTreeMap<u64, (Duration, Duration)>,
    leases_granted: u64,
    history: Vec<Event>,
    compacted: u64,
    now: Duration,
}

#[derive(Debug, Clone)]
struct Held {
    key_value: KeyValue,
    lease: u64,
}

impl SimEtcd {
    /// Returns the revision of the newest change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Restores the data of a copy. Leases have their full time again.
    pub(crate) fn go_back_to(&mut self, copy: Self) {
        let (now, granted) = (self.now, self.leases_granted);
        *self = copy;
        (self.now, self.leases_granted) = (now, granted);
        for (ttl, end) in self.leases.values_mut() {
            *end = now + *ttl;
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        let ended = |(_, (_, end)): &(&u64, &(Duration, Duration))| *end <= self.now;
        let ended: Vec<_> = self.leases.iter().filter(ended).map(|it| *it.0).collect();
        for lease in ended {
            self.end_lease(lease);
        }
    }

    pub(crate) fn carry_out(&mut self, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Range(range) => Ok(Answer::Range {
                revision: self.revision,
                keys: self.range(range)?,
            }),
            Request::Txn(txn) => self.txn(txn),
            Request::Compact { revision } => {
                if *revision <= self.compacted {
                    return Err(refused(code::OUT_OF_RANGE));
                }
                self.compacted = *revision;
                Ok(Answer::Done)
            }
            Request::Grant { ttl_seconds } => {
                self.leases_granted += 1;
                let id = self.leases_granted;
                let ttl = Duration::from_secs(*ttl_seconds);
                self.leases.insert(id, (ttl, self.now + ttl));
                let ttl_seconds = *ttl_seconds;
                Ok(Answer::Lease { id, ttl_seconds })
            }
            Request::KeepAlive { lease } => {
                let mut ttl_seconds = 0;
                if let Some((ttl, end)) = self.leases.get_mut(lease) {
                    *end = self.now + *ttl;
                    ttl_seconds = ttl.as_secs();
                }
                Ok(Answer::Lease {
                    id: *lease,
                    ttl_seconds,
                })
            }
            Request::Status => Err(refused(code::NOT_FOUND)),
            Request::Revoke { lease } => {
                if !self.leases.contains_key(lease) {
                    return Err(refused(code::NOT_FOUND));
                }
                self.end_lease(*lease);
                Ok(Answer::Done)
            }
        }
    }

    /// The events of a watch from this revision on; `None` if there are none.
    pub(crate) fn watch(&self, key: &str, end: &str, from_revision: u64) -> Option<Watched> {
        if from_revision <= self.compacted {
            return Some(Watched {
                events: Vec::new(),
                is_canceled: true,
            });
        }
        let is_of_it = |event: &&Event| {
            let name = match event {
                Event::Put(put) => &put.key,
                Event::Delete { key, .. } => key,
            };
            event.revision() >= from_revision && *key <= **name && **name < *end
        };
        let events: Vec<_> = self.history.iter().filter(is_of_it).cloned().collect();
        (!events.is_empty()).then_some(Watched {
            events,
            is_canceled: false,
        })
    }

    pub(crate) fn range(&self, range: &Range) -> Result<Keys, Failure> {
        let end = range
            .end
            .clone()
            .unwrap_or_else(|| format!("{}\0", range.key));
        let is_in = |it: &KeyValue| range.key <= it.key && it.key < end;
        let mut keys: Vec<KeyValue> = if range.revision == 0 {
            self.keys
                .values()
                .map(|held| held.key_value.clone())
                .collect()
        } else {
            if range.revision < self.compacted || range.revision > self.revision {
                return Err(refused(code::OUT_OF_RANGE));
            }
            self.at(range.revision)
        };
        keys.retain(is_in);
        let limit = match range.limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let is_cut = keys.len() > limit;
        keys.truncate(limit);
        if range.is_without_values {
            keys.iter_mut().for_each(|it| it.value.clear());
        }
        Ok(Keys { keys, is_cut })
    }

    fn at(&self, revision: u64) -> Vec<KeyValue> {
        let mut keys = BTreeMap::new();
        for event in self.history.iter().filter(|it| it.revision() <= revision) {
            match event {
                Event::Put(put) => keys.insert(put.key.clone(), put.clone()),
                Event::Delete { key, .. } => keys.remove(key),
            };
        }
        keys.into_values().collect()
    }

    fn txn(&mut self, txn: &Txn) -> Result<Answer, Failure> {
        let holds = |compare: &Compare| {
            let held = |key: &String| self.keys.get(key).map(|held| &held.key_value);
            match compare {
                Compare::Created { key, revision } => {
                    held(key).map_or(0, |it| it.created) == *revision
                }
                Compare::Modified { key, revision } => {
                    held(key).map_or(0, |it| it.modified) == *revision
                }
                Compare::Value { key, value } => held(key).is_some_and(|it| it.value == *value),
                Compare::NoneCreatedAfter { key, end, revision } => {
                    let mut held = self.keys.range(key.clone()..end.clone());
                    held.all(|(_, held)| held.key_value.created <= *revision)
                }
            }
        };
        let succeeded = txn.compare.iter().all(holds);
        let ops = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let has_dead_lease = |op: &Op| matches!(op, Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease));
        if ops.iter().any(has_dead_lease) {
            return Err(refused(code::NOT_FOUND));
        }
        let writes = |op: &Op| !matches!(op, Op::Range(_));
        if ops.iter().any(writes) {
            self.revision += 1;
        }
        let mut ranges = Vec::new();
        for op in ops {
            match op {
                Op::Range(range) => ranges.push(self.range(range)?),
                Op::Put { key, value, lease } => self.put(key, value, *lease),
                Op::Delete { key, end } => {
                    let doomed: Vec<_> = self
                        .keys
                        .keys()
                        .filter(|it| key <= *it && *it < end)
                        .cloned()
                        .collect();
                    doomed.into_iter().for_each(|key| self.delete(key));
                }
            }
        }
        Ok(Answer::Txn {
            revision: self.revision,
            succeeded,
            ranges,
        })
    }

    fn put(&mut self, key: &str, value: &[u8], lease: u64) {
        let before = self.keys.get(key).map(|held| &held.key_value);
        let key_value = KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
            created: before.map_or(self.revision, |it| it.created),
            modified: self.revision,
        };
        self.history.push(Event::Put(key_value.clone()));
        self.keys.insert(key.to_owned(), Held { key_value, lease });
    }

    fn delete(&mut self, key: String) {
        self.keys.remove(&key);
        let revision = self.revision;
        self.history.push(Event::Delete { key, revision });
    }

    fn end_lease(&mut self, lease: u64) {
        self.leases.remove(&lease);
        let of_it: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, held)| held.lease == lease)
            .map(|(key, _)| key.clone())
            .collect();
        if !of_it.is_empty() {
            self.revision += 1;
            of_it.into_iter().for_each(|key| self.delete(key));
        }
    }
}

fn refused(code: u64) -> Failure {
    Failure::Refused {
        code,
        message: "refused".to_owned(),
    }
}
