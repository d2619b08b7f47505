//! Two peers' machines against each other, over a network that the test controls: every order of events up to a depth,
//! and random histories.

mod orders;
mod world;
