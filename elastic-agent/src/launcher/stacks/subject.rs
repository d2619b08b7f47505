//! Which process of a worker runs Python.

use c10d_stacks::is_python;

use crate::launcher::processes::Scanner;

/// Returns the process of a worker that runs Python: the worker itself, or the first Python process that a shell around
/// Python has started. Returns the worker if none of its processes runs Python.
pub(in crate::launcher) fn python_process(worker: u32) -> u32 {
    if is_python(worker) {
        return worker;
    }
    let members = Scanner::new("/proc").members(&[worker]).pop();
    let mut members = members.unwrap_or_default().into_iter();
    members.find(|pid| is_python(*pid)).unwrap_or(worker)
}
