//! Hints for workers that cannot start, or whose Python lacks a package.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failures, ProcessFailure};
use crate::worker::ExitKind;

/// The last line of the traceback of a failed import.
const MISSING_MODULE: &str = "ModuleNotFoundError: No module named ";

/// How long Python may take to report whether it has a module: normally milliseconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// A hint when the system could not start `program`.
pub(super) fn for_start(program: &Path, is_python: bool, error: &io::Error) -> Option<String> {
    let is_here = fs::metadata(program).is_ok_and(|metadata| metadata.is_file());
    let is_name = program.components().count() == 1 && !program.starts_with(".");
    start_hint(
        program,
        is_python,
        error.kind(),
        is_here,
        is_name,
        is_executable(program),
    )
}

fn start_hint(
    program: &Path,
    is_python: bool,
    error: io::ErrorKind,
    is_here: bool,
    is_name: bool,
    is_executable: bool,
) -> Option<String> {
    let name = program.display();
    match error {
        io::ErrorKind::NotFound if is_python => Some(format!(
            "{name} not found: set PYTHON_EXEC to the interpreter, or activate an environment"
        )),
        io::ErrorKind::NotFound if is_here && is_name && is_executable => Some(format!(
            "{name} is in this directory, which is not in PATH: use ./{name}"
        )),
        io::ErrorKind::NotFound if is_here && is_name => Some(format!(
            "{name} is in this directory, which is not in PATH, and it is not executable: \
             chmod +x {name} and use ./{name}, or run its interpreter, as in: sh {name}"
        )),
        io::ErrorKind::PermissionDenied if is_here && !is_executable => Some(format!(
            "{name} is not executable: chmod +x {name}, or run its interpreter, as in: sh {name}"
        )),
        _ => None,
    }
}

/// A hint when workers failed because their interpreter lacks a module.
pub(super) fn for_failures(interpreter: &Path, failures: &Failures) -> Option<String> {
    let path = full_path(interpreter, env::var_os("PATH").as_deref());
    let module = match missing_module(failures) {
        Some(module) => module,
        // On a terminal the reason is unknown, as workers write to the terminal directly.
        None if is_unexplained(failures.first()) && lacks_torch(&path) => "torch".to_owned(),
        None => return None,
    };
    Some(format!(
        "the workers' interpreter, {}, has no module {module}: set PYTHON_EXEC to another interpreter, or \
         activate an environment (python3 is looked up in PATH)",
        path.display()
    ))
}

fn missing_module(failures: &Failures) -> Option<String> {
    failures.all().iter().find_map(|failure| {
        let lines = failure.stderr_lines();
        let lines = failure
            .message
            .lines()
            .chain(lines.iter().map(String::as_str));
        let mut modules = lines.filter_map(|line| line.trim().strip_prefix(MISSING_MODULE));
        modules
            .next_back()
            .map(|module| module.trim_matches('\'').to_owned())
    })
}

/// Whether a Python program may have failed by an exception of which nothing is known.
fn is_unexplained(failure: &ProcessFailure) -> bool {
    failure.exit == ExitKind::Code(1) && !failure.has_error_file() && failure.stderr_tail.is_empty()
}

fn lacks_torch(interpreter: &Path) -> bool {
    let script =
        "import importlib.util, sys; sys.exit(7 * (importlib.util.find_spec('torch') is None))";
    let child = Command::new(interpreter)
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code() == Some(7),
            Ok(None) if started.elapsed() < PROBE_TIMEOUT => thread::sleep(PROBE_PAUSE),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// The path of a program: in the first directory of `search` that has it.
pub(super) fn full_path(program: &Path, search: Option<&std::ffi::OsStr>) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let found = search.and_then(|search| {
        env::split_paths(search)
            .map(|directory| directory.join(program))
            .find(|path| is_executable(path))
    });
    found.unwrap_or_else(|| program.to_owned())
}

pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::{NotFound, PermissionDenied};

    use super::*;

    #[test]
    fn a_program_that_cannot_start_gets_a_hint() {
        let hint = |name: &str, is_python, error, is_here, is_executable| {
            let is_name = !name.contains('/');
            let path = Path::new(name);
            start_hint(path, is_python, error, is_here, is_name, is_executable).unwrap_or_default()
        };
        assert!(hint("python3", true, NotFound, false, false).contains("PYTHON_EXEC"));
        assert!(hint("el.sh", false, NotFound, true, true).ends_with("use ./el.sh"));
        let text = hint("el.sh", false, NotFound, true, false);
        assert!(text.contains("chmod +x el.sh and use ./el.sh"), "{text}");
        let text = hint("./el.sh", false, PermissionDenied, true, false);
        assert!(text.starts_with("./el.sh is not executable"), "{text}");
        assert_eq!(hint("el.sh", false, NotFound, false, false), "");
        assert_eq!(hint("/a/el.sh", false, NotFound, false, false), "");
    }

    #[test]
    fn the_interpreter_is_the_first_executable_in_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| folder.path().join(name));
        for directory in [&first, &second] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("py"), "").unwrap();
        }
        let executable = second.join("py");
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o700)).unwrap();
        let search = env::join_paths([&first, &second]).unwrap();
        let find = |name: &str| full_path(Path::new(name), Some(&search));
        assert_eq!(find("py"), executable);
        assert_eq!(find("none"), Path::new("none"));
        assert_eq!(find("./py"), Path::new("./py"));
    }
}
