//! Combines several futures into one.

use super::handle::{Promise, RpcFuture};
use crate::error::RpcError;
use crate::sync::{Arc, Lock};

/// Returns the future of all values, in the order of `futures`. The first error completes it at once;
/// the other calls continue. Does not block.
///
/// ```
/// use rpc_agent::{RpcFuture, join_all};
///
/// let both = join_all(vec![RpcFuture::ready(Ok(1)), RpcFuture::ready(Ok(2))]);
/// assert_eq!(both.wait()?, [1, 2]);
/// # Ok::<(), rpc_agent::RpcError>(())
/// ```
pub fn join_all<T: Clone + Send + 'static>(futures: Vec<RpcFuture<T>>) -> RpcFuture<Vec<T>> {
    let Some(first) = futures.first() else {
        return RpcFuture::ready(Ok(Vec::new()));
    };
    let (promise, all) = first.child();
    let join = Arc::new(Join {
        promise,
        gathered: Lock::new(Gathered {
            values: futures.iter().map(|_| None).collect(),
            missing: futures.len(),
        }),
    });
    for (position, future) in futures.iter().enumerate() {
        let join = Arc::clone(&join);
        future
            .slot
            .when_complete(move |result| join.take(position, result));
    }
    all
}

struct Join<T> {
    promise: Promise<Vec<T>>,
    gathered: Lock<Gathered<T>>,
}

struct Gathered<T> {
    /// One entry for each future; empty after an error.
    values: Vec<Option<T>>,
    missing: usize,
}

impl<T> Join<T> {
    fn take(&self, position: usize, result: Result<T, RpcError>) {
        let values = {
            let mut gathered = self.gathered.lock();
            match result {
                Err(error) => {
                    let values = std::mem::take(&mut gathered.values);
                    drop(gathered);
                    self.promise.complete(Err(error));
                    drop(values);
                    return;
                }
                Ok(value) => {
                    // After an error the list is empty, and the value is not needed.
                    let Some(entry) = gathered.values.get_mut(position) else {
                        drop(gathered);
                        return;
                    };
                    *entry = Some(value);
                    gathered.missing -= 1;
                    if gathered.missing > 0 {
                        return;
                    }
                    std::mem::take(&mut gathered.values)
                }
            }
        };
        self.promise
            .complete(Ok(values.into_iter().flatten().collect()));
    }
}
