//! Finds the meaning of a key by its shape.
//!
//! PyTorch nests groups as `<parent>//<group>//<device>//<the backend's key>`, behind the `/` that its client puts
//! first. A key can be shown in words without its value; an address counts as one only if its value has the
//! shape of an address ([`gloo_address`]).

mod family;
mod gloo;
mod libraries;

use c10d_store::{Opcode, PendingWait};
pub(crate) use family::{Family, GroupName, Maker, Member, is_hash};
#[cfg(test)]
pub(crate) use gloo::encoded;
pub(crate) use gloo::{GROUP_SIZE_MAX, GlooAddress, gloo_address};
use libraries::{after_last, contains, find, find_last};

use crate::text::{self, decimal};

/// Decodes a key as it is on the wire.
pub(crate) fn family(key: &[u8]) -> Family<'_> {
    if key == b"init/" || key == b"/init/" {
        return Family::Init;
    }
    let path = key.strip_prefix(b"/").unwrap_or(key);
    if ends_in_context_and_rank(path)
        && let Some(member) = in_group(key, path)
    {
        return member;
    }
    outside_groups(path)
        .or_else(|| in_group(key, path))
        .unwrap_or(Family::Unknown)
}

/// Whether a key ends in `//<context>/<rank>`. Most keys of a large job do: they need no other comparison.
fn ends_in_context_and_rank(path: &[u8]) -> bool {
    let mut digits = [0; 2];
    let mut part = 0;
    for (place, &byte) in path.iter().enumerate().rev() {
        match byte {
            b'0'..=b'9' => digits[part] += 1,
            b'/' if part == 0 => part = 1,
            b'/' => return digits.iter().all(|&count| count > 0) && path[..place].ends_with(b"/"),
            _ => return false,
        }
    }
    false
}

/// Keys that say what they are without the group they are in.
fn outside_groups(path: &[u8]) -> Option<Family<'_>> {
    let last = after_last(path, b'/');
    let before = &path[..path.len() - last.len()];
    if let Some(rest) = last.strip_prefix(b"store_based_barrier_key:") {
        let (group, is_last) = match rest.strip_suffix(b":last_worker") {
            Some(group) => (group, true),
            None => (rest, false),
        };
        return Some(Family::InitBarrier { group, is_last });
    }
    if before.ends_with(b"debug_server/")
        && let Some(rank) = last.strip_prefix(b"rank").and_then(decimal)
    {
        return Some(Family::DebugServer { rank });
    }
    for (folder, make) in [
        (
            &b"torchelastic/role_info/"[..],
            (|agent| Family::ElasticRole { agent }) as fn(usize) -> _,
        ),
        (b"torchelastic/assigned_ranks/", |agent| {
            Family::ElasticRanks { agent }
        }),
    ] {
        if before.ends_with(folder) {
            return decimal(last).map(make);
        }
    }
    if matches!(last, b"num_members" | b"last_member") {
        let is_last = last == b"last_member";
        let name = before.strip_suffix(b"/")?;
        return Some(if name.ends_with(b"terminal_state") {
            Family::ElasticExit { is_last }
        } else {
            Family::Barrier { name, is_last }
        });
    }
    if path.starts_with(b"torch.rendezvous.") {
        if matches!(last, b"MASTER_ADDR" | b"MASTER_PORT") {
            return Some(Family::ElasticMaster);
        }
        let id = path.strip_prefix(b"torch.rendezvous.")?;
        return (!id.contains(&b'/')).then_some(Family::Rendezvous { id });
    }
    if last == b"exception_dump" || last.starts_with(b"remote_error:") {
        return Some(Family::NcclTimeout);
    }
    if let Some(rest) = last.strip_prefix(b"NCCL_") {
        let rank = rest
            .strip_suffix(b"_trace_start")
            .or_else(|| rest.strip_suffix(b"_trace_end"))?;
        return decimal(rank).map(|rank| Family::NcclTrace { rank });
    }
    if let Some(begin) = find(path, b"reconfigure/") {
        // "<uuid>/claimed", "<uuid>/unique_id", or with gloo "<uuid>/0/<rank>".
        let mut parts = path[begin..].split(|&byte| byte == b'/').skip(2);
        let context = parts.next().and_then(decimal);
        let rank = parts.next().and_then(decimal);
        return Some(match (context, rank, parts.next()) {
            (Some(_), Some(rank), None) => Family::Reconfigured { rank },
            _ => Family::Reconfigure,
        });
    }
    if let Some(found) = symmetric_memory(path) {
        return found;
    }
    if path.starts_with(b"transport/") || contains(path, b"/transport/") {
        return Some(Family::Transport);
    }
    rpc(path).or_else(|| libraries::of_library(path))
}

