//! Callbacks of the program about workers that leave or are lost.

use std::sync::{Arc, Mutex, PoisonError};

use crate::worker::WorkerInfo;

pub(crate) type OnLost = Arc<dyn Fn(&WorkerInfo, &str) + Send + Sync>;

pub(crate) type OnLeft = Arc<dyn Fn(&WorkerInfo, Option<u64>) + Send + Sync>;

/// The callbacks in the order of registration.
#[derive(Default)]
pub(crate) struct Listeners {
    lost: Mutex<Vec<OnLost>>,
    left: Mutex<Vec<OnLeft>>,
}

impl Listeners {
    pub(crate) fn on_lost(&self, callback: OnLost) {
        let mut callbacks = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        callbacks.push(callback);
    }

    pub(crate) fn on_left(&self, callback: OnLeft) {
        let mut callbacks = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        callbacks.push(callback);
    }

    pub(super) fn lost(&self) -> Vec<OnLost> {
        let callbacks = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        callbacks.clone()
    }

    pub(super) fn left(&self) -> Vec<OnLeft> {
        let callbacks = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        callbacks.clone()
    }
}
