//! Duplicated requests: the error of a call must report the right outcome.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use rpc_agent::{Agent, FutureMessage, Outcome};

use crate::common::{PATIENCE, agent_and_raw, ask, begin, noise, pair_with, wait};
use crate::fault_plan::FaultPlan;
use crate::raw::read_frame;

const CALLS: usize = 300;

/// Payload length of the first call. Each next payload is one byte longer, which identifies the call.
const PAYLOAD_BYTES_MIN: usize = 40 << 10;

/// The function that the calls name.
const NAME: &str = "take";

/// Bytes of a request's body besides the payload.
const BODY_BYTES_MIN: usize = 4 + NAME.len();

/// Starts an agent and makes calls to a raw worker that does not read the connection. Most requests are
/// duplicated. Together they exceed the socket buffers.
fn unread_calls(
    seed: u64,
    timeout: Option<Duration>,
    has_secret: bool,
) -> (Agent, Box<dyn Read>, Vec<FutureMessage>) {
    let faults = FaultPlan::new(seed).duplicate(0.8);
    let (agent, link): (_, Box<dyn Read>) = match has_secret {
        false => {
            let (agent, raw, store) = agent_and_raw(|options| options.with_faults(faults));
            (agent, Box::new(raw.dial(&*store, 0, 0)))
        }
        #[cfg(feature = "tls")]
        true => {
            let secret = rpc_agent::Secret::random().unwrap();
            let (agent, raw, store) =
                agent_and_raw(|options| options.with_faults(faults).with_secret(secret.clone()));
            (agent, Box::new(raw.dial_sealed(&*store, 0, secret)))
        }
        #[cfg(not(feature = "tls"))]
        true => unreachable!(),
    };
    let payload = noise(seed, PAYLOAD_BYTES_MIN + CALLS);
    let calls = (0..CALLS).map(|number| {
        let payload = payload.slice(..PAYLOAD_BYTES_MIN + number);
        agent
            .handle()
            .call("worker1", NAME)
            .with_timeout(timeout)
            .send_bytes(payload)
    });
    let calls = calls.collect();
    (agent, link, calls)
}

/// The seeds, without a secret and with one.
fn rounds() -> impl Iterator<Item = (u64, bool)> {
    let secrets = [false, true]
        .into_iter()
        .take(1 + usize::from(cfg!(feature = "tls")));
    secrets.flat_map(|has_secret| (1..=4).map(move |seed| (seed, has_secret)))
}

/// Checks the outcomes. `arrived` holds the calls whose request has arrived at least in part.
#[track_caller]
fn assert_outcomes(calls: &[FutureMessage], arrived: &HashSet<usize>) {
    let mut not_executed = 0;
    for (number, call) in calls.iter().enumerate() {
        let error = wait(call).unwrap_err();
        if error.outcome() == Outcome::NotExecuted {
            assert!(!arrived.contains(&number), "call {number} arrived: {error}");
            not_executed += 1;
        }
    }
    assert!(not_executed > 0, "every call was sent");
}

#[test]
fn a_duplicated_call_with_one_request_withdrawn_at_its_deadline_may_have_run() {
    for (seed, has_secret) in rounds() {
        let timeout = Duration::from_millis(50);
        let (agent, mut link, calls) = unread_calls(seed, Some(timeout), has_secret);
        for call in &calls {
            assert!(wait(call).is_err());
        }
        // This request follows all remaining requests of the other calls.
        let last = begin(agent.handle(), "worker1", NAME, "last");
        let mut arrived = HashSet::new();
        loop {
            let payload_bytes = read_frame(&mut link).body.len() - BODY_BYTES_MIN;
            if payload_bytes == "last".len() {
                break;
            }
            arrived.insert(payload_bytes - PAYLOAD_BYTES_MIN);
        }
        assert_outcomes(&calls, &arrived);
        drop(last);
    }
}

#[test]
fn a_duplicated_call_with_one_request_sent_before_shutdown_may_have_run() {
    for (seed, has_secret) in rounds() {
        let (agent, mut link, calls) = unread_calls(seed, None, has_secret);
        agent.shutdown_now();
        let mut arrived = HashSet::new();
        // The last frame may be truncated.
        let mut header = [0; 16];
        while link.read_exact(&mut header).is_ok() {
            let body_bytes = LittleEndian::read_u32(&header[..4]);
            // A Goodbye has an empty body.
            if let Some(payload_bytes) = (body_bytes as usize).checked_sub(BODY_BYTES_MIN) {
                arrived.insert(payload_bytes - PAYLOAD_BYTES_MIN);
            }
            let mut body = (&mut link).take(body_bytes.into());
            io::copy(&mut body, &mut io::sink()).unwrap();
        }
        assert!(!arrived.is_empty(), "nothing was sent");
        assert_outcomes(&calls, &arrived);
    }
}

#[test]
fn a_duplicated_large_message_keeps_the_connection() {
    let faults = FaultPlan::new(3).duplicate(1.0);
    // A call that is answered is not sent again, so none is answered before two requests have arrived.
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let (agent, served) = pair_with(faults.of_rank(0), |registry| {
        let arrived = Arc::clone(&arrived);
        registry
            .register_bytes("answer late", move |_, payload| {
                let (count, changed) = &*arrived;
                let mut count = count.lock().unwrap();
                *count += 1;
                changed.notify_all();
                drop(
                    changed
                        .wait_timeout_while(count, PATIENCE, |count| *count < 2)
                        .unwrap(),
                );
                Ok(payload)
            })
            .unwrap();
    });
    let payload = noise(1, 600 << 10);
    let answer = ask(agent.handle(), "worker1", "answer late", payload.clone());
    assert_eq!(answer.unwrap(), payload);
    assert!(served.handle().metrics().requests_received > 1);
    assert_eq!(served.handle().metrics().connections_lost, 0);
}
