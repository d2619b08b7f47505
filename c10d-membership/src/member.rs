//! A member's side: the actions of a process. Pure.
//!
//! A [`Member`] takes [`MemberInput`]s, from the service and from its process, and returns [`Action`]s. It has no
//! connection, thread, clock or torch: its shell frees blocked calls and runs the steps.

use std::sync::Arc;
use std::time::Duration;

use crate::message::{EndReason, Event, EventNumber, Leave, Limit, Message, Reason, Reply};
use crate::record::{Attempt, MemberKey, Record};

/// The member of one process: takes it through the generations.
///
/// The shell sends each [`Action::Send`], keeps one [`Message::Poll`] of [`poll`](Self::poll) under way, and drops
/// answers of lost connections.
///
/// ```
/// use std::time::Duration;
///
/// use c10d_membership::{Action, Member, MemberInput, MemberKey, MemberOptions, Message};
///
/// let mut member = Member::new(MemberKey::new(0, 1), MemberOptions::default());
/// let join = MemberInput::Join { handle: "gloo:0".into(), step: 0 };
/// let actions = member.step(Duration::ZERO, join);
/// assert!(matches!(actions[..], [Action::Send(Message::Hello { .. })]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    key: MemberKey,
    options: MemberOptions,
    state: State,
    handle: Arc<str>,
    step: u64,
    /// The number of the last event.
    seen: EventNumber,
    /// Whether the process wants to leave, and whether the service has been informed.
    leave: Option<Noted>,
}

impl Member {
    /// Creates the member of a process that has not joined.
    pub fn new(key: MemberKey, options: MemberOptions) -> Self {
        Self {
            key,
            options,
            state: State::Outside,
            handle: "".into(),
            step: 0,
            seen: EventNumber::NONE,
            leave: None,
        }
    }

    /// Takes an input, and returns the actions to do. `now` is the time since any fixed moment, and never goes back.
    pub fn step(&mut self, now: Duration, input: MemberInput) -> Vec<Action> {
        let before = self.owed();
        let mut actions = Vec::new();
        match input {
            MemberInput::Join { handle, step } => {
                if self.state == State::Outside {
                    self.set_place(handle, step);
                    self.state = State::Waiting { is_known: false };
                }
            }
            MemberInput::Reply(message, reply) => self.reply(&message, reply, &mut actions),
            MemberInput::Left { handle, step } => {
                if let State::Leaving { attempt, is_known } = self.state {
                    self.set_place(handle, step);
                    self.state = match attempt {
                        Some(attempt) => State::Ready {
                            attempt,
                            is_noted: false,
                        },
                        None => State::Waiting { is_known },
                    };
                }
            }
            MemberInput::Called { is_ok } => {
                if let State::Calling { record } = &self.state {
                    self.state = State::Called {
                        record: Arc::clone(record),
                        is_ok,
                        is_noted: false,
                    };
                }
            }
            MemberInput::Boundary(step) => self.set_doing(Doing::AtBoundary(step)),
            MemberInput::StepFailed => {
                self.set_doing(Doing::Asking(now + self.options.verdict_timeout));
            }
            MemberInput::ServiceReturned => {
                if self.wake_at().is_some() {
                    self.set_doing(Doing::Asking(now + self.options.verdict_timeout));
                }
            }
            MemberInput::Leave => {
                self.leave.get_or_insert(Noted::No);
            }
            MemberInput::Finish => self.set_doing(Doing::Finished(Noted::No)),
            MemberInput::Tick => {}
        }
        self.advance(now, &mut actions);
        let owed = self.owed();
        if owed != before
            && let Some(message) = owed
        {
            actions.push(Action::Send(message));
        }
        actions
    }

    /// Returns the message that the service has not answered, if there is one. It may be sent any number of times.
    pub fn owed(&self) -> Option<Message> {
        let is_member = !matches!(self.state, State::Outside | State::Over(_));
        if is_member && self.is_known() && self.leave == Some(Noted::No) {
            return Some(Message::Leave);
        }
        match &self.state {
            State::Waiting { is_known: false } => Some(Message::Hello {
                handle: Arc::clone(&self.handle),
                step: self.step,
            }),
            State::Ready {
                attempt,
                is_noted: false,
            } => Some(Message::Ready {
                attempt: *attempt,
                handle: Arc::clone(&self.handle),
                step: self.step,
            }),
            State::Called {
                record,
                is_ok,
                is_noted: false,
            } => Some(Message::Ack {
                attempt: record.attempt,
                is_ok: *is_ok,
            }),
            State::Inside {
                record,
                doing: Doing::AtBoundary(step),
                ..
            } => Some(Message::Boundary {
                generation: record.attempt,
                step: *step,
            }),
            State::Inside {
                record,
                doing: Doing::Finished(Noted::No),
                ..
            } => Some(Message::finished(record.attempt)),
            _ => None,
        }
    }

