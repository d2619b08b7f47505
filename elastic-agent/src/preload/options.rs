//! The modules that a template imports, and the values that a forked worker gets at its gate.

use std::ffi::{OsStr, OsString};
#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::io::{self, Seek, Write};
use std::os::fd::BorrowedFd;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, memfd_create};

use crate::command_line::CommandLine;

/// Modules that workers do not have to import, see [`AgentOptions::preload`](crate::AgentOptions::preload).
///
/// ```
/// use elastic_agent::{AgentOptions, CommandLine, PreloadOptions};
///
/// // The first optimizer of a training script imports torch._dynamo.
/// let preload = PreloadOptions::new(["torch", "torch._dynamo"]);
/// let command = CommandLine::new("python3", ["-u", "train.py"]);
/// let mut options = AgentOptions::new(command, 8);
/// options.preload = Some(preload);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct PreloadOptions {
    /// The modules, in the order of their imports.
    pub modules: Vec<String>,
    /// Whether it is an error that workers cannot be forked. Off by default: the workers then start as fresh
    /// interpreters, with a warning.
    pub is_required: bool,
    /// Whether workers are forked ahead of their start, which saves the time of the forks. Off by default: each takes
    /// about 2 MB of memory while it waits.
    pub has_standbys: bool,
    /// Functions that each worker calls before its script if their module is loaded, as `module:function`: for modules
    /// that read a worker's variables when they are imported. Empty by default.
    pub hooks: Vec<String>,
}

impl PreloadOptions {
    /// Creates options that import `modules`, in this order.
    pub fn new<M: Into<String>>(modules: impl IntoIterator<Item = M>) -> Self {
        Self {
            modules: modules.into_iter().map(Into::into).collect(),
            is_required: false,
            has_standbys: false,
            hooks: Vec::new(),
        }
    }

    /// The plan of a template for workers that run `command`.
    ///
    /// # Errors
    /// A clause about why no template can run this command.
    pub(crate) fn plan(
        self,
        command: &CommandLine,
        workers: usize,
        environment: Vec<(OsString, OsString)>,
        worker_variables: Vec<String>,
    ) -> Result<TemplatePlan, &'static str> {
        let mut arguments = command.arguments().iter();
        let is_unbuffered = arguments.next().is_some_and(|first| first == "-u");
        let Some(script) = arguments.next().filter(|_| is_unbuffered) else {
            return Err("needs a command like `python3 -u SCRIPT` or `python3 -u -m MODULE`");
        };
        let is_option = script.as_encoded_bytes().starts_with(b"-");
        if is_option && script != OsStr::new("-m") {
            return Err("needs a command without other options of the interpreter than -u");
        }
        Ok(TemplatePlan {
            program: command.program().to_owned(),
            script: script.clone(),
            workers,
            environment,
            worker_variables,
            preload: self,
        })
    }
}

/// The plan for starting a template.
#[derive(Debug, Clone)]
pub(crate) struct TemplatePlan {
    pub(super) program: OsString,
    /// A script's path, or `-m`.
    pub(super) script: OsString,
    /// The number of workers that are forked at once.
    pub(super) workers: usize,
    /// The environment variables that are equal for all workers of all rounds.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Variables in which workers differ: names, or prefixes with `*`. The template refuses modules that read them.
    pub(super) worker_variables: Vec<String>,
    pub(super) preload: PreloadOptions,
}

/// The command and the resources of one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerStart<'a> {
    /// An interpreter with `-u` and a script or module.
    pub(crate) command: &'a CommandLine,
    /// The whole environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) directory: &'a Path,
    /// Standard input, output and error.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// The pipe to which the worker reports its process group, as a line.
    pub(crate) names: BorrowedFd<'a>,
}

#[cfg(target_os = "linux")]
impl WorkerStart<'_> {
    /// Writes directory, command line and environment to a file without a name, because they are too long for a
    /// packet.
    ///
    /// # Errors
    /// A word contains a NUL, or the system has no descriptor or memory left.
    pub(super) fn contents(&self) -> io::Result<File> {
        let arguments = self.command.arguments();
        let count = (arguments.len() + 1).to_string();
        let mut words: Vec<&OsStr> = vec![
            self.directory.as_os_str(),
            OsStr::new(&count),
            self.command.program(),
        ];
        words.extend(arguments.iter().map(OsString::as_os_str));
        let variables: Vec<OsString> = self
            .environment
            .iter()
            .map(|(name, value)| {
                let mut variable = name.clone();
                variable.push("=");
                variable.push(value);
                variable
            })
            .collect();
        words.extend(variables.iter().map(OsString::as_os_str));
        let words: Vec<&[u8]> = words.into_iter().map(OsStr::as_bytes).collect();
        if words.iter().any(|word| word.contains(&0)) {
            let text = "an argument or a variable contains a NUL";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut file = File::from(memfd_create("worker-start", MemfdFlags::CLOEXEC)?);
        file.write_all(&words.join(&0))?;
        // The reader of the file shares the position.
        file.rewind()?;
        Ok(file)
    }
}

/// The reason why there are no forked workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotForked {
    /// The template cannot fork workers, for this reason.
    Declined(String),
    /// The caller's wait was interrupted.
    Interrupted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interpreter_with_a_script_or_module_has_a_template() {
        let plan = |arguments: &[&str]| {
            let command = CommandLine::new("python3", arguments.iter().copied());
            let plan = PreloadOptions::new(["torch"]).plan(&command, 1, Vec::new(), Vec::new());
            plan.map(|plan| plan.script.into_string().unwrap())
        };
        assert_eq!(plan(&["-u", "train.py", "-x"]).unwrap(), "train.py");
        assert_eq!(plan(&["-u", "-m", "train"]).unwrap(), "-m");
        assert!(plan(&["-u", "-X", "dev", "train.py"]).is_err());
        assert!(plan(&["train.py"]).is_err());
        assert!(plan(&["-u"]).is_err());
        assert!(plan(&[]).is_err());
    }
}

#[cfg(all(test, target_os = "linux"))]
mod start_tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn all_words_are_in_the_contents_byte_for_byte() {
        let null = File::open("/dev/null").unwrap();
        let command = CommandLine::new("python3", ["-u", "a b.py", ""]);
        let contents = |value: &[u8]| {
            let start = WorkerStart {
                command: &command,
                environment: &[("A".into(), OsStr::from_bytes(value).to_owned())],
                directory: Path::new("/tmp"),
                streams: [null.as_fd(); 3],
                names: null.as_fd(),
            };
            let mut bytes = Vec::new();
            start.contents()?.read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        assert_eq!(
            contents(b"\xff=\n").unwrap(),
            b"/tmp\x004\0python3\0-u\0a b.py\0\0A=\xff=\n"
        );
        let long = vec![b'x'; 1 << 20];
        assert_eq!(contents(&long).unwrap().len(), (1 << 20) + 28);
        assert!(contents(b"a\0b").is_err());
    }
}
