#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod interpreter;
#[cfg(not(target_os = "linux"))]
mod no_reader;
mod process;
#[cfg(target_os = "linux")]
mod reader;
mod system_calls;
mod threads;

pub use error::StackError;
pub use interpreter::is_python;
#[cfg(not(target_os = "linux"))]
pub use no_reader::StackReader;
pub use process::{ProcessActivity, command_line};
#[cfg(target_os = "linux")]
pub use reader::StackReader;
pub use threads::{PythonFrame, PythonStacks, PythonThread};
