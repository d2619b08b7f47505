//! Rounds in virtual time: each row of the table, and jobs of several nodes in every order of what can happen to them.

mod effects;
mod keep;
mod laws;
mod meeting;
mod numbers;
mod orders;
mod rendezvous;
mod table;
mod workers;
mod world;
