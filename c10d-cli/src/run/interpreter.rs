//! Chooses the Python interpreter that runs the workers' scripts.
//!
//! A command that is called by its path, for example from cron or with sudo, has no activated environment. Therefore
//! the folder of the command shows which environment the user means.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The default on the command line of the workers.
const USUAL: &str = "python3";

/// The variable that names the interpreter, for torchrun as well.
const CHOSEN: &str = "PYTHON_EXEC";

/// Set by `python -m c10d_rs`: its own interpreter. Workers do not get it, because a launcher that a worker starts may
/// belong to another environment.
pub(crate) const OWN: &str = "C10D_PYTHON";

/// The variables with the folder of an activated environment.
const ACTIVATED: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// The interpreter of the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// The interpreter's path, or a name that is looked up in PATH.
    pub(crate) program: OsString,
    /// The interpreter's path, and the activated environment if that differs, for the line about the start of the
    /// workers. `None` if users expect this interpreter.
    pub(crate) remark: Option<String>,
}

/// Returns the interpreter in PYTHON_EXEC; otherwise the interpreter of `python -m c10d_rs`; otherwise the interpreter beside
/// the command, if its folder is the `bin` of an environment; otherwise the first `python3` of PATH. `command` is
/// the path of this command as it was called, with no link resolved. Reads the file system.
pub(crate) fn find(
    command: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Interpreter {
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    let search_path = given("PATH");
    let first = in_path(OsStr::new(USUAL), search_path.as_deref());
    let beside = || {
        let path = beside(command?)?;
        let is_first = first.as_deref().is_some_and(|first| is_same(&path, first));
        (!is_first).then(|| path.into_os_string())
    };
    let chosen = given(CHOSEN).or_else(|| given(OWN)).or_else(beside);
    let path = match &chosen {
        None => first.clone(),
        Some(program) if has_slash(program) => Some(program.into()),
        Some(program) => in_path(program, search_path.as_deref()),
    };
    let is_first = match (&chosen, &path, &first) {
        (None, _, _) => true,
        (Some(_), Some(path), Some(first)) => is_same(path, first),
        _ => false,
    };
    let program = chosen.unwrap_or_else(|| USUAL.into());
    let other = path
        .as_deref()
        .and_then(|path| other_environment(path, &given));
    let shown = path.as_deref().unwrap_or(Path::new(&program)).display();
    let remark = match (is_first, other) {
        (true, None) => None,
        (false, None) => Some(shown.to_string()),
        (_, Some((name, folder))) => {
            let folder = folder.display();
            Some(format!(
                "{shown} (the activated environment is {name}={folder})"
            ))
        }
    };
    Interpreter { program, remark }
}

/// The path of this command as it was called: links are not resolved, because an environment links to commands elsewhere.
pub(super) fn called_command() -> Option<PathBuf> {
    let name = env::args_os().next()?;
    let found = if has_slash(&name) {
        Some(name.into())
    } else {
        in_path(&name, env::var_os("PATH").as_deref())
    };
    // A caller can pass any name.
    let found = found.filter(|path: &PathBuf| path.is_file());
    let found = found.or_else(|| env::current_exe().ok())?;
    std::path::absolute(found).ok()
}

/// The interpreter in the folder of the command, if that is the `bin` of an environment.
fn beside(command: &Path) -> Option<PathBuf> {
    let folder = command.parent()?;
    environment_of(folder)?;
    let interpreters = [USUAL, "python"].map(|name| folder.join(name));
    interpreters.into_iter().find(|path| is_executable(path))
}

/// The environment with this folder of programs.
fn environment_of(bin: &Path) -> Option<PathBuf> {
    let environment = match bin.file_name() {
        Some(name) if name == "bin" => bin.parent()?.to_owned(),
        Some(_) => return None,
        // The path ends with `..`.
        None => bin.join(".."),
    };
    let is_environment =
        environment.join("pyvenv.cfg").is_file() || environment.join("conda-meta").is_dir();
    is_environment.then_some(environment)
}

/// The activated environment, if the interpreter belongs to another environment. Both variables can be set: CONDA_PREFIX stays
/// when an environment of venv is activated.
fn other_environment(
    interpreter: &Path,
    given: &dyn Fn(&str) -> Option<OsString>,
) -> Option<(&'static str, PathBuf)> {
    if is_script(interpreter) {
        // For example a shim of pyenv, which chooses the environment when it runs.
        return None;
    }
    let own = interpreter.parent().and_then(environment_of);
    let own = own.and_then(|own| own.canonicalize().ok());
    let activated = ACTIVATED.into_iter();
    let activated = activated.filter_map(|name| Some((name, PathBuf::from(given(name)?))));
    let activated: Vec<_> = activated.collect();
    let is_own = |folder: &PathBuf| folder.canonicalize().is_ok_and(|it| Some(it) == own);
    if activated.iter().any(|(_, folder)| is_own(folder)) {
        return None;
    }
    activated.into_iter().next()
}

/// Whether both are names of one interpreter in one environment, as `python` and `python3` of a folder are. That they lead to
/// the same file is not enough: those of environments do.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.canonicalize().ok();
    one == other
        || one.parent() == other.parent() && file(one).is_some_and(|it| Some(it) == file(other))
}

