#![doc = include_str!("../README.md")]
//!
//! # The items by purpose
//!
//! - **Use a store**: [`StoreExt`], with [`CompareSet`], [`Known`] and [`DEFAULT_TIMEOUT`]; its handle, [`StoreHandle`].
//!   **Make one**: [`Store`]. Stores: [`TcpStore`] with
//!   [`TcpStoreOptions`], [`FileStore`] with [`FileStoreOptions`], [`HashStore`], and [`PrefixStore`] around any of them.
//!   [`rendezvous()`] opens one by URL, with [`RendezvousOptions`].
//! - **Errors**: [`StoreError`], with [`ErrorContext`], [`Operation`] and [`Outcome`]; [`UrlError`] of URLs.
//! - **Connect**: [`ConnectOptions`], [`BackoffOptions`], [`SocketOptions`], [`KeepAlive`]; [`ConnectError`].
//!   [`ListenerKind`] finds what else listens at an address.
//! - **Protect**: [`Credentials`], made of a `Secret` or `CertificateFiles` (feature `tls`); [`CredentialsError`].
//! - **Serve**: [`TcpStoreServer`] with [`ServerOptions`] and [`WireLimits`]; [`ListenOn`] of a master, [`ListenError`].
//!   [`recommended_memory_max()`] of this machine.
//!   [`HttpHandler`] takes the connections that speak HTTP, as [`HttpConnection`].
//! - **Survive**: [`journal`] lets a server continue after its process exits; [`groups`] let the remaining processes
//!   continue after a failure.
//! - **Observe a server**: [`StoreObserver`] takes a [`Snapshot`] of [`ConnectionRecord`], [`KeyRecord`], [`QueueRecord`] and
//!   [`Announcement`] records, or [`Counters`].
//!   [`Opcode`] names a request.
//! - **Keys that are not text**: [`key_from_bytes`] and [`key_to_bytes`].
//!
//! # Features
//!
//! Without `extensions`, the items of *survive* and *observe a server* are missing, as are addresses that are looked up,
//! [`HttpHandler`], and the options for sessions, journals and groups. Without `file`, [`FileStore`] is missing,
//! and [`rendezvous()`] refuses the URLs of files.
//!
//! Items of [`unstable`] are for the other crates of this repository.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "extensions"),
    allow(
        dead_code,
        unreachable_pub,
        clippy::needless_pass_by_ref_mut,
        reason = "some types serve the extensions as well"
    )
)]

mod address;
#[cfg(feature = "extensions")]
mod at_leader;
mod barrier;
#[cfg(feature = "extensions")]
mod brief;
mod client;
mod compare_set;
mod decimal;
mod default_timeout;
mod error;
#[cfg(feature = "file")]
mod file_store;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "extensions")]
pub mod groups;
mod hash_store;
#[cfg(feature = "extensions")]
pub mod journal;
mod key;
mod known;
#[cfg(feature = "extensions")]
mod leader_search;
mod limits;
mod message;
mod moment;
mod prefix_store;
mod rendezvous;
mod request_parser;
mod server;
#[cfg(feature = "extensions")]
mod session;
#[cfg(any(test, fuzzing, feature = "sim"))]
#[doc(hidden)]
pub mod sim;
#[cfg(feature = "extensions")]
mod snapshot;
mod state;
mod store;
mod store_ext;
mod stored_value;
pub mod unstable;
mod value_rules;
mod wire;

// The types of other crates that this one's API takes and gives.
pub use c10d_socket::{
    BackoffOptions, ConnectError, ConnectOptions, Credentials, CredentialsError, KeepAlive,
    ListenError, SocketOptions,
};
#[cfg(feature = "tls")]
pub use c10d_socket::{CertificateFiles, Secret};
pub use client::{ConnectionEnds, ListenOn, ListenerKind, TcpStore, TcpStoreOptions};
pub use compare_set::CompareSet;
pub use error::{ErrorContext, Operation, Outcome, StoreError};
#[cfg(feature = "file")]
pub use file_store::{FileStore, FileStoreOptions};
pub use hash_store::HashStore;
pub use key::{key_from_bytes, key_to_bytes};
pub use known::Known;
pub use limits::WireLimits;
pub use prefix_store::PrefixStore;
pub use rendezvous::{Rendezvous, RendezvousOptions, UrlError, rendezvous};
pub use server::{ServerOptions, TcpStoreServer, recommended_memory_max};
pub use store::{DEFAULT_TIMEOUT, Store, StoreHandle};
pub use store_ext::StoreExt;
pub use wire::Opcode;
#[cfg(feature = "extensions")]
pub use {
    address::{DataLost, Leader, Lookup, StoreAddress},
    brief::in_brief,
    client::SessionError,
    message::{CloseReason, ConnectionId},
    server::{HttpConnection, HttpHandler, SnapshotError, StoreObserver},
    snapshot::{
        Announcement, Closed, ConnectionRecord, Counters, GroupRecord, KeyRecord, LastRequest,
        PendingWait, QueueRecord, Snapshot, VALUE_HEAD_BYTES_MAX, Version,
    },
};
