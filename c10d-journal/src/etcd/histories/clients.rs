//! Clients that do one operation after another, and record the results.

use c10d_store::StoreExt;

use super::*;

/// The time limit of an operation that must be answered.
const LONG: Duration = Duration::from_secs(60);

/// The operations of a client, one after another, with their results.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) clock: Clock,
    history: History,
}

impl Recorder {
    pub(super) fn add(&mut self, store: &TcpStore, delta: i64) {
        self.try_add(store, delta).expect("add");
    }

    /// Fails where the servers have found the defect themselves, and have stopped.
    pub(super) fn try_add(&mut self, store: &TcpStore, delta: i64) -> Result<(), String> {
        let called = self.clock.tick();
        let sum = store
            .add(KEYS[0], delta)
            .map_err(|error| error.to_string())?;
        let returned = self.clock.tick();
        self.history
            .add(0, Op::Add { delta, sum }, called, returned);
        Ok(())
    }

    /// Kept once the next reply has arrived.
    pub(super) fn set(&mut self, store: &TcpStore, value: &[u8]) {
        let called = self.clock.tick();
        store.set(KEYS[1], value).expect("set");
        let returned = self.clock.tick();
        self.history
            .add(1, Op::Set(value.to_vec()), called, returned);
    }

    /// Waits for at most `timeout`, and returns whether there was an answer.
    pub(super) fn get(&mut self, store: &TcpStore, timeout: Duration) -> bool {
        let called = self.clock.tick();
        let value = store.get_timeout(KEYS[1], timeout);
        let returned = self.clock.tick();
        value
            .map(|value| self.history.add(1, Op::Get(value), called, returned))
            .is_ok()
    }

    pub(super) fn check(self, job: &Job) -> Result<(), String> {
        check_all(vec![self.history])?;
        job.check(&[])
    }
}

pub(super) fn client_of(job: &Job, slot: usize) -> TcpStore {
    let address = job.slots[slot].process.address;
    let mut client = None;
    eventually("it serves", || {
        client = direct(address, LONG);
        client.is_some()
    });
    client.expect("it serves")
}

pub(super) fn following(job: &Job, client: usize) -> TcpStore {
    let options = TcpStoreOptions::default().with_resume(Duration::from_secs(60));
    TcpStore::open_at(&job.address_for(client), options).expect("one serves")
}
