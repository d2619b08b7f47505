//! The state machines of two peers against each other, over a network that the test controls.

mod orders;
mod world;
