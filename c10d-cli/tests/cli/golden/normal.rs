//! Replaces the parts of a log that differ between runs of one job.

use std::path::Path;

/// Replaces times, measured durations, process ids, ports, the folder, and names that are random or this machine's.
pub(super) fn normal(text: &str, folder: &Path) -> String {
    let folder = folder.to_string_lossy();
    let host = host_name();
    let lines = text.lines().map(|line| {
        let line = line.replace(folder.trim_end_matches('/'), "FOLDER");
        match line.trim_start().strip_prefix("host      : ") {
            Some(_) => "  host      : HOST".to_owned(),
            None => words(&line, &host),
        }
    });
    lines.map(|line| line + "\n").collect()
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// Replaces by the form of a word, and by the word before it.
fn words(line: &str, this_host: &str) -> String {
    let mut out = String::new();
    let mut before = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:+-".contains(c);
        let end = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, after) = rest.split_at(end);
        out += &replaced(word, &before, after, this_host);
        if is_word(first) {
            before = match word.parse::<u64>() {
                // A list of process ids.
                Ok(_) if before.eq_ignore_ascii_case("pid") => before,
                _ => word.trim_end_matches(':').to_owned(),
            };
        }
        rest = after;
    }
    out
}

fn replaced(word: &str, before: &str, after: &str, this_host: &str) -> String {
    let bare = word.trim_end_matches(['.', ':']);
    let tail = &word[bare.len()..];
    if this_host != "localhost"
        && let Some(port) = bare.strip_prefix(this_host)
        && (port.is_empty() || port.starts_with(':'))
    {
        return replaced(&format!("HOST{port}{tail}"), before, after, "localhost");
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if let Some((host, port)) = bare.rsplit_once(':')
        && ["127.0.0.1", "localhost", "HOST"].contains(&host)
        && is_number(port)
    {
        return format!("{host}:PORT{tail}");
    }
    if is_time(bare) {
        return format!("TIME{tail}");
    }
    if is_number(bare) && before.eq_ignore_ascii_case("pid") {
        return format!("PID{tail}");
    }
    for name in ["torchelastic_", "job_"] {
        if bare.strip_prefix(name).is_some_and(|it| it.len() == 8) {
            return format!("{name}RANDOM{tail}");
        }
    }
    if is_uuid(bare) {
        return format!("UUID{tail}");
    }
    if is_number(bare) && before == "to" && after.starts_with(" s") {
        // The rest of a limit.
        return format!("N{tail}");
    }
    let number = bare.strip_suffix('s').unwrap_or(bare);
    // `0.3 s` and `0.3s` are measured; settings are whole seconds.
    let is_duration = number.len() < bare.len() || after.starts_with(" s");
    if is_duration
        && number
            .split_once('.')
            .is_some_and(|(a, b)| is_number(a) && is_number(b))
    {
        return format!("N{}{tail}", &bare[number.len()..]);
    }
    word.to_owned()
}

/// `2026-11-28T03:10:28Z` or `2026-11-28_03:10:31`.
fn is_time(word: &str) -> bool {
    let form = word
        .bytes()
        .map(|it| if it.is_ascii_digit() { b'0' } else { it });
    let form: Vec<u8> = form.collect();
    [&b"0000-00-00T00:00:00Z"[..], b"0000-00-00_00:00:00"].contains(&&*form)
}

/// Whether the word is a uuid, with or without the suffix of a directory.
fn is_uuid(word: &str) -> bool {
    let parts: Vec<&str> = word.splitn(5, '-').collect();
    let lengths = [8, 4, 4, 4, 12];
    parts.len() == 5
        && parts.iter().zip(lengths).all(|(part, length)| {
            let part = part.split('_').next().unwrap_or_default();
            part.len() == length && part.bytes().all(|it| it.is_ascii_hexdigit())
        })
}

#[test]
fn what_differs_between_runs_is_replaced() {
    let folder = Path::new("/tmp/.tmpAbC/");
    for (line, expected) in [
        ("[2026-11-28T03:10:28Z INFO ] x", "[TIME INFO ] x"),
        (
            "started ranks 0-1 of 2: pid 29913, 29915; more 7",
            "started ranks 0-1 of 2: pid PID, PID; more 7",
        ),
        ("exitcode  : 7 (pid: 30122)", "exitcode  : 7 (pid: PID)"),
        ("time      : 2026-11-28_03:10:31", "time      : TIME"),
        (
            "http://127.0.0.1:36567/; --connect localhost:7.",
            "http://127.0.0.1:PORT/; --connect localhost:PORT.",
        ),
        (
            "again after 2.9 s, 0.125s; for up to 14 s; every 5 s",
            "again after N s, Ns; for up to N s; every 5 s",
        ),
        ("received by PID 7", "received by PID PID"),
        (
            "/torchelastic_Tm8xSoZJ/job_Y78ZReOT/0",
            "/torchelastic_RANDOM/job_RANDOM/0",
        ),
        ("version 0.2.0 of 1.5 things", "version 0.2.0 of 1.5 things"),
        ("  host      : node0", "  host      : HOST"),
        ("in /tmp/.tmpAbC/a", "in FOLDER/a"),
        ("390121b6-fa79-446d-8715-5a4f25624766_hEVnL8UU/x", "UUID/x"),
        (
            "rank 0 (local rank 0, pid 30122) failed",
            "rank 0 (local rank 0, pid PID) failed",
        ),
        ("node0:29500 keeps its port", "node0:29500 keeps its port"),
    ] {
        assert_eq!(normal(line, folder), format!("{expected}\n"));
    }
    let line = "torchelastic_Tvm8xSoZ on vm, vm:29500: svm";
    let expected = "torchelastic_RANDOM on HOST, HOST:PORT: svm";
    assert_eq!(words(line, "vm"), expected);
    let lines = "a\n\n  b";
    assert_eq!(normal(lines, folder), "a\n\n  b\n");
}
