//! The environment variables of a worker, as torchrun and `c10d run` set them. Pure.
//!
//! Follows `torch/distributed/rendezvous.py` of PyTorch 2.15 for `env://`. Reads no environment: lookups are an
//! argument.

use std::path::PathBuf;

use crate::error::GroupError;

/// The most ranks of a job. Far beyond any job, and far below what would need much memory.
pub(crate) const WORLD_SIZE_MAX: usize = 1 << 20;

/// The variable with the path of a file of shared secrets.
pub(crate) const SECRET_FILE: &str = "C10D_SECRET_FILE";

/// Which rank this process has, and where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Whether this process hosts the store: rank 0 does, unless the launcher has.
    pub(crate) hosts_store: bool,
    /// The secret of a store that a rank hosts. A launcher's store admits the ranks without it.
    pub(crate) secret_file: Option<PathBuf>,
}

impl Environment {
    pub(crate) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, GroupError> {
        let text = |name: &'static str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.ok_or_else(|| GroupError::Environment {
                variable: name,
                problem: "is not set".to_owned(),
            })
        };
        let number = |name: &'static str, max: usize| {
            let value = text(name)?;
            let number = value.trim().parse().ok().filter(|number| *number <= max);
            number.ok_or_else(|| GroupError::Environment {
                variable: name,
                problem: format!("is {value:?}; expected a number from 0 to {max}"),
            })
        };
        let rank = number("RANK", WORLD_SIZE_MAX)?;
        let world_size = number("WORLD_SIZE", WORLD_SIZE_MAX)?;
        if rank >= world_size {
            return Err(GroupError::Environment {
                variable: "RANK",
                problem: format!("is {rank}, which is not below WORLD_SIZE, {world_size}"),
            });
        }
        let host = text("MASTER_ADDR")?;
        let port = number("MASTER_PORT", usize::from(u16::MAX))?;
        let is_launchers = text("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value == "True");
        let secret_file = text(SECRET_FILE).ok().filter(|_| !is_launchers);
        Ok(Self {
            rank,
            world_size,
            host,
            port: u16::try_from(port).unwrap_or(0),
            hosts_store: rank == 0 && !is_launchers,
            secret_file: secret_file.map(PathBuf::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: [(&str, &str); 4] = [
        ("RANK", "0"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
    ];

    fn read(changes: &[(&str, &str)]) -> Result<Environment, GroupError> {
        Environment::read(&|name| {
            let all = changes.iter().chain(&WORKER);
            all.clone()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn rank_0_hosts_the_store_unless_the_launcher_does() {
        let first = read(&[]).unwrap();
        assert_eq!((first.rank, first.world_size), (0, 4));
        assert_eq!((first.host.as_str(), first.port), ("node0", 29500));
        assert!(first.hosts_store);
        assert!(!read(&[("RANK", "1")]).unwrap().hosts_store);
        let launched = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        assert!(!read(&[launched]).unwrap().hosts_store);
    }

    #[test]
    fn the_secret_is_for_a_store_of_a_rank() {
        let secret = ("C10D_SECRET_FILE", "/run/secret");
        let path = read(&[secret]).unwrap().secret_file;
        assert_eq!(path, Some(PathBuf::from("/run/secret")));
        let launched = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        assert_eq!(read(&[secret, launched]).unwrap().secret_file, None);
    }

    #[test]
    fn each_problem_names_its_variable_and_what_to_do() {
        for (change, text) in [
            (
                ("RANK", ""),
                "RANK is not set; start the workers with `c10d run`",
            ),
            (("MASTER_ADDR", ""), "MASTER_ADDR is not set"),
            (
                ("RANK", "-1"),
                "RANK is \"-1\"; expected a number from 0 to",
            ),
            (("RANK", "4"), "RANK is 4, which is not below WORLD_SIZE, 4"),
            (("WORLD_SIZE", "99999999"), "WORLD_SIZE is \"99999999\""),
            (("WORLD_SIZE", "0"), "RANK is 0, which is not below"),
            (("MASTER_PORT", "65536"), "from 0 to 65535"),
        ] {
            let error = read(&[change]).unwrap_err().to_string();
            assert!(error.contains(text), "{change:?}: {error}");
        }
    }
}
