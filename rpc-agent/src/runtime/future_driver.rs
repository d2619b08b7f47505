//! The agent as its futures see it: it runs their callbacks, and helps a thread that waits for one.

use std::sync::Weak;

use c10d_socket::Deadline;

use super::driver::Driver;
use super::reader::read_while_waiting;
use crate::future::{Executor, Hint, Job};

/// Does not keep the agent alive: a future may outlive it.
impl Executor for Weak<Driver> {
    fn execute(&self, job: Job) {
        match self.upgrade() {
            Some(driver) => driver.call_back(job),
            None => job(),
        }
    }

    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    ) {
        let Some(driver) = self.upgrade() else {
            return block();
        };
        driver.flush();
        let _waiting = driver.pool.enter_wait();
        // The low half is the id.
        let id = (hint.0 & u64::from(u32::MAX)) as u32;
        let peer = driver.peers.get(id);
        if let Some(peer) = peer.filter(|peer| peer.hint() == hint && !peer.is_self) {
            read_while_waiting(&driver, &peer, is_complete, deadline);
        }
        if !is_complete() {
            block();
        }
    }
}
