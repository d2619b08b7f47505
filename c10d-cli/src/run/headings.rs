//! The help of `c10d run`: its headings, and its text after the options.

/// The headings of `--help`, in their order. `-h` has the options that most people need first.
pub(super) const NODES: &str = "Nodes and workers";
pub(super) const SCRIPT: &str = "Script";
pub(super) const RESTARTS: &str = "Restarts and progress";
pub(super) const OUTPUT: &str = "Output and logs";
pub(super) const HANGS: &str = "Hangs and debugging";
pub(super) const STOPPING: &str = "Stopping";
pub(super) const SECURITY: &str = "Security and relays";
pub(super) const PRELOADING: &str = "Faster restarts";
pub(super) const IGNORED: &str = "For command lines of torchrun, without effect";

/// After the options of `-h`.
pub(super) const AFTER_SHORT_HELP: &str = "\
One machine:
  c10d run --standalone --nproc-per-node 4 train.py
Each of two machines:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 17 train.py
Under Slurm or MPI, or in Kubernetes:
  c10d run train.py

All options, environment variables and exit codes: c10d run --help, or man c10d-run";

/// Printed after the options of `--help`.
pub(super) const AFTER_HELP: &str = "\
One machine:
  c10d run --standalone --nproc-per-node 4 train.py
Each of two machines:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 17 train.py
Restart a failed job up to 3 times, and fork the workers from a process that has imported PyTorch:
  c10d run --max-restarts 3 --preload torch,torch._dynamo --nproc-per-node 8 train.py
Survive the loss of any machine, with the store in etcd:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-endpoint etcd://etcd0,etcd1,etcd2/job-17 --rdzv-id 17 train.py
Under Slurm or MPI, or in Kubernetes:
  c10d run train.py

Each worker runs SCRIPT with all arguments after it, even those that look like options. A SCRIPT whose name
ends with .py is run by python3, or by $PYTHON_EXEC; any other is executed as a program.

Options can also be written with underscores, for example --nproc_per_node, and abbreviated as long as they are
unambiguous. The default of each option is an environment variable: PET_NPROC_PER_NODE for --nproc-per-node,
and so on; a flag is on if its variable is a number other than 0.

Under Slurm, Kubernetes or MPI, the environment gives the nodes, this node's rank, the endpoint, the id of the job and
the workers. Options replace these values, --dry-run prints them, and --no-scheduler ignores them.

A job of one node without --rdzv-backend, --rdzv-endpoint and --master-port runs as if --standalone were given.

Exit codes:
  0    all workers of this node succeeded, or the node was a spare that was not needed
  1    workers failed or could not start, the rendezvous failed, or a signal stopped the workers
  2    invalid options: nothing was started
  3    a system call failed that concerns neither workers nor rendezvous
  5    the directory of --store-dir is in use, damaged, or cannot be read or written
  128+N  signal N arrived before workers were started";
