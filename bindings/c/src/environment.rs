//! The ranks that launchers put into the environment.

use std::env;
use std::mem::MaybeUninit;

use crate::border::{self, exported};
use crate::failure::Failure;
use crate::interface::call;
use crate::status::Status;

fn read(name: &str, number: Option<&mut MaybeUninit<usize>>) -> Status {
    call(|| {
        let number = border::result(number, "number")?;
        let value = env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        *number = parse(name, value.as_deref())?;
        Ok(())
    })
}

fn parse(name: &str, value: Option<&str>) -> Result<usize, Failure> {
    let problem = match value {
        None => {
            format!("{name} is not set: start the program with c10d run or torchrun, or set it")
        }
        Some(value) => match value.trim().parse() {
            Ok(number) => return Ok(number),
            Err(_) => format!("{name} is {value:?}: expected a number from 0 on"),
        },
    };
    Err(Failure::new(Status::C10D_ERROR_ENVIRONMENT, problem))
}

exported! {
    /// The rank of this process in the job: `RANK`.
    pub extern "C" fn c10d_env_rank(rank: Option<&mut MaybeUninit<usize>>) -> Status {
        read("RANK", rank)
    }

    /// The number of processes of the job: `WORLD_SIZE`.
    pub extern "C" fn c10d_env_world_size(world_size: Option<&mut MaybeUninit<usize>>) -> Status {
        read("WORLD_SIZE", world_size)
    }

    /// The rank of this process among the processes of its node: `LOCAL_RANK`, usually the number of
    /// its GPU.
    pub extern "C" fn c10d_env_local_rank(local_rank: Option<&mut MaybeUninit<usize>>) -> Status {
        read("LOCAL_RANK", local_rank)
    }

    /// The number of processes of this node: `LOCAL_WORLD_SIZE`.
    pub extern "C" fn c10d_env_local_world_size(local_world_size: Option<&mut MaybeUninit<usize>>) -> Status {
        read("LOCAL_WORLD_SIZE", local_world_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_all_else_is_named() {
        assert_eq!(parse("RANK", Some("3")).unwrap(), 3);
        let text = |value| parse("RANK", value).unwrap_err().text;
        assert!(text(None).starts_with("RANK is not set"));
        assert!(text(Some("-1")).starts_with("RANK is \"-1\""));
        assert!(text(Some("")).starts_with("RANK is \"\""));
    }
}
