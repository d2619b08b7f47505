//! Which faults a plan injects.

use std::time::Duration;

use rpc_agent::{CallMessage, WorkerId};

use crate::fault_plan::{FaultPlan, Kind};

fn worker(id: u32) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn request(plan: &FaultPlan, function: &str, payload: &[u8]) -> Option<Kind> {
    plan.choose(CallMessage::Request, function, worker(1), payload)
}

fn all_faults(seed: u64) -> FaultPlan {
    FaultPlan::new(seed)
        .lose(0.1)
        .duplicate(0.1)
        .delay_randomly(0.1, Duration::from_millis(50))
        .cut(0.1)
}

#[test]
fn each_distinct_request_fails_the_given_number_of_times() {
    let plan = FaultPlan::new(1).fail("f", 2);
    for payload in [b"one", b"two"] {
        let faults: Vec<_> = (0..4).map(|_| request(&plan, "f", payload)).collect();
        let fail = Some(Kind::Fail);
        assert_eq!(faults, [fail, fail, None, None], "{payload:?}");
    }
    assert_eq!(request(&plan, "g", b"one"), None);
    let answer = plan.choose(CallMessage::Answer, "f", worker(1), b"three");
    assert_eq!(answer, None);
    let elsewhere = plan.choose(CallMessage::Request, "f", worker(2), b"one");
    assert_eq!(elsewhere, Some(Kind::Fail));
    assert_eq!(plan.injected().failed, 5);
    assert_eq!(plan.injected().total(), 5);
}

#[test]
fn a_request_is_delayed_after_its_injected_failures() {
    let late = Duration::from_millis(1500);
    let plan = FaultPlan::new(1).delay("f", late).fail("f", 1);
    assert_eq!(request(&plan, "f", b""), Some(Kind::Fail));
    assert_eq!(request(&plan, "f", b""), Some(Kind::Delay(late)));
    let answer = plan.choose(CallMessage::Answer, "f", worker(1), b"");
    assert_eq!(answer, None);
    let injected = plan.injected();
    assert_eq!((injected.failed, injected.delayed), (1, 1));
}

#[test]
fn each_kind_of_fault_occurs_at_about_its_rate() {
    let plan = all_faults(42);
    for number in 0..10_000_u32 {
        let payload = number.to_string();
        request(&plan, "f", payload.as_bytes());
    }
    let injected = plan.injected();
    // At most one fault per message: 0.1 of all are cut, 0.1 of the rest are lost, and so on.
    for (count, expected) in [
        (injected.cut, 1000),
        (injected.requests_lost, 900),
        (injected.duplicated, 810),
        (injected.delayed, 729),
    ] {
        assert!(count.abs_diff(expected) < 150, "{injected:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_faults_in_any_order() {
    let decide_all = |plan: &FaultPlan, order: &mut dyn Iterator<Item = u32>| {
        let mut faults: Vec<_> = order
            .map(|number| {
                let payload = (number % 100).to_string();
                let leg = [CallMessage::Request, CallMessage::Answer][number as usize % 2];
                (
                    number % 100,
                    plan.choose(leg, "f", worker(3), payload.as_bytes()),
                )
            })
            .collect();
        faults.sort_by_key(|(message, _)| *message);
        faults
    };
    let forward = decide_all(&all_faults(5), &mut (0..1000));
    assert_eq!(forward, decide_all(&all_faults(5), &mut (0..1000)));
    // Each hundred reversed: the number of earlier sends of each message stays the same.
    let mut backward = (0..10).flat_map(|hundred| (0..100).rev().map(move |n| 100 * hundred + n));
    assert_eq!(forward, decide_all(&all_faults(5), &mut backward));
    assert_ne!(forward, decide_all(&all_faults(6), &mut (0..1000)));
}
