//! Histories of real processes: candidates behind proxies, over members of a real etcd, for ranks behind relays and
//! for clients that find the leader without a relay.
//!
//! The results of the ranks must have an order in which every operation takes effect once. An epoch has one leader,
//! and no process answers a request that was made after a later leader's epoch began.

mod clients;
mod mutants;
mod outages;
mod plan;
mod process;

use std::collections::HashMap;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{Relay, RelayOptions};
use c10d_sim::{Proxy, Seeds};
use c10d_socket::{Cancel, Deadline, HostPort};
use c10d_store::{Leader, Lookup, Store, StoreAddress, TcpStore, TcpStoreOptions};

use super::mutant::Mutant;
use super::options::EtcdDirectory;
use super::real_site::{RealSite, eventually};
use crate::history::Op;
use crate::workload::{
    Clock, History, KEYS, SetAtEnd, Traffic, check_all, histories, ranks_at,
    waits_barriers_and_queues_go_on,
};
use plan::{CANDIDATES, CLIENTS, Cut, Fault, Link, MEMBERS, Offset, Planned, plan};
use process::{Claim, Process, Reports, now_us};

/// etcd's least one at its election timeout of 0.3 s.
const TTL_SECONDS: u64 = 1;

/// Between two operations of a rank, so that a history has some hundred for each key.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a direct request to a process waits, because a stopped process does not answer.
const POLL_TIMEOUT: Duration = Duration::from_millis(300);

/// One of this number of histories has barriers and waits instead of random operations.
const KINDS: u64 = 4;

/// The address where a relay or a client finds the leading process, behind its own proxy.
#[derive(Debug)]
struct Routes {
    directory: EtcdDirectory,
    /// The port of the proxy, by the address that the process publishes in etcd.
    ports: Mutex<HashMap<String, u16>>,
}

impl Lookup for Routes {
    fn name(&self) -> String {
        self.directory.name()
    }

    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        let found = self.directory.lookup(deadline, cancel)?;
        let ports = self.ports.lock().expect("no panic");
        Ok(found.and_then(|found| {
            let port = *ports.get(&found.address)?;
            Some(Leader {
                address: HostPort::new("127.0.0.1", port),
                epoch: found.epoch,
            })
        }))
    }
}

/// The place of a candidate: a process, and after its end the next one.
struct Slot {
    process: Process,
    to_etcd: Vec<Proxy>,
    from_clients: Vec<Proxy>,
    /// The number of its process, and the process's address.
    current: Arc<Mutex<(u64, SocketAddr)>>,
    /// A fault of the process is in progress.
    is_disturbed: bool,
}

/// A direct answer of a process to a request that was made then, in microseconds since 1970.
#[derive(Debug)]
struct Answered {
    process: u64,
    called: u64,
    returned: u64,
}

/// The step that clears a fault in progress.
enum Undo {
    Nothing,
    Restart(usize),
    Continue(usize),
    RestartMember(usize),
    ContinueMember(usize),
    Mend(usize, Link),
}

/// The candidates of one store, with the network around them.
struct Job {
    slots: Vec<Slot>,
    routes: Vec<Arc<Routes>>,
    reports: Arc<Reports>,
    prefix: String,
    ttl_seconds: u64,
    mutant: Mutant,
    started: u64,
    members_disturbed: [bool; MEMBERS],
}

impl Job {
    /// Starts this number of candidates. The first one leads.
    fn start(
        site: &RealSite,
        prefix: &str,
        candidates: usize,
        ttl_seconds: u64,
        mutant: Mutant,
    ) -> Self {
        let directory = EtcdDirectory::new(site.options_below(prefix));
        let routes = (0..CLIENTS).map(|_| {
            Arc::new(Routes {
                directory: directory.clone(),
                ports: Mutex::default(),
            })
        });
        let mut job = Self {
            slots: Vec::new(),
            routes: routes.collect(),
            reports: Arc::default(),
            prefix: prefix.to_owned(),
            ttl_seconds,
            mutant,
            started: 0,
            members_disturbed: [false; MEMBERS],
        };
        for slot in 0..candidates {
            let to_etcd = (0..MEMBERS).map(|member| Proxy::to(site.client_address(member)));
            let to_etcd: Vec<_> = to_etcd.collect();
            let process = job.process(&to_etcd);
            let address = process.address;
            job.slots.push(Slot {
                current: Arc::new(Mutex::new((process.number, address))),
                process,
                to_etcd,
                from_clients: (0..CLIENTS).map(|_| Proxy::to(address)).collect(),
                is_disturbed: false,
            });
            job.route(slot);
            if slot == 0 {
                job.wait_for_claim(1);
            }
        }
        job
    }

    fn process(&mut self, to_etcd: &[Proxy]) -> Process {
        self.started += 1;
        let hosts = to_etcd.iter().map(|it| format!("127.0.0.1:{}", it.port()));
        let hosts: Vec<_> = hosts.collect();
        let etcd = format!("etcd://{}/{}", hosts.join(","), self.prefix);
        Process::start(
            self.started,
            &etcd,
            self.ttl_seconds,
            self.mutant,
            &self.reports,
        )
    }

