//! The variables of workers, with those that the agent has.

use super::*;

const RANKS: Assignment = Assignment {
    rank: 5,
    local_rank: 1,
    group_rank: 2,
    role_rank: 3,
    local_world_size: 4,
    world_size: 16,
    group_world_size: 6,
    role_world_size: 8,
};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs
        .iter()
        .map(|&(name, value)| (name.into(), value.into()))
        .collect()
}

fn value<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a str> {
    environment
        .iter()
        .find(|(found, _)| found == name)
        .and_then(|(_, value)| value.to_str())
}

/// The environment of a worker with these inherited variables.
fn plain(inherited: &[(&str, &str)]) -> WorkerEnvironment {
    let master = HostPort::new("node0", 29500);
    WorkerEnvironment::new(pairs(inherited), &RANKS, "job", &master)
}

#[test]
fn every_variable_of_pytorch_is_set_and_others_are_passed_on() {
    let inherited = pairs(&[("PATH", "/bin"), ("RANK", "77"), ("OMP_NUM_THREADS", "2")]);
    let master = HostPort::new("node0", 29500);
    let environment = WorkerEnvironment::new(inherited, &RANKS, "job", &master)
        .with_role("trainer")
        .with_restarts(1, 9)
        .with_agent_store(true)
        .with_error_file(Path::new("/logs/error.json"))
        .into_variables();
    let expected = pairs(&[
        ("GROUP_RANK", "2"),
        ("GROUP_WORLD_SIZE", "6"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("OMP_NUM_THREADS", "2"),
        ("PATH", "/bin"),
        ("RANK", "5"),
        ("ROLE_NAME", "trainer"),
        ("ROLE_RANK", "3"),
        ("ROLE_WORLD_SIZE", "8"),
        ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
        ("TORCHELASTIC_MAX_RESTARTS", "9"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
        ("TORCHELASTIC_RUN_ID", "job"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("WORLD_SIZE", "16"),
    ]);
    assert_eq!(environment, expected);
}

#[test]
fn without_a_file_and_a_store_the_variables_are_empty_and_false() {
    let environment = plain(&[
        ("TORCHELASTIC_ERROR_FILE", "/the/agent's/own"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
    ]);
    let environment = environment.into_variables();
    assert_eq!(value(&environment, "TORCHELASTIC_ERROR_FILE"), Some(""));
    assert_eq!(
        value(&environment, "TORCHELASTIC_USE_AGENT_STORE"),
        Some("False")
    );
    let nccl = value(&environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING");
    assert_eq!(nccl, Some("3"));
}

#[test]
fn a_worker_with_a_relay_learns_the_address_of_the_store_too() {
    let relay = HostPort::new("127.0.0.2", 31000);
    let relayed = |inherited: &[_]| plain(inherited).with_relay(&relay);
    let names = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "C10D_MASTER_ADDR",
        "C10D_MASTER_PORT",
        "DCP_USE_PREFIX_STORE",
    ];
    let outer = [
        ("C10D_MASTER_ADDR", "outer"),
        ("C10D_MASTER_PORT", "1"),
        ("DCP_USE_PREFIX_STORE", "0"),
    ];
    let (store, port) = (Some("node0"), Some("29500"));
    for (environment, expected) in [
        (plain(&[]), [store, port, None, None, None]),
        (plain(&outer), [store, port, None, None, Some("0")]),
        (
            relayed(&[]),
            [Some("127.0.0.2"), Some("31000"), store, port, Some("1")],
        ),
        (
            relayed(&outer),
            [Some("127.0.0.2"), Some("31000"), store, port, Some("0")],
        ),
    ] {
        let variables = environment.into_variables();
        assert_eq!(names.map(|name| value(&variables, name)), expected);
    }
}

#[test]
fn the_paths_of_this_launcher_replace_those_of_an_outer_one() {
    for name in [DEBUG_SOCKET, PROGRESS_FILE, TIMER_FILE] {
        let outer = plain(&[(name, "/outer")]);
        let without = outer.clone().with_some(name, None::<&Path>);
        assert_eq!(value(&without.into_variables(), name), Some("/outer"));
        let with_own = outer.with_some(name, Some(Path::new("/own")));
        assert_eq!(value(&with_own.into_variables(), name), Some("/own"));
    }
}

#[test]
fn a_virtual_local_rank_sees_one_of_the_agents_devices() {
    let table = [
        (vec![], Some("1"), None),
        (vec![("CUDA_VISIBLE_DEVICES", "4, 5 ,6")], Some("5"), None),
        (vec![("HIP_VISIBLE_DEVICES", "")], Some("1"), Some("")),
        (
            vec![
                ("CUDA_VISIBLE_DEVICES", "8"),
                ("HIP_VISIBLE_DEVICES", "2,3"),
            ],
            Some("3"),
            Some("3"),
        ),
    ];
    for (inherited, cuda, hip) in table {
        let environment = plain(&inherited).with_one_device(1).unwrap();
        let environment = environment.into_variables();
        assert_eq!(value(&environment, "LOCAL_RANK"), Some("0"));
        assert_eq!(value(&environment, CUDA_VISIBLE_DEVICES), cuda);
        assert_eq!(value(&environment, HIP_VISIBLE_DEVICES), hip);
    }
    for variable in [CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES] {
        let error = plain(&[(variable, "7")]).with_one_device(1).unwrap_err();
        let expected = format!("local rank 1 has no device in {variable}=7");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_worker_knows_what_it_is_in_the_group() {
    let outer = plain(&[("C10D_KEEP_WORKERS", "1"), ("C10D_MEMBER_ID", "77")]);
    let member = GroupMember {
        group: "job/0",
        process: ProcessId { rank: 5, start: 21 },
        members_first: 7,
        members_min: 2,
    };
    let mut own = outer.clone().with_membership(member).into_variables();
    own.retain(|(name, _)| {
        name.as_encoded_bytes().starts_with(b"C10D_MEMBER") || name == "C10D_KEEP_WORKERS"
    });
    let expected = pairs(&[
        ("C10D_KEEP_WORKERS", "1"),
        ("C10D_MEMBERSHIP_GROUP", "job/0"),
        ("C10D_MEMBERS_FIRST", "7"),
        ("C10D_MEMBERS_MIN", "2"),
        ("C10D_MEMBER_ID", "5"),
        ("C10D_MEMBER_INCARNATION", "22"),
        ("C10D_MEMBER_SERIAL", "21"),
    ]);
    assert_eq!(own, expected);
    let outer = outer.into_variables();
    assert_eq!(value(&outer, "C10D_MEMBER_ID"), None);
    assert_eq!(value(&outer, "C10D_KEEP_WORKERS"), None);
}
