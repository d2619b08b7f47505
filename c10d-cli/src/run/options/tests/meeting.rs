//! The meeting of the nodes, with torchrun's defaults.

use super::*;

#[test]
fn the_rendezvous_is_torchruns() {
    let alone = "1:1 c10d \"localhost:0\" random timeout=900";
    for (line, expected) in [
        ("s.py", alone),
        ("--master-addr=h s.py", alone),
        ("--rdzv-id=j s.py", alone),
        ("--rdzv-backend=static s.py", alone),
        (
            "--standalone --rdzv-backend=static --rdzv-endpoint=q:1 s.py",
            alone,
        ),
        ("--standalone --rdzv-backend=etcd s.py", alone),
        ("--standalone --standalone s.py", alone),
        ("--stand s.py", alone),
        (
            "--standalone --rdzv-id=j --nnodes=2 s.py",
            "2:2 c10d \"localhost:0\" random timeout=900",
        ),
        (
            "--nnodes=2 s.py",
            "2:2 static \"127.0.0.1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes 1:3 s.py",
            "1:3 static \"127.0.0.1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes=2 --node-rank=1 --master_addr h s.py",
            "2:2 static \"h:29500\" none rank=1,timeout=900",
        ),
        (
            "--nnodes=2 --master-addr=::1 s.py",
            "2:2 static \"::1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes=1:2 --master-port=5 s.py",
            "1:2 static \"127.0.0.1:5\" none rank=0,timeout=900",
        ),
        (
            "--rdzv-id=j --master-port=0 s.py",
            "1:1 static \"127.0.0.1:0\" j rank=0,timeout=900",
        ),
        (
            "--rdzv-endpoint=h:5 --rdzv-conf=rank=7 s.py",
            "1:1 static \"h:5\" none rank=0,timeout=900",
        ),
        (
            "--nnodes 2 --nnodes 3 --rdzv-endpoint=h:1 s.py",
            "3:3 static \"h:1\" none rank=0,timeout=900",
        ),
        ("--rdzv-backend=c10d s.py", "1:1 c10d \"\" none timeout=900"),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=j s.py",
            "1:1 c10d \"h:1\" j timeout=900",
        ),
        (
            "--rdzv_backend c10d --rdzv_endpoint h --rdzv_id j --rdzv_conf a=1,timeout=5 s.py",
            "1:1 c10d \"h\" j a=1,timeout=5",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=/tmp/f --rdzv-conf=store_type=File s.py",
            "1:1 c10d \"/tmp/f\" none store_type=File,timeout=900",
        ),
    ] {
        assert_eq!(rendezvous(line, &[]), expected, "{line}");
    }
}

#[test]
fn the_environment_provides_defaults() {
    let static_pair = "2:3 static \"127.0.0.1:29500\" none rank=0,timeout=900";
    let standalone_pair = "2:2 c10d \"localhost:0\" random timeout=900";
    for (line, variables, expected) in [
        ("s.py", &[("PET_NNODES", "2:3")][..], static_pair),
        ("--nnodes=2:3 s.py", &[("PET_NNODES", "5")], static_pair),
        (
            "s.py",
            &[("PET_STANDALONE", "1"), ("PET_NNODES", "2")],
            standalone_pair,
        ),
        (
            "s.py",
            &[("PET_STANDALONE", "-1"), ("PET_NNODES", "2")],
            standalone_pair,
        ),
        ("--nnodes=2:3 s.py", &[("PET_STANDALONE", "0")], static_pair),
        (
            "--nnodes=2 --standalone s.py",
            &[("PET_STANDALONE", "0")],
            standalone_pair,
        ),
        (
            "s.py",
            &[("PET_MASTER_PORT", "5")],
            "1:1 static \"127.0.0.1:5\" none rank=0,timeout=900",
        ),
    ] {
        assert_eq!(
            rendezvous(line, variables),
            expected,
            "{line} {variables:?}"
        );
    }
}