    /// Clients find the slot's process.
    fn route(&self, slot: usize) {
        let Slot {
            process,
            from_clients,
            current,
            ..
        } = &self.slots[slot];
        *current.lock().expect("no panic") = (process.number, process.address);
        for (routes, proxy) in self.routes.iter().zip(from_clients) {
            proxy.set_server(process.address);
            let mut ports = routes.ports.lock().expect("no panic");
            ports.insert(process.address.to_string(), proxy.port());
        }
    }

    fn restart(&mut self, slot: usize) {
        self.slots[slot].process.kill();
        let to_etcd = std::mem::take(&mut self.slots[slot].to_etcd);
        self.slots[slot].process = self.process(&to_etcd);
        self.slots[slot].to_etcd = to_etcd;
        self.route(slot);
    }

    /// Waits until a process has begun to lead in this epoch or later.
    fn wait_for_claim(&self, epoch: u64) -> Claim {
        let reports = &self.reports;
        let is_led = || {
            let claim = reports.last_claim();
            claim.is_some_and(|it| it.epoch >= epoch) || !reports.failures().is_empty()
        };
        eventually("a candidate leads", is_led);
        let claim = reports.last_claim();
        claim.unwrap_or_else(|| panic!("{:?}", reports.failures()))
    }

    fn address_for(&self, client: usize) -> StoreAddress {
        StoreAddress::LookedUp(Arc::clone(&self.routes[client]) as _)
    }

    /// The slot of this candidate, counted from the leading candidate.
    fn slot(&self, offset: Offset) -> usize {
        let claim = self.reports.last_claim();
        let leads = |slot: &Slot| Some(slot.process.number) == claim.as_ref().map(|it| it.process);
        let first = self.slots.iter().position(leads).unwrap_or(0);
        (first + offset) % self.slots.len()
    }

    /// The proxies of a link of a slot.
    fn proxies(&self, slot: usize, link: &Link) -> Vec<&Proxy> {
        let Slot {
            to_etcd,
            from_clients,
            ..
        } = &self.slots[slot];
        match link {
            Link::Client(client, _) => vec![&from_clients[*client]],
            Link::Etcd(_, members) => {
                let chosen = to_etcd.iter().zip(members).filter(|(_, chosen)| **chosen);
                chosen.map(|(proxy, _)| proxy).collect()
            }
        }
    }

    fn begin(&mut self, site: &mut RealSite, fault: &Fault) -> Undo {
        match fault {
            Fault::Kill(offset) | Fault::Pause(offset) | Fault::Stop(offset) => {
                let slot = self.slot(*offset);
                let it = &mut self.slots[slot];
                if std::mem::replace(&mut it.is_disturbed, true) {
                    return Undo::Nothing;
                }
                match fault {
                    Fault::Kill(_) => it.process.kill(),
                    Fault::Stop(_) => it.process.stop(),
                    _ => {
                        it.process.signal("-STOP");
                        return Undo::Continue(slot);
                    }
                }
                Undo::Restart(slot)
            }
            Fault::KillMember(member) | Fault::PauseMember(member) => {
                if std::mem::replace(&mut self.members_disturbed[*member], true) {
                    return Undo::Nothing;
                }
                if let Fault::KillMember(_) = fault {
                    site.kill(*member);
                    return Undo::RestartMember(*member);
                }
                site.signal(*member, "-STOP");
                Undo::ContinueMember(*member)
            }
            Fault::Cut(link, _) | Fault::Slow(link, _) => {
                let (Link::Etcd(offset, _) | Link::Client(_, offset)) = link;
                let slot = self.slot(*offset);
                for proxy in self.proxies(slot, link) {
                    match fault {
                        Fault::Cut(_, Cut::Closed) => proxy.cut(true),
                        Fault::Cut(_, Cut::Silent) => proxy.be_silent(),
                        Fault::Slow(_, delay) => proxy.delay(*delay),
                        _ => {}
                    }
                }
                Undo::Mend(slot, link.clone())
            }
        }
    }