/// A key of PyTorch's symmetric memory: `Some(None)` for one of an unknown form.
fn symmetric_memory(path: &[u8]) -> Option<Option<Family<'_>>> {
    for memory in [
        &b"CUDASymmetricMemory/"[..],
        b"NCCLSymmetricMemory/",
        b"NVSHMEMSymmetricMemory/",
    ] {
        if let Some(position) = find(path, memory) {
            let rest = &path[position + memory.len()..];
            return Some(match rest.iter().position(|&byte| byte == b'/') {
                Some(slash) => {
                    decimal(&rest[slash + 1..]).map(|rank| Family::SymmetricMemory { rank })
                }
                None => Some(Family::Barrier {
                    name: path,
                    is_last: false,
                }),
            });
        }
    }
    None
}

fn rpc(path: &[u8]) -> Option<Family<'_>> {
    let start = find(path, b"rpc_prefix_")?;
    let rest = &path[start + b"rpc_prefix_".len()..];
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    decimal(&rest[..slash])?;
    let rest = &rest[slash + 1..];
    if let Some(rank) = rest.strip_prefix(b"names/") {
        return decimal(rank).map(|rank| Family::RpcName { rank });
    }
    if let Some(name) = rest.strip_prefix(b"addrs/") {
        return Some(Family::RpcAddress { name });
    }
    if rest.starts_with(b"shutdown/") {
        return Some(Family::RpcShutdown);
    }
    if rest == b"RpcGroupManagementToken" || rest.starts_with(b"Token_for_") {
        return Some(Family::RpcToken);
    }
    if rest == b"rpcIsStaticGroup" {
        return Some(Family::RpcIsStatic);
    }
    None
}

fn in_group<'a>(key: &'a [u8], path: &'a [u8]) -> Option<Family<'a>> {
    let tail_at = find_last(path, b"//").map_or(0, |position| position + 2);
    let tail = &path[tail_at..];
    let above = path[..tail_at].strip_suffix(b"//").unwrap_or_default();
    let group = group_name(above);

    if let Some(rest) = tail.rsplit(|&byte| byte == b'/').next() {
        if let Some(id) = rest.strip_prefix(b"nccl_storekey_") {
            let mut numbers = id.split(|&byte| byte == b'_').map(decimal);
            numbers.next()??;
            let root = numbers.next().unwrap_or(Some(0))?;
            // "<group>/nccl_storekey_0": what precedes the key in the tail is the group's own name.
            let name = &tail[..tail.len() - rest.len()];
            let name = name.strip_suffix(b"/").unwrap_or(name);
            let group = if name.is_empty() {
                group
            } else {
                nccl_group(group, name)
            };
            return Some(Family::NcclId { group, root });
        }
        if let Some(root) = rest.strip_prefix(b"UniqueNCCLID:").and_then(decimal) {
            return Some(Family::NcclId { group, root });
        }
    }
    if !above.is_empty() && !tail.contains(&b'/') {
        if decimal(tail).is_some() {
            return Some(Family::NcclId { group, root: 0 });
        }
        let colon = tail.iter().position(|&byte| byte == b':')?;
        let lower = decimal(&tail[..colon])?;
        let higher = decimal(&tail[colon + 1..])?;
        return (lower < higher).then_some(Family::NcclPair {
            group,
            lower,
            higher,
        });
    }

    let last = after_last(path, b'/');
    let rank = decimal(last).filter(|&rank| rank < GROUP_SIZE_MAX)?;
    let stem = &key[..key.len() - last.len()];
    let context = tail[..tail.len() - last.len()].strip_suffix(b"/")?;
    let group = if above.is_empty() {
        // "rpc_prefix_0/0/<rank>" has no double slash.
        let start = find(context, b"rpc_prefix_")?;
        let name = &context[start..];
        GroupName {
            prefix: &context[..start],
            parents: b"",
            name,
            maker: Maker::Rpc,
        }
    } else {
        // gloo counts its contexts, below "pg_wrapper:0" or at the top: another name belongs to a program, such as "batch/7".
        let number = after_last(context, b'/');
        decimal(number)?;
        if number != context && !context.contains(&b':') {
            return None;
        }
        group
    };
    Some(Family::Member(Member { stem, group, rank }))
}

/// The group that `above`, the parts before the backend's own key, belongs to.
fn group_name(above: &[u8]) -> GroupName<'_> {
    let groups = match find_last(above, b"//") {
        Some(position) if is_device(&above[position + 2..]) => &above[..position],
        _ => above,
    };
    let first_end = find(groups, b"//").unwrap_or(groups.len());
    let first = &groups[..first_end];
    let first_name = after_last(first, b'/');
    let prefix = &first[..first.len() - first_name.len()];
    let (parents, name) = match find_last(groups, b"//") {
        Some(position) => (&groups[prefix.len()..position], &groups[position + 2..]),
        None => (&groups[..0], first_name),
    };
    let maker = if first_name == b"AsyncCheckpointProcess" {
        Maker::Saver
    } else {
        Maker::Process
    };
    GroupName {
        prefix,
        parents,
        name,
        maker,
    }
}

