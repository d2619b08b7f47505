//! The reader in a program that cannot read stacks.

use crate::error::StackError;
use crate::threads::PythonStacks;

/// Reads the Python stacks of one process in programs for Linux with the feature `reader`.
#[derive(Debug)]
pub struct StackReader(std::convert::Infallible);

impl StackReader {
    /// Fails in this program.
    ///
    /// # Errors
    /// [`StackError::NoReader`] always.
    pub fn attach(_: u32) -> Result<Self, StackError> {
        Err(StackError::NoReader)
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        match self.0 {}
    }

    /// Returns whether the process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match self.0 {}
    }

    /// Returns the stacks of all threads.
    ///
    /// # Errors
    /// [`StackError`] if the stacks cannot be read.
    pub fn sample(&mut self) -> Result<PythonStacks, StackError> {
        match self.0 {}
    }
}
