//! The environment in which a scheduler is looked for.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// A value, and the names of the variables or files it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// Parsed from the text that was found.
    pub value: T,
    /// The names of the variables or files.
    pub from: String,
}

/// A value, or why it is unknown and what to do, as a part of a sentence.
pub type Finding<T> = Result<Sourced<T>, String>;

/// A job as its scheduler describes it to one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The name of the scheduler, or of the program that started this process.
    pub scheduler: &'static str,
    /// The number of nodes. An error even if launchers would disturb each other.
    pub nodes: Finding<usize>,
    /// The rank of this node, from 0.
    pub node_rank: Finding<usize>,
    /// The reason why the rank is wrong, if it contradicts other variables.
    pub contradiction: Option<String>,
    /// The host and port where nodes meet, the same on all nodes: on the node with rank 0.
    pub endpoint: Finding<String>,
    /// The id of the job, the same on all nodes.
    pub run_id: Finding<String>,
    /// The GPUs of this node that belong to the job, if the environment names their number.
    pub gpus: Option<Sourced<usize>>,
    /// Whether this is the only launcher of the job on its node.
    pub is_alone_on_node: bool,
    /// Whether the nodes certainly are different machines, so that none reaches another by a loopback address.
    pub has_several_hosts: bool,
    /// The usual time between SIGTERM and SIGKILL of this scheduler, if it has one.
    pub grace_period: Option<Duration>,
}

impl<T> Sourced<T> {
    /// A value from there.
    pub fn new(value: T, from: impl Into<String>) -> Self {
        Self {
            value,
            from: from.into(),
        }
    }
}

impl Found {
    /// A job without known facts, with one launcher on each node.
    pub fn by(scheduler: &'static str) -> Self {
        let unknown = || "the environment does not name it".to_owned();
        Self {
            scheduler,
            nodes: Err(unknown()),
            node_rank: Err(unknown()),
            contradiction: None,
            endpoint: Err(unknown()),
            run_id: Err(unknown()),
            gpus: None,
            is_alone_on_node: true,
            has_several_hosts: false,
            grace_period: None,
        }
    }

    /// Marks a job with several launchers on one node: each would start all workers of the node.
    pub fn refuse_launchers(mut self, why: &str) -> Self {
        self.is_alone_on_node = false;
        self.has_several_hosts = false;
        self.nodes = Err(why.to_owned());
        self.node_rank = Err(why.to_owned());
        self
    }
}

/// Facts about this process and its machine, besides variables.
pub struct Site<'a> {
    /// The host name of the system.
    pub host_name: &'a dyn Fn() -> String,
    /// The full name of this machine. May block for 2 s.
    pub full_name: &'a dyn Fn() -> String,
    /// Whether an interface of this machine has the address.
    pub has_address: &'a dyn Fn(IpAddr) -> bool,
    /// Whether standard input is a terminal.
    pub is_interactive: bool,
}

impl fmt::Debug for Site<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site")
            .field("is_interactive", &self.is_interactive)
            .finish_non_exhaustive()
    }
}

/// The environment variables. An empty one counts as missing.
#[derive(Clone, Copy)]
pub(crate) struct Variables<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

/// The ports of rendezvous that are chosen by job: below the ports that systems give to outgoing connections (from
/// 32768 on Linux), and those of services in Kubernetes (from 30000).
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 8192;

impl Variables<'_> {
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    pub(crate) fn has_all(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.has(name))
    }

    /// The first of these variables that is set, with its name.
    pub(crate) fn first(&self, names: &[&str]) -> Option<Sourced<String>> {
        let mut names = names.iter();
        names.find_map(|name| Some(Sourced::new(self.text(name)?, *name)))
    }

    /// The number in the first of these variables that is set.
    pub(crate) fn number(&self, names: &[&str]) -> Finding<usize> {
        let Some(text) = self.first(names) else {
            return Err(format!("{} is not set", names.first().unwrap_or(&"")));
        };
        match text.value.trim().parse() {
            Ok(number) => Ok(Sourced::new(number, text.from)),
            Err(_) => Err(format!(
                "{} is {:?}, which is not a whole number",
                text.from, text.value
            )),
        }
    }

    /// Like [`number`](Self::number), of at least 1.
    pub(crate) fn count(&self, names: &[&str]) -> Finding<usize> {
        match self.number(names)? {
            Sourced { value: 0, from } => Err(format!("{from} is 0")),
            count => Ok(count),
        }
    }

    /// Returns the endpoint on a host: at the port in MASTER_PORT if it is set, otherwise at the port of the run
    /// id.
    pub(crate) fn endpoint_on(
        &self,
        host: Sourced<String>,
        run_id: &Finding<String>,
    ) -> Finding<String> {
        let host_text = match host.value.contains(':') && !host.value.starts_with('[') {
            true => format!("[{}]", host.value),
            false => host.value,
        };
        let (port, source) = match (self.text("MASTER_PORT"), run_id) {
            (Some(port), _) if host.from == "MASTER_ADDR" => (port, "MASTER_PORT".to_owned()),
            (_, Ok(run_id)) => (port_of(&run_id.value).to_string(), run_id.from.clone()),
            (_, Err(why)) => return Err(why.clone()),
        };
        Ok(Sourced::new(
            format!("{host_text}:{port}"),
            format!("{}, {source}", host.from),
        ))
    }
}

/// Returns the port of a job: the same for all of its nodes, and most likely different for each job.
pub(crate) fn port_of(run_id: &str) -> u16 {
    // FNV-1a: stable across releases, unlike the standard library's hash.
    let hash = run_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    FIRST_PORT + u16::try_from(hash % PORTS).unwrap_or(0)
}

/// Whether two names can mean the same host: their first labels are equal, and their domains unless one has none.
pub(crate) fn is_same_host(one: &str, other: &str) -> bool {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    match (one.split_once('.'), other.split_once('.')) {
        (Some((label, _)), None) => label == other,
        (None, Some((label, _))) => label == one,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_port_is_stable_and_in_its_range() {
        assert_eq!(port_of("1234.0"), port_of("1234.0"));
        assert_ne!(port_of("1234.0"), port_of("1234.1"));
        for job in 0..10_000 {
            let port = port_of(&format!("{job}.0"));
            assert!((20_000..28_192).contains(&port), "{port}");
        }
    }

    #[test]
    fn names_with_and_without_a_domain_are_the_same_host() {
        for (one, other, is_same) in [
            ("n1", "n1", true),
            ("n1", "N1", true),
            ("n1", "n1.site", true),
            ("n1.site", "n1", true),
            ("n1.site", "n1.site", true),
            ("n1.a", "n1.b", false),
            ("n1", "n10", false),
            ("n1", "n10.site", false),
        ] {
            assert_eq!(is_same_host(one, other), is_same, "{one} {other}");
        }
    }
}
