//! Outages of etcd, or of a part of it, under a store of two processes.

use super::clients::{Recorder, client_of, following};
use super::*;

/// etcd's shortest lease at its default election timeout, which `c10d store serve` uses.
const DEFAULT_TTL_SECONDS: u64 = 2;

/// How long an undelayed answer may take on a busy machine. Much less than a watch may be silent.
const SOON: Duration = Duration::from_secs(20);

fn job(site: &RealSite, ttl_seconds: u64) -> Job {
    let prefix = format!("c10d/outages/{}", fastrand::u64(..));
    Job::start(site, &prefix, 2, ttl_seconds, Mutant::None)
}

fn within(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    eventually(what, &mut is_so);
    let took = begun.elapsed();
    assert!(took < limit, "{what} took {took:?}");
}

/// The member that a standby watches is lost. The standby switches to another member, although it gets no event, and
/// takes over when the leader is lost as well.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_standby_notices_that_its_member_of_etcd_is_silent() {
    let site = RealSite::start(MEMBERS);
    let job = job(&site, TTL_SECONDS);
    let client = following(&job, 0);
    let mut recorder = Recorder::default();
    recorder.add(&client, 1);
    let standby = &job.slots[1];
    eventually("it follows", || {
        job.reports.has_followed(standby.process.number)
    });
    let directory = EtcdDirectory::new(site.options_below(&job.prefix));
    let is_level = || {
        let deadline = Deadline::after(Instant::now(), SOON);
        let status = directory.status(deadline, &Cancel::NEVER);
        let status = status.expect("etcd answers");
        let address = standby.process.address.to_string();
        let mut candidates = status.candidates.iter();
        candidates.any(|it| it.address == address && it.position == status.position)
    };
    standby.to_etcd[0].be_silent();
    recorder.add(&client, 1);
    within("it reads on", SOON, is_level);

    // Whichever member it has gone on to.
    standby.to_etcd[0].mend();
    standby.to_etcd[1].be_silent();
    standby.to_etcd[2].be_silent();
    job.slots[0].process.signal("-STOP");
    within("it takes over", SOON, || {
        job.wait_for_claim(1).process == standby.process.number
    });
    recorder.add(&client, 1);
    recorder.check(&job).expect("an order");
}

/// docs/spec/etcd.md, the consequences of the loss of etcd's majority.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn answers_end_with_the_majority_of_etcd_and_go_on_with_it() {
    let site = RealSite::start(MEMBERS);
    for first in 0..MEMBERS {
        let job = job(&site, DEFAULT_TTL_SECONDS);
        let client = following(&job, 0);
        let direct = client_of(&job, 0);
        let mut recorder = Recorder::default();
        recorder.set(&client, b"kept");
        recorder.add(&client, 1);
        let lost = [first, (first + 1) % MEMBERS];
        for member in lost {
            site.signal(member, "-STOP");
        }
        let stopped = Instant::now();
        let mut answered = Duration::ZERO;
        loop {
            let called = stopped.elapsed();
            if !recorder.get(&direct, POLL_TIMEOUT) {
                break;
            }
            answered = called;
            thread::sleep(PAUSE);
        }
        assert!(answered < Duration::from_millis(1800), "{answered:?}");
        thread::scope(|scope| {
            let waits = scope.spawn(|| recorder.add(&client, 1));
            // Longer than the lease of the previous leader.
            thread::sleep(Duration::from_secs(3));
            assert!(!waits.is_finished(), "it waits for a majority");
            for member in lost {
                site.signal(member, "-CONT");
            }
        });
        recorder.add(&client, 1);
        recorder.get(&client, SOON);
        recorder.check(&job).expect("an order");
    }
}
