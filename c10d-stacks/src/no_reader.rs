//! The reader in a program that cannot read stacks.

use crate::error::StackError;
use crate::threads::PythonStacks;

/// Reads the Python stacks of one process: with the feature `reader`, on Linux.
#[derive(Debug)]
pub struct StackReader(std::convert::Infallible);

impl StackReader {
    /// Fails in this program.
    ///
    /// # Errors
    /// [`StackError::NoReader`].
    pub fn attach(_: u32) -> Result<Self, StackError> {
        Err(StackError::NoReader)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        match self.0 {}
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match self.0 {}
    }

    /// The stacks of all threads.
    ///
    /// # Errors
    /// See [`StackError`].
    pub fn sample(&mut self) -> Result<PythonStacks, StackError> {
        match self.0 {}
    }
}
