//! A round that has started no workers.

use std::io::ErrorKind;
use std::time::Duration;

use c10d_store::{StoreError, in_brief};
use elastic_rendezvous::{BoardError, RendezvousError};
use log::Level;

use super::input::{Effect, Effects, Facts, Input, Joins};
use super::machine::{Failure, Known, Phase, Round, finish, log};
use super::membership::why_members_changed;
use super::outcome::{AgentError, AgentOutcome, RoundCause, RoundEnding};
use super::verdict::{Verdict, verdict};
use crate::failure::Failures;
use crate::job_end::OwnEnd;
use crate::relay::NodeRelayError;
use crate::restart_policy::RoundProgress;
use crate::watchdog::WatchdogError;
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
        let kind = kind_of(&error);
        if kind == Kind::System && signal.is_none() {
            out.push(Effect::ReadFacts);
            return Phase::NotStarted { error, failures };
        }
        let ending = RoundEnding::NotStarted(error.to_string());
        self.report_round(ending, None, now, out);
        match kind {
            // Only a change of the members cuts the wait short.
            Kind::Cut if signal.is_none() => {
                out.push(Effect::ReadMembership);
                Phase::NotStarted { error, failures }
            }
            Kind::Outage if signal.is_none() => {
                let why = in_brief(&*error);
                self.join_another(Level::Warn, why, failures, now, out)
            }
            Kind::Cut | Kind::Outage | Kind::Interrupted => finish(
                Ok(AgentOutcome::Signalled {
                    signal: signal.unwrap_or_default(),
                    had_workers: self.has_had_workers,
                }),
                out,
            ),
            Kind::Closed | Kind::NotNeeded => {
                out.push(Effect::ReadJobEnd);
                Phase::NotStarted { error, failures }
            }
            Kind::System | Kind::Other => self.cannot_start(error, failures, out),
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
                self.join_another(Level::Info, why, failures, now, out)
            }
            Input::JobEnd(notice) if kind_of(&error) == Kind::NotNeeded => {
                if let Some(notice) = notice {
                    let text = format!("this node was a spare of a job that failed: {notice}");
                    out.push(log(Level::Warn, text));
                    out.push(Effect::Confirm);
                }
                finish(Ok(AgentOutcome::NotNeeded), out)
            }
            Input::JobEnd(Some(notice)) => {
                out.push(Effect::Confirm);
                finish(Ok(AgentOutcome::ended_by(*notice, failures)), out)
            }
            Input::Facts(facts) => self.after_failed_start(error, failures, facts, now, out),
            Input::JobEnd(None) => finish(Err(error.with_failures(failures)), out),
            _ => Phase::NotStarted { error, failures },
        }
    }

    /// The node exits. The job fails with it if the other nodes cannot continue without this node.
    fn cannot_start(
        &self,
        error: Box<AgentError>,
        failures: Option<Failures>,
        out: &mut Effects,
    ) -> Phase {
        use AgentError::{Board, Relay, Rendezvous};
        let is_alone = matches!(*error, Rendezvous(_) | Board(_) | Relay(_));
        if !is_alone && self.settings.stops_on_failure {
            let reason = format!("cannot start the workers: {error}");
            self.publish(OwnEnd::of(reason, None), out);
        }
        finish(Err(error.with_failures(failures)), out)
    }

    fn join_another(
        &mut self,
        level: Level,
        why: String,
        failures: Option<Failures>,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        out.push(log(level, format!("joining another round: {why}")));
        let cause = RoundCause::MembersChanged(why);
        self.join_again(cause, failures, Joins::Next, now, out)
    }

    /// The system refused what the workers need: the same rules apply as if a worker had failed. `failures`: those before.
    fn after_failed_start(
        &mut self,
        error: Box<AgentError>,
        failures: Option<Failures>,
        facts: Facts,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let failure = Failure {
            stall: None,
            failures: None,
            failed: Vec::new(),
            has_abandoned: false,
            known: Known::Nothing,
            progress: RoundProgress::default(),
        };
        let ending = RoundEnding::NotStarted(error.to_string());
        let outcome = match verdict(&mut self.policy, &failure, facts, now) {
            Verdict::Restart | Verdict::JoinUncounted => {
                let left = self.policy.left(now);
                let why = format!("cannot start the workers: {error}");
                let text = format!("trying again, with {left} restarts left: {why}");
                out.push(log(Level::Warn, text));
                out.push(Effect::TellRestarting(why));
                self.report_round(ending, None, now, out);
                return self.join_again(RoundCause::Failure, failures, Joins::Next, now, out);
            }
            Verdict::GiveUp | Verdict::OthersFinished(_) => {
                self.report_round(ending, None, now, out);
                return self.cannot_start(error, failures, out);
            }
            Verdict::EndJob(reason) => {
                self.publish(OwnEnd::of(reason.clone(), None), out);
                AgentOutcome::ended(reason, failures)
            }
            Verdict::Ended(notice) => {
                out.push(Effect::Confirm);
                AgentOutcome::ended_by(*notice, failures)
            }
        };
        out.push(log(
            Level::Error,
            format!("cannot start the workers: {error}"),
        ));
        let reason = match &outcome {
            AgentOutcome::Ended { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        self.report_round(ending, reason, now, out);
        finish(Ok(outcome), out)
    }
}

/// The consequence of an error for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The job ended while this node was a spare.
    NotNeeded,
    /// A wait for the other nodes of a complete round was cut short.
    Cut,
    /// The store did not answer in time. The node joins another round, because it is unknown which of its writes in
    /// this round have succeeded.
    Outage,
    /// A signal ended a wait for anything else.
    Interrupted,
    Closed,
    /// The system refused a file, a process or another resource, which may be free later.
    System,
    Other,
}

fn kind_of(error: &AgentError) -> Kind {
    match error {
        AgentError::Rendezvous(RendezvousError::GracefulExit { .. }) => Kind::NotNeeded,
        AgentError::Board(BoardError::Interrupted)
        | AgentError::Relay(NodeRelayError::Board(BoardError::Interrupted)) => Kind::Cut,
        AgentError::Board(BoardError::Store(error))
        | AgentError::Relay(NodeRelayError::Board(BoardError::Store(error)))
            if is_outage(error) =>
        {
            Kind::Outage
        }
        AgentError::Rendezvous(RendezvousError::Interrupted { .. })
        | AgentError::Start(StartError::Interrupted) => Kind::Interrupted,
        AgentError::Rendezvous(RendezvousError::Closed { .. }) => Kind::Closed,
        AgentError::Logs(_)
        | AgentError::Start(
            StartError::LogFile { .. } | StartError::Forked { .. } | StartError::System { .. },
        )
        | AgentError::Watchdog(WatchdogError::Thread(_)) => Kind::System,
        // A missing program is not such an error.
        AgentError::Start(StartError::Program { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::WouldBlock | ErrorKind::OutOfMemory
            ) =>
        {
            Kind::System
        }
        _ => Kind::Other,
    }
}

const fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Connect { .. } | StoreError::ConnectionLost { .. } | StoreError::NoReply { .. }
    )
}
