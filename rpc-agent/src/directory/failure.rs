//! The first worker of a static group that could not start. Without it the group cannot be complete, so no worker waits
//! for it, neither when they start nor when they shut down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, printable};
use c10d_store::{Store, StoreError, StoreExt};

use super::bounded_store::BoundedStore;
use super::record::{Member, claim_key};
use crate::worker::{WorkerId, WorkerInfo};

const FAILED_KEY: &str = "names/_FAILED";

/// The longest reason, and the longest value that is read.
const WHY_CHARS_MAX: usize = 512;
const VALUE_BYTES_MAX: usize = 4096;

/// How long a failed worker tries to report its failure.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports to the other workers of a static group that `me` could not start, and why.
///
/// Does nothing if another worker failed before, or if another process has the rank, because then the group does not
/// wait for this worker. `incarnation` identifies this process. `wake_key` is set afterwards, which wakes the workers that wait
/// for it. A failure is only logged. If the store answers, blocks for about a second at most.
pub(crate) fn publish_failure(
    store: &Arc<dyn Store>,
    me: &WorkerInfo,
    incarnation: u64,
    why: &str,
    wake_key: &str,
) {
    let by = Deadline::after(Instant::now(), PUBLISH_TIMEOUT);
    let published = store.clone_store().and_then(|store| {
        let store = BoundedStore::new(store);
        let claim = store.by(by).try_get(&claim_key(me.id))?;
        let is_own = |claim: &[u8]| {
            Member::parse(me.id, claim).is_ok_and(|it| it.address.incarnation == incarnation)
        };
        if claim.is_some_and(|claim| !is_own(&claim)) {
            return Ok(());
        }
        let value = format!("{} {}\n{}", me.id, me.name, printable(why, WHY_CHARS_MAX));
        if store
            .replace(FAILED_KEY, b"", value.as_bytes(), by)?
            .is_ok()
        {
            store.by(by).set(wake_key, b"failed")?;
        }
        Ok(())
    });
    if let Err(error) = published {
        log::debug!("cannot tell the other workers that this one could not start: {error}");
    }
}

/// Returns the worker that could not start, and why, if there is such a worker. Blocks until the store answers.
pub(crate) fn read_failure(
    store: &BoundedStore,
    by: Deadline,
) -> Result<Option<(WorkerInfo, String)>, StoreError> {
    let value = store.by(by).try_get(FAILED_KEY)?;
    Ok(value.and_then(|value| parse(&value)))
}

/// `None` for a value that no worker writes: it must not fail the group.
fn parse(value: &[u8]) -> Option<(WorkerInfo, String)> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let (worker, why) = std::str::from_utf8(value).ok()?.split_once('\n')?;
    let (id, name) = worker.split_once(' ')?;
    let id = WorkerId::new(id.parse().ok()?).ok()?;
    let worker = WorkerInfo::new(name, id.get()).ok()?;
    Some((worker, printable(why, WHY_CHARS_MAX).to_string()))
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    #[test]
    fn only_the_worker_that_the_group_waits_for_reports_its_failure() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let read = || read_failure(&BoundedStore::new(Arc::clone(&store)), Deadline::NEVER);
        let me = WorkerInfo::new("a", 1).unwrap();
        store
            .set(
                &claim_key(me.id),
                b"a tcp://127.0.0.1:4000#0000000000000007",
            )
            .unwrap();
        publish_failure(
            &store,
            &me,
            8,
            "the port is taken by the worker itself",
            "wake",
        );
        assert_eq!(read().unwrap(), None);
        assert!(!store.check(&["wake"]).unwrap());
        publish_failure(&store, &me, 7, "no\nthread", "wake");
        assert!(store.check(&["wake"]).unwrap());
        let other = WorkerInfo::new("b", 2).unwrap();
        publish_failure(&store, &other, 1, "later", "later");
        assert!(!store.check(&["later"]).unwrap());
        let expected = (me, "no\\nthread".to_owned());
        assert_eq!(read().unwrap(), Some(expected));
    }

    #[test]
    fn a_value_that_no_worker_writes_is_no_failure() {
        let long = [b"1 a\n".to_vec(), vec![b'x'; VALUE_BYTES_MAX]].concat();
        for value in [
            &b""[..],
            b"1 a",
            b"1\nwhy",
            b"-1 a\nwhy",
            b"1 a b\nwhy",
            b"\xff",
            &long,
        ] {
            assert_eq!(parse(value), None, "{value:?}");
        }
        let longest = [b"1 a\n".to_vec(), vec![b'x'; VALUE_BYTES_MAX - 4]].concat();
        let (_, why) = parse(&longest).unwrap();
        assert!(why.chars().count() <= WHY_CHARS_MAX + 3, "{}", why.len());
    }
}
