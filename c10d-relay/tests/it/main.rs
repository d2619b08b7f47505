//! The relay with a real store and real clients, over loopback.

mod away;
mod basics;
mod cuts;
#[path = "../../../c10d-store/tests/it/few_descriptors.rs"]
mod few_descriptors;
mod history;
#[path = "../../../c10d-store/tests/it/memory_journal.rs"]
mod memory_journal;
mod proxy;
mod restarts;
mod resume;
#[path = "../../../c10d-store/tests/it/slow_strangers.rs"]
mod slow_strangers;
mod stores_end;
mod strangers;
mod workload;
