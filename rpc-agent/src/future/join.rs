//! Many futures as one.

use std::sync::PoisonError;

use super::handle::{Promise, RpcFuture};
use crate::error::RpcError;
use crate::sync::{Arc, Mutex};

/// A future of all values, in the order of `futures`. The first error completes it at once; the other
/// futures go on.
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
        gathered: Mutex::new(Gathered {
            values: futures.iter().map(|_| None).collect(),
            missing: futures.len(),
        }),
    });
    for (place, future) in futures.iter().enumerate() {
        let join = Arc::clone(&join);
        future
            .slot
            .when_complete(move |result| join.take(place, result));
    }
    all
}

struct Join<T> {
    promise: Promise<Vec<T>>,
    gathered: Mutex<Gathered<T>>,
}

struct Gathered<T> {
    /// One place for each future; none at all after an error.
    values: Vec<Option<T>>,
    missing: usize,
}

impl<T> Join<T> {
    fn take(&self, place: usize, result: Result<T, RpcError>) {
        let values = {
            let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Err(error) => {
                    let values = std::mem::take(&mut gathered.values);
                    drop(gathered);
                    self.promise.complete(Err(error));
                    drop(values);
                    return;
                }
                Ok(value) => {
                    // After an error there is no place, and the value is of no more use.
                    let Some(of_this) = gathered.values.get_mut(place) else {
                        drop(gathered);
                        return;
                    };
                    *of_this = Some(value);
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
