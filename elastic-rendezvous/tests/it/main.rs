//! Tests of the public interface, in one binary.

mod codec;
mod group;
mod handlers;
mod lease;
mod nodes;
mod not_a_store;
mod outages;
mod recorded_events;
#[cfg(feature = "tls")]
mod secret;
