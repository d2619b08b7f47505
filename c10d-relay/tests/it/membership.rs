//! Groups of members through relays: docs/spec/wire-extensions.md, section 9.13.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use c10d_membership::Membership;
use c10d_relay::RelayOptions;
use c10d_sim::{Proxy, Seeds};

use crate::basics::{rank_of, relay_to, server, wait_until, with_groups};
use crate::memory_journal::Memory;
use crate::rank::{Rank, all_enter, ids, options};

/// docs/spec/wire-extensions.md, MEMBERSHIP 5: a member leaves with its connection to the relay, and with the session
/// of the relay.
#[test]
fn a_member_ends_with_its_rank_or_its_relay() {
    let server = server();
    let port = server.local_addr().port();
    let relays = [(); 2].map(|()| relay_to(port, RelayOptions::default()));
    let [stores @ .., last] = [0, 0, 0, 1].map(|relay: usize| rank_of(&relays[relay]));
    let mut ranks: Vec<Rank> = (0..)
        .zip(&stores)
        .map(|(id, store)| Rank::new(store, id, &options(4)))
        .collect();
    ranks.push(Rank::new(&last, 3, &options(4)));
    let first = all_enter(&mut ranks);
    assert_eq!(ids(first[0].as_ref().expect("a generation")), [0, 1, 2, 3]);
    ranks.remove(1);
    let second = all_enter(&mut ranks);
    assert_eq!(ids(second[0].as_ref().expect("a generation")), [0, 2, 3]);
    let behind_last = ranks.pop();
    let [_, relay] = relays;
    drop(relay);
    let third = all_enter(&mut ranks);
    assert_eq!(ids(third[0].as_ref().expect("a generation")), [0, 2]);
    drop(behind_last);
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 11, SESSION 13: members keep their connections to a relay while the store
/// is killed in a change and continues from its journal. All get the same lists, and no uuid is used twice.
#[test]
fn members_behind_a_relay_go_on_over_kills_of_the_store() {
    for seed in Seeds::fresh(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut journal = Memory::default();
        let mut server = journal.serve_with(with_groups());
        let proxy = Proxy::to(server.local_addr());
        let relay = relay_to(proxy.port(), RelayOptions::default());
        let store = rank_of(&relay);
        let mut ranks: Vec<Rank> = (0..3)
            .map(|id| Rank::new(&store, id, &options(3)))
            .collect();
        let launcher = Membership::connect(&store, "workers").expect("a group");
        all_enter(&mut ranks);
        let mut last = ranks[0].generations[0].attempt.uuid();
        for round in 0..6 {
            // Some died, one is new, or both.
            let mut dead = Vec::new();
            while ranks.len() > 2 && random.bool() {
                dead.push(ranks.remove(random.usize(..ranks.len())).key);
            }
            ranks.push(Rank::new(&store, 3 + round, &options(3)));
            let members: Vec<u64> = ranks.iter().map(|rank| rank.key.id.0).collect();
            let kept = journal.kept().batches.len() + random.usize(..8);
            let changing = AtomicUsize::new(ranks.len());
            thread::scope(|scope| {
                let tell = || dead.iter().for_each(|it| launcher.dead(*it).expect("told"));
                scope.spawn(tell);
                for rank in &mut ranks {
                    let (members, changing) = (&members, &changing);
                    scope.spawn(move || {
                        let result = rank.work_until(members);
                        assert_eq!(result, Ok(()), "{}", rank.key);
                        changing.fetch_sub(1, Ordering::Release);
                    });
                }
                wait_until("the change goes on", || {
                    let is_done = changing.load(Ordering::Acquire) == 0;
                    is_done || journal.kept().batches.len() >= kept
                });
                proxy.cut(true);
                journal = journal.crashed();
                let started = journal.serve_with(with_groups());
                proxy.set_server(started.local_addr());
                proxy.mend();
                server = started;
                // The restarted one may have forgotten, and would wait until they are not ready in time.
                tell();
            });
            let lists: Vec<_> = ranks.iter().map(|it| it.generations.last()).collect();
            assert!(lists.iter().all(|it| it == &lists[0]));
            let uuid = lists[0].expect("a generation").attempt.uuid();
            assert!(uuid > last, "{uuid} after {last}");
            last = uuid;
        }
        drop((ranks, launcher, store, relay, server));
    }
}
