//! Runs the registered functions on the threads of the pool.

use std::time::Instant;

use super::handle::AgentHandle;
use crate::context::{Context, Reply, ServedCall, run_deferred};
use crate::future::catch_panic;
use crate::pool::Work;
use crate::registry::{Body, Registry};
use crate::runtime::{ReplyTo, Served};
use crate::segmented_queue::SegmentedQueue;
use crate::wire::Failure;

/// The work of the threads of an agent's pool.
pub(super) struct Service {
    pub(super) agent: AgentHandle,
    pub(super) registry: Registry,
}

impl Work<Served> for Service {
    fn flush(&self) {
        self.agent.runtime().driver.flush();
    }

    fn has_unsent(&self) -> bool {
        self.agent.runtime().driver.has_gathered()
    }

    fn has_collected(&self) -> bool {
        self.agent.runtime().driver.take_outsiders()
    }

    fn poll(&self, found: &mut SegmentedQueue<Served>) {
        self.agent.runtime().poll(found);
    }

    fn wake_poller(&self) {
        self.agent.runtime().driver.sockets.wake();
    }

    fn run(&self, served: Served) {
        let runtime = self.agent.runtime();
        let Some((peer, request)) = runtime.driver.begin_request(served) else {
            return;
        };
        let function = self.registry.function(request.function);
        let reply_to = ReplyTo {
            peer,
            route: request.route,
            function: request.function,
        };
        let began = Instant::now();
        if request.deadline.has_passed(began) {
            runtime.driver.metrics.requests.refused.add(1);
            return runtime
                .driver
                .answer(&reply_to, Err(Failure::DeadlinePassed));
        }
        let is_deferred = matches!(function.body, Body::Deferred(_));
        let context = Context {
            call: ServedCall::begin(&self.agent, reply_to, request.deadline, is_deferred),
        };
        let payload = request.payload;
        let result = match &function.body {
            Body::Direct(run) => {
                let result = catch_panic(|| run(&context, payload));
                result
                    .map(Some)
                    .map_err(|text| (text, vec![context.call.clone()]))
            }
            Body::Deferred(run) => {
                let pending = Some(context.call.clone());
                run_deferred(|| run(&context, payload, Reply { pending })).map(|()| None)
            }
        };
        function.ran_for(began.elapsed());
        match result {
            Ok(Some(answer)) => context.call.answer(answer),
            // The reply answers.
            Ok(None) => {}
            Err((text, unanswered)) => {
                // Counted and logged before the answer: the caller may read them at once.
                runtime.driver.metrics.requests.panics.add(1);
                log::error!(
                    "{}: function `{}` panicked, called by {}: {text}",
                    runtime.driver.me(),
                    context.function(),
                    context.caller()
                );
                for call in unanswered {
                    call.panicked(&text);
                }
            }
        }
    }

    fn refuse(&self, served: Served, threads: usize) {
        let reason = format!("all {threads} threads wait for nested calls");
        self.agent
            .runtime()
            .driver
            .refuse_request(&served, reason.into());
    }

    fn is_slow(&self, served: &Served) -> bool {
        self.registry.function(served.request.function).is_slow()
    }

    fn arrived_at(&self, served: &Served) -> Instant {
        served.request.arrived_at
    }

    fn return_free_memory(&self) {
        c10d_socket::release_freed_memory();
    }
}
