//! Readable Python stacks, including stacks from the text of PyTorch's debug server. Ranks with the same stack are
//! shown once.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::RankSet;
use crate::text::{capitalized, ranks_named, shown_up_to};

/// The most threads of one rank. Python's dump ends after 100.
const THREADS_MAX: usize = 128;

/// The most frames of one thread. Python's dump ends after 100.
const FRAMES_MAX: usize = 128;

/// The most characters of a function's or a thread's name.
const NAME_CHARS_MAX: usize = 128;

/// The most characters of a file's path.
const PATH_CHARS_MAX: usize = 512;

/// The Python stacks of one rank at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stacks {
    /// The threads that run Python: the main thread first, then the oldest.
    pub threads: Vec<ThreadStack>,
    /// Whether threads or frames are missing because there were too many.
    pub is_cut: bool,
}

/// The stack of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ThreadStack {
    /// The name of the thread, if it is known.
    pub name: Option<String>,
    /// The frames of the thread, the most recent call last, like in a Python traceback.
    pub frames: Vec<Frame>,
}

/// One call in a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Frame {
    /// The file: for installed packages without the folder that they are installed in.
    pub file: String,
    /// The line; 0 if unknown.
    pub line: u32,
    /// The function; `<module>` at the top of a script.
    pub function: String,
    /// Whether the file belongs to Python or to an installed package.
    pub is_library: bool,
}

impl fmt::Display for Frame {
    /// Formats the call, for example as "train.py:12 in load_data".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} in {}", self.file, self.line, self.function)
    }
}

impl Frame {
    /// Returns a call of `function` at `line` of the file `path`, shortened and safe to print.
    #[must_use]
    pub fn new(path: &str, line: u32, function: &str) -> Self {
        let (file, is_library) = short_path(path);
        Self {
            file: shown_up_to(file.as_bytes(), PATH_CHARS_MAX),
            line,
            function: shown_up_to(function.trim().as_bytes(), NAME_CHARS_MAX),
            is_library,
        }
    }
}

impl ThreadStack {
    /// Returns a thread with its frames, the most recent call last.
    #[must_use]
    pub fn new(name: Option<&str>, frames: Vec<Frame>) -> Self {
        Self {
            name: name.map(|name| shown_up_to(name.as_bytes(), NAME_CHARS_MAX)),
            frames,
        }
    }
}

impl Stacks {
    /// Returns the stacks of these threads, the main thread first, without threads that have no frames. `None` if no
    /// thread has frames.
    #[must_use]
    pub fn of_threads(mut threads: Vec<ThreadStack>) -> Option<Self> {
        threads.retain(|thread| !thread.frames.is_empty());
        let stacks = Self {
            threads,
            is_cut: false,
        };
        (!stacks.threads.is_empty()).then(|| stacks.cleaned())
    }

    /// Parses the answer to `POST /handler/dump_traceback`, which is the format of Python's `faulthandler`: threads
    /// from the newest to the oldest, each with its most recent call first. Threads without Python frames are
    /// omitted. `None` if the answer has no Python frame.
    #[must_use]
    pub fn parse_faulthandler(text: &str) -> Option<Self> {
        let mut stacks = Self::default();
        let mut threads: Vec<ThreadStack> = Vec::new();
        for line in text.lines() {
            if let Some(name) = faulthandler_thread(line) {
                threads.push(ThreadStack {
                    name,
                    frames: Vec::new(),
                });
                continue;
            }
            let Some(thread) = threads.last_mut() else {
                continue;
            };
            match faulthandler_frame(line) {
                Some(frame) if thread.frames.len() < FRAMES_MAX => thread.frames.push(frame),
                Some(_) => stacks.is_cut = true,
                None => stacks.is_cut |= line.trim() == "...",
            }
        }
        // The main thread is the oldest one.
        threads.reverse();
        stacks.finish(threads)
    }

    /// The deepest call of the main thread, and if that is in a library the deepest one outside:
    /// "train.py:88 in load_data", or "torch/distributed/distributed_c10d.py:4181 in all_reduce, called from
    /// train.py:21 in main". `None` without frames.
    #[must_use]
    pub fn position(&self) -> Option<String> {
        let frames = &self.threads.first()?.frames;
        let deepest = frames.last()?;
        let own = frames.iter().rev().find(|frame| !frame.is_library);
        Some(match own {
            Some(own) if own != deepest => format!("{deepest}, called from {own}"),
            _ => deepest.to_string(),
        })
    }

