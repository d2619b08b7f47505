//! Checks for problems that would keep workers from starting, before this node joins, because otherwise the other nodes
//! would wait for it first.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::logs::LogDirectory;

use super::error::LauncherError;
use super::options::LauncherOptions;
use crate::command_line::Entrypoint;

/// Fails if the script, its program or the log directory cannot be used. Looks at nothing if a health check is given,
/// which may wait for a file system.
pub(super) fn check(options: &LauncherOptions) -> Result<(), LauncherError> {
    if options.agent.health_check.is_some() {
        return Ok(());
    }
    if let Some(why) = missing(options) {
        return Err(LauncherError::NotReady(why));
    }
    LogDirectory::check(&options.agent.logs)
        .map_err(|error| LauncherError::NotReady(error.to_string()))
}

/// Returns why the script or its program cannot be started; `None` if no such problem is known.
pub(super) fn missing(options: &LauncherOptions) -> Option<String> {
    let program = Path::new(options.agent.command.program());
    if let Err(error) = find(program, env::var_os("PATH").as_deref()) {
        let name = program.display();
        let advice = match error.kind() {
            io::ErrorKind::NotFound if options.is_python() => {
                "; set PYTHON_EXEC to the interpreter, or activate an environment".to_owned()
            }
            io::ErrorKind::NotFound if program.is_file() => {
                format!("; {name} is in this directory, which is not in PATH: use ./{name}")
            }
            io::ErrorKind::PermissionDenied if program.is_file() => {
                format!("; {name} is not executable: chmod +x {name}")
            }
            _ => String::new(),
        };
        return Some(format!("cannot start {name}: {error}{advice}"));
    }
    // Another interpreter may start Python elsewhere, for example in a container.
    let name = program.file_name().unwrap_or_default();
    if !name.as_encoded_bytes().starts_with(b"python") {
        return None;
    }
    let script = options.entrypoint.as_ref().and_then(script_file)?;
    let error = fs::metadata(script).err()?;
    let here = env::current_dir().map_or_else(
        |_| String::new(),
        |here| format!(" (in {})", here.display()),
    );
    let place = if script.is_absolute() { "" } else { &here };
    Some(format!(
        "cannot read the script {}{place}: {error}",
        script.display()
    ))
}

/// The file that Python reads; `None` if its name depends on the worker.
fn script_file(entrypoint: &Entrypoint) -> Option<&Path> {
    match entrypoint {
        Entrypoint::Script(path) | Entrypoint::RunPath(path) => {
            let varies = path.as_encoded_bytes().contains(&b'$');
            (!varies).then(|| Path::new(path))
        }
        Entrypoint::Module(_) | Entrypoint::Program(_) => None,
    }
}

/// Whether the system would find the program and may execute it.
fn find(program: &Path, search: Option<&OsStr>) -> io::Result<()> {
    let has_directory = program.components().count() > 1 || program.starts_with(".");
    let is_found = match search {
        _ if has_directory => is_executable(program),
        Some(search) => {
            env::split_paths(search).any(|directory| is_executable(&directory.join(program)))
        }
        // Without PATH the C library has a default.
        None => true,
    };
    match is_found {
        true => Ok(()),
        false if has_directory => {
            fs::metadata(program)?;
            Err(io::ErrorKind::PermissionDenied.into())
        }
        false => Err(io::Error::new(io::ErrorKind::NotFound, "not found in PATH")),
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_the_system_does() {
        let folder = tempfile::tempdir().unwrap();
        let search = Some(folder.path().as_os_str());
        let program = folder.path().join("worker");
        let kind = |program: &Path, search| find(program, search).map_err(|error| error.kind());
        assert_eq!(kind(&program, search), Err(io::ErrorKind::NotFound));
        fs::write(&program, "").unwrap();
        assert_eq!(kind(&program, search), Err(io::ErrorKind::PermissionDenied));
        let name = Path::new("worker");
        assert_eq!(kind(name, search), Err(io::ErrorKind::NotFound));
        assert_eq!(
            find(name, search).unwrap_err().to_string(),
            "not found in PATH"
        );
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(kind(&program, None), Ok(()));
        assert_eq!(kind(name, search), Ok(()));
        assert_eq!(kind(name, None), Ok(()));
        assert_eq!(
            kind(folder.path(), None),
            Err(io::ErrorKind::PermissionDenied)
        );
    }
}
