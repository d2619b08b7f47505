//! Builds the stacks of a process within their limits.

use crate::threads::{PythonFrame, PythonStacks, PythonThread};

/// The most threads of a process.
const THREADS_MAX: usize = 128;

/// The most frames of a thread. The innermost frames are kept.
const FRAMES_MAX: usize = 64;

/// The most bytes of a text.
const TEXT_BYTES_MAX: usize = 200;

impl PythonFrame {
    pub(crate) fn new(mut file: String, line: i32, mut function: String) -> Self {
        let mut start = file.len().saturating_sub(TEXT_BYTES_MAX);
        while !file.is_char_boundary(start) {
            start += 1;
        }
        file.drain(..start);
        cut(&mut function);
        Self {
            file,
            line: u32::try_from(line).unwrap_or(0),
            function,
        }
    }
}

impl PythonThread {
    /// `frames` has the most recent call first. Also returns whether there were too many.
    pub(crate) fn new(
        mut name: Option<String>,
        system_id: Option<u64>,
        frames: impl ExactSizeIterator<Item = PythonFrame>,
    ) -> (Self, bool) {
        name.iter_mut().for_each(cut);
        let is_cut = frames.len() > FRAMES_MAX;
        let mut frames: Vec<PythonFrame> = frames.take(FRAMES_MAX).collect();
        frames.reverse();
        let thread = Self {
            name,
            system_id: system_id.and_then(|id| u32::try_from(id).ok()),
            frames,
        };
        (thread, is_cut)
    }
}

impl PythonStacks {
    /// `threads` has the newest thread first, like the interpreter's list.
    pub(crate) fn new(pid: u32, threads: Vec<(PythonThread, bool)>) -> Self {
        let has_ids = threads.iter().any(|(it, _)| it.system_id.is_some());
        let is_main = |thread: &PythonThread| match has_ids {
            true => thread.system_id == Some(pid),
            false => thread.name.as_deref() == Some("MainThread"),
        };
        let mut is_cut = threads.len() > THREADS_MAX || threads.iter().any(|(_, is_cut)| *is_cut);
        let mut threads: Vec<PythonThread> = threads.into_iter().map(|(it, _)| it).rev().collect();
        threads.sort_by_key(|thread| !is_main(thread));
        is_cut |= threads.len() > THREADS_MAX;
        threads.truncate(THREADS_MAX);
        Self { threads, is_cut }
    }
}

fn cut(text: &mut String) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(line: i32) -> PythonFrame {
        PythonFrame::new("train.py".to_owned(), line, "f".to_owned())
    }

    fn thread(name: Option<&str>, id: Option<u64>) -> (PythonThread, bool) {
        PythonThread::new(name.map(str::to_owned), id, [frame(7)].into_iter())
    }

    fn names(stacks: &PythonStacks) -> Vec<&str> {
        let names = stacks.threads.iter().map(|it| it.name.as_deref());
        names.map(Option::unwrap_or_default).collect()
    }

    #[test]
    fn the_main_thread_is_first_and_its_last_call_last() {
        let (one, is_cut) = PythonThread::new(None, None, [frame(2), frame(9)].into_iter());
        assert!(!is_cut);
        assert_eq!([one.frames[0].line, one.frames[1].line], [9, 2]);
        let newest_first = ["c", "b", "MainThread", "a"];
        let by_name = newest_first.map(|name| thread(Some(name), None));
        let stacks = PythonStacks::new(4, by_name.into());
        assert_eq!(names(&stacks), ["MainThread", "a", "b", "c"]);
        // After a fork in a thread, this thread is the main thread, whatever its name.
        let ids = [("MainThread", 7), ("c", 4), ("a", 5)];
        let by_id = ids.map(|(name, id)| thread(Some(name), Some(id)));
        let stacks = PythonStacks::new(4, by_id.into());
        assert_eq!(names(&stacks), ["c", "a", "MainThread"]);
        assert!(!stacks.is_cut);
    }

    #[test]
    fn too_much_is_cut_and_the_innermost_calls_stay() {
        let frames: Vec<PythonFrame> = (0..1000).map(frame).collect();
        let (long, is_cut) = PythonThread::new(Some("é".repeat(500)), None, frames.into_iter());
        assert!(is_cut && long.name.as_ref().unwrap().len() == 200);
        assert_eq!(long.frames.len(), FRAMES_MAX);
        assert_eq!(long.frames.last().unwrap().line, 0);
        let stacks = PythonStacks::new(4, vec![(long, is_cut); 1000]);
        assert!(stacks.is_cut && stacks.threads.len() == THREADS_MAX);
        let path = format!("{}/a.py", "é".repeat(500));
        let odd = PythonFrame::new(path, -1, "é".repeat(500));
        assert!(odd.file.ends_with("é/a.py") && odd.file.len() <= 200);
        assert_eq!((odd.line, odd.function.len()), (0, 200));
    }
}
