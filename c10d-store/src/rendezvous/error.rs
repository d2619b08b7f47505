//! Errors of opening a store by URL.

use crate::error::StoreError;

/// Opening a store by URL failed. The texts contain PyTorch's text if it names the problem.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme does not name a store.
    #[error("No rendezvous handler for {scheme}:// (URL {url:?}); known are tcp, env and file")]
    Scheme {
        /// The URL that was passed.
        url: String,
        /// The scheme of the URL; empty if it has none.
        scheme: String,
    },

    /// The URL lacks a part.
    #[error(
        "{scheme}:// rendezvous: {what} missing in the URL {url:?}, which should have the form {example}"
    )]
    Missing {
        /// The URL that was passed.
        url: String,
        /// `tcp`, `env` or `file`.
        scheme: &'static str,
        /// The missing part: `port number`, `rank parameter`.
        what: &'static str,
        /// A URL that has all parts.
        example: &'static str,
    },

    /// An environment variable is unset or empty.
    #[error("env:// rendezvous: environment variable {name} expected, but not set")]
    MissingVariable {
        /// The name of the variable.
        name: &'static str,
    },

    /// A rank, world size or port is not a number or is out of range.
    #[error("{place} is {value:?}; expected {expected}")]
    Number {
        /// The place of the value: `rank in the URL "tcp://..."`, `environment variable RANK`.
        place: String,
        /// The text in the place of the number.
        value: String,
        /// The expected form: `a number from 0 to 65535`.
        expected: &'static str,
    },

    /// Both the URL and the caller specify a rank or a world size.
    #[error(
        "The url: {url} has node-specific arguments(rank, world_size) already; give both in the URL, \
         or neither"
    )]
    NodeSpecific {
        /// The URL that was passed.
        url: String,
    },

    /// The URL cannot be parsed.
    #[error("{detail} in the URL {url:?}")]
    Malformed {
        /// The URL that was passed.
        url: String,
        /// The problem with the URL.
        detail: String,
    },

    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

c10d_socket::debug_as_display!(UrlError);
