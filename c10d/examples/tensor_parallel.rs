//! Workers in two dimensions: ranks that share a layer's tensors, and ranks that have the same part of them. Start it with:
//! `c10d run --nproc-per-node 4 target/debug/examples/tensor_parallel`
//!
//! Each sub-group would make an NCCL communicator from its id; here they only show who meets.

use c10d::{Group, GroupError};

/// Ranks that split a layer.
const TENSOR_PARALLEL: usize = 2;

/// The id of a communicator, from the first rank of a group. In place of `ncclGetUniqueId`.
fn communicator_id(group: &Group) -> Result<Vec<u8>, GroupError> {
    let id = (group.rank() == 0).then(|| format!("id of {}", group.name()));
    group.broadcast(0, id.as_ref().map(String::as_bytes))
}

#[expect(clippy::print_stdout, reason = "it shows what it got")]
fn main() -> Result<(), GroupError> {
    let world = c10d::init_from_env()?;
    let (row, column) = (
        world.rank() / TENSOR_PARALLEL,
        world.rank() % TENSOR_PARALLEL,
    );
    let rows = world.world_size().div_ceil(TENSOR_PARALLEL);
    let of_row =
        |row: usize| row * TENSOR_PARALLEL..world.world_size().min((row + 1) * TENSOR_PARALLEL);
    let tensor_ranks: Vec<usize> = of_row(row).collect();
    let data_ranks: Vec<usize> = (0..rows)
        .filter_map(|row| of_row(row).nth(column))
        .collect();

    let tensor = world.split(&format!("tp-{row}"), &tensor_ranks)?;
    let data = world.split(&format!("dp-{column}"), &data_ranks)?;
    println!(
        "rank {}: {:?} as {} of {}, {:?} as {} of {}",
        world.rank(),
        String::from_utf8_lossy(&communicator_id(&tensor)?),
        tensor.rank(),
        tensor.world_size(),
        String::from_utf8_lossy(&communicator_id(&data)?),
        data.rank(),
        data.world_size(),
    );
    world.finish()
}
