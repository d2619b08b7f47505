//! Which of PyTorch's calls a thread is inside: a table of frames, tested with frames recorded from its releases.

use crate::stacks::Frame;

/// A call that waits for other ranks, or for the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// The call's name in the API for users.
    pub(super) name: &'static str,
    /// Whether it waits even while its thread uses the CPU: NCCL's waits spin.
    pub(super) can_spin: bool,
    /// Whether other threads of the process can compute its result, so that it waits for other ranks only while all of
    /// these threads are idle.
    pub(super) can_compute: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallKind {
    /// All members of a group take part.
    Collective,
    /// Two ranks take part.
    PointToPoint,
    /// Ranks form a group.
    Group,
    /// A rank waits for a key of the store.
    Store,
}

/// The names of the functions of a file that users call, separated by spaces. A call has the name of its function.
type Names = (&'static str, CallKind, &'static str);

/// A row: the file, or the folder if it ends with `/`; the function, or `*`; and the call.
type Row = (&'static str, &'static str, CallKind, &'static str);

const C10D: &str = "torch/distributed/distributed_c10d.py";
const FUNCTIONAL: &str = "torch/distributed/_functional_collectives.py";
const RPC: &str = "torch/distributed/rpc/api.py";
const STORE: &str = "torch/distributed/elastic/utils/store.py";
const SHUTDOWN: &str = "rpc.shutdown";

use CallKind::{Collective, Group, PointToPoint, Store};

/// Functions that users call. If such functions are nested, for example `all_gather` in `all_gather_object`, the outer
/// function is the call.
const FUNCTIONS: &[Names] = &[
    (
        C10D,
        Collective,
        "all_reduce all_reduce_coalesced broadcast broadcast_object_list reduce all_gather \
         all_gather_into_tensor all_gather_single all_gather_object all_gather_coalesced gather \
         gather_object scatter scatter_object_list reduce_scatter reduce_scatter_tensor \
         reduce_scatter_single all_to_all all_to_all_single barrier monitored_barrier",
    ),
    (
        C10D,
        PointToPoint,
        "send recv isend irecv batch_isend_irecv send_object_list recv_object_list",
    ),
    (
        C10D,
        Group,
        "init_process_group new_group new_subgroups new_subgroups_by_enumeration split_group",
    ),
    (
        "torch/distributed/device_mesh.py",
        Group,
        "init_device_mesh",
    ),
    ("torch/distributed/rpc/__init__.py", Group, "init_rpc"),
    (RPC, PointToPoint, "rpc_sync"),
    (
        FUNCTIONAL,
        Collective,
        "all_reduce all_reduce_coalesced broadcast all_gather_tensor all_gather_single \
         reduce_scatter_tensor reduce_scatter_single all_to_all_single wait_tensor",
    ),
];

/// Such functions whose call has another name.
const RENAMED: &[Row] = &[
    (
        C10D,
        "_coalescing_manager",
        Collective,
        "coalesced collectives",
    ),
    (
        C10D,
        "_all_gather_base",
        Collective,
        "all_gather_into_tensor",
    ),
    (
        C10D,
        "_reduce_scatter_base",
        Collective,
        "reduce_scatter_tensor",
    ),
    (RPC, "shutdown", PointToPoint, SHUTDOWN),
    (STORE, "barrier", Store, "the store's barrier"),
    (STORE, "synchronize", Store, "the store's barrier"),
    (FUNCTIONAL, "wait", Collective, "wait_tensor"),
    (FUNCTIONAL, "trigger_wait", Collective, "wait_tensor"),
];

/// Places whose innermost call is C++ code that waits for the collectives it has started. This code also computes, so
/// it counts as a wait only while the process is quiet.
const INNERMOST: &[Row] = &[
    (
        "torch/autograd/graph.py",
        "_engine_run_backward",
        Collective,
        "backward",
    ),
    (
        "torch/autograd/__init__.py",
        "backward",
        Collective,
        "backward",
    ),
    (
        "torch/nn/parallel/",
        "*",
        Collective,
        "DistributedDataParallel",
    ),
    (
        "torch/distributed/utils.py",
        "*",
        Collective,
        "DistributedDataParallel",
    ),
    (
        "torch/distributed/algorithms/",
        "*",
        Collective,
        "torch.distributed.algorithms",
    ),
    (
        "torch/distributed/fsdp/",
        "*",
        Collective,
        "a collective of FSDP",
    ),
    (
        "torch/distributed/_composable/",
        "*",
        Collective,
        "a collective of FSDP",
    ),
    (
        "torch/distributed/optim/",
        "*",
        Collective,
        "a distributed optimizer",
    ),
    (
        "torch/distributed/tensor/",
        "*",
        Collective,
        "a collective of DTensor",
    ),
    (
        "torch/distributed/_tensor/",
        "*",
        Collective,
        "a collective of DTensor",
    ),
    (
        "torch/distributed/pipelining/",
        "*",
        PointToPoint,
        "a pipeline stage",
    ),
];

/// Frames below a call that are part of its wait. Other frames, such as pickle below `all_gather_object`, do work.
const BELOW: &[&str] = &[
    C10D,
    FUNCTIONAL,
    "torch/distributed/c10d_logger.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/rpc/",
    STORE,
    "torch/distributed/device_mesh.py",
    "torch/distributed/nn/",
    "torch/_ops.py",
    "torch/_library/",
    "typing_extensions.py",
];

/// The call that a thread is inside, by the frames of the library below its user's innermost frame, the most recent one last.
/// `None` if it is inside another function.
pub(super) fn call(library: &[&Frame]) -> Option<Call> {
    let innermost = library.last()?;
    let is_below = |frame: &&&Frame| {
        let is_wait = named(frame).is_none() && is_lock(frame);
        is_wait || BELOW.iter().any(|file| is_in(&frame.file, file))
    };
    let waiting = library.iter().rev().take_while(is_below);
    if let Some((kind, name)) = waiting.filter_map(|frame| named(frame)).last() {
        return Some(Call {
            kind,
            name,
            can_spin: named(innermost).is_some(),
            // It serves the calls of other ranks until they have finished.
            can_compute: name == SHUTDOWN,
        });
    }
    let (kind, name) = row(INNERMOST, innermost)?;
    Some(Call {
        kind,
        name,
        can_spin: false,
        can_compute: true,
    })
}

/// The call of a frame in a function that users call.
fn named(frame: &Frame) -> Option<(CallKind, &'static str)> {
    let own = name(frame);
    let mut files = FUNCTIONS.iter().filter(|(file, ..)| frame.file == *file);
    let same = files.find_map(|&(_, kind, names)| {
        let mut names = names.split_ascii_whitespace();
        Some((kind, names.find(|it| *it == own)?))
    });
    same.or_else(|| row(RENAMED, frame))
}

/// The call of the first row for a frame.
fn row(rows: &[Row], frame: &Frame) -> Option<(CallKind, &'static str)> {
    let mut rows = rows.iter();
    let row = rows.find(|(file, function, ..)| {
        is_in(&frame.file, file) && (*function == "*" || name(frame) == *function)
    });
    row.map(|&(.., kind, name)| (kind, name))
}

/// Whether a frame is in a function of Python that waits for another thread.
pub(super) fn is_lock(frame: &Frame) -> bool {
    let folders = ["concurrent/futures/", "asyncio/", "multiprocessing/"];
    let files = ["threading.py", "queue.py"];
    frame.is_library
        && of_python(&frame.file).is_some_and(|file| {
            files.contains(&file) || folders.iter().any(|folder| file.starts_with(folder))
        })
}

/// Whether a frame belongs to a debugger that waits for its user.
pub(super) fn is_debugger(frame: &Frame) -> bool {
    let waits = ["interaction", "cmdloop", "_cmdloop"];
    let is_pdb = of_python(&frame.file) == Some("pdb.py") && waits.contains(&name(frame));
    let others = [
        "debugpy/",
        "_pydevd_bundle/",
        "pydevd.py",
        "IPython/core/debugger.py",
    ];
    frame.is_library && (is_pdb || others.iter().any(|file| is_in(&frame.file, file)))
}

/// Whether a frame waits for the processes of a DataLoader.
pub(super) fn is_data_loader(frame: &Frame) -> bool {
    frame.file == "torch/utils/data/dataloader.py"
        && ["_try_get_data", "_get_data", "_next_data", "__next__"].contains(&name(frame))
}

/// The last part of a function's name: since Python 3.11 it begins with its class, or with the function around it.
fn name(frame: &Frame) -> &str {
    let qualified = &frame.function;
    qualified.rsplit('.').next().unwrap_or(qualified)
}

/// The path below Python's own library: of `python3.11/pdb.py`, `pdb.py`.
fn of_python(file: &str) -> Option<&str> {
    let (folder, rest) = file.split_once('/')?;
    folder.starts_with("python3.").then_some(rest)
}

fn is_in(file: &str, place: &str) -> bool {
    match place.ends_with('/') {
        true => file.starts_with(place),
        false => file == place,
    }
}
