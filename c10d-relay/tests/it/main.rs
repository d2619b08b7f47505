//! The relay with a real store and real clients, over loopback.

mod away;
mod basics;
mod cuts;
mod history;
mod proxy;
mod resume;
mod stores_end;
mod strangers;
