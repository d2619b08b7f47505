//! The values of the exchange, in PyTorch's JSON.

use serde_json::{Value, json};

use super::assign::{RankBlock, RoleInfo};

pub(super) fn role_info_text(group_rank: usize, node: &RoleInfo) -> String {
    let info = json!({
        "role": node.role,
        "rank": group_rank,
        "local_world_size": node.local_world_size,
    });
    info.to_string()
}

pub(super) fn block_text(block: &RankBlock) -> String {
    json!(block.numbers()).to_string()
}

/// Accepts any JSON object with the right fields: Python writes blanks that serde_json does not.
pub(super) fn parse_role_info(value: &[u8]) -> Option<RoleInfo> {
    let json: Value = serde_json::from_slice(value).ok()?;
    let local_world_size = json.get("local_world_size")?.as_u64()?;
    Some(RoleInfo {
        role: json.get("role")?.as_str()?.to_owned(),
        // No machine has more.
        local_world_size: RankBlock::number(local_world_size).filter(|size| *size <= 1 << 24)?,
    })
}

pub(super) fn parse_block(value: &[u8]) -> Option<RankBlock> {
    RankBlock::from_numbers(serde_json::from_slice(value).ok()?)
}
