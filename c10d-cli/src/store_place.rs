//! Where a store is, as an option names it: at an address, or in etcd.

use std::fmt::Display;
use std::str::FromStr;

#[cfg(feature = "etcd")]
use c10d_journal::EtcdOptions;

/// `HOST:PORT`, or `etcd://H1:2379,H2:2379/PREFIX`: wherever the store with this journal is served at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorePlace<A> {
    At(A),
    #[cfg(feature = "etcd")]
    Etcd(EtcdOptions),
}

/// Whether the address is one of a store in etcd.
pub(crate) fn is_in_etcd(address: &str) -> bool {
    address.starts_with("etcd://")
}

impl<A: FromStr<Err: Display>> FromStr for StorePlace<A> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_in_etcd(text) {
            #[cfg(feature = "etcd")]
            return text
                .parse()
                .map(Self::Etcd)
                .map_err(|error: c10d_journal::EtcdAddressError| error.to_string());
            #[cfg(not(feature = "etcd"))]
            return Err("this command was built without its feature `etcd`".to_owned());
        }
        text.parse()
            .map(Self::At)
            .map_err(|error: A::Err| error.to_string())
    }
}
