//! Sends the context's own messages, with retries, and reports their outcome to the context.

use std::sync::Arc;

use bytes::Bytes;
use rpc_agent::{Outcome, RpcError, WorkerId};

use crate::context::{Carrier, Control, Delivery};
use crate::liveness::may_mean_lost;
use crate::protocol::{Answer, CONTROL, CREATE, Message};
use crate::runtime::{CreationDelivery, RunOn, Runtime};

impl Runtime {
    /// Sends a message until it is answered or its retries are exhausted.
    pub(crate) fn send(
        self: &Arc<Self>,
        to: WorkerId,
        control: Control,
        message: &Message,
        creation: Option<CreationDelivery>,
    ) {
        let function = match control {
            Control::Create(_) => CREATE,
            _ => CONTROL,
        };
        let timeout = creation.as_ref().and_then(|creation| creation.timeout);
        let retries = self
            .options
            .retries_within(timeout)
            .with_group(&self.retry_group);
        let bytes = message.encode(self.incarnation);
        let runtime = Arc::clone(self);
        self.agent
            .call(to, function)
            .with_retries(&retries)
            .send_bytes(bytes)
            .on_complete(move |answer| runtime.sent(to, control, answer, creation));
    }

    fn sent(
        self: &Arc<Self>,
        to: WorkerId,
        control: Control,
        answer: &Result<Bytes, RpcError>,
        creation: Option<CreationDelivery>,
    ) {
        let delivery = delivery_of(answer);
        let accepted = Answer::RemoteAccept;
        let is_accepted =
            matches!(&delivery, Delivery::Answered { answer, .. } if *answer == accepted);
        // A refused creation may have been accepted before, by an attempt whose answer was lost.
        let outcome = match &delivery {
            Delivery::NotDelivered(_) => Outcome::NotExecuted,
            _ => Outcome::Unknown,
        };
        self.step(RunOn::AgentThread, |inner, now| {
            inner.context.control_finished(now, control, delivery);
        });
        match creation {
            Some(creation) if is_accepted => self.commit_forks(&creation.forks, Carrier::Answer),
            Some(creation) => self.settle_forks(&creation.forks, outcome),
            None => {}
        }
        if let Err(error) = answer
            && may_mean_lost(error)
        {
            self.check_alive(to).on_complete(|_| {});
        }
    }
}

/// What the result of a call with retries says about the message's delivery.
fn delivery_of(answer: &Result<Bytes, RpcError>) -> Delivery {
    let error = match answer {
        Ok(bytes) => {
            return match Answer::decode(bytes) {
                Ok((incarnation, answer)) => Delivery::Answered {
                    incarnation,
                    answer,
                },
                Err(error) => Delivery::Refused(error.to_string().into()),
            };
        }
        Err(error) => error,
    };
    let text: Arc<str> = error.to_string().into();
    match error {
        RpcError::Remote { message, .. } => Delivery::Refused(Arc::clone(message)),
        RpcError::NoSuchFunction { .. } => Delivery::Refused(text),
        error if error.outcome() == Outcome::NotExecuted => Delivery::NotDelivered(text),
        _ => Delivery::Unknown(text),
    }
}
