//! Transcripts of the service, cut and changed in every way. See testdata/ras/README.md.

mod fake;

use std::fs;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;

use super::*;
use fake::{Fake, Life, Release};

/// The lines that the launcher sends.
fn lines(as_json: bool) -> String {
    format!("{GREETING}{}", question(as_json))
}

/// A job and its problems, one line for each problem.
type Case = (&'static str, Fake, &'static [&'static str]);

/// Changes a job.
type Change = fn(&mut Fake);

fn cases() -> Vec<Case> {
    let stop: Change = |it| it.processes[5].life = Life::Silent;
    let die: Change = |it| {
        it.processes[5].life = Life::Dead;
        it.processes[6].life = Life::Dead;
        it.add_comm(0x9e17_999a_faa8_7dbb, [4, 5, 6, 7]);
    };
    let lag: Change = |it| it.comms[0].ranks[2].reduced = 6649;
    let never: Change = |it| {
        for rank in &mut it.comms[0].ranks[1..3] {
            rank.reduced = 0;
        }
    };
    let half: Change = |it| {
        for rank in &mut it.comms[0].ranks[4..] {
            rank.reduced = 6649;
        }
    };
    let leave: Change = |it| {
        for rank in &mut it.comms[0].ranks[..3] {
            rank.status = None;
        }
    };
    let fail: Change = |it| {
        it.comms[0].ranks[3].error = 6;
        it.comms[0].ranks[7].error = 6;
    };
    let begin: Change = |it| it.comms[0].ranks[1].status = Some("INIT");
    let abort: Change = |it| it.comms[0].ranks[0].status = Some("ABORT");
    let all: [(&str, Release, Change, &[&str]); 20] = [
        ("2.24-healthy", Release::V2_24, |_| {}, &[]),
        (
            "2.24-silent",
            Release::V2_24,
            stop,
            &["Silent ?=4101@10.0.0.11"],
        ),
        (
            "2.24-dead",
            Release::V2_24,
            die,
            &["Dead ?=4101@10.0.0.11 ?=4102@10.0.0.11"],
        ),
        (
            "2.24-behind",
            Release::V2_24,
            lag,
            &["Behind 27a079b828ff1a75/8 collective 6649<6650 2=4002@10.0.0.10"],
        ),
        ("2.24-destroyed", Release::V2_24, leave, &[]),
        (
            "2.24-failed",
            Release::V2_24,
            fail,
            &["Failed 27a079b828ff1a75/8 Remote process error 3=4003@10.0.0.10 7=4103@10.0.0.11"],
        ),
        ("2.28-healthy", Release::V2_28, |_| {}, &[]),
        (
            "2.28-silent",
            Release::V2_28,
            stop,
            &["Silent 27a079b828ff1a75/8 5=4101@10.0.0.11"],
        ),
        (
            "2.28-dead",
            Release::V2_28,
            die,
            &["Dead 27a079b828ff1a75/8+1 5=4101@10.0.0.11 6=4102@10.0.0.11"],
        ),
        (
            "2.28-never-launched",
            Release::V2_28,
            never,
            &["Behind 27a079b828ff1a75/8 AllReduce 0<6650 1=4001@10.0.0.10 2=4002@10.0.0.10"],
        ),
        (
            "2.28-half-behind",
            Release::V2_28,
            half,
            &["Behind 27a079b828ff1a75/8 AllReduce 6649<6650 (4)"],
        ),
        (
            "2.28-being-made",
            Release::V2_28,
            begin,
            &["Apart 27a079b828ff1a75/8 being made 1=4001@10.0.0.10"],
        ),
        (
            "2.28-failed",
            Release::V2_28,
            fail,
            &["Failed 27a079b828ff1a75/8 Remote process error 3=4003@10.0.0.10 7=4103@10.0.0.11"],
        ),
        (
            "2.28.9-dead",
            Release::V2_28_9,
            die,
            &["Dead 27a079b828ff1a75/8+1 5=4101@10.0.0.11 6=4102@10.0.0.11"],
        ),
        ("2.30-healthy", Release::V2_30, |_| {}, &[]),
        (
            "2.30-silent",
            Release::V2_30,
            stop,
            &["Silent 27a079b828ff1a75/8 5=4101@10.0.0.11"],
        ),
        (
            "2.30-half-behind",
            Release::V2_30,
            half,
            &[
                "Behind 27a079b828ff1a75/8 AllReduce 6649<6650 4=4100@10.0.0.11 5=4101@10.0.0.11 6=4102@10.0.0.11 \
               7=4103@10.0.0.11",
            ],
        ),
        (
            "2.30-failed",
            Release::V2_30,
            fail,
            &["Failed 27a079b828ff1a75/8 Remote process error 3=4003@10.0.0.10 7=4103@10.0.0.11"],
        ),
        (
            "2.30-aborted",
            Release::V2_30,
            abort,
            &["Apart 27a079b828ff1a75/8 aborted 0=4000@10.0.0.10"],
        ),
        ("2.30-destroyed", Release::V2_30, leave, &[]),
    ];
    let all = all.into_iter().map(|(name, release, change, expected)| {
        let mut fake = Fake::new(release, 2, 4);
        change(&mut fake);
        (name, fake, expected)
    });
    all.collect()
}

fn shown(problem: &NcclProblem) -> String {
    let mut text = format!("{:?}", problem.kind);
    if !problem.communicator.is_empty() {
        text.push_str(&format!(" {}", problem.communicator));
        text.push_str(
            &problem
                .size
                .map(|size| format!("/{size}"))
                .unwrap_or_default(),
        );
    }
    if problem.others > 0 {
        text.push_str(&format!("+{}", problem.others));
    }
    if !problem.detail.is_empty() {
        text.push_str(&format!(" {}", problem.detail));
    }
    let (fewest, furthest) = problem.launched;
    if fewest != furthest {
        text.push_str(&format!(" {fewest}<{furthest}"));
    }
    for member in &problem.members.named {
        let rank = member.rank.map_or("?".to_owned(), |rank| rank.to_string());
        let process = member.process.as_ref();
        let process = process.map(|it| format!("={}@{}", it.pid, it.host));
        text.push_str(&format!(" {rank}{}", process.unwrap_or_default()));
    }
    if problem.members.named.len() != problem.members.count {
        text.push_str(&format!(" ({})", problem.members.count));
    }
    text
}

/// `C10D_WRITE_TRANSCRIPTS=1` rewrites the files.
#[test]
fn transcripts_of_each_release_say_what_is_wrong() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/ras");
    let cases = cases();
    assert_eq!(cases.len(), 20);
    for (name, fake, expected) in cases {
        let answer = fake.answer(&lines(true));
        let path = folder.join(name);
        if std::env::var_os("C10D_WRITE_TRANSCRIPTS").is_some() {
            fs::write(&path, &answer).unwrap();
        }
        let recorded = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(recorded == answer, "{name} is another transcript");
        let report = NcclReport::parse(&recorded).unwrap_or_else(|error| panic!("{name}: {error}"));
        let release = name.split_once('-').unwrap().0;
        assert!(report.version.starts_with(release), "{name}: {report:?}");
        let problems: Vec<String> = report.problems().iter().map(shown).collect();
        assert_eq!(problems, expected, "{name}");
    }
}

/// The text form of a job has the same facts as its JSON form, except for ranks that it only
/// counts.
#[test]
fn text_and_json_agree() {
    for (name, mut fake, _) in cases() {
        fake.release = Release::V2_30;
        let [text, json] = [false, true].map(|as_json| {
            let report = NcclReport::parse(&fake.answer(&lines(as_json))).unwrap();
            report.problems()
        });
        assert_eq!(text.len(), json.len(), "{name}");
        for (text, json) in text.iter().zip(&json) {
            let mut text = text.clone();
            if text.members.named.is_empty() {
                text.members.named.clone_from(&json.members.named);
            }
            assert_eq!(shown(&text), shown(json), "{name}");
        }
    }
}

/// Whatever arrives, an answer or an error follows, and it is short text.
#[test]
fn an_answer_that_is_changed_is_no_panic_and_no_control_character() {
    let mut random = Rng::with_seed(c10d_sim::seed());
    for (name, fake, _) in cases() {
        let answer = fake.answer(&lines(true));
        for _ in 0..100 {
            let mut bytes = answer.clone();
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..bytes.len());
                match random.u8(..4) {
                    0 => bytes[at] = random.u8(..),
                    1 => drop(bytes.drain(at..(at + random.usize(..40)).min(bytes.len()))),
                    2 => bytes
                        .splice(at..at, b"99999999999999999999".iter().copied())
                        .for_each(drop),
                    _ => {
                        let piece = bytes[at..(at + 60).min(bytes.len())].to_vec();
                        bytes.splice(at..at, piece).for_each(drop);
                    }
                }
                if bytes.is_empty() {
                    bytes.push(b'S');
                }
            }
            match NcclReport::parse(&bytes) {
                Ok(report) => {
                    for problem in report.problems() {
                        assert!(problem.detail.len() < 200 && problem.communicator.len() <= 16);
                        assert!(
                            !problem.detail.contains(char::is_control),
                            "{name}: {problem:?}"
                        );
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!text.contains(char::is_control), "{text}");
                }
            }
        }
    }
}