    /// Returns the poll to keep under way; `None` if there is nothing to wait for. When it changes, send it instead
    /// of the previous poll.
    pub fn poll(&self) -> Option<Message> {
        let after = self.seen;
        if let State::Inside {
            record,
            doing: Doing::Finished(Noted::Yes),
            ..
        } = &self.state
            && self.leave.is_none()
        {
            let generation = record.attempt;
            return Some(Message::PollFinished { generation, after });
        }
        let is_leaving = self.leave.is_some();
        self.is_known()
            .then_some(Message::Poll { after, is_leaving })
    }

    /// Returns when [`MemberInput::Tick`] is due, if nothing happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.state {
            State::Inside {
                doing: Doing::Asking(until),
                ..
            } => Some(until),
            _ => None,
        }
    }

    /// Returns whether the process is in a generation with a change that waits for a step boundary. If a collective
    /// of each step distributes this value to all members, they need to ask only after the steps in which it is true
    /// for one of them.
    pub const fn has_change(&self) -> bool {
        matches!(
            self.state,
            State::Inside {
                change: Some(_),
                ..
            }
        )
    }

    /// Returns why the process is no longer a member; `None` if it is, or has not been one.
    pub const fn ending(&self) -> Option<Ending> {
        match self.state {
            State::Over(ending) => Some(ending),
            _ => None,
        }
    }

    const fn is_known(&self) -> bool {
        match self.state {
            State::Outside | State::Over(_) => false,
            State::Waiting { is_known } | State::Leaving { is_known, .. } => is_known,
            _ => true,
        }
    }

    fn set_place(&mut self, handle: Arc<str>, step: u64) {
        self.handle = handle;
        self.step = step;
    }

    fn set_doing(&mut self, new: Doing) {
        if let State::Inside { doing, .. } = &mut self.state {
            *doing = new;
        }
    }

    /// The transitions that follow from the state alone.
    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let State::Inside { doing, change, .. } = &mut self.state else {
            return;
        };
        match *doing {
            Doing::Asking(until) if now >= until => {
                *doing = Doing::Working;
                actions.push(Action::StepError);
            }
            // No boundary will be asked for: it stops for the change at once.
            Doing::Finished(Noted::Yes) if change.is_some() => {
                let attempt = *change;
                self.leave_mesh(attempt, true, actions);
            }
            _ => {}
        }
    }

    fn leave_mesh(
        &mut self,
        attempt: Option<Attempt>,
        is_at_boundary: bool,
        actions: &mut Vec<Action>,
    ) {
        self.state = State::Leaving {
            attempt,
            is_known: true,
        };
        actions.push(Action::LeaveMesh { is_at_boundary });
    }
}

/// The answers and events of the service.
impl Member {
    /// An answer counts if its message is the message under way.
    fn reply(&mut self, message: &Message, reply: Reply, actions: &mut Vec<Action>) {
        let is_poll = self.poll().as_ref() == Some(message);
        if !is_poll && self.owed().as_ref() != Some(message) {
            return;
        }
        match reply {
            Reply::Event(number, event) if is_poll => self.event(number, event, actions),
            Reply::Evicted(reason) => self.end(Ending::Evicted(reason), actions),
            Reply::Ended(reason) => self.end(Ending::Ended(reason), actions),
            Reply::Refused(limit) => self.end(Ending::Refused(limit), actions),
            Reply::Unknown => self.start_over(actions),
            _ if is_poll => {}
            reply => self.noted(message, &reply, actions),
        }
    }

