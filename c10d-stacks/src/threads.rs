//! The stacks of a process as values.

/// The Python stacks of a process at one moment. Each text has at most 200 bytes. The texts are copied from the memory
/// of the process, so escape them before they are printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PythonStacks {
    /// The main thread first, then the oldest thread; at most 128.
    pub threads: Vec<PythonThread>,
    /// Whether there are more threads or frames.
    pub is_cut: bool,
}

/// A thread that Python knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PythonThread {
    /// The thread's name in `threading`; `None` if it has none there.
    pub name: Option<String>,
    /// The thread's id in the operating system, with Python 3.11 and later.
    pub system_id: Option<u32>,
    /// The thread's innermost frames, at most 64, the most recent call last. Empty while it runs no Python.
    pub frames: Vec<PythonFrame>,
}

/// One call in the stack of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PythonFrame {
    /// The file, as Python names it. Only the end of a long path is kept.
    pub file: String,
    /// The line; 0 if it is unknown.
    pub line: u32,
    /// The function, with its class in Python 3.11 and later.
    pub function: String,
}
