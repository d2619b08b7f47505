//! Counts the starts of workers on one node of a round, so that no two processes of a worker have the same number: also if
//! the launcher itself is started again.

use c10d_store::{Store, StoreError};

fn key(group_rank: usize) -> String {
    format!("c10d/starts/{group_rank}")
}

/// How often a count is repeated whose answer was lost. Between two of them the store itself waits for a server to return.
const REPEATS_MAX: usize = 3;

/// The number of a start, from 1. `store` is the round's. A number is left out if its answer is lost.
pub(crate) fn next(store: &dyn Store, group_rank: usize) -> Result<u64, StoreError> {
    let key = key(group_rank);
    let count = until_answered(|| store.add(&key, 1))?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// Makes a request again if it may have taken effect.
pub(crate) fn until_answered<T>(
    mut request: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut result = request();
    for _ in 0..REPEATS_MAX {
        match &result {
            Err(error) if error.has_unknown_outcome() => result = request(),
            _ => break,
        }
    }
    result
}

/// Removes the count from the store of an earlier round.
pub(crate) fn forget(store: &dyn Store, group_rank: usize) -> Result<(), StoreError> {
    store.delete_key(&key(group_rank)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use c10d_store::{ErrorContext, Operation};

    use super::*;

    fn no_reply() -> StoreError {
        StoreError::NoReply {
            context: ErrorContext::new(Operation::Add, ["k"], "a store", Duration::ZERO),
            timeout: Duration::ZERO,
        }
    }

    /// As by a store that is restarted, while its connections end.
    #[test]
    fn a_count_without_an_answer_is_repeated() {
        let mut answers = vec![Ok(3), Err(no_reply()), Err(no_reply())];
        let count = until_answered(|| answers.pop().unwrap());
        assert_eq!(count.unwrap(), 3);
    }

    #[test]
    fn a_store_that_never_answers_is_an_error() {
        let mut asked = 0;
        let count = until_answered(|| {
            asked += 1;
            Err::<i64, _>(no_reply())
        });
        assert!(count.is_err());
        assert_eq!(asked, REPEATS_MAX + 1);
    }
}
