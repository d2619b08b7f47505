//! Worker groups of real processes, from start to end. Needs Linux: the tests read /proc.

mod events;
mod leaks;
mod lifecycle;
mod output;
mod second_process;
mod util;
