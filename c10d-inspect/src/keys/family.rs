//! The possible meanings of keys.

use crate::text::{self, decimal};

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family<'a> {
    /// Each client that is given a world size adds 1.
    Init,
    /// The value that a member of a group publishes, most often its gloo address.
    Member(Member<'a>),
    /// The number of ranks that have entered `init_process_group` or `new_group`.
    InitBarrier {
        group: &'a [u8],
        is_last: bool,
    },
    /// The number of arrivals at another barrier.
    Barrier {
        name: &'a [u8],
        is_last: bool,
    },
    /// The id of a NCCL communicator; `root` is which of several.
    NcclId {
        group: GroupName<'a>,
        root: usize,
    },
    /// The value that the lower of two ranks publishes for sending between them.
    NcclPair {
        group: GroupName<'a>,
        lower: usize,
        higher: usize,
    },
    /// A rank's debug server.
    DebugServer {
        rank: usize,
    },
    /// The number of workers of an agent.
    ElasticRole {
        agent: usize,
    },
    /// The ranks of an agent's workers.
    ElasticRanks {
        agent: usize,
    },
    /// The address of the workers' store.
    ElasticMaster,
    /// Agents leave when all have arrived here.
    ElasticExit {
        is_last: bool,
    },
    /// The state of an elastic rendezvous.
    Rendezvous {
        id: &'a [u8],
    },
    /// The name of a RPC worker.
    RpcName {
        rank: usize,
    },
    /// The address of a RPC worker.
    RpcAddress {
        name: &'a [u8],
    },
    /// Whether the RPC workers are fixed.
    RpcIsStatic,
    RpcShutdown,
    /// The token for joining or leaving RPC.
    RpcToken,
    /// A rank of NCCL has timed out.
    NcclTimeout,
    /// A rank's progress in NCCL collectives.
    NcclTrace {
        rank: usize,
    },
    /// A group is being made again with other members.
    Reconfigure,
    /// The address of a member of a reconfigured group, by its rank in the new group.
    Reconfigured {
        rank: usize,
    },
    /// The value that a member of a group publishes about symmetric memory.
    SymmetricMemory {
        rank: usize,
    },
    /// A transfer between two ranks by NIXL.
    Transport,
    /// An object that one rank of a library's own group broadcasts.
    Broadcast {
        rank: usize,
    },
    /// An object for one rank of a library's own group.
    SentTo {
        rank: usize,
    },
    /// A rank of a library's own group has arrived at a barrier, or has left it.
    Attendance {
        rank: usize,
        is_arrival: bool,
    },
    /// The number of arrivals at a barrier of a restart in the process.
    InProcessBarrier {
        name: &'a [u8],
        is_last: bool,
    },
    /// The key that each rank waits for as long as the job runs, to restart in the process.
    InProcessEvent,
    /// The state that a rank publishes for restarts in the process.
    InProcessRank {
        rank: usize,
    },
    /// The key belongs to no known library.
    Unknown,
}

/// A key that one member of a group writes: everything but the last `/<number>` is the same for all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    /// The key up to and with the last `/`.
    pub(crate) stem: &'a [u8],
    pub(crate) group: GroupName<'a>,
    /// The rank in the group.
    pub(crate) rank: usize,
}

/// The name of a group in keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupName<'a> {
    /// The part before the groups: the prefix of the job.
    pub(crate) prefix: &'a [u8],
    /// The groups that this group is nested in, in the form of the key.
    pub(crate) parents: &'a [u8],
    /// The group's own name: "0" for the default group.
    pub(crate) name: &'a [u8],
    /// The kind of keys.
    pub(crate) maker: Maker,
}

/// Which part of PyTorch makes a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// `init_process_group`, `new_group` and what builds on it.
    Process,
    /// `init_rpc`.
    Rpc,
    /// The saver process of asynchronous checkpoints: a child of each rank.
    Saver,
}

impl Family<'_> {
    /// Returns the meaning of the key in a job of `world_size` ranks, in which a key about a rank that cannot exist
    /// belongs to the program.
    pub(crate) fn within(self, world_size: Option<usize>) -> Self {
        let exists = |rank| world_size.is_none_or(|size| rank < size);
        match self.rank().is_none_or(exists) {
            true => self,
            false => Self::Unknown,
        }
    }

    /// The highest rank that the key is about: of the job, or in one of its groups.
    const fn rank(&self) -> Option<usize> {
        match *self {
            Self::Member(Member { rank, .. })
            | Self::NcclPair { higher: rank, .. }
            | Self::DebugServer { rank }
            | Self::RpcName { rank }
            | Self::NcclTrace { rank }
            | Self::Reconfigured { rank }
            | Self::SymmetricMemory { rank }
            | Self::Broadcast { rank }
            | Self::SentTo { rank }
            | Self::Attendance { rank, .. }
            | Self::InProcessRank { rank } => Some(rank),
            _ => None,
        }
    }
}

impl GroupName<'_> {
    /// Whether ranks in this group are global ranks.
    pub(crate) fn is_default(&self) -> bool {
        self.maker == Maker::Process && self.parents.is_empty() && decimal(self.name).is_some()
    }

    /// The group in a sentence: "the default group", "group 1", "group be10…".
    pub(crate) fn words(&self) -> String {
        match self.maker {
            Maker::Rpc => "the RPC group".to_owned(),
            Maker::Saver => "the group of checkpoint savers".to_owned(),
            Maker::Process if self.is_default() => "the default group".to_owned(),
            Maker::Process => format!("group {}", self.short_name()),
        }
    }

    /// The name, a hash cut to four digits.
    pub(crate) fn short_name(&self) -> String {
        if is_hash(self.name) {
            format!("{}…", text::shown(&self.name[..4]))
        } else {
            text::shown(self.name)
        }
    }
}

/// Whether a group's name is a hash of its members.
pub(crate) fn is_hash(name: &[u8]) -> bool {
    name.len() == 40
        && name
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
