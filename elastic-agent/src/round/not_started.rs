//! A round that has started no workers.

use std::time::Duration;

use c10d_store::StoreError;
use elastic_rendezvous::RendezvousError;
use log::Level;

use super::ending::{RoundCause, RoundEnding};
use super::error::AgentError;
use super::input::{Effect, Effects, Input};
use super::machine::{Round, finish, log};
use super::members::why_members_changed;
use super::outcome::AgentOutcome;
use super::phase::Phase;
use crate::failure::Failures;
use crate::ranks::RanksError;
use crate::relay::NodeRelayError;
use crate::worker::StartError;

impl Round {
    pub(super) fn not_started(
        &mut self,
        error: Box<AgentError>,
        signal: Option<i32>,
        failures: Option<Failures>,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let ending = RoundEnding::NotStarted(error.to_string());
        self.report_round(ending, None, now, out);
        match kind_of(&error) {
            Kind::NotNeeded => finish(Ok(AgentOutcome::NotNeeded), out),
            // Nothing but a change of the members cuts it short.
            Kind::Cut if signal.is_none() => {
                out.push(Effect::ReadMembership);
                Phase::NotStarted { error, failures }
            }
            Kind::Outage if signal.is_none() => {
                let why = format!("the store of the rendezvous was out of reach: {error}");
                out.push(log(Level::Warn, format!("joining another round: {why}")));
                self.join_again(RoundCause::MembersChanged(why), failures, now, out)
            }
            Kind::Cut | Kind::Outage | Kind::Interrupted => finish(
                Ok(AgentOutcome::Signalled {
                    signal: signal.unwrap_or_default(),
                    had_workers: self.has_had_workers,
                }),
                out,
            ),
            Kind::Closed => {
                out.push(Effect::ReadJobEnd);
                Phase::NotStarted { error, failures }
            }
            Kind::Other => finish(Err(with_failures(*error, failures)), out),
        }
    }

    pub(super) fn in_not_started(
        &mut self,
        error: Box<AgentError>,
        failures: Option<Failures>,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        match input {
            Input::Membership(membership) => {
                let why = membership
                    .and_then(|membership| why_members_changed(&membership))
                    .unwrap_or_else(|| "the members of the round changed".to_owned());
                out.push(log(Level::Info, format!("joining another round: {why}")));
                self.join_again(RoundCause::MembersChanged(why), failures, now, out)
            }
            Input::JobEnd(Some(reason)) => {
                finish(Ok(AgentOutcome::Ended { reason, failures }), out)
            }
            Input::JobEnd(None) => finish(Err(with_failures(*error, failures)), out),
            _ => Phase::NotStarted { error, failures },
        }
    }
}

/// What an error means for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The job ended while this node was a spare.
    NotNeeded,
    /// A wait for the other nodes of a complete round was cut short.
    Cut,
    /// The store did not answer in time. What this node has written in the round is unknown, so it joins another one.
    Outage,
    /// A signal ended a wait for anything else.
    Interrupted,
    Closed,
    Other,
}

fn kind_of(error: &AgentError) -> Kind {
    match error {
        AgentError::Rendezvous(RendezvousError::GracefulExit { .. }) => Kind::NotNeeded,
        AgentError::Ranks(RanksError::Interrupted)
        | AgentError::Relay(NodeRelayError::Interrupted) => Kind::Cut,
        AgentError::Ranks(RanksError::Store(error))
        | AgentError::Relay(NodeRelayError::Store(error))
            if is_outage(error) =>
        {
            Kind::Outage
        }
        AgentError::Rendezvous(RendezvousError::Interrupted { .. })
        | AgentError::Start(StartError::Interrupted) => Kind::Interrupted,
        AgentError::Rendezvous(RendezvousError::Closed { .. }) => Kind::Closed,
        _ => Kind::Other,
    }
}

const fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Connect { .. } | StoreError::ConnectionLost { .. } | StoreError::NoReply { .. }
    )
}

/// Adds the failures that made a restart necessary to the error that prevented it.
pub(super) fn with_failures(error: AgentError, failures: Option<Failures>) -> AgentError {
    match failures {
        None => error,
        Some(failures) => AgentError::NotRestarted {
            source: Box::new(error),
            failures,
        },
    }
}
