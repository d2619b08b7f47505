//! Whether workers have written something, for output that does not pass through this process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The system's counts of what processes have written, of Linux only.
#[derive(Debug, Default)]
pub(super) struct FirstWrite {
    /// Workers that began as a script, such as a shim of pyenv, and the bytes that the script had written.
    shims: BTreeMap<u32, Option<u64>>,
}

impl FirstWrite {
    /// Whether a worker has written to any file. An import writes only when it compiles a module for the first time. `false` if
    /// the system does not report it.
    pub(super) fn has_written(&mut self, pid: u32, program: &Path) -> bool {
        let Some(written) = written(pid) else {
            return false;
        };
        let runs = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if is_python(program) && !is_python(&runs) {
            self.shims.insert(pid, None);
            return false;
        }
        match self.shims.get_mut(&pid) {
            Some(of_shim) => written > *of_shim.get_or_insert(written),
            None => written > 0,
        }
    }
}

fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"python")
}

/// The bytes that a process has written so far.
fn written(pid: u32) -> Option<u64> {
    let counts = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let mut lines = counts.lines();
    let written = lines.find_map(|line| line.strip_prefix("wchar: "));
    written?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_output_of_a_script_that_starts_python_does_not_count() {
        let mut child = Command::new("sh")
            .args(["-c", "echo shim; read line; echo out; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "shim");
        let (pid, program) = (child.id(), Path::new("train"));
        assert!(FirstWrite::default().has_written(pid, program));
        let mut writes = FirstWrite::default();
        assert!(!writes.has_written(pid, Path::new("/v/bin/python3")));
        // As if Python ran from now on.
        assert!(!writes.has_written(pid, program));
        assert!(!writes.has_written(pid, program));
        input.write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "out");
        assert!(writes.has_written(pid, program));
        drop(input);
        child.wait().unwrap();
        assert!(!writes.has_written(pid, program));
    }
}