    /// Makes stacks that another host sent as safe to print, and as small, as parsed ones.
    #[must_use]
    pub fn cleaned(mut self) -> Self {
        self.is_cut |= self.threads.len() > THREADS_MAX;
        self.threads.truncate(THREADS_MAX);
        for thread in &mut self.threads {
            // The innermost calls tell where the thread is.
            let cut = thread.frames.len().saturating_sub(FRAMES_MAX);
            self.is_cut |= cut > 0;
            thread.frames.drain(..cut);
            let name = thread.name.as_deref();
            thread.name = name.map(|name| shown_up_to(name.as_bytes(), NAME_CHARS_MAX));
            for frame in &mut thread.frames {
                frame.file = shown_up_to(frame.file.as_bytes(), PATH_CHARS_MAX);
                frame.function = shown_up_to(frame.function.as_bytes(), NAME_CHARS_MAX);
            }
        }
        self
    }

    fn finish(mut self, mut threads: Vec<ThreadStack>) -> Option<Self> {
        threads.retain(|thread| !thread.frames.is_empty());
        self.is_cut |= threads.len() > THREADS_MAX;
        threads.truncate(THREADS_MAX);
        for thread in &mut threads {
            thread.frames.reverse();
        }
        self.threads = threads;
        (!self.threads.is_empty()).then_some(self)
    }
}

/// Ranks whose threads are all at the same lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StackGroup {
    /// The ranks of the group, at least one.
    pub ranks: RankSet,
    /// The stacks that these ranks share.
    pub stacks: Stacks,
}

impl StackGroup {
    /// Puts ranks with equal stacks together: small groups first, as the rank that differs is the one to look
    /// at.
    #[must_use]
    pub fn of(stacks: impl IntoIterator<Item = (usize, Stacks)>) -> Vec<Self> {
        let mut groups: BTreeMap<Stacks, RankSet> = BTreeMap::new();
        for (rank, stacks) in stacks {
            groups.entry(stacks).or_default().0.insert(rank);
        }
        let mut groups: Vec<Self> = groups
            .into_iter()
            .map(|(stacks, ranks)| Self { ranks, stacks })
            .collect();
        groups.sort_by_key(|group| (group.ranks.0.len(), group.ranks.0.first().copied()));
        groups
    }
}

impl fmt::Display for StackGroup {
    /// Several lines, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = capitalized(&ranks_named(self.ranks.0.iter().copied()));
        write!(f, "{ranks}: {}", self.stacks.position().unwrap_or_default())?;
        for (index, thread) in self.stacks.threads.iter().enumerate() {
            match (&thread.name, index) {
                (Some(name), _) => write!(f, "\n  thread {name:?}, most recent call last:")?,
                (None, 0) => f.write_str("\n  main thread, most recent call last:")?,
                (None, _) => f.write_str("\n  another thread:")?,
            }
            for frame in &thread.frames {
                write!(f, "\n    {frame}")?;
            }
        }
        if self.stacks.is_cut {
            f.write_str("\n  (more threads or calls are not shown)")?;
        }
        Ok(())
    }
}

/// The name in a line that starts a thread: `Thread 0x00007f9c (most recent call first):`, since Python 3.14
/// `Thread 0x00007f9c [name] (most recent call first):`.
fn faulthandler_thread(line: &str) -> Option<Option<String>> {
    let rest = line
        .strip_prefix("Thread 0x")
        .or_else(|| line.strip_prefix("Current thread 0x"))?;
    let rest = rest.strip_suffix("(most recent call first):")?.trim_end();
    let name = rest
        .split_once('[')
        .and_then(|(_, name)| name.strip_suffix(']'));
    Some(name.map(|name| shown_up_to(name.as_bytes(), NAME_CHARS_MAX)))
}

/// `  File "train.py", line 12 in load_data`
fn faulthandler_frame(line: &str) -> Option<Frame> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (path, rest) = rest.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(Frame::new(path, line_number(line), function))
}

fn line_number(text: &str) -> u32 {
    text.trim().parse().unwrap_or(0)
}

/// The path from the folder of installed packages or of Python's own library on, and whether it is in one.
fn short_path(path: &str) -> (&str, bool) {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = path.rsplit_once(folder) {
            return (rest, true);
        }
    }
    if path.starts_with('<') {
        // "<frozen importlib._bootstrap>"; but "<string>" and "<stdin>" are the user's.
        return (path, path.starts_with("<frozen "));
    }
    // RHEL, Fedora and SUSE have /usr/lib64.
    let library = ["/lib/python3.", "/lib64/python3."]
        .into_iter()
        .filter_map(|folder| Some(path.rfind(folder)? + folder.find("python")?));
    match library.max() {
        Some(start) => (&path[start..], true),
        None => (path, false),
    }
}

#[cfg(test)]
mod tests;