/// NCCL repeats the group's name in its own key, and pairs have a separate name.
fn nccl_group<'a>(group: GroupName<'a>, name: &'a [u8]) -> GroupName<'a> {
    let name = after_last(name, b'/');
    if name == group.name {
        group
    } else {
        GroupName { name, ..group }
    }
}

/// Whether a part names a device type and no group: groups have numbers or hashes.
fn is_device(part: &[u8]) -> bool {
    (2..=16).contains(&part.len())
        && part[0].is_ascii_lowercase()
        && part
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The meaning in a sentence, as in "the address of rank 2 in the default group"; an unknown key as it is, escaped. Of a job of
/// `world_size` ranks, no other rank is named.
pub(crate) fn meaning(key: &[u8], world_size: Option<usize>) -> String {
    match family(key).within(world_size) {
        Family::Init => "the number of clients that have joined".to_owned(),
        Family::Member(member) => member_meaning(&member),
        Family::InitBarrier { group, .. } => {
            format!("the barrier at the start of group {}", text::shown(group))
        }
        Family::Barrier { name, .. } => format!("the barrier {}", text::shown(name)),
        Family::NcclId { group, root } => {
            let of = group.words();
            if root == 0 {
                format!("the NCCL id of {of}, which rank 0 of it publishes")
            } else {
                format!("part {root} of the NCCL id of {of}")
            }
        }
        Family::NcclPair { lower, higher, .. } => {
            format!("the NCCL id between ranks {lower} and {higher}, which rank {lower} publishes")
        }
        Family::DebugServer { rank } => format!("the address of rank {rank}'s debug server"),
        Family::ElasticRole { agent } => format!("the number of workers of launcher {agent}"),
        Family::ElasticRanks { agent } => {
            format!("the ranks of launcher {agent}'s workers, which launcher 0 assigns")
        }
        Family::ElasticMaster => "the address of the workers' store".to_owned(),
        Family::ElasticExit { .. } => "the exit of all launchers".to_owned(),
        Family::Rendezvous { id } => format!("the rendezvous of run {}", text::shown(id)),
        Family::RpcName { rank } => format!("the name of RPC worker {rank}"),
        Family::RpcAddress { name } => format!("the address of RPC worker {}", text::shown(name)),
        Family::RpcIsStatic => "whether the RPC workers are fixed".to_owned(),
        Family::RpcShutdown => "the shutdown of RPC".to_owned(),
        Family::RpcToken => "the token for joining or leaving RPC".to_owned(),
        Family::NcclTimeout => "a timeout of NCCL on any rank".to_owned(),
        Family::NcclTrace { rank } => format!("the progress of rank {rank} in NCCL"),
        Family::Reconfigure => "a group that is being made again".to_owned(),
        Family::Reconfigured { rank } => {
            format!("the address of member {rank} of a group that is being made again")
        }
        Family::SymmetricMemory { rank } => format!("the symmetric memory of member {rank}"),
        Family::Transport => "a transfer between two ranks".to_owned(),
        Family::Broadcast { rank } => {
            format!("an object that rank {rank} of its group broadcasts (as of vLLM)")
        }
        Family::SentTo { rank } => {
            format!("an object for rank {rank} of its group (as of vLLM)")
        }
        Family::Attendance { rank, is_arrival } => {
            let what = if is_arrival { "come to" } else { "left" };
            format!("rank {rank} of its group to have {what} a barrier (as of vLLM)")
        }
        Family::InProcessBarrier { name, .. } => {
            format!("the barrier {} of nvidia-resiliency-ext", text::shown(name))
        }
        Family::InProcessEvent => "a restart in the process, by nvidia-resiliency-ext".to_owned(),
        Family::InProcessRank { rank } => {
            format!("a message of rank {rank} to nvidia-resiliency-ext")
        }
        Family::Unknown => format!("the key {}", text::shown(key)),
    }
}

fn member_meaning(member: &Member<'_>) -> String {
    let (rank, group) = (member.rank, member.group.words());
    if member.group.is_default() {
        format!("the address of rank {rank} in {group}")
    } else {
        format!("the address of member {rank} of {group}")
    }
}

/// Set by a launcher that ends a job with the `static` rendezvous (docs/spec/rendezvous.md, END 7).
const STATIC_CLOSED: &[u8] = b"/c10d/static/closed";

/// Whether a wait is for news, and not for a rank: of a change, of a group, or of the end of the job.
pub(crate) fn is_watch(wait: &PendingWait) -> bool {
    let is_end = |key: &std::sync::Arc<[u8]>| key.ends_with(STATIC_CLOSED);
    matches!(wait.command, Opcode::WaitChange | Opcode::MembershipPoll)
        || wait.missing.iter().any(is_end)
}

#[cfg(test)]
mod tests;
