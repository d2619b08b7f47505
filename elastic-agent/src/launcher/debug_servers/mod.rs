//! `--debug-server`: each worker runs PyTorch's debug server on a unix socket that only this user reaches. `answers` asks
//! it about collectives, and about stacks that cannot be read otherwise.
//!
//! The script needs no change: `import torch` calls an entry point that it finds on PYTHONPATH. With a version of
//! PyTorch without entry points or debug server the workers start without one.

mod files;

use std::io;
use std::path::Path;

use crate::agent::AgentOptions;

use super::feature::Feature;
use files::Files;

/// The function of the workers' module that starts the server, for workers that are forked with the module loaded.
pub(super) const START_HOOK: &str = "c10d_debug_server:start";

/// Where Python looks for modules and entry points first.
const PYTHONPATH: &str = "PYTHONPATH";

/// The files that have an agent's workers start debug servers. Dropping it removes them.
#[derive(Debug)]
pub(super) struct DebugServers {
    files: Files,
}

impl DebugServers {
    /// Writes the files that workers load.
    ///
    /// # Errors
    /// The directory cannot be made, or every place for it has too long a path for a unix socket.
    pub(super) fn prepare() -> io::Result<Self> {
        let files = Files::create()?;
        Ok(Self { files })
    }

    /// The directory of [`AgentOptions::debug_socket`].
    pub(super) fn sockets(&self) -> &Path {
        self.files.sockets()
    }

    /// Lets workers find the files and their sockets.
    pub(super) fn add_to(&self, options: &mut AgentOptions) {
        let environment = &mut options.environment;
        let inherited = environment
            .iter()
            .rposition(|(name, _)| name == PYTHONPATH)
            .map(|index| environment.swap_remove(index).1);
        let path = files::prepend(self.files.python(), inherited.as_deref());
        environment.push((PYTHONPATH.into(), path));
        options.debug_sockets = Some(self.sockets().to_owned());
    }
}

impl Feature for DebugServers {
    fn ends_with_workers(&self) -> bool {
        true
    }
}