    fn noted(&mut self, message: &Message, reply: &Reply, actions: &mut Vec<Action>) {
        if *message == Message::Leave {
            self.leave = Some(Noted::Yes);
            return;
        }
        match &mut self.state {
            State::Waiting { is_known } => *is_known = true,
            State::Ready { is_noted, .. } | State::Called { is_noted, .. } => *is_noted = true,
            State::Inside { doing, .. } => match reply {
                Reply::Accepted => *doing = Doing::Finished(Noted::Yes),
                // A service of release 0.2 does not know what that is: the member leaves instead.
                Reply::Proceed if matches!(doing, Doing::Finished(_)) => {
                    *doing = Doing::Finished(Noted::Yes);
                    self.leave.get_or_insert(Noted::No);
                }
                Reply::Proceed => {
                    *doing = Doing::Working;
                    actions.push(Action::Proceed);
                }
                Reply::Change(attempt) => {
                    let attempt = Some(*attempt);
                    self.leave_mesh(attempt, true, actions);
                }
                // The generation is over, and the event with the reason is on its way.
                _ => self.leave_mesh(None, false, actions),
            },
            _ => {}
        }
    }

    fn event(&mut self, number: EventNumber, event: Event, actions: &mut Vec<Action>) {
        if !number.is_news_after(self.seen) {
            return;
        }
        self.seen = number;
        match event {
            Event::Propose { attempt, leave, .. } => match &mut self.state {
                State::Waiting { .. } => {
                    self.state = State::Ready {
                        attempt,
                        is_noted: false,
                    };
                }
                State::Ready {
                    attempt: ready,
                    is_noted,
                } => {
                    *is_noted &= *ready == attempt;
                    *ready = attempt;
                }
                State::Leaving {
                    attempt: awaited, ..
                } => *awaited = Some(attempt),
                State::Inside { change, .. } if matches!(leave, Leave::AtBoundary { .. }) => {
                    *change = Some(attempt);
                }
                State::Inside { .. } | State::Calling { .. } | State::Called { .. } => {
                    self.leave_mesh(Some(attempt), false, actions);
                }
                State::Outside | State::Over(_) => {}
            },
            Event::Call { record, deadline } => {
                if matches!(self.state, State::Ready { attempt, .. } if attempt == record.attempt) {
                    let call = Arc::clone(&record);
                    self.state = State::Calling { record };
                    let record = call;
                    actions.push(Action::Call { record, deadline });
                }
            }
            Event::Commit { record } => self.enter(&record, actions),
            Event::Break { .. } => match &mut self.state {
                State::Ready { .. } => self.state = State::Waiting { is_known: true },
                State::Leaving { attempt, .. } => *attempt = None,
                State::Inside { .. } | State::Calling { .. } | State::Called { .. } => {
                    self.leave_mesh(None, false, actions);
                }
                State::Outside | State::Waiting { .. } | State::Over(_) => {}
            },
            Event::Ended(reason) => self.end(Ending::Ended(reason), actions),
        }
    }

    fn enter(&mut self, committed: &Arc<Record>, actions: &mut Vec<Action>) {
        let State::Called {
            record,
            is_ok: true,
            ..
        } = &self.state
        else {
            return;
        };
        if let Some(rank) = committed.rank_of(self.key)
            && record.attempt == committed.attempt
        {
            let record = Arc::clone(committed);
            self.state = State::Inside {
                record: Arc::clone(&record),
                doing: Doing::Working,
                change: None,
            };
            actions.push(Action::Enter { record, rank });
        }
    }

    /// The service has lost its state: the member joins as a newcomer.
    fn start_over(&mut self, actions: &mut Vec<Action>) {
        self.seen = EventNumber::NONE;
        self.leave = self.leave.map(|_| Noted::No);
        match &mut self.state {
            State::Inside { .. } | State::Calling { .. } | State::Called { .. } => {
                self.leave_mesh(None, false, actions);
            }
            State::Ready { .. } => self.state = State::Waiting { is_known: false },
            _ => {}
        }
        match &mut self.state {
            State::Leaving { attempt, is_known } => {
                *attempt = None;
                *is_known = false;
            }
            State::Waiting { is_known } => *is_known = false,
            _ => {}
        }
    }

    fn end(&mut self, ending: Ending, actions: &mut Vec<Action>) {
        let has_mesh = !matches!(
            self.state,
            State::Outside | State::Waiting { .. } | State::Ready { .. } | State::Over(_)
        );
        if has_mesh {
            // All members of a group that has finished have done their last collective.
            let is_at_boundary = ending == Ending::Ended(EndReason::Finished);
            actions.push(Action::LeaveMesh { is_at_boundary });
        }
        self.state = State::Over(ending);
        actions.push(Action::Over(ending));
    }
}

