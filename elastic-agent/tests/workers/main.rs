//! Worker processes of a real group, from start to end.

mod leaks;
mod lifecycle;
mod output;
mod second_process;
mod util;