/// The first executable file of this name in the folders of PATH.
fn in_path(name: &OsStr, search_path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = env::split_paths(search_path?);
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

fn has_slash(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with environments: each has `bin/python3` and a mark.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn program(&self, name: &str, text: &str) -> PathBuf {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn environment(&self, name: &str, mark: &str) {
            self.program(&format!("{name}/bin/python3"), "\x7fELF");
            let mark = self.path(name).join(mark);
            match mark.extension() {
                Some(_) => fs::write(mark, "").unwrap(),
                None => fs::create_dir(mark).unwrap(),
            }
        }

        /// The program and the remark, with `/` for the machine's folder.
        fn find(&self, command: &str, variables: &[(&str, &str)]) -> (String, Option<String>) {
            let root = self.0.path().to_str().unwrap();
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.replace('@', root).into())
            };
            let command = (!command.is_empty()).then(|| self.path(command));
            let found = find(command.as_deref(), &variable);
            let short = |text: String| text.replace(root, "@");
            (
                short(found.program.into_string().unwrap()),
                found.remark.map(short),
            )
        }
    }

    #[test]
    fn the_interpreter_is_the_chosen_one_or_beside_the_command_or_the_first_of_path() {
        let machine = Machine::new();
        machine.environment("venv", "pyvenv.cfg");
        machine.environment("conda", "conda-meta");
        machine.environment("other", "pyvenv.cfg");
        machine.program("usr/bin/python3", "\x7fELF");
        symlink("python3", machine.path("usr/bin/python")).unwrap();
        machine.program("plain/bin/python3", "\x7fELF");
        machine.program("shims/python3", "#!/bin/sh");
        fs::create_dir_all(machine.path("empty/bin")).unwrap();
        fs::write(machine.path("empty/pyvenv.cfg"), "").unwrap();
        machine.program("tools/bin/c10d", "");
        symlink(
            machine.path("tools/bin/c10d"),
            machine.path("venv/bin/c10d"),
        )
        .unwrap();
        symlink(machine.path("venv/bin/c10d"), machine.path("usr/bin/c10d")).unwrap();
        symlink(machine.path("venv"), machine.path("linked")).unwrap();
        let usr = ("PATH", "@/usr/bin");
        for (command, variables, program, remark) in [
            // An environment like that of cron.
            (
                "venv/bin/c10d",
                &[usr][..],
                "@/venv/bin/python3",
                "@/venv/bin/python3",
            ),
            (
                "conda/bin/c10d",
                &[usr],
                "@/conda/bin/python3",
                "@/conda/bin/python3",
            ),
            (
                "linked/bin/c10d",
                &[usr],
                "@/linked/bin/python3",
                "@/linked/bin/python3",
            ),
            (
                "venv/bin/../bin/c10d",
                &[usr],
                "@/venv/bin/../bin/python3",
                "@/venv/bin/../bin/python3",
            ),
            (
                "venv/bin/c10d",
                &[],
                "@/venv/bin/python3",
                "@/venv/bin/python3",
            ),
            // Nothing to tell if it is activated.
            (
                "venv/bin/c10d",
                &[("PATH", "@/venv/bin:@/usr/bin"), ("VIRTUAL_ENV", "@/venv")],
                "python3",
                "",
            ),
            // These folders do not belong to an environment.
            ("usr/bin/c10d", &[usr], "python3", ""),
            ("plain/bin/c10d", &[usr], "python3", ""),
            ("venv/c10d", &[usr], "python3", ""),
            ("", &[usr], "python3", ""),
            ("", &[], "python3", ""),
            // An environment without an interpreter.
            ("empty/bin/c10d", &[usr], "python3", ""),
            // The variable has precedence.
            (
                "venv/bin/c10d",
                &[
                    usr,
                    ("PYTHON_EXEC", "@/other/bin/python3"),
                    (OWN, "@/conda/bin/python3"),
                ],
                "@/other/bin/python3",
                "@/other/bin/python3",
            ),
            (
                "venv/bin/c10d",
                &[usr, ("PYTHON_EXEC", "python3")],
                "python3",
                "",
            ),
            (
                "venv/bin/c10d",
                &[usr, ("PYTHON_EXEC", "@/usr/bin/python3")],
                "@/usr/bin/python3",
                "",
            ),
            (
                "usr/bin/c10d",
                &[usr, (OWN, "@/usr/bin/python")],
                "@/usr/bin/python",
                "",
            ),
            ("", &[("PYTHON_EXEC", "pypy")], "pypy", "pypy"),
            (
                "venv/bin/c10d",
                &[usr, ("PYTHON_EXEC", "pypy")],
                "pypy",
                "pypy",
            ),
            (
                "venv/bin/c10d",
                &[usr, ("PYTHON_EXEC", ""), (OWN, "@/conda/bin/python3")],
                "@/conda/bin/python3",
                "@/conda/bin/python3",
            ),
            // Another environment is activated.
            (
                "venv/bin/c10d",
                &[
                    ("PATH", "@/other/bin:@/usr/bin"),
                    ("VIRTUAL_ENV", "@/other"),
                ],
                "@/venv/bin/python3",
                "@/venv/bin/python3 (the activated environment is VIRTUAL_ENV=@/other)",
            ),
            (
                "usr/bin/c10d",
                &[usr, ("CONDA_PREFIX", "@/conda")],
                "python3",
                "@/usr/bin/python3 (the activated environment is CONDA_PREFIX=@/conda)",
            ),
            // The environment of conda is the base of the environment of venv.
            (
                "usr/bin/c10d",
                &[
                    ("PATH", "@/venv/bin:@/usr/bin"),
                    ("VIRTUAL_ENV", "@/linked"),
                    ("CONDA_PREFIX", "@/conda"),
                ],
                "python3",
                "",
            ),
            // A shim, which chooses the environment when it runs.
            (
                "usr/bin/c10d",
                &[("PATH", "@/shims:@/usr/bin"), ("VIRTUAL_ENV", "@/venv")],
                "python3",
                "",
            ),
        ] {
            let found = machine.find(command, variables);
            let remark = (!remark.is_empty()).then(|| remark.to_owned());
            assert_eq!(
                found,
                (program.to_owned(), remark),
                "{command} {variables:?}"
            );
        }
    }
}
