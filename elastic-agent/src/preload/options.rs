//! What a template imports, and how.

use std::ffi::{OsStr, OsString};

use crate::command_line::CommandLine;

/// Modules that workers do not have to import, see [`AgentOptions::with_preload`](crate::AgentOptions::with_preload).
///
/// ```
/// use elastic_agent::{AgentOptions, CommandLine, PreloadOptions};
///
/// // The first optimizer of a training script imports torch._dynamo.
/// let preload = PreloadOptions::new(["torch", "torch._dynamo"]);
/// let command = CommandLine::new("python3", ["-u", "train.py"]);
/// let options = AgentOptions::new(command, 8).with_preload(preload);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct PreloadOptions {
    pub(super) modules: Vec<String>,
    pub(crate) is_required: bool,
    pub(super) has_standbys: bool,
    pub(super) hooks: Vec<String>,
}

impl PreloadOptions {
    /// Imports `modules`, in this order.
    pub fn new<M: Into<String>>(modules: impl IntoIterator<Item = M>) -> Self {
        Self {
            modules: modules.into_iter().map(Into::into).collect(),
            is_required: false,
            has_standbys: false,
            hooks: Vec::new(),
        }
    }

    /// Whether it is an error that workers cannot be forked. Off by default: they start as fresh interpreters then,
    /// with a warning.
    pub const fn with_required(mut self, is_required: bool) -> Self {
        self.is_required = is_required;
        self
    }

    /// Whether workers are forked ahead of their start, which saves the time of the forks. Off by default: each takes
    /// about 2 MB of memory while it waits.
    pub const fn with_standbys(mut self, has_standbys: bool) -> Self {
        self.has_standbys = has_standbys;
        self
    }

    /// A function that each worker calls before its script if the module is loaded, as `module:function`: for modules
    /// that read a worker's variables when they are imported.
    pub fn with_hook(mut self, hook: impl Into<String>) -> Self {
        self.hooks.push(hook.into());
        self
    }

    /// The modules, in the order of their imports.
    #[must_use]
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Whether it is an error that workers cannot be forked.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.is_required
    }

    /// Whether workers are forked ahead of their start.
    #[must_use]
    pub const fn has_standbys(&self) -> bool {
        self.has_standbys
    }

    /// The plan of a template for workers that run `command`.
    ///
    /// # Errors
    /// Why no template can run this command.
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

/// How to start a template.
#[derive(Debug, Clone)]
pub(crate) struct TemplatePlan {
    pub(super) program: OsString,
    /// A script's path, or `-m`.
    pub(super) script: OsString,
    /// How many workers are forked at once.
    pub(super) workers: usize,
    /// What all workers of all rounds have in their environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Variables in which workers differ: names, or prefixes with `*`. The template refuses modules that read them.
    pub(super) worker_variables: Vec<String>,
    pub(super) preload: PreloadOptions,
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
