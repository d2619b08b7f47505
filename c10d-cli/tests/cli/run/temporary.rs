//! Jobs whose folder for temporary files cannot be used. They need no file unless an option requests files.

use super::*;

#[test]
fn a_job_runs_without_a_folder_for_temporary_files() {
    let job = Job::new();
    fs::write(job.path("file"), "").unwrap();
    let long = job.path(&"x".repeat(200));
    fs::create_dir(&long).unwrap();
    let sockets = "--debug-server";
    for (folder, option, has_warning) in [
        (job.path("missing"), "--no-stacks", true),
        (job.path("file"), sockets, true),
        // Even root cannot create files there.
        (PathBuf::from("/proc/self"), sockets, true),
        (PathBuf::new(), sockets, false),
        (long, sockets, false),
    ] {
        let arguments = ["--standalone", "--nproc-per-node=2", option];
        let mut command = job.command(&arguments, "echo rank $RANK");
        command.env("TMPDIR", &folder);
        let ended = Running::start(command).end();
        assert_succeeded(&ended);
        assert_eq!(lines([&ended]), ["rank 0", "rank 1"]);
        let warnings = ended.stderr.matches("WARN").count();
        assert_eq!(warnings, usize::from(has_warning), "{folder:?} {ended:?}");
        if has_warning {
            let expected = format!("cannot create the log directory {}: ", folder.display());
            assert!(ended.stderr.contains(&expected), "{ended:?}");
        }
    }
}

/// Steps of workers and PyTorch's file timers need a file, which can be elsewhere.
#[test]
fn events_and_file_timers_work_without_a_folder_for_temporary_files() {
    let job = Job::new();
    let events = format!("--events={}", job.path("events").display());
    let script = "
        [ -p $TORCHELASTIC_TIMER_FILE ] && echo 1 > $C10D_PROGRESS_FILE && echo $C10D_PROGRESS_FILE";
    let folder = job.path("missing");
    let mut command = job.command(&["--standalone", &events], script);
    command
        .env("TMPDIR", &folder)
        .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let ended = Running::start(command).end();
    assert_succeeded(&ended);
    let file = ended.stdout_text().trim().to_owned();
    assert!(!file.is_empty() && !file.starts_with(folder.to_str().unwrap()));
    assert!(!Path::new(&file).exists(), "{file}");
    assert_eq!(ended.stderr.matches("WARN").count(), 1, "{ended:?}");
}

#[test]
fn a_restart_without_such_a_folder_warns_once_and_the_failure_is_still_reported() {
    let job = Job::new();
    let mut command = job.command(
        &["--standalone", "--max-restarts=2", "--json"],
        "echo too bad >&2; exit 3",
    );
    command.env("TMPDIR", job.path("missing"));
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let about_files = ended.stderr.matches("cannot create").count();
    assert_eq!(about_files, 1, "{ended:?}");
    let report: Value = serde_json::from_str(ended.stdout_text().lines().last().unwrap()).unwrap();
    assert_eq!(report["log_directory"], Value::Null);
    assert_eq!(report["failures"][0]["exit_code"], json!(3));
    assert!(
        report["failures"][0]["stderr"]
            .to_string()
            .contains("too bad")
    );
}
