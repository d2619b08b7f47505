//! The threads of an agent: one thread waits for the sockets, the other threads run functions and callbacks.
//!
//! Leader/followers: the polling thread itself runs the tasks that it found, without waking another thread, and polls
//! again afterwards. A hand-over costs nearly as much as the network does, and most functions are short: with a
//! thread that only polls, the median of a small call was 1.15 times as long, and 64 calls in flight had 0.83 of the
//! throughput (`c10d-bench rpc`, 15 pairs). In the meantime, the *standby thread* checks at short intervals whether a
//! request, a callback, the poller or an unsent answer has been waiting for too long. If so, the running function is
//! not short, and the standby thread takes over. Functions known to be slow get separate threads at once. While the
//! agent has nothing to do, the standby thread sleeps.
//!
//! Threads that wait for nested calls inside a function do not count as running, and other threads take their place,
//! up to a limit. One thread beyond the limit never runs a function, so that answers and refusals always get through.
//! A callback cannot be refused, and a waiting function may be waiting for it: when all threads wait, one callback at
//! a time runs beyond the limit, and another thread is added for the sockets.
//!
//! An attempt to connect may take seconds, at the name, the connection or the handshake. Threads run up to eight
//! attempts besides all other tasks, and no limit counts these threads.
//!
//! Before a thread runs a task, it makes sure that another thread will take the poller and the queued tasks.
//!
//! The [`scheduler`] makes all decisions and has no thread, lock or clock. The [`threads`] lock it, take a step,
//! unlock it and carry the step out. Both are independent of sockets, peers and the content of tasks.

#[cfg(all(test, shuttle))]
mod model_tests;
mod scheduler;
#[cfg(test)]
mod tests;
mod threads;

pub(crate) use self::scheduler::PoolGauges;
pub(crate) use self::threads::{Callback, Pool, Work};
