//! The command `c10d tour`: a script that shows failures of a job, with commands that users can type.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;

const SCRIPT: &str = include_str!("tour.sh");

/// Replaces this process by a shell that runs the script, so that the signals of the terminal reach the script.
///
/// # Errors
/// [`Failure`] if this command does not find its own file, or if there is no `sh`.
pub(crate) fn run() -> Result<(), Failure> {
    let error = match std::env::current_exe() {
        Ok(command) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", SCRIPT, "c10d tour"]).arg(command).exec()
        }
        Err(error) => error,
    };
    Err(Failure::Usage(format!(
        "cannot run the shell of the tour: {error}"
    )))
}
