use super::*;

const HASH: &str = "be10dc2f0a11bb22cc33dd44ee55ff6677889900";

fn member<'a>(stem: &'a str, rank: usize, key: &'a str) -> Member<'a> {
    match family(key.as_bytes()) {
        Family::Member(member) => {
            assert_eq!(member.stem, stem.as_bytes(), "{key}");
            assert_eq!(member.rank, rank, "{key}");
            member
        }
        other => panic!("{key} is {other:?}"),
    }
}

#[test]
fn addresses_of_members_name_their_group() {
    for (key, prefix, parents, name, is_default) in [
        ("/default_pg/0//cpu//0/2", "default_pg/", "", "0", true),
        ("/0//cpu//0/2", "", "", "0", true),
        ("/run/7/0//cpu//1/2", "run/7/", "", "0", true),
        (
            "/default_pg/0//cpu//pg_wrapper:0/0/2",
            "default_pg/",
            "",
            "0",
            true,
        ),
        ("/default_pg/0//1//cpu//0/2", "default_pg/", "0", "1", false),
        ("/default_pg/0//6//cpu//0/2", "default_pg/", "0", "6", false),
        (
            "/AsyncCheckpointProcess//0//cpu//0/2",
            "",
            "AsyncCheckpointProcess",
            "0",
            false,
        ),
    ] {
        let member = member(&key[..key.len() - 1], 2, key);
        assert_eq!(member.group.prefix, prefix.as_bytes(), "{key}");
        assert_eq!(member.group.parents, parents.as_bytes(), "{key}");
        assert_eq!(member.group.name, name.as_bytes(), "{key}");
        assert_eq!(member.group.is_default(), is_default, "{key}");
    }
    let split = format!("/default_pg/0//{HASH}//0/11");
    let member = member(&split[..split.len() - 2], 11, &split);
    assert_eq!(member.group.name, HASH.as_bytes());
    assert_eq!(member.group.words(), "group be10…");
    assert!(!member.group.is_default());
    assert!(is_hash(member.group.name));
    let rpc = self::member("/rpc_prefix_0/0/", 3, "/rpc_prefix_0/0/3");
    assert_eq!(rpc.group.maker, Maker::Rpc);
    assert!(!rpc.group.is_default());
}

