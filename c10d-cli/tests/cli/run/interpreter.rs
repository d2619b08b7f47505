//! The interpreter of the workers, with environments of venv and commands that are called by their path.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use super::*;

/// A script that reports its environment.
const REPORT: &str = "import sys; print(sys.prefix)";

/// A folder with an environment `v`, in whose `bin` the command is, and a script; `None` where no Python can make one.
fn environment() -> Option<TempDir> {
    let folder = TempDir::new().unwrap();
    let made = Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(folder.path().join("v"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|made| made.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: no python3 with the module venv"
        );
        return None;
    }
    fs::write(folder.path().join("report.py"), REPORT).unwrap();
    Some(folder)
}

/// The environment that the worker of this command is in, and the log. PATH has none.
fn prefix_under(
    command: &Path,
    folder: &TempDir,
    variables: &[(&str, &Path)],
) -> (PathBuf, String) {
    let mut launcher = Command::new(command);
    launcher
        .args(["run", "--standalone", "report.py"])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ended = Running::start(launcher).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    (ended.stdout_text().trim().into(), ended.stderr)
}

#[test]
fn a_command_in_an_environment_runs_the_interpreter_beside_it_wherever_it_is_called_from() {
    let Some(folder) = environment() else { return };
    let venv = folder.path().join("v");
    let linked = venv.join("bin/c10d");
    symlink(PROGRAM, &linked).unwrap();
    let copied = venv.join("bin/c10d-copy");
    fs::hard_link(PROGRAM, &copied)
        .or_else(|_| fs::copy(PROGRAM, &copied).map(drop))
        .unwrap();
    let named = |log: &str, path: &Path| log.contains(&format!("Python is {}", path.display()));
    for command in [&linked, &copied] {
        let (prefix, log) = prefix_under(command, &folder, &[]);
        assert_eq!(prefix, venv, "{log}");
        assert!(named(&log, &venv.join("bin/python3")), "{log}");
    }
    // A link elsewhere to the command does not name the environment.
    let elsewhere = folder.path().join("c10d");
    symlink(&linked, &elsewhere).unwrap();
    let (prefix, log) = prefix_under(&elsewhere, &folder, &[]);
    assert_ne!(prefix, venv, "{log}");
    assert!(!log.contains("Python is"), "{log}");
    // PYTHON_EXEC has precedence.
    let (prefix, log) = prefix_under(
        &elsewhere,
        &folder,
        &[("PYTHON_EXEC", &venv.join("bin/python"))],
    );
    assert_eq!(prefix, venv, "{log}");
}

#[test]
fn the_interpreter_of_python_m_is_not_passed_on_to_workers() {
    let job = Job::new();
    let mut launcher = job.command(&["--standalone"], "echo ${C10D_PYTHON-unset}");
    launcher.env("C10D_PYTHON", "/no/such/python");
    let ended = Running::start(launcher).end();
    assert_succeeded(&ended);
    assert_eq!(ended.stdout_text(), "unset\n");
    // A script has this interpreter.
    let mut launcher = command(["run", "--standalone", "no-script.py"]);
    launcher.env("C10D_PYTHON", "/no/such/python");
    let ended = Running::start(launcher).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for part in ["/no/such/python", "set PYTHON_EXEC to the interpreter"] {
        assert!(ended.stderr.contains(part), "{ended:?}");
    }
}