#[test]
fn a_random_id_is_a_uuid_of_version_4() {
    for seed in 0..64 {
        let id = random_id(seed);
        let groups: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
        let is_hex = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
        assert!(id.chars().all(is_hex), "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
    }
    assert_ne!(random_id(1), random_id(2));
}

#[test]
fn the_precedence_of_members_over_spares_is_a_setting_of_the_rendezvous() {
    let c10d = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=a";
    let wait = |options: &str, variables: Variables<'_>| {
        let plan = plan(&format!("{c10d} {options}s.py"), variables);
        plan.launcher
            .rendezvous
            .get("spare_wait")
            .map(str::to_owned)
    };
    assert_eq!(wait("", &[]), None);
    assert_eq!(wait("--spare-wait 1m ", &[]).as_deref(), Some("60"));
    assert_eq!(wait("--spare_wait=0 ", &[]).as_deref(), Some("0"));
    assert_eq!(
        wait("", &[("PET_SPARE_WAIT", "1.5")]).as_deref(),
        Some("1.5")
    );
    assert_eq!(wait("--rdzv-conf=spare_wait=7 ", &[]).as_deref(), Some("7"));
    assert_eq!(
        wait("--rdzv-conf=spare_wait=7 --spare-wait=8s ", &[]).as_deref(),
        Some("8")
    );
    assert_eq!(
        refusal(&format!("{c10d} --spare-wait soon s.py"), &[]),
        "--spare-wait is \"soon\"; expected a time, for example 15s or 1m, or 0"
    );
    let warned = plan("--nnodes=2 --rdzv-endpoint=a:1 --spare-wait=1s s.py", &[]).warning_texts();
    assert_eq!(
        warned,
        ["--spare-wait is \"1s\", which has no effect: the static backend has no spares"]
    );
}

#[test]
fn a_store_that_is_kept_is_the_workers_too() {
    let shared = "1:1 c10d \"localhost:0\" random timeout=900,workers_store=rendezvous";
    let own = "1:1 c10d \"localhost:0\" random timeout=900";
    for (line, variables, expected) in [
        ("--workers-store=rendezvous s.py", &[][..], shared),
        ("s.py", &[("PET_WORKERS_STORE", "rendezvous")], shared),
        #[cfg(feature = "journal")]
        ("--store-dir=d s.py", &[], shared),
        #[cfg(feature = "journal")]
        ("s.py", &[("PET_STORE_DIR", "d")], shared),
        ("s.py", &[("PET_STORE_DIR", "")], own),
        #[cfg(feature = "journal")]
        (
            "--store-dir=d --workers-store=agent s.py",
            &[],
            "1:1 c10d \"localhost:0\" random timeout=900,workers_store=agent",
        ),
        #[cfg(feature = "journal")]
        (
            "--store-dir=d s.py",
            &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")],
            "1:1 c10d \"localhost:0\" random share_store=0,timeout=900",
        ),
    ] {
        assert_eq!(rendezvous(line, variables), expected, "{line}");
    }
    let line = "--nnodes=2 --rdzv-endpoint=a:1 --workers-store=agent s.py";
    let warnings = plan(line, &[]).warning_texts();
    let why = "the workers use the store of a static rendezvous";
    assert!(warnings.iter().any(|it| it.contains(why)), "{warnings:?}");
}

#[test]
fn the_port_of_the_workers_store_is_given_where_a_launcher_serves_it() {
    let port = |line: &str| {
        let plan = plan(line, &[]);
        let ports = plan.launcher.rendezvous.workers_port();
        (ports.map(|it| it.to_string()), plan.warning_texts())
    };
    for (options, expected) in [
        (
            "--rdzv-backend=c10d --rdzv-endpoint=a:1",
            Some("29600-29609"),
        ),
        ("--standalone", Some("29600-29609")),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=a:1 --workers-store=rendezvous",
            None,
        ),
        ("--nnodes=2 --rdzv-endpoint=a:1", None),
    ] {
        let (found, warnings) = port(&format!("{options} --workers-port=29600-29609 s.py"));
        assert_eq!(found.as_deref(), expected, "{options}");
        let says_so = warnings.iter().any(|it| it.contains("--workers-port is"));
        assert_eq!(says_so, expected.is_none(), "{options}: {warnings:?}");
    }
    for (ports, is_ephemeral) in [
        ("29600", false),
        ("40000", false),
        ("40010", true),
        ("39999-40009", false),
        ("50001-50003", true),
    ] {
        let (_, warnings) = port(&format!("--standalone --workers-port={ports} s.py"));
        let warns = warnings.iter().any(|it| it.contains("(--workers-port)"));
        assert_eq!(warns, is_ephemeral, "{ports}: {warnings:?}");
    }
}

#[cfg(feature = "journal")]
#[test]
fn a_directory_has_the_store_of_the_rendezvous() {
    let kept = |line| {
        let plan = plan(line, &[]);
        (plan.store_dir, plan.launcher.rendezvous.journal().is_some())
    };
    assert_eq!(kept("--store-dir=d s.py"), (Some("d".into()), true));
    assert_eq!(kept("s.py"), (None, false));
}
