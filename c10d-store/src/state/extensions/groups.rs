//! MEMBERSHIP and MEMBERSHIP_POLL (docs/spec/wire-extensions.md, section 9.13): passes requests and times to the groups of the
//! server, and carries out their effects. A store without groups refuses these requests.

use std::sync::Arc;
use std::time::Duration;

use super::owners::silence_max;
use crate::groups::{GroupEffect, GroupRequest, Groups, NotAGroupRequest, RequestKind};
use crate::journal::batch::Effect;
use crate::message::{ConnId, ConnectionId, Keys, Replies, Reply};
use crate::moment::Moment;
use crate::state::waiters::{Answer, Wants};
use crate::state::{Refusal, StoreState};
use crate::wire::Opcode;

impl StoreState {
    /// Whether the store has groups.
    pub(crate) const fn has_groups(&self) -> bool {
        self.extensions.groups.is_some()
    }

    /// Whether a request to a group sets how long its connection may be silent.
    pub(crate) fn keeps_alive(&self, request: &[u8]) -> bool {
        let groups = self.extensions.groups.groups.as_ref();
        groups.is_some_and(|it| it.kind_of(request) == RequestKind::KeepsAlive)
    }

    /// docs/spec/wire-extensions.md, MEMBERSHIP.
    pub(super) fn ask_group(
        &mut self,
        request: GroupRequest<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let GroupRequest {
            conn, name, waits, ..
        } = request;
        if !self.has_groups() {
            let opcode = match waits {
                true => Opcode::MembershipPoll,
                false => Opcode::Membership,
            };
            return Err(Refusal::NoGroups(opcode as u8));
        }
        if waits {
            self.cancel(conn);
        }
        if let Some(recorder) = &self.slots.recorder {
            let last = self.extensions.groups.recorded.get(name).copied();
            recorder.look(name, last.unwrap_or_default());
        }
        let result = self.step_groups(replies, |groups, now, effects| {
            groups.request(now, request, effects)
        });
        result
            .unwrap_or(Err(NotAGroupRequest))
            .map_err(|NotAGroupRequest| Refusal::NotAGroupRequest)?;
        self.watch_speaker(conn);
        Ok(())
    }

    /// Returns when [`tick_groups`](Self::tick_groups) is due.
    pub(crate) fn next_group_timer(&self) -> Option<Moment> {
        let wake_at = self.extensions.groups.groups.as_ref()?.wake_at();
        wake_at.map(Moment::from)
    }

    /// Carries out what the time has brought.
    pub(crate) fn tick_groups(&mut self, replies: &mut impl Replies) {
        if self.next_group_timer().is_none_or(|at| at > self.now) {
            return;
        }
        self.look_at_all();
        self.requester = ConnectionId::default();
        self.step_groups(replies, |groups, now, effects| groups.tick(now, effects));
    }

    /// A connection has ended or is silent. [`look_at_all`](Self::look_at_all) has been called.
    pub(super) fn end_speaker(&mut self, conn: ConnId, replies: &mut impl Replies) {
        self.step_groups(replies, |groups, now, effects| {
            groups.silent(now, conn, effects);
        });
    }

    /// The groups of a recovered journal continue.
    pub(super) fn resume_groups(&mut self, replies: &mut impl Replies) {
        self.step_groups(replies, |groups, now, effects| groups.resume(now, effects));
    }

    /// Ends a wait that has just arrived, if it is for keys of an attempt that members have given up.
    pub(in crate::state) fn is_released(
        &mut self,
        conn: ConnId,
        keys: Keys<'_>,
        replies: &mut impl Replies,
    ) -> bool {
        let Some(groups) = &self.extensions.groups.groups else {
            return false;
        };
        let is_released = keys.iter().any(|key| groups.is_released(key));
        if is_released {
            self.depend_on_batch();
            self.end_wait_of(conn, replies);
        }
        is_released
    }

    /// Has the groups take a step, and carries out its effects. Returns `None` without groups.
    fn step_groups<T>(
        &mut self,
        replies: &mut impl Replies,
        step: impl FnOnce(&mut dyn Groups, Duration, &mut Vec<GroupEffect>) -> T,
    ) -> Option<T> {
        let now = self.now.since_start();
        let mut effects = Vec::new();
        let result = step(
            &mut **self.extensions.groups.groups.as_mut()?,
            now,
            &mut effects,
        );
        for effect in effects {
            self.apply_effect(effect, replies);
        }
        Some(result)
    }

    fn apply_effect(&mut self, effect: GroupEffect, replies: &mut impl Replies) {
        match effect {
            GroupEffect::Reply {
                conn,
                waits,
                bytes,
                list,
            } => {
                if waits && self.waiters.waiting_of(conn).is_some() {
                    self.extensions.directory.keep(conn, &self.waiters);
                    self.cancel(conn);
                }
                if waits {
                    self.reply(replies, conn, Reply::StopWaiting);
                }
                self.reply(replies, conn, Reply::Bytes(&bytes));
                self.reply(replies, conn, Reply::Value(list.as_ref()));
            }
            GroupEffect::Wait { conn, name } => {
                let origin = self.origin(Opcode::MembershipPoll);
                self.waiters.open(conn, Answer::Event, origin);
                self.miss(conn, &name, Wants::Event);
            }
            // The connection may have ended in the meantime.
            GroupEffect::EndWait(conn) if self.waiters.waiting_of(conn).is_none() => {}
            GroupEffect::EndWait(conn) => {
                self.depend_on_batch();
                self.end_wait_of(conn, replies);
            }
            GroupEffect::KeepAlive {
                conn,
                millis,
                kept,
                was_silent,
            } => {
                let reply = match self.set_silence(conn, silence_max(millis)) {
                    false => kept,
                    true => was_silent,
                };
                self.reply(replies, conn, Reply::Bytes(&reply));
                self.reply(replies, conn, Reply::Value(None));
            }
            GroupEffect::Keep(name) => self.record_group(name),
            GroupEffect::EndWaits(prefix) => {
                self.end_waits_of(&prefix, replies);
            }
            GroupEffect::DeleteKeys { prefix, except } => self.sweep_all_but(&prefix, &except),
            GroupEffect::Lent(value) => self.slots.lent.add(&value),
            GroupEffect::Work(work) => self.work += work,
        }
    }

    /// Records what a restarted server needs of a group, or that it is removed.
    fn record_group(&mut self, name: Arc<[u8]>) {
        let (Some(recorder), Some(groups)) =
            (&mut self.slots.recorder, &self.extensions.groups.groups)
        else {
            return;
        };
        let image = groups.image(&name);
        let recorded = &mut self.extensions.groups.recorded;
        let last = recorded.get(&name).copied().unwrap_or_default();
        let effect = Effect::Group {
            group: &name,
            bytes: image.as_deref().unwrap_or_default(),
        };
        let changed = recorder.record(last, effect);
        if image.is_some() {
            recorded.insert(name, changed);
        } else {
            recorded.remove(&name);
            recorder.removed(&name, changed);
        }
    }
}
