//! A group and its members in virtual time: each rule, every order of what can happen to a few of them, and random
//! histories of many.

mod all_orders;
mod change;
mod codec;
mod cost;
mod driven;
mod finish;
mod form;
mod laws;
mod limits;
mod list_change;
mod lost;
mod member;
mod process;
mod random;
mod recovered;
mod served;
mod world;
