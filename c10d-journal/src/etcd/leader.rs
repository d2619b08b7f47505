//! A candidate: follows the log while another process leads, leads when none does, and then reads the rest of the log.
//!
//! Pure: the caller carries out the calls that [`Candidate::next`] returns, and passes on the answers. The order
//! matters: the head is read after the leader's key was made, because the previous leader can commit until that
//! moment. A candidate makes the key only if it has read the current head, so that a process that cannot read a newer
//! format never leads.

use c10d_store::journal::JournalError;

use super::layout::{Head, Layout, Leader, Takeover};
use super::log::{LogRecord, Writer};
use super::loss::{
    Known, OVERWRITTEN, Sight, Stopped, Unfit, judge, nothing_of_a_store, record_of, sight,
};
use super::message::{
    Answer, Compare, Event, Failure, KeyValue, Keys, Op, Range, Request, Txn, Watched, code,
};
use super::reader::{Piece, Reader};

/// A process that may lead.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    layout: Layout,
    me: Leader,
    ttl_seconds: u64,
    /// The id of the store that it makes if there is none.
    new_store: [u8; 16],
    /// The data that etcd must have.
    known: Option<Known>,
    /// The loss of such data, if etcd has lost any.
    lost: Option<String>,
    /// Which store and up to which position it has passed on.
    passed_on: Option<([u8; 16], u64)>,
    /// Up to where batches may be deleted.
    snapshot_position: u64,
    /// The last batch that was deleted after that, as far as it has seen.
    deleted: u64,
    /// Who led when it looked last, and since which revision.
    leader: Option<(Leader, u64)>,
    /// The revision of the head that it has read; 0 if there was none. The revision of a later batch does not count:
    /// its format may be newer.
    head_revision: u64,
    /// The last batch before the damage that it has found.
    damaged_after: Option<([u8; 16], u64)>,
    /// How long it has tried to lead.
    tried_millis: u64,
    phase: Phase,
}

#[derive(Debug, Clone)]
enum Phase {
    /// Reads who leads, and the head.
    Look,
    /// Reads the log.
    Read {
        reader: Reader,
        purpose: Purpose,
    },
    Follow {
        revision: u64,
    },
    /// Ends the leadership since this revision, of a process that has ended or of a campaign of this one.
    Succeed {
        led_since: u64,
    },
    Grant,
    Campaign {
        lease: u64,
    },
    /// Another process has won.
    GiveBack {
        lease: u64,
    },
    /// Leads, and reads the head.
    ReadHead {
        led_since: u64,
    },
    Open(Writer),
}

/// Why a candidate reads the log.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    /// It reads the log of this revision, and another process leads or none does.
    Follow { revision: u64, is_led: bool },
    /// It leads since the first revision, and reads the rest of the log. The head is of the second revision.
    Lead { led_since: u64, head_revision: u64 },
}

/// The next step of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Carry it out, and call [`Candidate::answered`].
    Call(Request),
    /// Watch [`Layout::watched`] from this revision on, and call [`Candidate::watched`], or after a while
    /// [`Candidate::look`].
    Watch { from_revision: u64 },
    /// Take the [writer](Candidate::into_writer): it leads, and everything was passed on.
    Lead,
}

impl Candidate {
    pub(crate) const fn new(
        layout: Layout,
        me: Leader,
        ttl_seconds: u64,
        new_store: [u8; 16],
        known: Option<Known>,
    ) -> Self {
        Self {
            layout,
            me,
            ttl_seconds,
            new_store,
            known,
            lost: None,
            passed_on: None,
            snapshot_position: 0,
            deleted: 0,
            leader: None,
            head_revision: 0,
            damaged_after: None,
            tried_millis: 0,
            phase: Phase::Look,
        }
    }

