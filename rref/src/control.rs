//! Sends the context's own messages, with retries, and reports their outcome to the context.

use std::sync::Arc;

use bytes::Bytes;
use rpc_agent::{Outcome, RpcError, WorkerId};

use crate::context::{Carrier, Control, Delivery};
use crate::liveness::may_mean_lost;
use crate::protocol::{Answer, CONTROL, CONTROLS, CONTROLS_MAX, CREATE, Message, join, split};
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
        self.check_if_lost(to, answer);
    }

    /// Sends the messages of one step to one worker: together, so that many references cost few calls.
    pub(crate) fn send_all(self: &Arc<Self>, to: WorkerId, controls: Vec<(Control, Message)>) {
        let mut controls = controls.into_iter().peekable();
        while controls.peek().is_some() {
            let batch: Vec<_> = controls.by_ref().take(CONTROLS_MAX).collect();
            match &*batch {
                [(control, message)] => self.send(to, *control, message, None),
                _ => self.send_batch(to, batch),
            }
        }
    }

    fn send_batch(self: &Arc<Self>, to: WorkerId, batch: Vec<(Control, Message)>) {
        let retries = self
            .options
            .retries_within(None)
            .with_group(&self.retry_group);
        let messages = batch.iter();
        let messages = messages.map(|(_, message)| message.encode(self.incarnation));
        let bytes = join(messages);
        let runtime = Arc::clone(self);
        self.agent
            .call(to, CONTROLS)
            .with_retries(&retries)
            .send_bytes(bytes)
            .on_complete(move |answer| runtime.batch_sent(to, batch, answer));
    }

    fn batch_sent(
        self: &Arc<Self>,
        to: WorkerId,
        batch: Vec<(Control, Message)>,
        answer: &Result<Bytes, RpcError>,
    ) {
        // A worker of an earlier version takes single messages only, and one may have a low limit for all of them.
        if let Err(RpcError::NoSuchFunction { .. } | RpcError::TooLarge { .. }) = answer {
            for (control, message) in batch {
                self.send(to, control, &message, None);
            }
            return;
        }
        let answers = match answer {
            Ok(bytes) => split(bytes).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        self.step(RunOn::AgentThread, |inner, now| {
            for (index, (control, _)) in batch.into_iter().enumerate() {
                let delivery = match answer {
                    // A missing answer counts as empty bytes, which cannot be decoded.
                    Ok(_) => delivery_of(&Ok(answers.get(index).cloned().unwrap_or_default())),
                    Err(_) => delivery_of(answer),
                };
                inner.context.control_finished(now, control, delivery);
            }
        });
        self.check_if_lost(to, answer);
    }

    fn check_if_lost(self: &Arc<Self>, worker: WorkerId, answer: &Result<Bytes, RpcError>) {
        if let Err(error) = answer
            && may_mean_lost(error)
        {
            self.check_alive(worker).on_complete(|_| {});
        }
    }
}

/// Derives the message's delivery from the result of a call with retries.
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
