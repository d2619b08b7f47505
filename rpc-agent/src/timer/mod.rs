//! A thread that holds values in order of time, and hands each to a callback when it is due.

#[cfg(all(test, shuttle))]
mod model_tests;
mod queue;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod thread;

pub(crate) use self::thread::TimerThread;
