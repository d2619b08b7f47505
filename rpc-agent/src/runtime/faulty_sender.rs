//! A [`Sender`] that injects the faults of a [`FaultPlan`], for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::entry::PeerEntry;
use super::sender::{DirectSender, ReplyTo, Sender};
use crate::error::NotSent;
use crate::fault::{Fault, FaultPlan, Leg};
use crate::future::{Job, Promise};
use crate::peer::{Failure, NewCall};
use crate::timer::TimerThread;

/// Asks the plan about each message, and sends it through `inner` as the plan says.
pub(super) struct FaultySender {
    pub(super) inner: DirectSender,
    pub(super) plan: FaultPlan,
    /// Sends what is delayed.
    pub(super) timer: Arc<TimerThread<Job>>,
}

impl FaultySender {
    fn later(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        // After the agent's end there is nothing to send: what comes back is dropped.
        let _ = self.timer.schedule(Instant::now() + delay, Box::new(job));
    }
}

impl Sender for FaultySender {
    fn request(
        &self,
        peer: &Arc<PeerEntry>,
        mut call: NewCall<'_, Promise<Bytes>>,
        payload: Bytes,
    ) {
        let inner = &self.inner;
        let fault = self
            .plan
            .decide(Leg::Request, call.function, peer.info.id, &payload);
        let timeout = call.timeout;
        match fault {
            Fault::Deliver => inner.request(peer, call, payload),
            Fault::Fail => inner.fail(peer, call, NotSent::Injected),
            Fault::Lose => {
                inner.expect(peer, call, payload.len());
            }
            Fault::Duplicate { copies } => {
                call.is_repeated = true;
                if let Some(id) = inner.expect(peer, call, payload.len()) {
                    for _ in 0..=copies {
                        inner.send(peer, id, payload.clone(), timeout);
                    }
                }
            }
            Fault::Delay(delay) => {
                if let Some(id) = inner.expect(peer, call, payload.len()) {
                    let (inner, peer) = (inner.clone(), Arc::clone(peer));
                    let left = timeout.map(|timeout| timeout.saturating_sub(delay));
                    self.later(delay, move || inner.send(&peer, id, payload, left));
                }
            }
            Fault::Cut => {
                inner.request(peer, call, payload);
                inner.cut(peer);
            }
        }
    }

    fn answer(&self, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        let inner = &self.inner;
        let payload = match answer {
            Ok(payload) => payload,
            failure => return inner.answer(to, failure),
        };
        let (function, caller) = (inner.function(to), to.peer.info.id);
        let fault = self.plan.decide(Leg::Answer, function, caller, &payload);
        match fault {
            Fault::Deliver => inner.answer(to, Ok(payload)),
            Fault::Fail | Fault::Lose => {}
            Fault::Duplicate { copies } => {
                for _ in 0..=copies {
                    inner.answer(to, Ok(payload.clone()));
                }
            }
            Fault::Delay(delay) => {
                let (inner, to) = (inner.clone(), to.clone());
                self.later(delay, move || inner.answer(&to, Ok(payload)));
            }
            Fault::Cut => {
                inner.answer(to, Ok(payload));
                inner.cut(&to.peer);
            }
        }
    }
}
