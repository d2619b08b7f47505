//! Keys of libraries that coordinate through a store of PyTorch's.
//!
//! | library | keys | from |
//! |---|---|---|
//! | vLLM, and copies of its `StatelessProcessGroup` such as SGLang's and TRL's | `broadcast_from/<rank>/<n>`, `send_to/<rank>/<n>`, `arrival_barrier_<uuid>_<rank>`, `departure_barrier_<uuid>_<rank>` | `vllm/distributed/utils.py` |
//! | nvidia-resiliency-ext's restart in the process | `_inprocess_<n>/` with `inprocess_barrier_prefix:barrier:<name>`, behind it `:arrived` and `:last_worker_arrived`, and `any_rank_interrupted`, `any_rank_completed`, `heartbeat_<rank>`, `state_<rank>`, `key_<rank>`, `active_rank_<rank>` | `nvidia_resiliency_ext/inprocess/store.py` |
//!
//! Their ranks are the ranks in a separate group of the library.

use super::family::Family;
use crate::text::decimal;

pub(super) fn of_library(path: &[u8]) -> Option<Family<'_>> {
    stateless_group(path).or_else(|| in_process(path))
}

fn stateless_group(path: &[u8]) -> Option<Family<'_>> {
    let number = after_last(path, b'/');
    let rest = path.strip_suffix(number)?.strip_suffix(b"/");
    if let Some(rest) = rest
        && decimal(number).is_some()
    {
        let rank = after_last(rest, b'/');
        let folder = rest.strip_suffix(rank)?.strip_suffix(b"/")?;
        let rank = decimal(rank)?;
        return match after_last(folder, b'/') {
            b"broadcast_from" => Some(Family::Broadcast { rank }),
            b"send_to" => Some(Family::SentTo { rank }),
            _ => None,
        };
    }
    let last = after_last(path, b'/');
    let is_arrival = last.starts_with(b"arrival_barrier_");
    if !is_arrival && !last.starts_with(b"departure_barrier_") {
        return None;
    }
    let rank = decimal(after_last(last, b'_'))?;
    Some(Family::Attendance { rank, is_arrival })
}

fn in_process(path: &[u8]) -> Option<Family<'_>> {
    if let Some(begin) = find(path, b"inprocess_barrier_prefix:barrier:") {
        let name = &path[begin + b"inprocess_barrier_prefix:barrier:".len()..];
        let (name, is_last) = match name.strip_suffix(b":last_worker_arrived") {
            Some(name) => (name, true),
            None => (name.strip_suffix(b":arrived").unwrap_or(name), false),
        };
        return Some(Family::InProcessBarrier { name, is_last });
    }
    if !contains(path, b"_inprocess_") {
        return None;
    }
    let last = after_last(path, b'/');
    if matches!(last, b"any_rank_interrupted" | b"any_rank_completed") {
        return Some(Family::InProcessEvent);
    }
    let number = after_last(last, b'_');
    match last.strip_suffix(number)? {
        b"heartbeat_" | b"state_" | b"key_" | b"active_rank_" => {
            decimal(number).map(|rank| Family::InProcessRank { rank })
        }
        _ => None,
    }
}

pub(super) fn after_last(bytes: &[u8], separator: u8) -> &[u8] {
    bytes
        .rsplit(|&byte| byte == separator)
        .next()
        .unwrap_or(bytes)
}

pub(super) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

pub(super) fn find_last(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).rposition(|window| window == part)
}

pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    find(bytes, part).is_some()
}
