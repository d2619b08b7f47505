//! Leaves the rendezvous in limited time.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use c10d_store::in_brief;
use elastic_rendezvous::RendezvousHandler;

const THREAD: &str = "leave";

/// Leaves, so that the other nodes continue without this one. Blocks for at most `limit`; without a limit, as long as
/// [`RendezvousHandler::leave`]. Logs a failure.
pub(super) fn leave(handler: &Arc<dyn RendezvousHandler>, limit: Option<Duration>) {
    let result = match limit {
        None => handler.leave().map_err(|error| in_brief(&error)),
        Some(limit) => leave_within(handler, limit),
    };
    if let Err(why) = result {
        log::warn!("cannot leave the rendezvous: {why}");
    }
}

/// A call to a store that does not answer has the store's timeout. Its thread is left behind then.
fn leave_within(handler: &Arc<dyn RendezvousHandler>, limit: Duration) -> Result<(), String> {
    let (sender, answer) = channel();
    let leaving = Arc::clone(handler);
    let thread = std::thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || {
            let result = leaving.leave().map_err(|error| in_brief(&error));
            // The last handle of the handler waits for its thread: this thread must not be left with it.
            drop(leaving);
            // The caller may no longer wait.
            let _ = sender.send(result);
        })
        .map_err(|error| error.to_string())?;
    match answer.recv_timeout(limit) {
        Ok(result) => {
            // It has sent its last message.
            let _ = thread.join();
            result
        }
        Err(_) => Err(format!(
            "no answer from its store within {limit:?}; the other nodes notice it by missing heartbeats"
        )),
    }
}
