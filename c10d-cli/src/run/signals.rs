//! Passes signals of the launcher to its agent.

use std::io;
use std::thread::JoinHandle;

use elastic_agent::AgentHandle;
use signal_hook::consts::{FORBIDDEN, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals as Iterator};
use signal_hook::low_level::signal_name;

use super::exit_deadline::ExitTimer;

const THREAD: &str = "signals";

/// Signals that are only forwarded to the workers.
const FORWARDED: [i32; 2] = [SIGUSR1, SIGUSR2];

/// The highest number of a named signal.
const SIGNAL_MAX: i32 = 31;

/// Passes signals on until it is dropped, which joins its thread.
#[derive(Debug)]
pub(crate) struct Signals {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Starts to pass signals on: those of these names stop the agent, SIGUSR1 and SIGUSR2 go to its
    /// workers. A signal that stops the agent first starts the timer.
    pub(crate) fn pass_on(
        names: &[String],
        agent: AgentHandle,
        timer: Option<ExitTimer>,
    ) -> io::Result<Self> {
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
                        if let Some(timer) = &timer {
                            timer.start();
                        }
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
            log::error!("thread {THREAD} panicked");
        }
    }
}

/// The name of a signal.
pub(super) fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// The number of a signal that can be handled. Logs a warning for any other, as torchrun does.
fn number_of(name: &str) -> Option<i32> {
    let number = (1..=SIGNAL_MAX).find(|number| signal_name(*number) == Some(name));
    match number {
        Some(number) if !FORBIDDEN.contains(&number) => Some(number),
        Some(_) => {
            log::warn!("--signals-to-handle: ignoring {name}, which no process can handle");
            None
        }
        None => {
            log::warn!("--signals-to-handle: ignoring {name:?}, which is not the name of a signal");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_handleable_signals_have_numbers() {
        assert_eq!(number_of("SIGTERM"), Some(15));
        assert_eq!(number_of("SIGKILL"), None);
        assert_eq!(number_of("TERM"), None);
        assert_eq!(number_of(""), None);
    }
}
