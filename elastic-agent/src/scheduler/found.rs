//! A job as the environment of its scheduler describes it.

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
    /// The number of nodes. An error also if launchers would disturb each other.
    pub nodes: Finding<usize>,
    /// The rank of this node, from 0.
    pub node_rank: Finding<usize>,
    /// Why the rank cannot be right, if it cannot.
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
    /// A job of which nothing is known yet, with one launcher on each node.
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
