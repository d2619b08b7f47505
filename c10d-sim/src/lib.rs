//! Simulations for the tests of the other crates: a core is plugged in, its laws stay beside it.
//!
//! - [`Seeds`] are the random histories of a test. A failed one prints its seed, `SEED=n` repeats it, and `ROUNDS=n` runs n.
//! - A [`Simulation`] is a core with everything around it. [`run`] records what happens to it, and shortens a failing history.
//! - [`explore`] lets everything happen to a world in every order.
//! - [`find_order`] checks the results of concurrent operations.
//! - [`Timeline`] has events in virtual time, and [`Network`] delays, loses and cuts the messages between them.
//! - [`Proxy`] does the same to real connections, for tests of processes.
//!
//! The crate depends on none of the crates that it tests.

mod explorer;
mod network;
mod order;
mod proxy;
mod quiet;
mod seeds;
mod shortening;
mod simulation;
mod timeline;

pub use self::explorer::{Exploration, Explored, explore, fingerprint};
pub use self::network::{Faults, Network};
pub use self::order::{Operation, find_order};
pub use self::proxy::Proxy;
pub use self::quiet::panics;
pub use self::seeds::{Seeds, is_replay, seed};
pub use self::simulation::{Run, Simulation, run};
pub use self::timeline::Timeline;
