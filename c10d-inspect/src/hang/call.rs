//! Which of PyTorch's calls a thread is inside: a table of frames, tested with frames recorded from its releases.

use crate::stacks::Frame;

/// A call that waits for other ranks, or for the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// Its name in the API that users call.
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

/// A row: the file, or the folder if it ends with `/`; the function, or `*`; and the call.
type Row = (&'static str, &'static str, CallKind, &'static str);

const C10D: &str = "torch/distributed/distributed_c10d.py";
const FUNCTIONAL: &str = "torch/distributed/_functional_collectives.py";
const RPC: &str = "torch/distributed/rpc/api.py";
const SHUTDOWN: &str = "rpc.shutdown";

use CallKind::{Collective, Group, PointToPoint, Store};

/// Functions that users call. If such functions are nested, for example `all_gather` in `all_gather_object`, the outer
/// function is the call.
const FUNCTIONS: &[Row] = &[
    (C10D, "all_reduce", Collective, "all_reduce"),
    (
        C10D,
        "all_reduce_coalesced",
        Collective,
        "all_reduce_coalesced",
    ),
    (
        C10D,
        "_coalescing_manager",
        Collective,
        "coalesced collectives",
    ),
    (C10D, "broadcast", Collective, "broadcast"),
    (
        C10D,
        "broadcast_object_list",
        Collective,
        "broadcast_object_list",
    ),
    (C10D, "reduce", Collective, "reduce"),
    (C10D, "all_gather", Collective, "all_gather"),
    (
        C10D,
        "all_gather_into_tensor",
        Collective,
        "all_gather_into_tensor",
    ),
    (C10D, "all_gather_single", Collective, "all_gather_single"),
    (
        C10D,
        "_all_gather_base",
        Collective,
        "all_gather_into_tensor",
    ),
    (C10D, "all_gather_object", Collective, "all_gather_object"),
    (
        C10D,
        "all_gather_coalesced",
        Collective,
        "all_gather_coalesced",
    ),
    (C10D, "gather", Collective, "gather"),
    (C10D, "gather_object", Collective, "gather_object"),
    (C10D, "scatter", Collective, "scatter"),
    (
        C10D,
        "scatter_object_list",
        Collective,
        "scatter_object_list",
    ),
    (C10D, "reduce_scatter", Collective, "reduce_scatter"),
    (
        C10D,
        "reduce_scatter_tensor",
        Collective,
        "reduce_scatter_tensor",
    ),
    (
        C10D,
        "reduce_scatter_single",
        Collective,
        "reduce_scatter_single",
    ),
    (
        C10D,
        "_reduce_scatter_base",
        Collective,
        "reduce_scatter_tensor",
    ),
    (C10D, "all_to_all", Collective, "all_to_all"),
    (C10D, "all_to_all_single", Collective, "all_to_all_single"),
    (C10D, "barrier", Collective, "barrier"),
    (C10D, "monitored_barrier", Collective, "monitored_barrier"),
    (C10D, "send", PointToPoint, "send"),
    (C10D, "recv", PointToPoint, "recv"),
    (C10D, "isend", PointToPoint, "isend"),
    (C10D, "irecv", PointToPoint, "irecv"),
    (C10D, "batch_isend_irecv", PointToPoint, "batch_isend_irecv"),
    (C10D, "send_object_list", PointToPoint, "send_object_list"),
    (C10D, "recv_object_list", PointToPoint, "recv_object_list"),
    (C10D, "init_process_group", Group, "init_process_group"),
    (C10D, "new_group", Group, "new_group"),
    (C10D, "new_subgroups", Group, "new_subgroups"),
    (
        C10D,
        "new_subgroups_by_enumeration",
        Group,
        "new_subgroups_by_enumeration",
    ),
    (C10D, "split_group", Group, "split_group"),
    (
        "torch/distributed/device_mesh.py",
        "init_device_mesh",
        Group,
        "init_device_mesh",
    ),
    (
        "torch/distributed/rpc/__init__.py",
        "init_rpc",
        Group,
        "init_rpc",
    ),
    (RPC, "shutdown", PointToPoint, SHUTDOWN),
    (RPC, "rpc_sync", PointToPoint, "rpc_sync"),
    (
        "torch/distributed/elastic/utils/store.py",
        "barrier",
        Store,
        "the store's barrier",
    ),
    (
        "torch/distributed/elastic/utils/store.py",
        "synchronize",
        Store,
        "the store's barrier",
    ),
    (FUNCTIONAL, "all_reduce", Collective, "all_reduce"),
    (
        FUNCTIONAL,
        "all_reduce_coalesced",
        Collective,
        "all_reduce_coalesced",
    ),
    (FUNCTIONAL, "broadcast", Collective, "broadcast"),
    (
        FUNCTIONAL,
        "all_gather_tensor",
        Collective,
        "all_gather_tensor",
    ),
    (
        FUNCTIONAL,
        "all_gather_single",
        Collective,
        "all_gather_single",
    ),
    (
        FUNCTIONAL,
        "reduce_scatter_tensor",
        Collective,
        "reduce_scatter_tensor",
    ),
    (
        FUNCTIONAL,
        "reduce_scatter_single",
        Collective,
        "reduce_scatter_single",
    ),
    (
        FUNCTIONAL,
        "all_to_all_single",
        Collective,
        "all_to_all_single",
    ),
    (FUNCTIONAL, "wait_tensor", Collective, "wait_tensor"),
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
    "torch/distributed/elastic/utils/store.py",
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
    let row = |rows: &'static [Row], frame: &Frame| {
        let mut rows = rows.iter();
        rows.find(|(file, function, ..)| {
            is_in(&frame.file, file) && (*function == "*" || name(frame) == *function)
        })
    };
    let is_below = |frame: &&&Frame| {
        let is_wait = row(FUNCTIONS, frame).is_none() && is_lock(frame);
        is_wait || BELOW.iter().any(|file| is_in(&frame.file, file))
    };
    let waiting = library.iter().rev().take_while(is_below);
    let named = waiting.filter_map(|frame| row(FUNCTIONS, frame)).last();
    if let Some(&(.., kind, name)) = named {
        let can_spin = row(FUNCTIONS, innermost).is_some();
        return Some(Call {
            kind,
            name,
            can_spin,
            // It serves the calls of other ranks until they have finished.
            can_compute: name == SHUTDOWN,
        });
    }
    let &(.., kind, name) = row(INNERMOST, innermost)?;
    Some(Call {
        kind,
        name,
        can_spin: false,
        can_compute: true,
    })
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
