//! The relay with a real store and real clients, over loopback.

mod away;
mod basics;
mod cuts;
#[path = "../../../c10d-store/tests/it/few_descriptors.rs"]
mod few_descriptors;
mod history;
mod membership;
#[path = "../../../c10d-store/tests/it/memory_journal.rs"]
mod memory_journal;
#[path = "../../../c10d-membership/tests/it/rank.rs"]
mod rank;
mod restarts;
mod resume;
#[path = "../../../c10d-store/tests/it/slow_strangers.rs"]
mod slow_strangers;
mod stores_end;
mod strangers;
mod takeovers;
mod tunnels;
mod workload;
