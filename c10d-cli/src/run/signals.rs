//! Signals to the launcher, passed on to its agent.

use std::io;
use std::thread::JoinHandle;

use elastic_agent::AgentHandle;
use signal_hook::consts::{FORBIDDEN, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals as Iterator};
use signal_hook::low_level::signal_name;

const THREAD: &str = "signals";

/// Signals that go to the workers and have no other effect.
const FORWARDED: [i32; 2] = [SIGUSR1, SIGUSR2];

/// The highest number of a signal that has a name.
const SIGNAL_MAX: i32 = 31;

/// Passes signals on as long as it lives; dropping it joins its thread.
#[derive(Debug)]
pub(crate) struct Signals {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// From now on, signals of these names end the agent, and SIGUSR1 and SIGUSR2 go to its workers.
    pub(crate) fn pass_on(names: &[String], agent: AgentHandle) -> io::Result<Self> {
        let mut numbers: Vec<i32> = names.iter().filter_map(|name| number_of(name)).collect();
        let ending = numbers.clone();
        numbers.extend(FORWARDED);
        numbers.sort_unstable();
        numbers.dedup();
        let mut signals = Iterator::new(numbers)?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    if ending.contains(&signal) {
                        agent.stop(signal);
                    } else {
                        agent.forward(signal);
                    }
                }
            })?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

/// A signal as people know it.
pub(super) fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// The number of a signal that can be handled; a warning for others, as in torchrun.
fn number_of(name: &str) -> Option<i32> {
    let number = (1..=SIGNAL_MAX).find(|number| signal_name(*number) == Some(name));
    match number {
        Some(number) if !FORBIDDEN.contains(&number) => Some(number),
        Some(_) => {
            log::warn!("--signals-to-handle: {name} cannot be handled");
            None
        }
        None => {
            log::warn!("--signals-to-handle: {name:?} is no signal");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_system() {
        assert_eq!(number_of("SIGTERM"), Some(15));
        assert_eq!(number_of("SIGKILL"), None);
        assert_eq!(number_of("TERM"), None);
        assert_eq!(number_of(""), None);
    }
}
