//! Simulations for the tests of the other crates: a core is plugged in, its laws stay beside it.
//!
//! - [`Seeds`] are the random histories of a test. A failed one prints its seed, `SEED=n` repeats it, and `ROUNDS=n` runs n.
//! - A [`World`] is a core with everything around it. [`run`] records what happens to it, and shortens a failing history.
//! - [`explore`] lets everything happen to a world in every order.
//! - [`Timeline`] has events in virtual time, and [`Network`] delays, loses and cuts the messages between them.
//!
//! The crate depends on none of the crates that it tests.

mod explorer;
mod network;
mod quiet;
mod seeds;
mod shortening;
mod timeline;
mod world;

pub use self::explorer::{Exploration, Explored, explore};
pub use self::network::{Faults, Network};
pub use self::quiet::panics;
pub use self::seeds::{Seeds, is_replay, seed};
pub use self::timeline::Timeline;
pub use self::world::{Run, World, run};
