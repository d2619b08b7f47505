#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
#[cfg(all(target_os = "linux", feature = "reader"))]
mod interpreter;
#[cfg(all(target_os = "linux", feature = "reader"))]
mod limits;
#[cfg(not(all(target_os = "linux", feature = "reader")))]
mod no_reader;
mod process;
#[cfg(all(target_os = "linux", feature = "reader"))]
mod reader;
mod system_calls;
mod threads;

pub use error::StackError;
#[cfg(not(all(target_os = "linux", feature = "reader")))]
pub use no_reader::StackReader;
pub use process::{ProcessActivity, command_line, is_python};
#[cfg(all(target_os = "linux", feature = "reader"))]
pub use reader::StackReader;
pub use threads::{PythonFrame, PythonStacks, PythonThread};
