#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arrivals;
mod environment;
mod error;
mod group;
mod join;
mod keys;
mod options;
#[cfg(feature = "rpc")]
pub mod rpc;
mod sequence;

// The types of other crates that this one's API takes and gives.
pub use c10d_store::{Credentials, Store, StoreError, StoreExt, StoreHandle};
pub use error::GroupError;
pub use group::Group;
pub use options::GroupOptions;
#[cfg(feature = "rpc")]
pub use rpc::{Rpc, RpcError, RpcMember, RpcOptions, init_rpc};

/// Joins the group of all workers of this job: [`GroupOptions::init_from_env`] with the default options.
///
/// # Errors
/// The errors of [`GroupOptions::init_from_env`].
pub fn init_from_env() -> Result<Group, GroupError> {
    GroupOptions::default().init_from_env()
}