#[test]
fn every_other_family_is_recognized() {
    let default = GroupName {
        prefix: b"default_pg/",
        parents: b"",
        name: b"0",
        maker: Maker::Process,
    };
    let pair = GroupName {
        name: b"0_1_1",
        ..default
    };
    for (key, expected) in [
        ("init/", Family::Init),
        (
            "/default_pg/store_based_barrier_key:0",
            Family::InitBarrier {
                group: b"0",
                is_last: false,
            },
        ),
        (
            "/default_pg/0//store_based_barrier_key:1:last_worker",
            Family::InitBarrier {
                group: b"1",
                is_last: true,
            },
        ),
        (
            "/sync/num_members",
            Family::Barrier {
                name: b"sync",
                is_last: false,
            },
        ),
        (
            "/a/b/last_member",
            Family::Barrier {
                name: b"a/b",
                is_last: true,
            },
        ),
        (
            "/default_pg/0//cuda//0/nccl_storekey_0",
            Family::NcclId {
                group: default,
                root: 0,
            },
        ),
        (
            "/default_pg/0//cuda//0/nccl_storekey_1_3",
            Family::NcclId {
                group: default,
                root: 3,
            },
        ),
        (
            "/default_pg/0//cuda//0_1_1/0_1_1/nccl_storekey_0",
            Family::NcclId {
                group: pair,
                root: 0,
            },
        ),
        (
            "/default_pg/0//cuda//0",
            Family::NcclId {
                group: default,
                root: 0,
            },
        ),
        (
            "/default_pg/0//cuda//UniqueNCCLID:2",
            Family::NcclId {
                group: default,
                root: 2,
            },
        ),
        (
            "/default_pg/0//cuda//1:3",
            Family::NcclPair {
                group: default,
                lower: 1,
                higher: 3,
            },
        ),
        ("/debug_server/rank12", Family::DebugServer { rank: 12 }),
        (
            "/none/torchelastic/role_info/1",
            Family::ElasticRole { agent: 1 },
        ),
        (
            "/torch.rendezvous.job7.0/torchelastic/assigned_ranks/1",
            Family::ElasticRanks { agent: 1 },
        ),
        (
            "/torch.rendezvous.job7.0/MASTER_PORT",
            Family::ElasticMaster,
        ),
        (
            "/none/torchelastic/agent/terminal_state/last_member",
            Family::ElasticExit { is_last: true },
        ),
        ("/torch.rendezvous.job7", Family::Rendezvous { id: b"job7" }),
        ("/rpc_prefix_0/names/2", Family::RpcName { rank: 2 }),
        ("/rpc_prefix_0/addrs/w2", Family::RpcAddress { name: b"w2" }),
        ("/rpc_prefix_0/shutdown/READY_ID_0", Family::RpcShutdown),
        ("/rpc_prefix_0/Token_for_w2_join", Family::RpcToken),
        ("/exception_dump", Family::NcclTimeout),
        ("/default_pg/0//cuda//remote_error:0", Family::NcclTimeout),
        ("/NCCL_3_trace_start", Family::NcclTrace { rank: 3 }),
        (
            "/default_pg/0//cuda//nccl2_reconfigure/a-b/claimed",
            Family::Reconfigure,
        ),
        // PyTorch 2.15's `_reconfigure`: gloo, NCCL.
        (
            "/pg/0//cpu//reconfigure/2/0/3",
            Family::Reconfigured { rank: 3 },
        ),
        ("/pg/0//cpu//reconfigure/2/claimed", Family::Reconfigure),
        (
            "/default_pg/0//cuda//nccl2_reconfigure/7/unique_id",
            Family::Reconfigure,
        ),
        // vllm/distributed/utils.py, StatelessProcessGroup.
        ("/broadcast_from/0/17", Family::Broadcast { rank: 0 }),
        ("/group/broadcast_from/12/0", Family::Broadcast { rank: 12 }),
        ("/send_to/3/1", Family::SentTo { rank: 3 }),
        (
            "/arrival_barrier_2f8c-11_5",
            Family::Attendance {
                rank: 5,
                is_arrival: true,
            },
        ),
        (
            "/departure_barrier_2f8c-11_0",
            Family::Attendance {
                rank: 0,
                is_arrival: false,
            },
        ),
        ("/broadcast_from/x/17", Family::Unknown),
        ("/send_to/3", Family::Unknown),
        ("/arrival_barrier_2f8c-11_", Family::Unknown),
        // nvidia_resiliency_ext/inprocess/store.py, StoreMixin.
        (
            "/inprocess_barrier_prefix:barrier:initial_barrier:last_worker_arrived",
            Family::InProcessBarrier {
                name: b"initial_barrier",
                is_last: true,
            },
        ),
        (
            "/_inprocess_3/inprocess_barrier_prefix:barrier:iteration_barrier:arrived",
            Family::InProcessBarrier {
                name: b"iteration_barrier",
                is_last: false,
            },
        ),
        ("/_inprocess_3/any_rank_interrupted", Family::InProcessEvent),
        (
            "/_inprocess_3/heartbeat_12",
            Family::InProcessRank { rank: 12 },
        ),
        (
            "/_inprocess_3/active_rank_1",
            Family::InProcessRank { rank: 1 },
        ),
        ("/heartbeat_12", Family::Unknown),
        (
            "/default_pg/0//CUDASymmetricMemory/4/2",
            Family::SymmetricMemory { rank: 2 },
        ),
        ("/transport/ucx/0/1/attempts/0", Family::Transport),
        ("/my/key", Family::Unknown),
        ("/sync/3", Family::Unknown),
        ("", Family::Unknown),
        ("/", Family::Unknown),
        ("//", Family::Unknown),
        ("//0", Family::Unknown),
        (
            "/default_pg/0//cpu//0/99999999999999999999",
            Family::Unknown,
        ),
        ("/default_pg/0//cpu//0/007", Family::Unknown),
    ] {
        assert_eq!(family(key.as_bytes()), expected, "{key}");
    }
}