    /// Who led when it looked last.
    pub(crate) fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref().map(|(leader, _)| leader)
    }

    /// The process of this [`Life`](super::layout::Life) has ended: it answers nothing from now on, not even as the lease
    /// still gives it the right to. Only while it follows; silence is no reason.
    pub(crate) fn has_died(&mut self, life: u64) {
        if let Phase::Follow { .. } = self.phase
            && let Some((leader, led_since)) = &self.leader
            && leader.life.is_some_and(|it| it.id == life)
        {
            self.phase = Phase::Succeed {
                led_since: *led_since,
            };
        }
    }

    /// Sets the time when it began to campaign, in seconds since 1970.
    pub(crate) const fn campaigns_since(&mut self, since: u64) {
        self.me.since = since;
    }

    /// Sets the time since this candidate noticed the end of the leader.
    pub(crate) const fn has_tried_for(&mut self, millis: u64) {
        self.tried_millis = millis;
    }

    /// The position of the batch that was passed on last.
    pub(crate) fn position(&self) -> u64 {
        self.passed_on.map_or(0, |(_, position)| position)
    }

    /// The data that this process has read, now or before.
    pub(crate) const fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// Returns, after an error, the loss of data in etcd, which must be reported to the other processes.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    pub(crate) fn next(&self) -> Next {
        Next::Call(match &self.phase {
            Phase::Look => Request::Txn(Txn {
                compare: Vec::new(),
                success: sight(&self.layout, self.known.as_ref()),
                failure: Vec::new(),
            }),
            Phase::Read { reader, .. } => {
                Request::Range(reader.next().expect("a reader at its end is replaced"))
            }
            Phase::Follow { revision } => {
                return Next::Watch {
                    from_revision: revision + 1,
                };
            }
            // The comparison excludes the key of a later leader. The lease expires automatically.
            Phase::Succeed { led_since } => Request::Txn(Txn {
                compare: vec![Compare::Created {
                    key: self.layout.leader(),
                    revision: *led_since,
                }],
                success: vec![Op::Delete {
                    end: format!("{}\0", self.layout.leader()),
                    key: self.layout.leader(),
                }],
                failure: Vec::new(),
            }),
            Phase::Grant => Request::Grant {
                ttl_seconds: self.ttl_seconds,
            },
            Phase::Campaign { lease } => Request::Txn(Txn {
                compare: self.is_vacant(),
                success: vec![Op::Put {
                    key: self.layout.leader(),
                    value: self.me.encode(),
                    lease: *lease,
                }],
                failure: sight(&self.layout, self.known.as_ref()),
            }),
            Phase::GiveBack { lease } => Request::Revoke { lease: *lease },
            Phase::ReadHead { .. } => Request::Range(Range::key(self.layout.head())),
            Phase::Open(writer) => match writer.next() {
                Some(request) => request.clone(),
                None => return Next::Lead,
            },
        })
    }

    /// Compares that no process leads, and that the head is the same as before. Another process can have led since this one found
    /// no head, and the head of that process can be lost.
    fn is_vacant(&self) -> Vec<Compare> {
        let absent = |key| Compare::Created { key, revision: 0 };
        let mut compare = vec![
            absent(self.layout.leader()),
            absent(self.layout.lost()),
            Compare::Modified {
                key: self.layout.head(),
                revision: self.head_revision,
            },
        ];
        if self.head_revision == 0 {
            compare.push(nothing_of_a_store(&self.layout));
        }
        compare
    }

    /// The writer, once the candidate leads.
    pub(crate) fn into_writer(self) -> Option<Writer> {
        match self.phase {
            Phase::Open(writer) if writer.next().is_none() => Some(writer),
            _ => None,
        }
    }

    /// Looks up the leader before anything else. Only while it follows.
    pub(crate) fn look(&mut self) {
        if let Phase::Follow { .. } = self.phase {
            self.phase = Phase::Look;
        }
    }

    /// The answer to a [`Next::Call`]. The batches and snapshots that it contains are added to `pieces`, in order.
    ///
    /// # Errors
    /// [`JournalError`]: etcd refuses, or its data is damaged.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Answer, Failure>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), JournalError> {
        if let Phase::Open(writer) = &mut self.phase {
            let result = writer.answered(answer);
            return result.or_else(|stopped| self.on_stopped(stopped));
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(Failure::Unknown(_)) => {
                // The lease may be known to etcd by now; the next one is another.
                return Ok(());
            }
            Err(Failure::Refused { code, message }) => return self.refused(code, message),
        };
        let phase = std::mem::replace(&mut self.phase, Phase::Look);
        match answer {
            Answer::Range { keys, .. } => self.on_range(phase, keys, pieces)?,
            Answer::Txn {
                revision,
                succeeded,
                ranges,
            } => match phase {
                Phase::Look => self.on_look(revision, &ranges, pieces)?,
                Phase::Succeed { .. } if succeeded => self.phase = Phase::Grant,
                Phase::Succeed { .. } => self.phase = Phase::Look,
                Phase::Campaign { lease } => {
                    self.on_campaign(lease, revision, succeeded, &ranges)?;
                }
                _ => return Err(self.broken()),
            },
            Answer::Lease { id, .. } if matches!(phase, Phase::Grant) => {
                // Late writes of an earlier campaign of this process are not of this lease.
                self.me.writer = self.me.writer.wrapping_add(1);
                self.phase = Phase::Campaign { lease: id };
            }
            Answer::Done if matches!(phase, Phase::GiveBack { .. }) => self.phase = Phase::Look,
            _ => return Err(self.broken()),
        }
        self.leave_finished_reader();
        Ok(())
    }

    /// The writer has stopped before it could take over the log.
    fn on_stopped(&mut self, stopped: Stopped) -> Result<(), JournalError> {
        match stopped {
            Stopped::Deposed(leader) => {
                // When it began is not known.
                self.leader = leader.map(|leader| (leader, 0));
                self.phase = Phase::Look;
                Ok(())
            }
            Stopped::Overwritten => Err(self.has_lost(OVERWRITTEN)),
            stopped => Err(stopped.into_error(&self.layout, "open")),
        }
    }

    /// etcd has returned the head, or a part of the log.
    fn on_range(
        &mut self,
        phase: Phase,
        keys: Keys,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), JournalError> {
        match phase {
            Phase::ReadHead { led_since } => {
                let (head, head_revision) = self.head_of_leader(&keys)?;
                self.phase = Phase::Read {
                    reader: self.reader(head, 0, pieces),
                    purpose: Purpose::Lead {
                        led_since,
                        head_revision,
                    },
                };
            }
            Phase::Read {
                mut reader,
                purpose,
            } => {
                if self.read(&mut reader, keys, pieces)? {
                    self.phase = Phase::Read { reader, purpose };
                }
            }
            _ => return Err(self.broken()),
        }
        Ok(())
    }

    /// etcd has shown who leads, and the head.
    fn on_look(
        &mut self,
        revision: u64,
        ranges: &[Keys],
        pieces: &mut Vec<Piece>,
    ) -> Result<(), JournalError> {
        let sight = self.judge(ranges)?;
        self.leader = sight.leader.as_ref().and_then(leader_of);
        let is_led = sight.leader.is_some();
        if let Some((leader, led_since)) = &self.leader
            && leader.writer == self.me.writer
        {
            // Its key was deleted, and made again by a request that etcd has carried out late.
            let led_since = *led_since;
            self.phase = Phase::Succeed { led_since };
            return Ok(());
        }
        self.phase = match sight.head {
            Some(head) => Phase::Read {
                reader: self.reader(head, revision, pieces),
                purpose: Purpose::Follow { revision, is_led },
            },
            None if is_led => Phase::Follow { revision },
            None => Phase::Grant,
        };
        Ok(())
    }

    /// etcd has carried out, or refused, the write of the leader's key.
    fn on_campaign(
        &mut self,
        lease: u64,
        revision: u64,
        succeeded: bool,
        ranges: &[Keys],
    ) -> Result<(), JournalError> {
        let leader = match succeeded {
            true => None,
            false => self.judge(ranges)?.leader,
        };
        let is_mine = |leader: &KeyValue| {
            Leader::parse(&leader.value).is_some_and(|it| it.writer == self.me.writer)
        };
        self.phase = match leader {
            _ if succeeded => Phase::ReadHead {
                led_since: revision,
            },
            // It was carried out the first time.
            Some(leader) if is_mine(&leader) => Phase::ReadHead {
                led_since: leader.created,
            },
            Some(_) => Phase::GiveBack { lease },
            // The lease has expired in the meantime, or another process has led and written.
            None => Phase::Campaign { lease },
        };
        Ok(())
    }

    /// Takes a result of the watch.
    pub(crate) fn watched(
        &mut self,
        watched: Watched,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), JournalError> {
        let Phase::Follow { revision } = &self.phase else {
            return Ok(());
        };
        if watched.is_canceled {
            // The requested revision was compacted.
            self.phase = Phase::Look;
            return Ok(());
        }
        let newest = watched.events.iter().map(Event::revision).max();
        let revision = newest.unwrap_or(0).max(*revision);
        self.phase = Phase::Follow { revision };
        let leader_key = self.layout.leader();
        for event in watched.events {
            match event {
                Event::Put(put) if put.key == leader_key => {
                    self.leader = leader_of(&put);
                    self.phase = Phase::Follow { revision };
                }
                Event::Delete { key, .. } if key == leader_key => self.phase = Phase::Grant,
                Event::Delete { key, .. } => {
                    // Otherwise a snapshot covers it.
                    if let Some(position) = self.layout.log_position(&key)
                        && position > self.snapshot_position
                    {
                        self.deleted = self.deleted.max(position);
                        self.phase = Phase::Look;
                        return Ok(());
                    }
                }
                Event::Put(put) => {
                    let record = LogRecord::parse(&put.value);
                    let position = self.layout.log_position(&put.key);
                    let next = self.passed_on.map(|(_, position)| position + 1);
                    match (record, &mut self.passed_on) {
                        (Some((record, bytes)), Some((_, passed_on)))
                            if position == next && record.parts == 0 =>
                        {
                            *passed_on += 1;
                            if let Some(known) = &mut self.known {
                                known.follow(*passed_on, record_of(&put.value));
                            }
                            pieces.push(Piece::Batch {
                                position: *passed_on,
                                bytes: bytes.to_vec(),
                            });
                        }
                        // In parts, or of another log: reads it.
                        _ => {
                            self.phase = Phase::Look;
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn refused(&mut self, code: u64, message: String) -> Result<(), JournalError> {
        match &mut self.phase {
            // The revision to read was compacted. The batches passed on remain valid, apart from an incomplete
            // snapshot.
            Phase::Read {
                purpose: Purpose::Follow { .. },
                ..
            } if code == code::OUT_OF_RANGE => {
                self.phase = Phase::Look;
                Ok(())
            }
            Phase::Read { reader, .. } if code == code::EXHAUSTED && reader.can_be_shorter() => {
                reader.shorten();
                Ok(())
            }
            // The lease has ended.
            Phase::Campaign { .. } | Phase::GiveBack { .. } if code == code::NOT_FOUND => {
                self.phase = Phase::Look;
                Ok(())
            }
            _ => Err(Stopped::Refused { code, message }.into_error(&self.layout, "read")),
        }
    }

    fn judge(&mut self, ranges: &[Keys]) -> Result<Sight, JournalError> {
        let sight = judge(&self.layout, self.known.as_ref(), ranges);
        let sight = sight.map_err(|unfit| match unfit {
            Unfit::Lost(what) => self.is_lost(what),
            unfit => unfit.into_error(&self.layout),
        })?;
        self.head_revision = sight.head_revision;
        self.snapshot_position = sight.head.as_ref().map_or(0, Head::snapshot_position);
        let deleted = std::mem::take(&mut self.deleted);
        if deleted > self.snapshot_position {
            return Err(self.has_lost(&format!("batch {deleted} is missing")));
        }
        Ok(sight)
    }

    /// The head that this process finds when it leads, and when it was written: of a new store if there is none.
    fn head_of_leader(&mut self, keys: &Keys) -> Result<(Head, u64), JournalError> {
        let found = keys.first();
        let head = found.map(|head| self.layout.parse_head(&head.value));
        let head = head.transpose()?;
        if let Some(known) = &self.known
            && let Err(found) = known.check(head.as_ref(), None)
        {
            return Err(self.has_lost(&found));
        }
        let new = || Head::new(self.new_store, self.layout.formats.oldest);
        Ok((head.unwrap_or_else(new), found.map_or(0, |it| it.modified)))
    }

    fn has_lost(&mut self, found: &str) -> JournalError {
        let what = match &self.known {
            Some(known) => known.lost(&self.layout, found),
            None => found.to_owned(),
        };
        self.is_lost(what)
    }

    fn is_lost(&mut self, what: String) -> JournalError {
        self.lost = Some(what.clone());
        self.layout.damaged(what)
    }

    /// A reader of the batches that were not passed on; of everything if they do not follow the batches that were.
    fn reader(&mut self, head: Head, revision: u64, pieces: &mut Vec<Piece>) -> Reader {
        let follows = self.passed_on.filter(|(store, position)| {
            *store == head.store && (head.snapshot_position()..=head.position).contains(position)
        });
        if self.passed_on.is_some() && follows.is_none() {
            pieces.push(Piece::Restart);
        }
        let from = follows.map(|(_, position)| position);
        self.sees(&head, None);
        // Incomplete snapshots are void as well.
        self.passed_on = Some((head.store, from.unwrap_or(0)));
        Reader::new(self.layout.clone(), revision, head, from)
    }

    /// Must be there from now on, unless this store was never opened.
    fn sees(&mut self, head: &Head, record: Option<u64>) {
        if head.epoch > 0 {
            Known::keep(&mut self.known, Some(&Known::of(head, record)));
        }
    }

    /// Returns false to look again, because the log does not follow the head: perhaps etcd has gone back, and then other
    /// processes must learn it. The second time at the same batch, the log itself is damaged.
    fn read(
        &mut self,
        reader: &mut Reader,
        keys: Keys,
        pieces: &mut Vec<Piece>,
    ) -> Result<bool, JournalError> {
        let before = pieces.len();
        let result = reader.answered(keys, pieces);
        for piece in &pieces[before..] {
            if let Piece::Batch { position, .. } = piece {
                self.passed_on = Some((reader.head().store, *position));
            }
        }
        match result {
            Ok(()) => Ok(true),
            Err(JournalError::Damaged { .. }) if self.damaged_after != self.passed_on => {
                self.damaged_after = self.passed_on;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn leave_finished_reader(&mut self) {
        let Phase::Read { reader, purpose } = &self.phase else {
            return;
        };
        if reader.next().is_some() {
            return;
        }
        let (head, record, purpose) = (reader.head().clone(), reader.record(), *purpose);
        self.sees(&head, record);
        self.passed_on = Some((head.store, head.position));
        self.phase = match purpose {
            Purpose::Follow { is_led: false, .. } => Phase::Grant,
            Purpose::Follow { revision, .. } => Phase::Follow { revision },
            Purpose::Lead {
                led_since,
                head_revision,
            } => Phase::Open(Writer::open(
                self.layout.clone(),
                &self.me,
                led_since,
                head,
                head_revision,
                self.takeover(),
            )),
        };
    }

    /// The takeover from the leader that this process followed.
    fn takeover(&self) -> Option<Takeover> {
        self.leader().map(|before| Takeover {
            address: before.address.clone(),
            process: before.process,
            host: before.host.clone(),
            at: self.me.since,
            millis: self.tried_millis,
        })
    }

    fn broken(&self) -> JournalError {
        Stopped::Broken.into_error(&self.layout, "read")
    }
}

/// Returns the leader, with the revision at which it began to lead.
fn leader_of(key_value: &KeyValue) -> Option<(Leader, u64)> {
    Some((Leader::parse(&key_value.value)?, key_value.created))
}
