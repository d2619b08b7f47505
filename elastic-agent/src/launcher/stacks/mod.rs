//! The Python stacks of the workers, which this process may read because it has started them.

mod thread;

use c10d_inspect::AnnouncedProcess;
use c10d_stacks::is_python;

pub(super) use self::thread::{NoStacks, StackThread};

/// Whether this program can read stacks.
pub(super) const CAN_READ: bool = cfg!(feature = "stacks");

/// The names of processes that run Python: PyTorch 2.6 and later names its main thread.
const PYTHON_NAMES: [&str; 2] = ["python", "pt_main_thread"];

/// Returns the process of a worker that its stacks and its use of the CPU are about: the process that is connected to the
/// workers' store, because a shell may have started it. Otherwise it is the process that runs Python, or the worker
/// itself if there is no such process.
pub(in crate::launcher) fn observed(worker: u32, processes: &[AnnouncedProcess]) -> u32 {
    choose(worker, processes, is_python)
}

/// Whether the name of a process is the name of Python or of PyTorch's main thread.
pub(in crate::launcher) fn has_python_name(process: &AnnouncedProcess) -> bool {
    let name = process.command.as_deref().unwrap_or_default();
    PYTHON_NAMES.iter().any(|python| name.starts_with(python))
}

/// `is_python` returns whether the program of a process is Python, whatever the name of the process.
fn choose(worker: u32, processes: &[AnnouncedProcess], is_python: impl Fn(u32) -> bool) -> u32 {
    let running = || processes.iter().filter(|it| it.state != Some('Z'));
    let connected: Vec<_> = running()
        .filter(|it| !it.store_connections.is_empty())
        .collect();
    outermost(&connected)
        .or_else(|| {
            let python = running().filter(|it| has_python_name(it) || is_python(it.pid));
            outermost(&python.collect::<Vec<_>>())
        })
        .unwrap_or(worker)
}

/// Returns the first of these processes that no other of them has started. The children of a process also hold its
/// connections, and can have lower ids than it.
fn outermost(processes: &[&AnnouncedProcess]) -> Option<u32> {
    let is_outermost = |process: &&&AnnouncedProcess| {
        let mut others = processes.iter();
        !others.any(|other| Some(other.pid) == process.parent)
    };
    let first = processes.iter().find(is_outermost);
    first.or(processes.first()).map(|process| process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, command: &str) -> AnnouncedProcess {
        let mut process = AnnouncedProcess::default();
        process.pid = pid;
        process.parent = Some(parent);
        process.command = Some(command.to_owned());
        process.state = Some('S');
        process
    }

    fn chosen(processes: &[AnnouncedProcess]) -> u32 {
        choose(10, processes, |_| false)
    }

    /// A shell that has started Python, which has started a worker of a DataLoader with a lower id.
    fn tree() -> [AnnouncedProcess; 3] {
        [
            process(10, 1, "bash"),
            process(5, 11, "pt_data_worker"),
            process(11, 10, "python3"),
        ]
    }

    #[test]
    fn the_process_that_uses_the_store_is_observed() {
        let [shell, mut loader, mut python] = tree();
        python.command = Some("train".to_owned());
        let all = [shell.clone(), loader.clone(), python.clone()];
        assert_eq!(chosen(&all), 10);
        python.store_connections = vec!["127.0.0.1:1".parse().unwrap()];
        loader.store_connections = python.store_connections.clone();
        let all = [shell.clone(), loader.clone(), python.clone()];
        assert_eq!(chosen(&all), 11);
        // The child remains when its parent has exited.
        python.state = Some('Z');
        assert_eq!(chosen(&[shell, loader, python]), 5);
    }

    #[test]
    fn without_connections_it_is_the_python_that_a_shell_has_started() {
        let [shell, mut loader, mut python] = tree();
        loader.command = Some("python3".to_owned());
        let all = [shell.clone(), loader.clone(), python.clone()];
        assert_eq!(chosen(&all), 11);
        python.command = Some("pt_main_thread".to_owned());
        assert_eq!(chosen(&[shell.clone(), python.clone()]), 11);
        // A process can rename itself.
        python.command = Some("my training".to_owned());
        let all = [shell.clone(), python];
        assert_eq!(choose(10, &all, |pid| pid == 11), 11);
        assert_eq!(chosen(&all), 10);
        assert_eq!(chosen(&[shell]), 10);
        assert_eq!(chosen(&[]), 10);
    }
}
