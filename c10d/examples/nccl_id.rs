//! Gives one NCCL id to all ranks, in ten lines. Start it with:
//! `c10d run --nproc-per-node 4 target/debug/examples/nccl_id`

/// In place of `ncclGetUniqueId`, for machines without a GPU.
fn nccl_unique_id() -> [u8; 128] {
    std::array::from_fn(|index| u8::try_from(index).unwrap_or(0))
}

#[expect(clippy::print_stdout, reason = "it shows what it got")]
fn main() -> Result<(), c10d::GroupError> {
    let group = c10d::init_from_env()?;
    let id = (group.rank() == 0).then(nccl_unique_id);
    let id = group.broadcast(0, id.as_ref().map(|it| &it[..]))?;
    let sum: usize = id.iter().copied().map(usize::from).sum();
    println!(
        "rank {} of {}: {} bytes with sum {sum}",
        group.rank(),
        group.world_size(),
        id.len()
    );
    group.finish()
}