/// The waits of a [`Member`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MemberOptions {
    /// The time, after an exception in a step, that the member waits for the service to report that the generation is
    /// broken. Without a report, the exception is considered the program's own. Default 5 s: longer than a launcher
    /// takes to notice the exit of a process. If the service can detect a loss only by silence, for example behind a
    /// relay, this must be longer than that silence. If another server can take over, it must also be longer than
    /// [`RETURN_TIMEOUT_MAX`](crate::RETURN_TIMEOUT_MAX).
    pub verdict_timeout: Duration,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self {
            verdict_timeout: Duration::from_secs(5),
        }
    }
}

/// An event that a member handles, from its process or from the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemberInput {
    /// The process wants to take part.
    Join {
        /// The handle of the process in torch's list.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// The service has answered this message.
    Reply(Message, Reply),
    /// Answers [`Action::LeaveMesh`]: no call of the process uses the old mesh any more, torch's own included.
    Left {
        /// Torch's handle now.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// Answers [`Action::Call`]: torch's call has returned.
    Called {
        /// Whether it succeeded.
        is_ok: bool,
    },
    /// The process has done this many steps, and asks whether to continue. Answered by [`Action::Proceed`] or
    /// [`Action::LeaveMesh`].
    Boundary(u64),
    /// A step raised an exception. Answered by [`Action::LeaveMesh`] if the generation is broken, otherwise by
    /// [`Action::StepError`].
    StepFailed,
    /// The process works on until the next boundary, and leaves there.
    Leave,
    /// The process has done its last step of this generation. The group finishes when all members have done theirs. A
    /// loss before that makes the process leave its mesh.
    Finish,
    /// The service answers again, after a request had no answer for longer than usual: its server was lost, or the way to it.
    ServiceReturned,
    /// Time has passed: due at [`Member::wake_at`].
    Tick,
}

/// An action for the shell of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Send this to the service. After a lost connection, send [`Member::owed`] again.
    Send(Message),
    /// Have the process leave the mesh, then input [`MemberInput::Left`].
    LeaveMesh {
        /// Whether the process is at a step boundary and the mesh is whole; otherwise it may be blocked in a call,
        /// and has to be freed.
        is_at_boundary: bool,
    },
    /// Call torch's `_reconfigure` with this uuid and list.
    Call {
        /// The list of the attempt.
        record: Arc<Record>,
        /// The time when the service abandons the attempt, by its clock.
        deadline: Duration,
    },
    /// The generation may be used.
    Enter {
        /// The list of the generation.
        record: Arc<Record>,
        /// This member's rank in it.
        rank: usize,
    },
    /// Begin the next step.
    Proceed,
    /// The exception is the program's own.
    StepError,
    /// The process is no longer a member. This is the last action.
    Over(Ending),
}

/// The reason why a process is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// The service has removed it, at its own wish or not.
    Evicted(Reason),
    /// The group has ended.
    Ended(EndReason),
    /// The service has no room for it.
    Refused(Limit),
}

/// Whether the member has a mesh, and the event that it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// It has not joined.
    Outside,
    /// It has no mesh, and no attempt has been announced.
    Waiting {
        /// Whether the service has its hello.
        is_known: bool,
    },
    /// It has no mesh, and takes part in the attempt.
    Ready {
        attempt: Attempt,
        is_noted: bool,
    },
    /// The process leaves its mesh.
    Leaving {
        /// The attempt for which it will send that it is ready; `None` until the service has named it.
        attempt: Option<Attempt>,
        /// Whether the service has its hello.
        is_known: bool,
    },
    /// The process is in torch's call.
    Calling {
        record: Arc<Record>,
    },
    /// The call has returned.
    Called {
        record: Arc<Record>,
        is_ok: bool,
        is_noted: bool,
    },
    /// The generation works.
    Inside {
        record: Arc<Record>,
        doing: Doing,
        /// The attempt for which members stop at a boundary.
        change: Option<Attempt>,
    },
    Over(Ending),
}

/// The activity of a process in a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    Working,
    /// It has asked whether to continue after this step.
    AtBoundary(u64),
    /// It has an exception, which is considered its own if the service reports no break until this time.
    Asking(Duration),
    /// It has done its last step. [`Noted::Yes`] once the service has recorded that.
    Finished(Noted),
}

/// Whether the service has the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Noted {
    No,
    Yes,
}
