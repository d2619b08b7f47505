//! Given options win over the environment of a scheduler, each on its own.

use super::*;

/// Node 1 of 2 in a step of Slurm.
const SLURM: Variables<'_> = &[
    ("SLURM_JOB_ID", "1234"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "node[001-002]"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ("SLURM_NODEID", "1"),
    ("SLURM_PROCID", "1"),
    ("SLURM_GPUS_ON_NODE", "8"),
];

fn in_slurm(more: Variables<'static>) -> Vec<(&'static str, &'static str)> {
    // The first of two values of a variable counts.
    [more, SLURM].concat()
}

fn origins(plan: &RunPlan) -> String {
    let origins = plan.origins.iter();
    let texts = origins.map(|origin| format!("{} {} ({})", origin.name, origin.value, origin.from));
    texts.collect::<Vec<_>>().join(", ")
}

#[test]
fn a_step_of_slurm_needs_no_options() {
    let plan = plan("s.py", SLURM);
    assert_eq!(
        rendezvous("s.py", SLURM),
        "2:2 c10d \"node001:26139\" 1234.0 is_host=0,timeout=900"
    );
    assert_eq!(plan.scheduler, Some("Slurm"));
    assert_eq!(plan.node_rank, Some(1));
    assert_eq!(plan.launcher.agent.local_world_size, 8);
    assert_eq!(
        plan.launcher.agent.shutdown_timeout,
        Some(Duration::from_secs(27))
    );
    assert_eq!(
        origins(&plan),
        "nodes 2 (SLURM_STEP_NUM_NODES), node rank 1 (SLURM_NODEID), endpoint node001:26139 (SLURM_STEP_NODELIST, \
         SLURM_JOB_ID, SLURM_STEP_ID), run id 1234.0 (SLURM_JOB_ID, SLURM_STEP_ID), workers 8 (SLURM_GPUS_ON_NODE)"
    );
    let first = in_slurm(&[("SLURM_NODEID", "0")]);
    assert_eq!(
        rendezvous("s.py", &first),
        "2:2 c10d \"node001:26139\" 1234.0 is_host=1,timeout=900"
    );
}

#[test]
fn given_options_win_each_on_its_own() {
    let alone = "1:1 c10d \"localhost:0\" random timeout=900";
    for (line, more, expected) in [
        (
            "--nnodes=1:4 s.py",
            &[][..],
            "1:4 c10d \"node001:26139\" 1234.0 is_host=0,timeout=900",
        ),
        (
            "--rdzv-id=j s.py",
            &[],
            "2:2 c10d \"node001:26139\" j is_host=0,timeout=900",
        ),
        (
            "--node-rank=0 s.py",
            &[],
            "2:2 c10d \"node001:26139\" 1234.0 is_host=1,timeout=900",
        ),
        (
            "--rdzv-conf=is_host=1,join_timeout=9 s.py",
            &[],
            "2:2 c10d \"node001:26139\" 1234.0 is_host=1,join_timeout=9,timeout=900",
        ),
        // As without a scheduler, an endpoint alone is static's.
        (
            "--rdzv-endpoint=h:1 s.py",
            &[],
            "2:2 static \"h:1\" 1234.0 rank=1,timeout=900",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=h:1 s.py",
            &[],
            "2:2 c10d \"h:1\" 1234.0 timeout=900",
        ),
        (
            "--rdzv-backend=c10d s.py",
            &[],
            "2:2 c10d \"node001:26139\" 1234.0 is_host=0,timeout=900",
        ),
        (
            "--rdzv-backend=static s.py",
            &[],
            "2:2 static \"node001:26139\" 1234.0 rank=1,timeout=900",
        ),
        (
            "--master-addr=h s.py",
            &[],
            "2:2 static \"h:29500\" 1234.0 rank=1,timeout=900",
        ),
        (
            "--master-port=7 s.py",
            &[],
            "2:2 static \"node001:7\" 1234.0 rank=1,timeout=900",
        ),
        ("--nnodes=1 s.py", &[], alone),
        ("--standalone s.py", &[], alone),
        ("--no-scheduler s.py", &[], alone),
        ("s.py", &[("PET_NO_SCHEDULER", "1")], alone),
        ("s.py", &[("TORCHELASTIC_RUN_ID", "outer")], alone),
        (
            "s.py",
            &[("PET_NNODES", "3"), ("PET_RDZV_ID", "j")],
            "3:3 c10d \"node001:26139\" j is_host=0,timeout=900",
        ),
        ("s.py", &[("SLURM_STEP_NUM_NODES", "1")], alone),
    ] {
        let variables = in_slurm(more);
        assert_eq!(rendezvous(line, &variables), expected, "{line} {more:?}");
    }
}

