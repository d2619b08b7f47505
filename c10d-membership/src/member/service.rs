//! How a member handles the service's answers and events.

use std::sync::Arc;

use super::input::{Action, Ending};
use super::{Doing, Member, Noted, State};
use crate::event::{EndReason, Event, EventNumber, Leave};
use crate::message::{Message, Reply};

impl Member {
    /// An answer counts if its message is the message under way.
    pub(super) fn reply(&mut self, message: &Message, reply: Reply, actions: &mut Vec<Action>) {
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

    fn enter(&mut self, committed: &Arc<crate::Record>, actions: &mut Vec<Action>) {
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
