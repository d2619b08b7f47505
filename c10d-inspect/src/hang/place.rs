//! Finds where a worker is in its code, by its stacks: the call of PyTorch that it is inside, and the position in the
//! user's code.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::call::{self, Call};
use crate::stacks::{Frame, Stacks, ThreadStack};
use crate::text::shown_up_to;

/// The most characters of the name of a file or a function in a sentence.
const NAME_CHARS_MAX: usize = 60;

/// The place of a worker in its code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    stacks: &'a Stacks,
    main: &'a ThreadStack,
    /// The call that its main thread waits in, or a thread that the main thread waits for.
    pub(super) call: Option<Call>,
    /// The code that the main thread runs, if it is not inside a call.
    pub(super) inside: Inside,
}

/// A wait that is not for other ranks, by the frames of the main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inside {
    /// The prompt of a debugger.
    Debugger,
    /// A DataLoader that waits for its worker processes.
    DataLoader,
    /// A wait of Python for another thread, or for a lock that it holds.
    Lock,
    /// A line of the user's code that calls C code. A wait for the work of a collective looks the same.
    UserLine,
    /// Another function.
    Library,
}

impl<'a> Place<'a> {
    /// `None` if there is no main thread in the stacks.
    pub(super) fn new(stacks: &'a Stacks) -> Option<Self> {
        let main = stacks.threads.first()?;
        let library = library(main);
        let innermost = main.frames.last()?;
        let mut inside = match () {
            () if library.iter().any(|frame| call::is_debugger(frame)) => Inside::Debugger,
            () if library.iter().any(|frame| call::is_data_loader(frame)) => Inside::DataLoader,
            () if call::is_lock(innermost) => Inside::Lock,
            () if !innermost.is_library => Inside::UserLine,
            () => Inside::Library,
        };
        let mut call = match inside {
            Inside::Debugger | Inside::DataLoader => None,
            _ => call::call(&library),
        };
        if inside == Inside::Lock && call.is_none() {
            let others = stacks.threads.iter().skip(1);
            let mut calls = others.filter_map(|thread| call::call(&self::library(thread)));
            call = calls.next();
        }
        if call.is_some() {
            inside = Inside::Library;
        }
        Some(Self {
            stacks,
            main,
            call,
            inside,
        })
    }

    /// The calls of the user's code, the most recent one last. Equal paths mean that two ranks are at the same place.
    pub(super) fn path(&self) -> Vec<&'a Frame> {
        let frames = self.main.frames.iter();
        frames.filter(|frame| !frame.is_library).collect()
    }

    /// A hash of [`path`](Self::path).
    pub(super) fn path_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for frame in self.main.frames.iter().filter(|frame| !frame.is_library) {
            (&frame.file, frame.line, &frame.function).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The innermost frame of the user's code; without one, the outermost frame.
    pub(super) fn position(&self) -> Option<&'a Frame> {
        let frames = &self.main.frames;
        let mut inner = frames.iter().rev();
        inner.find(|it| !it.is_library).or(frames.first())
    }

    /// The threads that may hold what the main thread waits for: the shortest stack first.
    pub(super) fn threads(&self) -> Vec<&'a ThreadStack> {
        let mut threads: Vec<&ThreadStack> = self.stacks.threads.iter().collect();
        threads.sort_by_key(|thread| thread.frames.len());
        threads
    }

    /// Whether other threads of the worker run code of the user.
    pub(super) fn has_user_threads(&self) -> bool {
        let mut others = self.stacks.threads.iter().skip(1);
        others.any(|thread| thread.frames.iter().any(|frame| !frame.is_library))
    }

    /// Whether both are the same wait at the same place.
    pub(super) fn agrees_with(&self, other: &Place<'_>) -> bool {
        let name = |place: &Place<'_>| place.call.map(|call| (call.kind, call.name));
        name(self) == name(other) && self.inside == other.inside && self.path() == other.path()
    }
}

/// The frames below the innermost one of the user's code, the most recent one last.
fn library(thread: &ThreadStack) -> Vec<&Frame> {
    let last = thread.frames.iter().rposition(|frame| !frame.is_library);
    thread.frames[last.map_or(0, |last| last + 1)..]
        .iter()
        .collect()
}

/// "train.py:41".
pub(super) fn line(frame: &Frame) -> String {
    let name = frame.file.rsplit('/').next().unwrap_or(&frame.file);
    let name = shown_up_to(name.as_bytes(), NAME_CHARS_MAX);
    match frame.line {
        0 => name,
        line => format!("{name}:{line}"),
    }
}

/// "train.py:41 (step)".
pub(super) fn line_and_function(frame: &Frame) -> String {
    let function = frame.function.replace(".<locals>", "");
    let function = shown_up_to(function.as_bytes(), NAME_CHARS_MAX);
    format!("{} ({function})", line(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::call::CallKind;
    use crate::hang::fixtures::frames;

    fn kind(call: Call) -> &'static str {
        match call.kind {
            CallKind::Collective => "collective",
            CallKind::PointToPoint => "point-to-point",
            CallKind::Group => "group",
            CallKind::Store => "store",
        }
    }

    #[test]
    fn calls_of_real_releases_are_identified() {
        let cases = include_str!("testdata/calls.txt").lines();
        let cases = cases.filter(|line| !line.starts_with('#'));
        let mut count = 0;
        for case in cases {
            let [release, name, expected, threads] = case.splitn(4, " | ").collect::<Vec<_>>()[..]
            else {
                panic!("{case}")
            };
            let threads = threads.split(" || ");
            let threads = threads.map(|thread| ThreadStack::new(None, frames(thread)));
            let stacks = Stacks::of_threads(threads.collect()).expect("stacks");
            let place = Place::new(&stacks).expect("a main thread");
            let call = place
                .call
                .map(|call| format!("{} {}", kind(call), call.name));
            assert_eq!(
                call.as_deref().unwrap_or("none"),
                expected,
                "{release} {name}"
            );
            let position = place.position().expect("a position");
            assert_eq!(
                position.file.rsplit('/').next(),
                Some("train.py"),
                "{release} {name}"
            );
            count += 1;
        }
        assert!(count > 150, "{count}");
    }

    #[test]
    fn names_of_a_worker_are_short_and_printable() {
        let frame = Frame {
            file: format!("/x/\u{1b}[2J{}", "y".repeat(500)),
            line: 3,
            function: "f.<locals>.\u{202e}\n".to_owned(),
            is_library: false,
        };
        let text = line_and_function(&frame);
        assert!(
            text.chars().all(|c| (' '..='~').contains(&c) || c == '…'),
            "{text}"
        );
        assert!(text.len() < 200, "{text}");
    }
}
