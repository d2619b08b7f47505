//! The stacks of a process as values.

/// The Python stacks of a process at one moment. No text of them is longer than 200 bytes, and all are what the process
/// has in its memory: escape them before they are printed.
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
    /// Its name in `threading`; `None` if it has none there.
    pub name: Option<String>,
    /// Its id in the system, from Python 3.11 on.
    pub system_id: Option<u32>,
    /// Its frames, the most recent call last; of more than 64 the innermost ones. Empty while it runs no Python.
    pub frames: Vec<PythonFrame>,
}

/// A call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PythonFrame {
    /// The file, as Python names it; of a long path the end.
    pub file: String,
    /// The line; 0 if it is unknown.
    pub line: u32,
    /// The function, from Python 3.11 on with its class.
    pub function: String,
}
