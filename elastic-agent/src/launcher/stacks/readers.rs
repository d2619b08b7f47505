//! The readers of processes: each attaches once, and is kept for further samples.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use c10d_inspect::stacks::{Frame, Stacks, ThreadStack};
use c10d_stacks::{PythonStacks, PythonThread, StackError, StackReader, command_line};

use super::source::{NoStacks, ReadStacks};

/// The name that Python gives to each main thread.
const MAIN_NAME: &str = "MainThread";

/// The readers by process id.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<u32, StackReader>);

impl ReadStacks for Readers {
    fn read(&mut self, pid: u32) -> Result<Stacks, NoStacks> {
        let python = self.sample(pid).map_err(|error| match error {
            StackError::NotPython => NoStacks::NotPython {
                command_line: command_line(pid),
            },
            error => NoStacks::Unread(error.to_string()),
        })?;
        let none = || NoStacks::Unread("none of its threads runs Python".to_owned());
        converted(python).ok_or_else(none)
    }

    fn forget_ended(&mut self) {
        self.0.retain(|_, reader| reader.is_alive());
    }
}

impl Readers {
    fn sample(&mut self, pid: u32) -> Result<PythonStacks, StackError> {
        match self.0.entry(pid) {
            Entry::Occupied(mut entry) => match entry.get_mut().sample() {
                Ok(python) => Ok(python),
                // The process may run another program now.
                Err(_) => {
                    entry.remove();
                    self.sample(pid)
                }
            },
            Entry::Vacant(entry) => {
                let mut reader = StackReader::attach(pid)?;
                let python = reader.sample()?;
                entry.insert(reader);
                Ok(python)
            }
        }
    }
}

/// `None` if no thread has frames.
fn converted(python: PythonStacks) -> Option<Stacks> {
    let is_cut = python.is_cut;
    let mut stacks = Stacks::of_threads(python.threads.into_iter().map(thread).collect())?;
    stacks.is_cut |= is_cut;
    Some(stacks)
}

/// Converts a thread. The main thread has no name and is the first thread, like in the answer of a debug server.
fn thread(python: PythonThread) -> ThreadStack {
    let frames = python.frames.iter();
    let frames = frames.map(|frame| Frame::new(&frame.file, frame.line, &frame.function));
    let name = python.name.as_deref().filter(|name| *name != MAIN_NAME);
    ThreadStack::new(name, frames.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_an_error() {
        let mut readers = Readers::default();
        let error = readers.read(std::process::id()).unwrap_err();
        let text = error.to_string();
        assert!(!text.is_empty() && !text.ends_with('.'), "{text}");
        readers.forget_ended();
        assert!(readers.0.is_empty());
        assert_eq!(converted(PythonStacks::default()), None);
    }
}