/// The answer ends at any byte of a text, and at some bytes of JSON.
#[test]
fn an_answer_that_ends_early_is_not_taken_for_a_healthy_job() {
    for (name, fake, _) in cases() {
        let answer = fake.answer(&lines(true));
        let text = String::from_utf8(answer.clone()).unwrap();
        let (ends, step) = match text.find("\nWarnings\n") {
            Some(end) => (end, 1),
            None => (text.trim_end().len() - 1, 97),
        };
        for end in (0..ends).step_by(step) {
            let parsed = NcclReport::parse(&answer[..end]);
            assert!(parsed.is_err(), "{name}, {end} bytes: {parsed:?}");
        }
    }
}

#[test]
fn other_services_are_refused_in_words() {
    for (bytes, expected) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "this is not an answer of NCCL's RAS service: HTTP/1.1 400",
        ),
        (
            b"SERVER PROTOCOL 2\nOK\nOK\n\x1b[2J",
            "this is not an answer of NCCL's RAS service: SERVER PROTOCOL 2",
        ),
        (
            b"SERVER PROTOCOL 2\nOK\n",
            "the answer of NCCL's RAS service is not complete",
        ),
        (
            b"SERVER PROTOCOL 2\n{}",
            "the answer of NCCL's RAS service is not complete",
        ),
        (b"", "this is not an answer of NCCL's RAS service: "),
    ] {
        let error = NcclReport::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_huge_answer_is_cut_to_limits() {
    let mut text =
        String::from("SERVER PROTOCOL 2\nOK\nNCCL version 2.28.3 compiled with CUDA 12\n");
    for number in 0..5_000 {
        text.push_str(&format!("#0-{number} ({number:016x}) INCOMPLETE\n"));
    }
    text.push_str("#0-0 (00000000000000ff) INCOMPLETE\n");
    for rank in 0..5_000 {
        text.push_str(&format!(
            "  Rank {rank} -- GPU 1 managed by process 7 on node 10.0.0.1\n"
        ));
    }
    text.push_str("Warnings\n");
    let report = NcclReport::parse(text.as_bytes()).unwrap();
    assert_eq!(report.communicators.len(), report::COMMUNICATORS_MAX);
    let last = report.communicators.last().unwrap();
    assert_eq!(last.missing.named.len(), report::LISTED_MAX);
}

#[test]
fn a_problem_is_as_old_as_the_answers_that_have_it_unchanged() {
    let mut fake = Fake::new(Release::V2_30, 2, 4);
    let mut watch = NcclWatch::default();
    let mut note = |fake: &Fake, second| {
        let report = NcclReport::parse(&fake.answer(&lines(true))).unwrap();
        let announced = watch.note(&report, Duration::from_secs(second));
        let ages = announced
            .problems
            .iter()
            .map(|it| (it.kind, it.for_ms / 1000));
        ages.collect::<Vec<_>>()
    };
    assert_eq!(note(&fake, 0), []);
    fake.comms[0].ranks[2].reduced = 7;
    assert_eq!(note(&fake, 5), [(ProblemKind::Behind, 0)]);
    assert_eq!(note(&fake, 15), [(ProblemKind::Behind, 10)]);
    // It continues, and is behind again.
    fake.comms[0].ranks[2].reduced = 8;
    assert_eq!(note(&fake, 20), [(ProblemKind::Behind, 0)]);
    fake.processes[1].life = Life::Silent;
    let both = [(ProblemKind::Silent, 0), (ProblemKind::Behind, 5)];
    assert_eq!(note(&fake, 25), both);
    assert_eq!(note(&Fake::new(Release::V2_30, 2, 4), 30), []);
}
