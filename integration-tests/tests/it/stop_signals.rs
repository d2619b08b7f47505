//! A stop signal to workers of Python that have children: they finish their step, which needs these children.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use integration_tests::eventually::eventually;
use integration_tests::launcher::c10d;
use integration_tests::torch::PYTHON_VARIABLE;
use integration_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(300);

/// Reads batches from a DataLoader with two workers. After SIGTERM it finishes an epoch, which needs the loader's
/// processes, and writes the number of batches.
const LOADER: &str = "\
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.tensor(index)

folder = os.environ['FOLDER']
rank = os.environ['RANK']
stopping = False

def stop(number, frame):
    global stopping
    stopping = True

if __name__ == '__main__':
    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        seen = 0
        for batch in DataLoader(Slow(), num_workers=2):
            seen += 1
            if seen == 5:
                open(f'{folder}/ready-{rank}', 'w').close()
    with open(f'{folder}/saved-{rank}.part', 'w') as file:
        file.write(str(seen))
    os.rename(f'{folder}/saved-{rank}.part', f'{folder}/saved-{rank}')
";

/// A worker with a child process of the standard library, for an interpreter without PyTorch.
const POOL: &str = "\
import multiprocessing, os, signal, time

folder = os.environ['FOLDER']
rank = os.environ['RANK']
stopping = False

def stop(number, frame):
    global stopping
    stopping = True

def square(number):
    time.sleep(0.05)
    return number * number

if __name__ == '__main__':
    with multiprocessing.get_context('spawn').Pool(2) as pool:
        signal.signal(signal.SIGTERM, stop)
        while not stopping:
            seen = 0
            for _ in pool.imap(square, range(40)):
                seen += 1
                if seen == 5:
                    open(f'{folder}/ready-{rank}', 'w').close()
        pool.close()
        pool.join()
    with open(f'{folder}/saved-{rank}.part', 'w') as file:
        file.write(str(seen))
    os.rename(f'{folder}/saved-{rank}.part', f'{folder}/saved-{rank}')
";

fn start(folder: &Path, options: &[&str], script: &str) -> Child {
    let path = folder.join("train.py");
    fs::write(&path, script).unwrap();
    Command::new(c10d())
        .args([
            "run",
            "--standalone",
            "--nproc-per-node=2",
            "--shutdown-timeout=120",
        ])
        .args(options)
        .arg(path)
        .env("PYTHON_EXEC", std::env::var_os(PYTHON_VARIABLE).unwrap())
        .env("PET_NO_SCHEDULER", "1")
        .env("OMP_NUM_THREADS", "1")
        .env("FOLDER", folder)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn await_file(path: &Path) {
    eventually(&path.display().to_string(), || path.exists());
}

fn assert_saves_a_whole_epoch(options: &[&str], script: &str) {
    let _watchdog = Watchdog::start("stop_signals", LIMIT);
    let folder = tempfile::tempdir().unwrap();
    let launcher = start(folder.path(), options, script);
    for rank in 0..2 {
        await_file(&folder.path().join(format!("ready-{rank}")));
    }
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    let output = launcher.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    for rank in 0..2 {
        let saved = fs::read_to_string(folder.path().join(format!("saved-{rank}")));
        assert_eq!(saved.unwrap_or_default(), "40", "{options:?} {log}");
    }
    assert!(!log.contains("SIGKILL to"), "{log}");
    assert_eq!(output.status.code(), Some(1), "{log}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_worker_finishes_its_epoch_with_the_processes_of_its_data_loader() {
    assert_saves_a_whole_epoch(&[], LOADER);
    assert_saves_a_whole_epoch(&["--preload=torch", "--preload-required"], LOADER);
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_worker_finishes_its_work_with_its_pool_of_processes() {
    assert_saves_a_whole_epoch(&[], POOL);
    assert_saves_a_whole_epoch(&["--preload=json", "--preload-required"], POOL);
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn forked_workers_have_the_limits_and_the_ignored_signals_of_the_caller() {
    let _watchdog = Watchdog::start("stop_signals", LIMIT);
    let folder = tempfile::tempdir().unwrap();
    let script = "\
import resource, signal
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
";
    fs::write(folder.path().join("train.py"), script).unwrap();
    for preload in [&[][..], &["--preload=json", "--preload-required"]] {
        let output = Command::new("sh")
            .args(["-c", "ulimit -Sn 256; trap '' HUP; exec \"$0\" \"$@\""])
            .arg(c10d())
            .args(["run", "--standalone"])
            .args(preload)
            .arg(folder.path().join("train.py"))
            .env("PYTHON_EXEC", std::env::var_os(PYTHON_VARIABLE).unwrap())
            .env("PET_NO_SCHEDULER", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "256 True\n", "{preload:?} {output:?}");
    }
}