#[test]
fn options_of_kubeflow_are_given_options() {
    let trainer = [
        ("JOB_COMPLETION_INDEX", "1"),
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "2"),
        ("PET_NODE_RANK", "1"),
        ("PET_MASTER_ADDR", "job-node-0-0.job"),
        ("PET_MASTER_PORT", "29400"),
    ];
    let plan = plan("s.py", &trainer);
    assert_eq!(
        rendezvous("s.py", &trainer),
        "2:2 static \"job-node-0-0.job:29400\" none rank=1,timeout=900"
    );
    assert_eq!(plan.launcher.agent.local_world_size, 2);
    assert!(
        plan.warning_texts().is_empty(),
        "{:?}",
        plan.warning_texts()
    );

    let elastic = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("MASTER_ADDR", "job-worker-0"),
        ("MASTER_PORT", "23456"),
        ("WORLD_SIZE", "4"),
        ("RANK", "2"),
        ("PET_NNODES", "1:4"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_RDZV_ENDPOINT", "job-worker-0:23456"),
        ("PET_MAX_RESTARTS", "3"),
    ];
    assert_eq!(
        rendezvous("s.py", &elastic),
        "1:4 c10d \"job-worker-0:23456\" job-worker-0 timeout=900"
    );
}

#[test]
fn workers_are_the_gpus_of_the_job_unless_their_number_is_given() {
    let workers = |line: &str, more| {
        let plan = plan(line, &in_slurm(more));
        let mut origins = plan.origins.iter();
        let from = origins.find(|origin| origin.name == "workers");
        (
            plan.launcher.agent.local_world_size,
            from.map(|origin| origin.from.clone()),
        )
    };
    assert_eq!(
        workers("s.py", &[]),
        (8, Some("SLURM_GPUS_ON_NODE".to_owned()))
    );
    assert_eq!(
        workers("--nproc-per-node=3 s.py", &[]),
        (3, Some("--nproc-per-node".to_owned()))
    );
    assert_eq!(workers("--standalone s.py", &[]).0, 8);
    assert_eq!(workers("s.py", &[("SLURM_GPUS_ON_NODE", "")]), (1, None));
    assert_eq!(workers("--no-scheduler s.py", &[]), (1, None));
    // Each launcher would start all of them.
    let many = &[("SLURM_STEP_TASKS_PER_NODE", "8(x2)")];
    assert_eq!(workers("--nnodes=16 s.py", many), (1, None));
}

#[test]
fn unknown_values_that_are_needed_are_refused_with_an_option() {
    for (line, more, message) in [
        (
            "s.py",
            &[("SLURM_STEP_TASKS_PER_NODE", "8(x2)")][..],
            "Slurm: srun starts several launchers on a node (SLURM_STEP_TASKS_PER_NODE is \"8(x2)\"), and each would \
             start all workers of the node (use srun --ntasks-per-node=1); give --nnodes, or --no-scheduler to ignore \
             Slurm",
        ),
        (
            "s.py",
            &[("SLURM_STEP_NODELIST", "n[1-"), ("SLURM_NODELIST", "")],
            "Slurm: SLURM_STEP_NODELIST has unpaired brackets; give --rdzv-endpoint, or --no-scheduler to ignore Slurm",
        ),
        (
            "--rdzv-endpoint=h:1 s.py",
            &[("SLURM_NODEID", "x")],
            "Slurm: SLURM_NODEID is \"x\", which is not a whole number; give --node-rank, or --no-scheduler to ignore \
             Slurm",
        ),
        (
            "--rdzv-endpoint=h:1 s.py",
            &[("SLURM_NODEID", "2")],
            "Slurm: SLURM_NODEID is 2, but SLURM_STEP_NUM_NODES is 2, so that the highest rank is 1; give \
             --node-rank, or --no-scheduler to ignore Slurm",
        ),
        (
            "s.py",
            &[("SLURM_STEP_ID", "")],
            "Slurm: the job has several nodes (SLURM_NNODES), and srun did not start this launcher, so that the other \
             nodes have none (use srun --ntasks-per-node=1 c10d run); give --nnodes, or --no-scheduler to ignore Slurm",
        ),
    ] {
        let variables = [in_slurm(more), vec![("SLURM_NNODES", "2")]].concat();
        assert_eq!(refusal(line, &variables), message, "{line} {more:?}");
        // Not needed by a node alone.
        assert!(plan_of(["--standalone", "s.py"], &variables).is_ok());
        assert!(plan_of(["--nnodes=1", "s.py"], &variables).is_ok());
    }
}

