//! Command lines of torchrun users, each as a whole job of one node, with the requirements of PyTorch's own tests of
//! its launcher.

use std::collections::BTreeSet;
use std::fs;

use tempfile::TempDir;

use crate::process::{Ended, Running, command, free_port};

/// A script of Python that leaves a file with its rank as the name.
const PYTHON: &str = "\
import os, sys
assert __name__ == '__main__'
assert sys.argv[1:] == ['--lr', '1'], sys.argv
open(os.path.join(os.environ['C10D_TEST_FOLDER'], os.environ['RANK']), 'w').close()
";

/// The script for a shell.
const SHELL: &str = "#!/bin/sh\n: > \"$C10D_TEST_FOLDER/$RANK\"\n";

/// A folder for the files of workers, and one for scripts.
struct Place {
    ranks: TempDir,
    scripts: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            ranks: TempDir::new().unwrap(),
            scripts: TempDir::new().unwrap(),
        };
        place.write("script.py", PYTHON);
        place.write("script.sh", SHELL);
        place
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.scripts.path().join(name), text).unwrap();
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut command = command(["run"].iter().chain(words));
        command
            .current_dir(self.scripts.path())
            .env("C10D_TEST_FOLDER", self.ranks.path())
            .env_remove("TORCHELASTIC_ERROR_FILE")
            .envs(variables.iter().copied());
        Running::start(command).end()
    }

    /// Asserts that `count` workers have run.
    #[track_caller]
    fn assert_ran(&self, ended: &Ended, count: usize) {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let ran = fs::read_dir(self.ranks.path()).unwrap();
        let ran: BTreeSet<String> = ran
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let expected: BTreeSet<String> = (0..count).map(|rank| rank.to_string()).collect();
        assert_eq!(ran, expected, "{ended:?}");
    }
}

/// Options that torchrun's users give out of habit.
const HABITS: [&str; 3] = ["--nnodes=1", "--monitor-interval=1", "--start-method=spawn"];

#[test]
fn scripts_of_python_run_by_each_way_to_meet() {
    let port = format!("--master-port={}", free_port());
    let elastic = format!("--rdzv-endpoint=localhost:{}", free_port());
    let ways: [&[&str]; 4] = [
        &["--rdzv-id=17"],
        &["--standalone"],
        &["--master-addr=localhost", &port, "--node-rank=0"],
        &[
            "--nnodes=1:2",
            "--rdzv-backend=c10d",
            &elastic,
            // With the quotes of a shell that does not remove them.
            "--rdzv-conf='join_timeout=60,last_call_timeout=1,timeout=5'",
            "--rdzv-id=17",
        ],
    ];
    for way in ways {
        let place = Place::new();
        let script = ["--nproc-per-node=4", "script.py", "--lr", "1"];
        let ended = place.run(&[&HABITS[..], way, &script].concat(), &[]);
        place.assert_ran(&ended, 4);
    }
}

#[test]
fn programs_need_an_option_only_if_they_look_like_python() {
    let place = Place::new();
    let words = ["--no-python", "--nproc-per-node=2", "sh", "script.sh"];
    place.assert_ran(&place.run(&words, &[]), 2);
    let place = Place::new();
    let variables = [
        ("PET_NPROC_PER_NODE", "3"),
        ("PET_NO_PYTHON", "1"),
        ("PET_MODULE", "0"),
    ];
    place.assert_ran(&place.run(&["sh", "script.sh"], &variables), 3);
}

#[test]
fn a_path_is_run_by_runpy() {
    // Without a name that ends with `.py`.
    let place = Place::new();
    place.write("script", PYTHON);
    let words = ["--run-path", "--nproc-per-node=2", "script", "--lr", "1"];
    place.assert_ran(&place.run(&words, &[]), 2);

    // A directory, by the variable, and although --no-python is given.
    let place = Place::new();
    fs::create_dir(place.scripts.path().join("package")).unwrap();
    place.write("package/__main__.py", PYTHON);
    let words = ["--no-python", "package", "--lr", "1"];
    place.assert_ran(&place.run(&words, &[("PET_RUN_PATH", "1")]), 1);

    // The exit code of the script, and its traceback.
    let place = Place::new();
    place.write("script", "raise ValueError('of the script')\n");
    let ended = place.run(&["--run-path", "script"], &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("ValueError: of the script"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("exitcode  : 1 "), "{ended:?}");
}

#[test]
fn lines_of_workers_have_the_prefix_of_the_variable() {
    let place = Place::new();
    let logs = place.ranks.path().join("logs");
    let logs = format!("--log-dir={}", logs.display());
    // --redirect is torchrun's abbreviation.
    let words = [
        "--redirect=3",
        "--tee=3",
        &logs,
        "--nproc-per-node=2",
        "--no-python",
    ];
    let script = ["sh", "-c", "echo here"];
    let variables = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")];
    let ended = place.run(&[&words[..], &script].concat(), &variables);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for rank in 0..2 {
        assert!(
            ended
                .stdout_text()
                .contains(&format!("[rank{rank}]: here\n")),
            "{ended:?}"
        );
    }
}

/// torchrun ends with 2 if its parser refuses an option, and with 1 after a traceback if other code does. Here all are 2,
/// so that scripts can tell them from workers that failed.
#[test]
fn what_cannot_be_done_is_on_standard_error_with_exit_code_2() {
    let place = Place::new();
    let refused = [
        (
            "--logs_specs=DOESNOT_EXIST",
            "--logs-specs DOESNOT_EXIST is not supported: it names a Python class",
        ),
        // The parser's own errors have a usage line too, as with torchrun.
        ("--no-such-option", "unexpected argument '--no-such-option'"),
    ];
    for (option, text) in refused {
        let ended = place.run(&[option, "script.py"], &[]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
    assert_eq!(fs::read_dir(place.ranks.path()).unwrap().count(), 0);
}