    fn end(&mut self, site: &mut RealSite, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::Restart(slot) => {
                self.restart(slot);
                self.slots[slot].is_disturbed = false;
            }
            Undo::Continue(slot) => {
                self.slots[slot].process.signal("-CONT");
                self.slots[slot].is_disturbed = false;
            }
            Undo::RestartMember(member) => {
                site.restart(member);
                self.members_disturbed[member] = false;
            }
            Undo::ContinueMember(member) => {
                site.signal(member, "-CONT");
                self.members_disturbed[member] = false;
            }
            Undo::Mend(slot, link) => {
                for proxy in self.proxies(slot, &link) {
                    proxy.delay(Duration::ZERO);
                    proxy.mend();
                }
            }
        }
    }

    /// Carries out the plan, and returns when all faults have ended.
    fn disturb(&mut self, site: &mut RealSite, plan: &[Planned]) {
        let begun = Instant::now();
        let mut events: Vec<_> = plan
            .iter()
            .enumerate()
            .flat_map(|(index, it)| [(it.begins, index, true), (it.ends(), index, false)])
            .collect();
        events.sort_unstable();
        let mut undo: Vec<Option<Undo>> = plan.iter().map(|_| None).collect();
        for (at, index, begins) in events {
            thread::sleep(at.saturating_sub(begun.elapsed()));
            if begins {
                undo[index] = Some(self.begin(site, &plan[index].fault));
            } else if let Some(undo) = undo[index].take() {
                self.end(site, undo);
            }
        }
    }

    /// Checks the reports and the direct answers against the processes.
    fn check(&self, answers: &[Answered]) -> Result<(), String> {
        if let Some(failure) = self.reports.failures().first() {
            return Err(failure.clone());
        }
        let claims = self.reports.claims();
        for (index, claim) in claims.iter().enumerate() {
            if claims[..index].iter().any(|it| it.epoch == claim.epoch) {
                return Err(format!("two processes lead in one epoch: {claims:#?}"));
            }
        }
        for answer in answers {
            let own = claims.iter().filter(|it| it.process == answer.process);
            let own = own.filter(|it| it.at < answer.returned);
            let epoch = own.map(|it| it.epoch).max().unwrap_or(0);
            let newer = claims.iter().filter(|it| it.epoch > epoch);
            if let Some(newer) = newer.min_by_key(|it| it.at)
                && newer.at < answer.called
            {
                return Err(format!(
                    "a process answers after another process leads: {answer:?}, {claims:#?}"
                ));
            }
        }
        Ok(())
    }
}

/// Asks the process of a slot, not through a proxy, all the time.
fn poll(
    current: &Mutex<(u64, SocketAddr)>,
    clock: &Clock,
    is_over: &AtomicBool,
) -> (History, Vec<Answered>) {
    let (mut history, mut answers) = (History::default(), Vec::new());
    let mut client: Option<(u64, TcpStore)> = None;
    while !is_over.load(Ordering::Acquire) {
        thread::sleep(PAUSE);
        let (process, address) = *current.lock().expect("no panic");
        let kept = client.take().filter(|(of, _)| *of == process);
        let store = kept.map_or_else(|| direct(address, POLL_TIMEOUT), |(_, store)| Some(store));
        let Some(store) = store else {
            continue;
        };
        let (called, tick) = (now_us(), clock.tick());
        let Ok(value) = store.try_get(KEYS[1]) else {
            continue;
        };
        history.add(1, Op::Get(value.unwrap_or_default()), tick, clock.tick());
        answers.push(Answered {
            process,
            called,
            returned: now_us(),
        });
        client = Some((process, store));
    }
    (history, answers)
}

/// A client of a process that serves.
fn direct(address: SocketAddr, timeout: Duration) -> Option<TcpStore> {
    let options = TcpStoreOptions::default().with_timeout(timeout);
    TcpStore::open(&address.ip().to_string(), address.port(), options).ok()
}

/// Runs the history of this seed, on its own prefix. Returns how many processes have led, one after another, and how
/// many snapshots they have kept.
fn one_history(site: &mut RealSite, seed: u64) -> Result<(u64, usize), String> {
    let prefix = format!("c10d/histories/{seed}-{}", fastrand::u32(..));
    let mut job = Job::start(site, &prefix, CANDIDATES, TTL_SECONDS, Mutant::None);
    let relays = (0..2).map(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let options = RelayOptions::default();
        Relay::start(job.address_for(client), vec![listener], options).expect("a relay")
    });
    let relays: Vec<_> = relays.collect();
    let ranks = ranks_at(&relays, &[job.address_for(2), job.address_for(3)]);
    let (mut found, mut answers) = (Vec::new(), Vec::new());
    let disturb = |traffic: &Traffic| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = SetAtEnd(&is_over);
            let polls = job.slots.iter().map(|slot| {
                let (current, is_over) = (Arc::clone(&slot.current), &is_over);
                scope.spawn(move || poll(&current, &traffic.clock, is_over))
            });
            let polls: Vec<_> = polls.collect();
            job.disturb(site, &plan(seed));
            // All ranks continue.
            traffic.advance(100);
            is_over.store(true, Ordering::Release);
            for poll in polls {
                let (history, answered) = poll.join().expect("no panic");
                found.push(history);
                answers.extend(answered);
            }
        });
    };
    if seed % KINDS == KINDS - 1 {
        waits_barriers_and_queues_go_on(&ranks, 40, disturb);
    } else {
        let of_ranks = histories(&ranks, seed, PAUSE, disturb);
        found.extend(of_ranks);
        check_all(found)?;
    }
    job.check(&answers)?;
    Ok((job.wait_for_claim(1).epoch, job.reports.snapshots()))
}

/// `ROUNDS` is the number of histories, `SEED` repeats the plan of one.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
#[expect(clippy::print_stdout, reason = "the seeds are for readers")]
fn histories_of_processes_have_an_order() {
    let mut site = RealSite::start(MEMBERS);
    for seed in Seeds::fresh(4) {
        println!("SEED={seed}: {:?}", plan(seed));
        match one_history(&mut site, seed) {
            Ok((epochs, snapshots)) => println!("passed, {epochs} epochs, {snapshots} snapshots"),
            Err(error) => panic!("{error}"),
        }
    }
}
