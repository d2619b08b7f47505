//! Types the commands of the tutorials, and compares their output with the pages.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::{PATIENCE, PROGRAM, prepared};

#[test]
fn the_first_job_prints_what_its_page_shows() {
    let typed = type_commands_of("docs/tutorials/first-job.md");
    assert_eq!(typed, 4, "the tour and three jobs");
}

#[test]
fn numbers_and_line_breaks_are_not_compared() {
    let printed = comparable("[2026-11-29T15:44:07Z INFO ] started ranks 0-3\nof 4: pid 16331\n");
    let shown = comparable("[2026-01-01T01:02:03Z INFO ] started ranks 0-1 of 2: pid 7");
    assert_eq!(printed, shown);
    assert_eq!(
        blocks("```sh\na\n```\ntext\n```text\nb\n```\n"),
        [("sh", "a\n"), ("text", "b\n")]
    );
}

/// Runs each `sh` block of a page that does not install anything, in order, until the output has most lines of the
/// `text` block that follows it. Returns the number of these blocks.
fn type_commands_of(page: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join(page)).unwrap();
    let blocks = blocks(&text);
    let mut typed = 0;
    for (index, (language, script)) in blocks.iter().enumerate() {
        if *language != "sh" || script.contains("install") {
            continue;
        }
        let output = match blocks.get(index + 1) {
            Some(("text", output)) => *output,
            _ => "",
        };
        typed += 1;
        check(&root, script, output);
    }
    typed
}

/// Runs one block. A command that has printed the lines is stopped like with Ctrl-C, because an example may hang on purpose.
/// A fifth of the lines may differ, such as the system call of a sleeping process, which not every kernel shows.
fn check(root: &Path, script: &str, output: &str) {
    let folder = Path::new(PROGRAM).parent().unwrap();
    let path = format!("{}:{}", folder.display(), env!("PATH"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1\n{script}")]);
    let mut shell = prepared(shell);
    shell
        .current_dir(root)
        .env("PATH", path)
        .env_remove("OMP_NUM_THREADS")
        .process_group(0);
    let mut shell = shell.spawn().unwrap();
    let group = Pid::from_child(&shell);
    let mut pipe = shell.stdout.take().unwrap();
    let (sender, pieces) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + PATIENCE;
    let mut printed = Vec::new();
    let missing = loop {
        let text = String::from_utf8_lossy(&printed).into_owned();
        let found = comparable(&text);
        let lines: Vec<String> = output.lines().map(comparable).collect();
        let is_missing = |line: &&String| !found.contains(line.as_str());
        let missing: Vec<&String> = lines.iter().filter(is_missing).collect();
        let is_printed = 5 * missing.len() <= lines.len();
        if is_printed && !output.is_empty() {
            break None;
        }
        match pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(piece) => printed.extend(piece),
            Err(_) if is_printed => break None,
            Err(_) => break Some(format!("no lines {missing:?} in:\n{text}")),
        }
    };
    // Ctrl-C twice: a shell in the background of its worker ignores the first signal.
    for _ in 0..2 {
        let _ = kill_process_group(group, Signal::INT);
        thread::sleep(Duration::from_millis(300));
    }
    let status = shell.wait().unwrap();
    assert_eq!(missing, None, "{script}");
    assert!(!output.is_empty() || status.success(), "{script}: {status}");
}

/// Numbers and white space differ from run to run.
fn comparable(text: &str) -> String {
    let mut found = String::new();
    for word in text.split_whitespace() {
        if !found.is_empty() {
            found.push(' ');
        }
        let mut is_number = false;
        for char in word.chars() {
            if !char.is_ascii_digit() {
                found.push(char);
            } else if !is_number {
                found.push('0');
            }
            is_number = char.is_ascii_digit();
        }
    }
    found
}

/// The fenced blocks of a page: their languages and contents.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut parts = page.split("```").skip(1).step_by(2);
    let mut found = Vec::new();
    for part in &mut parts {
        found.extend(part.split_once('\n'));
    }
    found
}
