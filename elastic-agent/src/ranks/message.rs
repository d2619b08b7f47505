//! The keys of the exchange and their values, in PyTorch's JSON.

use serde_json::{Value, json};

use super::assign::{RankBlock, RoleInfo};

/// The longest description of a node that is read.
const ROLE_INFO_BYTES_MAX: usize = 64 << 10;

pub(super) fn role_info_key(group_rank: usize) -> String {
    format!("torchelastic/role_info/{group_rank}")
}

pub(super) fn assigned_ranks_key(group_rank: usize) -> String {
    format!("torchelastic/assigned_ranks/{group_rank}")
}

pub(super) fn role_info_text(group_rank: usize, node: &RoleInfo) -> String {
    let info = json!({
        "role": node.role,
        "rank": group_rank,
        "local_world_size": node.local_world_size,
    });
    info.to_string()
}

pub(super) fn block_text(block: &RankBlock) -> String {
    let numbers = json!([
        block.first_rank,
        block.world_size,
        block.first_role_rank,
        block.role_world_size
    ]);
    numbers.to_string()
}

/// Accepts any JSON object with the right fields: Python writes blanks that serde_json does not.
pub(super) fn parse_role_info(value: &[u8]) -> Option<RoleInfo> {
    if value.len() > ROLE_INFO_BYTES_MAX {
        return None;
    }
    let json: Value = serde_json::from_slice(value).ok()?;
    let local_world_size = usize::try_from(json.get("local_world_size")?.as_u64()?).ok()?;
    Some(RoleInfo {
        role: json.get("role")?.as_str()?.to_owned(),
        // No machine has more, and sums stay far from overflow.
        local_world_size: Some(local_world_size).filter(|size| *size <= 1 << 24)?,
    })
}

pub(super) fn parse_block(value: &[u8]) -> Option<RankBlock> {
    if value.len() > ROLE_INFO_BYTES_MAX {
        return None;
    }
    let [first_rank, world_size, first_role_rank, role_world_size]: [u64; 4] =
        serde_json::from_slice(value).ok()?;
    let number = |number: u64| usize::try_from(number).ok().filter(|it| *it <= 1 << 48);
    Some(RankBlock {
        first_rank: number(first_rank)?,
        world_size: number(world_size)?,
        first_role_rank: number(first_role_rank)?,
        role_world_size: number(role_world_size)?,
    })
}
