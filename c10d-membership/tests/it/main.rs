//! Groups with the client of this crate, over real connections.

mod membership;
#[path = "../../../c10d-store/tests/it/memory_journal.rs"]
mod memory_journal;
mod rank;
#[path = "../../../c10d-store/tests/it/without_extensions.rs"]
mod without_extensions;
