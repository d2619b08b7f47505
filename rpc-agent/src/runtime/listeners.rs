//! Callbacks of the program about workers that leave or are lost.

use std::sync::Arc;

use crate::sync::Lock;
use crate::worker::WorkerInfo;

pub(crate) type OnLost = Arc<dyn Fn(&WorkerInfo, &str) + Send + Sync>;

pub(crate) type OnLeft = Arc<dyn Fn(&WorkerInfo, Option<u64>) + Send + Sync>;

/// The callbacks in the order of registration.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) lost: Lock<Vec<OnLost>>,
    pub(crate) left: Lock<Vec<OnLeft>>,
}