#[test]
fn meanings_are_harmless_text() {
    assert_eq!(
        meaning(b"/default_pg/0//cpu//0/2", None),
        "the address of rank 2 in the default group"
    );
    assert_eq!(
        meaning(b"/default_pg/0//1//cpu//0/2", None),
        "the address of member 2 of group 1"
    );
    assert_eq!(meaning(b"/my\x1b[2J", None), "the key /my\\u{1b}[2J");
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..10_000 {
        let parts: [&[u8]; 8] = [
            b"/",
            b"//",
            b"0",
            b"default_pg",
            b"\x1b",
            b"nccl_storekey_",
            b"rpc_prefix_0",
            b":",
        ];
        let key: Vec<u8> = (0..random.usize(..12))
            .flat_map(|_| parts[random.usize(..parts.len())].to_vec())
            .collect();
        assert!(!meaning(&key, None).contains(|c: char| c.is_control()));
    }
}

#[test]
fn a_programs_own_key_is_about_no_rank() {
    for key in [
        "batch/7",
        "result/1",
        "shard/0/2",
        "7:2",
        "a:b/7",
        "x/pg_wrapper:0/y/2",
    ] {
        let key = format!("/default_pg/0//{key}");
        assert_eq!(
            meaning(key.as_bytes(), Some(3)),
            format!("the key {key}"),
            "{:?}",
            family(key.as_bytes())
        );
    }
}

/// A number that no rank of the job has is not shown as one, whatever the form of the key.
#[test]
fn no_rank_is_named_that_cannot_exist() {
    for (shape, rank, other) in KEY_SHAPES
        .iter()
        .flat_map(|shape| (0..144).map(move |it| (shape, it / 12, it % 12)))
    {
        let key = shape
            .replace("{a}", &rank.to_string())
            .replace("{b}", &other.to_string());
        for size in 1..9 {
            let text = meaning(key.as_bytes(), Some(size));
            assert!(
                named(&text).iter().all(|named| *named < size),
                "{key} of {size}: {text}"
            );
            if rank.max(other) < size {
                assert_eq!(text, meaning(key.as_bytes(), None), "{key} of {size}");
            }
        }
    }
}

/// Keys about the ranks `{a}` and `{b}`, of each kind that names a rank.
const KEY_SHAPES: [&str; 14] = [
    "/default_pg/0//cpu//0/{a}",
    "/default_pg/0//1//cpu//0/{a}",
    "/default_pg/0//0/{a}",
    "/default_pg/0//batch/{a}",
    "/rpc_prefix_0/0/{a}",
    "/rpc_prefix_0/names/{a}",
    "/default_pg/debug_server/rank{a}",
    "/default_pg/0//cuda//{a}:{b}",
    "/NCCL_{a}_trace_start",
    "/reconfigure/u/0/{a}",
    "/CUDASymmetricMemory/x/{a}",
    "/broadcast_from/{a}/{b}",
    "/arrival_barrier_u_{a}",
    "/_inprocess_0/heartbeat_{a}",
];

/// The numbers after "rank", "ranks", "member" or "worker" in a text, outside of keys.
fn named(text: &str) -> Vec<usize> {
    let text = text.split("the key ").next().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut numbers = Vec::new();
    for (place, word) in words.iter().enumerate() {
        if ["rank", "ranks", "member", "worker", "and"].contains(word)
            && let Some(next) = words.get(place + 1)
        {
            let digits = next.split(|c: char| !c.is_ascii_digit()).next();
            numbers.extend(digits.and_then(|digits| digits.parse::<usize>().ok()));
        }
    }
    numbers
}
