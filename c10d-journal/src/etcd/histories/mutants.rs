//! Processes with a defect of each kind that the checks must find, and the same processes without the defect.

use super::super::layout::Layout;
use super::super::message::{Answer, Range, Request, Txn};
use super::super::real_site::call;
use super::clients::{Recorder, client_of, following};
use super::*;

/// How long the test waits for a process that must not answer.
const SILENCE: Duration = Duration::from_secs(2);

fn job(site: &RealSite, mutant: Mutant, ttl_seconds: u64) -> Job {
    let prefix = format!("c10d/mutants/{}", fastrand::u64(..));
    Job::start(site, &prefix, 2, ttl_seconds, mutant)
}

const ALL_MEMBERS: Link = Link::Etcd(0, [true; MEMBERS]);

/// The leader is cut off from etcd, and read from after a standby has taken over.
fn read_of_one_that_is_cut_off(site: &RealSite, mutant: Mutant) -> Result<(), String> {
    let job = job(site, mutant, 1);
    let mut recorder = Recorder::default();
    let old = client_of(&job, 0);
    recorder.set(&old, b"old");
    recorder.try_add(&old, 1)?;
    for proxy in job.proxies(0, &ALL_MEMBERS) {
        proxy.be_silent();
    }
    job.wait_for_claim(2);
    let new = client_of(&job, 1);
    recorder.set(&new, b"new");
    recorder.try_add(&new, 1)?;
    recorder.get(&old, SILENCE);
    recorder.check(&job)
}

/// The leader's key expires. The leader writes before it has noticed that, while the slow standby reads.
fn a_write_during_a_takeover(site: &RealSite, mutant: Mutant) -> Result<(), String> {
    // It renews its lease every six seconds.
    let job = job(site, mutant, 10);
    let client = following(&job, 0);
    let mut recorder = Recorder::default();
    recorder.try_add(&client, 1)?;
    let lease = job.wait_for_claim(1).lease;
    for proxy in job.proxies(1, &ALL_MEMBERS) {
        proxy.delay(Duration::from_millis(150));
    }
    let mut gateway = site.gateway();
    call(&mut gateway, &Request::Revoke { lease }).expect("it was there");
    let leader = Request::Range(Range::key(Layout::new(&job.prefix).leader()));
    eventually("another one leads", || {
        let answer = call(&mut gateway, &leader).expect("etcd answers");
        matches!(answer, Answer::Range { keys, .. } if !keys.keys.is_empty())
    });
    let until = Instant::now() + Duration::from_secs(20);
    while job.reports.last_claim().is_some_and(|it| it.epoch < 2)
        && job.reports.failures().is_empty()
    {
        assert!(Instant::now() < until, "nobody takes over");
        recorder.try_add(&client, 1)?;
        // The search for an order is for short histories.
        thread::sleep(PAUSE);
    }
    if job.reports.failures().is_empty() {
        for _ in 0..5 {
            recorder.try_add(&client, 1)?;
        }
    }
    recorder.check(&job)
}

/// The network delivers a write after later writes of the same process, which then exits.
fn a_write_that_arrives_late(site: &RealSite, mutant: Mutant) -> Result<(), String> {
    let mut job = job(site, mutant, 5);
    let client = following(&job, 0);
    let mut recorder = Recorder::default();
    recorder.try_add(&client, 1)?;
    let slow = &job.slots[0].to_etcd[0];
    slow.delay(Duration::from_millis(1500));
    for _ in 0..5 {
        recorder.try_add(&client, 1)?;
    }
    // The end of its connection is delayed as well, because etcd would drop the write with it.
    eventually("it has arrived", || slow.keeps_nothing());
    // etcd has carried out the write once it has carried out a later write of the same member.
    for _ in 0..3 {
        let nothing = Request::Txn(Txn {
            compare: Vec::new(),
            success: Vec::new(),
            failure: Vec::new(),
        });
        call(&mut site.gateway_of(0), &nothing).expect("etcd answers");
    }
    job.slots[0].process.kill();
    job.wait_for_claim(2);
    recorder.try_add(&client, 1)?;
    recorder.check(&job)
}

/// The leader writes after the standby has read, and exits.
fn a_takeover_after_writes(site: &RealSite, mutant: Mutant) -> Result<(), String> {
    let mut job = job(site, mutant, 1);
    let client = following(&job, 0);
    let mut recorder = Recorder::default();
    recorder.try_add(&client, 1)?;
    let other = job.slots[1].process.number;
    eventually("it follows", || job.reports.has_followed(other));
    recorder.try_add(&client, 1)?;
    job.slots[0].process.kill();
    job.wait_for_claim(2);
    if job.reports.failures().is_empty() {
        recorder.try_add(&client, 1)?;
    }
    recorder.check(&job)
}

type Scenario = fn(&RealSite, Mutant) -> Result<(), String>;

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
#[expect(clippy::print_stdout, reason = "the findings are for readers")]
fn the_checks_find_processes_with_defects() {
    let site = RealSite::start(MEMBERS);
    let scenarios: [(Mutant, Scenario); 4] = [
        (Mutant::NoGuard, read_of_one_that_is_cut_off),
        (Mutant::NoLeader, a_write_during_a_takeover),
        (Mutant::NoHead, a_write_that_arrives_late),
        (Mutant::HeadBefore, a_takeover_after_writes),
    ];
    for (mutant, scenario) in scenarios {
        scenario(&site, Mutant::None).unwrap_or_else(|it| panic!("{mutant:?}: {it}"));
        let found = scenario(&site, mutant);
        let found = found.expect_err(&format!("{mutant:?} was not found"));
        println!("{mutant:?}: {}", found.lines().next().unwrap_or_default());
    }
}
