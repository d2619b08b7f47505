//! Where a measured store is, as an argument of a process that uses it.

use std::sync::Arc;

use c10d_journal::{EtcdDirectory, EtcdOptions};
use c10d_socket::HostPort;
use c10d_store::StoreAddress;

/// Parses `HOST:PORT`, or `etcd://H1:2379,H2:2379/PREFIX`: wherever the store is served at the moment.
pub(crate) fn store_place(text: &str) -> Result<StoreAddress, String> {
    if text.starts_with("etcd://") {
        let options: EtcdOptions = text.parse().map_err(|error| format!("{error}"))?;
        return Ok(StoreAddress::LookedUp(Arc::new(EtcdDirectory::new(
            options,
        ))));
    }
    let address: HostPort = text.parse().map_err(|error| format!("{error}"))?;
    Ok(address.into())
}
