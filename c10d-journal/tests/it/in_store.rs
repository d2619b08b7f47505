//! The log in the keys of another store: one owner at a time, also if owners are stopped at any moment.

use std::sync::Arc;

use c10d_journal::StoreJournal;
use c10d_store::journal::{Journal, JournalError, Recovered};
use c10d_store::membership::{GroupStage, MemberKey};
use c10d_store::{HashStore, ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};

use crate::harness::seed;
use crate::rank::{Rank, all_enter, ids, options};

/// The batches after the last snapshot, with what that has.
fn recovered(journal: &mut StoreJournal) -> (u64, Vec<Vec<u8>>) {
    let mut pieces = Vec::new();
    let last = journal.recover(&mut |piece| {
        match piece {
            Recovered::Chunk { bytes, .. } | Recovered::Batch { bytes, .. } => {
                pieces.push(bytes.to_vec());
            }
            Recovered::Restart => pieces.clear(),
        }
        Ok(())
    });
    (last.expect("intact"), pieces)
}

/// Processes open the log, append and make snapshots in any order; each of them may be stopped for any time in between.
#[test]
fn an_owner_confirms_nothing_once_another_one_has_opened() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..200 {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let mut confirmed: Vec<Vec<u8>> = Vec::new();
        let mut owners: Vec<(StoreJournal, u64)> = Vec::new();
        for round in 0..60_u8 {
            let of = random.usize(..=owners.len());
            if of == owners.len() || random.u8(..8) == 0 {
                let newest = owners.len() as u64;
                assert_eq!(
                    StoreJournal::epoch(Arc::clone(&store), "log/").ok(),
                    Some(newest)
                );
                // One that has read an older record comes too late.
                let after = random.u64(newest.saturating_sub(2)..=newest);
                match StoreJournal::open(Arc::clone(&store), "log/", after) {
                    Err(JournalError::InUse { .. }) => assert_ne!(after, newest),
                    Err(error) => panic!("{error}"),
                    Ok(mut journal) => {
                        assert_eq!((after, journal.identity().epoch), (newest, newest + 1));
                        let (last, pieces) = recovered(&mut journal);
                        assert_eq!(pieces.concat(), confirmed.concat());
                        owners.push((journal, last));
                    }
                }
                continue;
            }
            let is_newest = of + 1 == owners.len();
            let (journal, last) = &mut owners[of];
            let result = if random.u8(..6) == 0 {
                journal.begin_snapshot(*last).expect("begun");
                for chunk in &confirmed {
                    journal.add_to_snapshot(chunk).expect("added");
                }
                journal.finish_snapshot()
            } else {
                let batch = vec![round; random.usize(..4)];
                let result = journal.append(*last + 1, &batch);
                if is_newest {
                    *last += 1;
                    confirmed.push(batch);
                }
                result
            };
            match result {
                Ok(()) => assert!(is_newest, "owner {of} of {}", owners.len()),
                Err(error) => {
                    assert!(matches!(error, JournalError::InUse { .. }), "{error}");
                    assert!(!is_newest);
                }
            }
        }
    }
}

#[test]
fn slots_that_cannot_be_read_are_damage() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    for bytes in [
        "",
        "\n",
        "batch\n",
        "batch 1 x 1 4\nabc",
        "batch 1 x 1 2\nabc",
        "batch 1 x 1 18446744073709551615 18446744073709551615\n",
        "other 1 x 1\n",
        "batch -1 x 1\n",
    ] {
        store.set("log/1", bytes.as_bytes()).expect("set");
        let error = StoreJournal::open(Arc::clone(&store), "log/", 0).expect_err("damaged");
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    }
}

fn serve(log: &Arc<dyn Store>, after: u64) -> (TcpStoreServer, TcpStore) {
    let journal = StoreJournal::open(Arc::clone(log), "log/", after).expect("opened");
    let options = ServerOptions::default().with_journal(journal);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a server");
    (server, store)
}

/// The server of a group runs in the process of a member, which is stopped. Another one takes over; then the first goes on, and
/// commits nothing any more.
#[test]
fn two_servers_of_a_group_never_commit_two_lists_for_one_generation() {
    let log: Arc<dyn Store> = Arc::new(HashStore::new());
    let (first, store) = serve(&log, 0);
    let mut ranks: Vec<Rank> = (0..4)
        .map(|id| Rank::new(&store, id, &options(4)))
        .collect();
    let generation = all_enter(&mut ranks)[0].clone().expect("a generation");

    // Members 0 and 1 notice that the first server does not answer; the second goes on with what that has committed.
    let (second, store_of_second) = serve(&log, 1);
    let group = store_of_second.membership("workers").expect("a group");
    let status = group.status().expect("a status").expect("it is open");
    assert_eq!(status.generation, Some(generation.attempt));
    assert_eq!((status.stage, status.size), (GroupStage::Committed, 4));

    // The first server is told that members 0 and 1 are dead. Its list of 2 and 3 would be a second half.
    let of_first = store.membership("workers").expect("a group");
    for id in [0, 1] {
        // It may have ended already.
        let _ = of_first.dead(MemberKey::new(id, 1));
    }
    let at_first = ranks.split_off(2);
    for rank in &at_first {
        let message = rank.member.poll().expect("it is a member");
        let error = rank.group.ask(rank.key, &message, None).map(|_| ());
        assert!(error.is_err(), "it has told {} of another list", rank.key);
    }
    assert!(first.journal_failure().is_some());
    drop(at_first);

    // All of the others go on at the second, with a later list.
    for id in [2, 3] {
        group.dead(MemberKey::new(id, 1)).expect("told");
    }
    for rank in &mut ranks {
        rank.group = store_of_second.membership("workers").expect("a group");
    }
    let last = all_enter(&mut ranks)[0].clone().expect("a generation");
    assert_eq!(ids(&last), [0, 1]);
    assert!(last.attempt.uuid() > generation.attempt.uuid());
    drop(second);
}
