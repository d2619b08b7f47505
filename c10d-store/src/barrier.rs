//! The barrier of PyTorch's base class (`torch/csrc/distributed/c10d/Store.hpp`), for stores without a command for it.

use std::time::Duration;

use crate::error::{ErrorContext, Operation, StoreError};
use crate::store::Store;

/// PyTorch's generic barrier (`Store::barrier`). It uses other keys than the TCP server's command. In PyTorch a world
/// size of 0 never completes, since the last arrival is recognized by equality; here it is refused.
pub(crate) fn meet_by_keys<S: Store + ?Sized>(
    store: &S,
    key: &str,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<(), StoreError> {
    if world_size == 0 {
        let key = store.full_key(key);
        let keys = [key.as_str()];
        return Err(StoreError::InvalidArgument {
            context: ErrorContext::new(Operation::Barrier, keys, store.label(), Duration::ZERO),
            detail: "the world size of a barrier must be at least 1".to_owned(),
        });
    }
    let arrived = store.add(&format!("{key}/num_members"), 1)?;
    let last_member = format!("{key}/last_member");
    if i64::try_from(world_size) == Ok(arrived) {
        store.multi_set(&[(&last_member, b"1")])?;
    }
    match store.wait_all(&[&last_member], timeout) {
        Err(StoreError::Timeout { context, timeout }) => Err(StoreError::BarrierTimeout {
            context: context.for_operation(Operation::Barrier, &store.full_key(key)),
            timeout,
            world_size,
            arrived: store.add(&format!("{key}/num_members"), 0).ok(),
        }),
        Err(StoreError::Interrupted { context, outcome }) => {
            let context = context.for_operation(Operation::Barrier, &store.full_key(key));
            Err(StoreError::interrupted(context, outcome))
        }
        other => other,
    }
}
