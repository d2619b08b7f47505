//! Nodes that exchange their ranks over a store.

use std::sync::Arc;
use std::thread;

use c10d_socket::Cancel;
use c10d_store::{HashStore, StoreExt};

use super::*;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn empty() -> RoundBoard {
    RoundBoard::new(Arc::new(HashStore::new()))
}

fn node(role: &str, local_world_size: usize) -> RoleInfo {
    RoleInfo {
        role: role.to_owned(),
        local_world_size,
    }
}

#[test]
fn nodes_of_different_sizes_and_roles_get_ranks_in_order() {
    let board = empty();
    let nodes = [node("trainer", 2), node("eval", 1), node("trainer", 3)];
    let threads: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(rank, own)| {
            let board = board.clone();
            thread::spawn(move || exchange_ranks(&board, rank, 3, &own, TIMEOUT, &Cancel::NEVER))
        })
        .collect();
    let blocks: Vec<RankBlock> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap().unwrap())
        .collect();
    let block = |first_rank, first_role_rank, role_world_size| RankBlock {
        first_rank,
        world_size: 6,
        first_role_rank,
        role_world_size,
    };
    assert_eq!(blocks, [block(0, 0, 5), block(2, 0, 1), block(3, 2, 5)]);
    assert_eq!(
        board.store().get("torchelastic/assigned_ranks/1").unwrap(),
        b"[2,6,0,1]"
    );
}

#[test]
fn json_as_python_writes_it_is_parsed() {
    let board = empty();
    let text = br#"{"role": "trainer", "rank": 1, "local_world_size": 2}"#;
    board.put("torchelastic/role_info/1", text).unwrap();
    let block = exchange_ranks(&board, 0, 2, &node("trainer", 1), TIMEOUT, &Cancel::NEVER).unwrap();
    assert_eq!(
        block,
        RankBlock {
            first_rank: 0,
            world_size: 3,
            first_role_rank: 0,
            role_world_size: 3
        }
    );
    let text = b"[1, 3, 1, 3]";
    board.put("torchelastic/assigned_ranks/1", text).unwrap();
    let block = exchange_ranks(&board, 1, 2, &node("trainer", 2), TIMEOUT, &Cancel::NEVER).unwrap();
    assert_eq!(block.first_rank, 1);
}

#[test]
fn missing_nodes_are_named() {
    let board = empty();
    let timeout = Some(Duration::from_millis(10));
    board.put("torchelastic/role_info/2", b"{}").unwrap();
    let error = exchange_ranks(&board, 0, 4, &node("a", 1), timeout, &Cancel::NEVER).unwrap_err();
    assert!(
        matches!(&error, BoardError::Missing { missing, .. } if missing == &[1, 3]),
        "{error}"
    );
    let error = exchange_ranks(&board, 1, 4, &node("a", 1), timeout, &Cancel::NEVER).unwrap_err();
    assert!(
        matches!(&error, BoardError::Missing { missing, .. } if missing == &[0]),
        "{error}"
    );
}

#[test]
fn a_malformed_value_of_another_node_is_an_error_that_shows_it() {
    let board = empty();
    for text in [
        "",
        "{}",
        "[]",
        r#"{"role": 1, "local_world_size": 1}"#,
        r#"{"role": "a", "local_world_size": -1}"#,
    ] {
        board
            .put("torchelastic/role_info/1", text.as_bytes())
            .unwrap();
        let error =
            exchange_ranks(&board, 0, 2, &node("a", 1), TIMEOUT, &Cancel::NEVER).unwrap_err();
        assert!(
            matches!(error, BoardError::Malformed { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn a_cancelled_exchange_ends() {
    let board = empty();
    let cancel = Cancel::new();
    cancel.cancel();
    let error = exchange_ranks(&board, 1, 2, &node("a", 1), TIMEOUT, &cancel).unwrap_err();
    assert!(matches!(error, BoardError::Interrupted), "{error}");
}

#[test]
fn identical_nodes_need_no_exchange() {
    let exchanged = assign_ranks(&[node("a", 4), node("a", 4), node("a", 4)]);
    for (rank, block) in exchanged.iter().enumerate() {
        assert_eq!(*block, RankBlock::identical(rank, 3, 4));
    }
}
