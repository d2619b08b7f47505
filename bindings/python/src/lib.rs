//! `c10d_rs._native`: the stores of `c10d-store` as Python classes, named and called as PyTorch's.
//!
//! PyO3's macros expand to `unsafe`; no line of this crate contains any.
#![forbid(unsafe_code)]

mod arguments;
mod call;
mod cells;
mod errors;
mod file_store;
mod group;
mod handle;
mod hash_store;
mod membership;
mod prefix_store;
mod rendezvous;
mod rendezvous_options;
mod store;
mod store_server;
mod tcp_store;

#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::file_store::FileStore;
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::group::init_from_env;
    #[pymodule_export]
    use crate::hash_store::HashStore;
    #[pymodule_export]
    use crate::membership::Membership;
    #[pymodule_export]
    use crate::prefix_store::PrefixStore;
    #[pymodule_export]
    use crate::rendezvous::Rendezvous;
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::store_server::StoreServer;
    #[pymodule_export]
    use crate::tcp_store::TCPStore;
    /// The version of this package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