#[test]
fn a_loopback_address_for_several_machines_is_refused() {
    for (line, more, start) in [
        (
            "--rdzv-endpoint=127.0.0.1:1 s.py",
            &[][..],
            "--rdzv-endpoint is \"127.0.0.1:1\", but Slurm has started the 2 nodes on different machines, so the other nodes",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=localhost s.py",
            &[],
            "--rdzv-endpoint is \"localhost\", but",
        ),
        (
            "--master-addr=127.0.0.1 s.py",
            &[],
            "--master-addr is \"127.0.0.1:29500\", but",
        ),
        (
            "s.py",
            &[("PET_RDZV_ENDPOINT", "[::1]:5")],
            "PET_RDZV_ENDPOINT is \"[::1]:5\", but",
        ),
    ] {
        let variables = in_slurm(more);
        let message = refusal(line, &variables);
        assert!(message.starts_with(start), "{line}: {message}");
    }
    // Several nodes of one machine, and nodes without a scheduler, can use it.
    let one_machine = in_slurm(&[("SLURM_STEP_NODELIST", "localhost,localhost")]);
    assert_eq!(
        rendezvous("s.py", &one_machine),
        "2:2 c10d \"localhost:26139\" 1234.0 is_host=0,timeout=900"
    );
    let given = plan("--nnodes=2 --rdzv-endpoint=127.0.0.1:1 s.py", &[]);
    assert!(
        given.warning_texts().is_empty(),
        "{:?}",
        given.warning_texts()
    );
}

#[test]
fn a_default_endpoint_for_several_nodes_causes_a_warning() {
    for (line, place) in [
        ("--nnodes=2 s.py", "127.0.0.1:29500"),
        ("--nnodes=1:2 --master-port=5 s.py", "127.0.0.1:5"),
        ("--nnodes=2 --rdzv-backend=c10d s.py", "localhost:29400"),
    ] {
        let warnings = plan(line, &[]).warning_texts();
        let start = format!("the 2 nodes meet at {place}, so all of them must run on this machine");
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(&start),
            "{line}: {warnings:?}"
        );
    }
    for line in [
        "s.py",
        "--standalone --nnodes=2 s.py",
        "--rdzv-backend=c10d s.py",
    ] {
        assert!(plan(line, &[]).warning_texts().is_empty(), "{line}");
    }
}

#[test]
fn values_that_cannot_be_right_are_named() {
    // Rank 7 of two nodes: without an option for the rank no node might serve the store.
    let seventh = in_slurm(&[("SLURM_NODEID", "7")]);
    let why = "SLURM_NODEID is 7, but SLURM_STEP_NUM_NODES is 2, so that the highest rank is 1";
    assert_eq!(
        refusal("s.py", &seventh),
        format!("Slurm: {why}; give --node-rank, or --no-scheduler to ignore Slurm")
    );
    for line in [
        "--node-rank=1 s.py",
        "--rdzv-backend=c10d --rdzv-endpoint=a:1 s.py",
        "--standalone s.py",
    ] {
        let warnings = plan(line, &seventh).warning_texts();
        assert_eq!(warnings[0], format!("{why}; it is not used"), "{line}");
    }
    assert!(
        plan("--no-scheduler --standalone s.py", &seventh)
            .warning_texts()
            .is_empty()
    );

    let mpi = [
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "-3"),
        ("MPI_LOCALNRANKS", "1"),
    ];
    let why = "PMI_SIZE is \"-3\", which is not a whole number";
    assert!(refusal("s.py", &mpi).contains(why));
    // Also where the value is not needed, and where no scheduler is recognized by it.
    for variables in [&mpi[..], &mpi[1..2]] {
        let warnings = plan("--standalone s.py", variables).warning_texts();
        assert_eq!(warnings, [format!("{why}; it is not used")]);
    }

    let many = in_slurm(&[("SLURM_GPUS_ON_NODE", "18446744073709551616")]);
    let plan = plan("s.py", &many);
    assert_eq!(plan.launcher.agent.local_world_size, 1);
    assert_eq!(
        plan.warning_texts(),
        [
            "SLURM_GPUS_ON_NODE is \"18446744073709551616\", which is not a number of GPUs; it is not used"
        ]
    );
}
