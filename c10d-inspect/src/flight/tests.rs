use std::collections::BTreeMap;

use c10d_sim::Seeds;
use serde_json::json;

use super::*;
use crate::Report;

/// Seconds since the first of the given times, so that texts do not depend on the recording's date.
fn clock(unix_ns: u64) -> String {
    format!("{} s", unix_ns / 1_000_000_000)
}

fn no_clock(_: u64) -> String {
    "18:04:11".to_owned()
}

macro_rules! recorded {
    ($scenario:literal) => {
        [
            include_bytes!(concat!(
                "../../testdata/torch-2.15.0/",
                $scenario,
                "/0.flight.json"
            ))
            .as_slice(),
            include_bytes!(concat!(
                "../../testdata/torch-2.15.0/",
                $scenario,
                "/1.flight.json"
            )),
            include_bytes!(concat!(
                "../../testdata/torch-2.15.0/",
                $scenario,
                "/2.flight.json"
            )),
            include_bytes!(concat!(
                "../../testdata/torch-2.15.0/",
                $scenario,
                "/3.flight.json"
            )),
        ]
    };
}

fn parsed<'a>(answers: impl IntoIterator<Item = &'a [u8]>) -> BTreeMap<usize, FlightRecording> {
    let recordings = answers.into_iter().enumerate();
    recordings
        .map(|(rank, json)| (rank, FlightRecording::parse(json).unwrap()))
        .collect()
}

fn ranks(set: &crate::RankSet) -> Vec<usize> {
    set.0.iter().copied().collect()
}

/// One entry; its time is `second`.
fn entry(group: &str, number: u64, name: &str, sizes: &[&[u64]], second: u64) -> serde_json::Value {
    json!({
        "pg_id": u64::from(group != "0") , "process_group": [group, "undefined"], "profiling_name": name,
        "collective_seq_id": number, "is_p2p": false, "input_sizes": sizes,
        "input_dtypes": vec!["Float"; sizes.len()], "state": "scheduled", "retired": false,
        "time_created_ns": second * 1_000_000_000,
    })
}

fn recording(entries: &[serde_json::Value]) -> FlightRecording {
    let json = json!({ "version": "2.10", "entries": entries, "pg_status": {} });
    FlightRecording::parse(json.to_string().as_bytes()).unwrap()
}

fn compare(recordings: Vec<FlightRecording>) -> FlightReport {
    let recordings = recordings.into_iter().enumerate().collect();
    compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &clock)
}

#[test]
fn a_rank_that_skips_a_collective_is_behind() {
    let report = compare_flights(
        &parsed(recorded!("skip")),
        &BTreeMap::new(),
        &Report::default(),
        &no_clock,
    );
    assert_eq!(
        report.headline,
        "Rank 2 is behind: it has entered 3 collectives of group 0 (default_pg), the other ranks 4 \
         (all_reduce, [1000] float, since 18:04:11)"
    );
    let [finding] = &report.findings[..] else {
        panic!("{report:?}");
    };
    assert_eq!(finding.kind, FlightFindingKind::Behind);
    assert_eq!(ranks(&finding.culprits), [2]);
    assert_eq!(ranks(&finding.others), [0, 1, 3]);
    assert_eq!(finding.number, 4);
    let current: Vec<_> = report
        .ranks
        .iter()
        .map(|rank| rank.current.as_ref().map(|it| it.number))
        .collect();
    assert_eq!(current, [Some(4), Some(4), None, Some(4)]);
    let progress = &report.ranks[0].groups[0];
    assert_eq!((progress.entered, progress.completed), (4, Some(3)));
}

#[test]
fn a_rank_in_another_collective_has_diverged() {
    let report = compare_flights(
        &parsed(recorded!("diverge")),
        &BTreeMap::new(),
        &Report::default(),
        &no_clock,
    );
    assert_eq!(
        report.headline,
        "Ranks differ in collective 4 of group 0 (default_pg): rank 2 entered broadcast, [10] float, \
         ranks 0, 1 and 3 entered all_reduce, [1000] float"
    );
    assert_eq!(report.findings.len(), 1);
    assert_eq!(ranks(&report.findings[0].culprits), [2]);
}

#[test]
fn a_rank_that_does_not_answer_is_named_and_not_compared() {
    let mut recordings = parsed(recorded!("skip"));
    recordings.remove(&2);
    let silent = BTreeMap::from([(2, "does not answer within 2s".to_owned())]);
    let report = compare_flights(&recordings, &silent, &Report::default(), &no_clock);
    assert_eq!(
        report.headline,
        "Rank 2 does not answer, so its collectives are unknown. The others agree: collective 4 of \
         group 0 (default_pg) is the last (all_reduce, [1000] float, since 18:04:11)"
    );
    assert!(report.findings.is_empty());
    assert_eq!(
        report.ranks[2].error.as_deref(),
        Some("does not answer within 2s")
    );
}

#[test]
fn if_nobody_answers_the_reason_is_told() {
    let silent = BTreeMap::from([(0, "it has no debug server".to_owned())]);
    let report = compare_flights(&BTreeMap::new(), &silent, &Report::default(), &no_clock);
    assert_eq!(
        report.headline,
        "No rank shows its collectives; rank 0: it has no debug server"
    );
}

#[test]
fn ranks_in_the_same_collective_agree() {
    let same = || recording(&[entry("0", 7, "gloo:barrier", &[], 5)]);
    let report = compare(vec![same(), same()]);
    assert_eq!(
        report.headline,
        "All ranks agree: collective 7 of group 0 is the last (barrier, since 5 s)"
    );
}

#[test]
fn sizes_are_compared_where_they_must_be_equal_and_shapes_are_not() {
    let pair = |name: &str, one: &[u64], other: &[u64]| {
        let recordings = [one, other].map(|sizes| recording(&[entry("0", 1, name, &[sizes], 1)]));
        compare(recordings.into()).findings.len()
    };
    assert_eq!(pair("gloo:all_reduce", &[1000], &[999]), 1);
    assert_eq!(pair("nccl:_reduce_scatter_base", &[8], &[9]), 1);
    assert_eq!(pair("gloo:all_gather", &[1], &[2]), 1);
    assert_eq!(pair("nccl:broadcast", &[1000], &[10, 100]), 0);
    assert_eq!(pair("nccl:all_gather", &[1], &[2]), 0);
    assert_eq!(pair("gloo:gather", &[1], &[2]), 0);
    assert_eq!(pair("nccl:all_to_all", &[u64::MAX, u64::MAX], &[0]), 0);
}

#[test]
fn only_collectives_that_all_rings_still_hold_are_compared() {
    let old = recording(&[
        entry("0", 1, "gloo:broadcast", &[], 1),
        entry("0", 5, "gloo:all_reduce", &[], 5),
    ]);
    let late = recording(&[
        entry("0", 4, "gloo:barrier", &[], 4),
        entry("0", 5, "gloo:all_reduce", &[], 5),
    ]);
    let report = compare(vec![late, old]);
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn the_rank_that_goes_on_alone_is_the_odd_one() {
    let upto = |last: u64| {
        let entries: Vec<_> = (1..=last)
            .map(|n| entry("0", n, "gloo:all_reduce", &[&[4]], n))
            .collect();
        recording(&entries)
    };
    let report = compare(vec![upto(2), upto(2), upto(3)]);
    assert_eq!(
        report.headline,
        "Rank 2 is ahead of the other ranks: it has entered 3 collectives of group 0 (all_reduce, [4] float, \
         since 3 s), the other ranks 2"
    );
    let report = compare(vec![upto(1), upto(2), upto(4)]);
    assert_eq!(
        report.headline,
        "Rank 0 is behind: it has entered 1 collective of group 0, the other ranks 2 to 4 (all_reduce, [4] \
         float, since 2 s)"
    );
}

#[test]
fn a_rank_that_waits_in_another_group_is_late_because_of_it() {
    let in_pair = |numbers: &[u64]| {
        let mut entries = vec![];
        for number in numbers {
            entries.push(entry("7", *number, "gloo:all_reduce", &[], 1));
        }
        entries
    };
    let waiting_in_world = recording(&[entry("0", 1, "gloo:barrier", &[], 3)]);
    // Rank 2 waits for rank 3 in group 7, and so does not reach the barrier.
    let late = recording(&in_pair(&[1, 2]));
    let culprit = recording(&in_pair(&[1]));
    let absent = |recording: FlightRecording| {
        let status = json!({ "pg_status": { "0": { "last_enqueued_collective": "0" } } });
        let mut merged = FlightRecording::parse(status.to_string().as_bytes()).unwrap();
        merged.merge(recording);
        merged
    };
    let report = compare(vec![
        waiting_in_world.clone(),
        waiting_in_world,
        absent(late),
        absent(culprit),
    ]);
    let [cause, consequence] = &report.findings[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (cause.group.as_str(), ranks(&cause.culprits)),
        ("7", vec![3])
    );
    assert!(!cause.is_consequence);
    assert_eq!(ranks(&consequence.culprits), [2, 3]);
    assert!(
        report.headline.starts_with("Rank 3 is behind"),
        "{report:?}"
    );
}

/// A job with these sizes of the world and of groups.
fn job(world_size: usize, sizes: &[(&str, usize)]) -> Report {
    let group = |(name, size): &(&str, usize)| crate::Group {
        name: (*name).to_owned(),
        size: Some(*size),
        ..Default::default()
    };
    Report {
        world_size: Some(world_size),
        groups: sizes.iter().map(group).collect(),
        ..Report::default()
    }
}

/// Recordings of ranks that have ended the first collective of the default group, and wait in these groups.
fn waiting_in(groups: &[&[&str]]) -> BTreeMap<usize, FlightRecording> {
    let of_rank = |groups: &&[&str]| {
        let mut entries = vec![entry("0", 1, "gloo:barrier", &[], 1)];
        entries[0]["retired"] = true.into();
        entries.extend(
            groups
                .iter()
                .map(|name| entry(name, 1, "gloo:all_reduce", &[&[4]], 5)),
        );
        recording(&entries)
    };
    groups.iter().map(of_rank).enumerate().collect()
}

#[test]
fn a_rank_that_skips_the_first_collective_of_a_subgroup_is_missing() {
    let compare = |groups: &[&[&str]], job: &Report| {
        compare_flights(&waiting_in(groups), &BTreeMap::new(), job, &clock)
    };
    let most = |groups: &[&[&str]], job: &Report| {
        let report = compare(groups, job);
        assert_eq!(report.findings.len(), 1, "{report:?}");
        (report.headline.clone(), ranks(&report.findings[0].culprits))
    };
    // All ranks of the job belong to the group.
    let (headline, culprits) = most(&[&["1"], &["1"], &[]], &job(3, &[("1", 3)]));
    assert_eq!(culprits, [2]);
    assert_eq!(
        headline,
        "Rank 2 is behind: it has entered no collectives of group 1, the other ranks 1 (all_reduce, [4] float, \
         since 5 s)"
    );
    // One rank does not.
    let four: [&[&str]; 4] = [&["1"], &["1"], &[], &[]];
    let (headline, culprits) = most(&four, &job(4, &[("1", 3)]));
    assert!(culprits.is_empty());
    assert_eq!(
        headline,
        "Ranks 0 and 1 wait in collective 1 of group 1 (all_reduce, [4] float, since 5 s); one of ranks 2 \
         and 3 has not entered it"
    );
    // The size is not known, or there is a rank that was not asked.
    for job in [job(4, &[]), job(5, &[("1", 4)])] {
        let (headline, culprits) = most(&four, &job);
        assert!(culprits.is_empty());
        assert!(
            headline.ends_with(
                "no collective of this group is recorded at ranks 2 and 3: those that belong to it are missing"
            ),
            "{headline}"
        );
    }
    // All members have entered it.
    let report = compare(&four, &job(4, &[("1", 2)]));
    assert!(report.findings.is_empty(), "{report:?}");
    assert!(report.headline.starts_with("All ranks agree"));
}

#[test]
fn members_that_nccl_lists_are_known() {
    let config = json!({
        "entries": [], "pg_status": {"0": {"last_enqueued_collective": "1"}},
        "pg_config": {"7": {"name": "7", "desc": "undefined", "ranks": "[0, 1, 2]"}, "": {"name": "", "ranks": "[3]"}},
    });
    let mut recordings = waiting_in(&[&["7"], &["7"], &[], &[]]);
    let listed = FlightRecording::parse(config.to_string().as_bytes()).unwrap();
    recordings.get_mut(&0).unwrap().merge(listed);
    let report = compare_flights(&recordings, &BTreeMap::new(), &job(4, &[]), &clock);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(ranks(&report.findings[0].culprits), [2]);
    // Its recorder is a ring, and has lost all entries of a group, which may be this one.
    let lost = json!({ "pg_status": { "1": { "last_enqueued_collective": "1" } } });
    let lost = FlightRecording::parse(lost.to_string().as_bytes()).unwrap();
    recordings.get_mut(&2).unwrap().merge(lost);
    let report = compare_flights(&recordings, &BTreeMap::new(), &job(4, &[]), &clock);
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn ranks_that_wait_for_each_other_are_not_behind() {
    for (groups, headline) in [
        // Each pair has a group.
        (
            [&["1"][..], &["2"], &["3"]],
            "Ranks wait for each other: rank 0 in group 1 for one of ranks 1 and 2 (all_reduce, [4] float, since 5 s), \
             rank 1 in group 2 for one of ranks 0 and 2 (all_reduce, [4] float, since 5 s), rank 2 in group 3 for one of \
             ranks 0 and 1 (all_reduce, [4] float, since 5 s)",
        ),
        // Two groups have all ranks.
        (
            [&["1"][..], &["2"], &["2"]],
            "Ranks wait for each other: rank 0 in group 1 for ranks 1 and 2 (all_reduce, [4] float, since 5 s), ranks 1 \
             and 2 in group 2 for rank 0 (all_reduce, [4] float, since 5 s)",
        ),
    ] {
        let sizes = match groups[2] {
            ["3"] => job(3, &[("1", 2), ("2", 2), ("3", 2)]),
            _ => job(3, &[("1", 3), ("2", 3)]),
        };
        let report = compare_flights(&waiting_in(&groups), &BTreeMap::new(), &sizes, &clock);
        assert_eq!(report.headline, headline);
        assert!(report.findings.iter().all(|it| it.culprits.0.is_empty()));
    }
}

#[test]
fn a_rank_without_a_recording_is_named_if_others_have_one() {
    let empty = br#"{"pg_config":{},"pg_status":{},"version":"2.10"}"#;
    let mut recordings = parsed([empty.as_slice()]);
    let report = compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &clock);
    assert!(
        report.headline.starts_with("No recording of a collective"),
        "{report:?}"
    );
    recordings.insert(1, recording(&[entry("0", 1, "gloo:barrier", &[], 1)]));
    let report = compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &clock);
    assert!(
        report.headline.starts_with("Rank 0 has recorded no group"),
        "{report:?}"
    );
}

#[test]
fn two_recorders_of_a_rank_are_merged() {
    let mut both = recording(&[entry("0", 1, "gloo:barrier", &[], 1)]);
    both.merge(recording(&[entry("3", 2, "nccl:all_reduce", &[], 9)]));
    assert_eq!(both.current().unwrap().backend, "nccl");
    assert_eq!(compare(vec![both]).ranks[0].groups.len(), 2);
}

#[test]
fn odd_answers_are_an_error_or_ignored() {
    for bad in ["", "[]", "3", "{", "not json", "\u{1b}[2J", "{\"entries\":"] {
        assert!(FlightRecording::parse(bad.as_bytes()).is_err(), "{bad}");
    }
    let deep = "[".repeat(100_000);
    assert!(FlightRecording::parse(deep.as_bytes()).is_err());
    for odd in [
        r#"{"entries":7,"pg_status":[]}"#,
        r#"{"entries":[null,[],"x",{"process_group":"0"},{"process_group":[1,2]},{"process_group":["0"]}]}"#,
        r#"{"pg_status":{"x":{},"-1":{},"99999999999999999999":{},"0":[],"1":{"last_enqueued_collective":"4"}}}"#,
        r#"{"entries":[{"process_group":["0","d"],"collective_seq_id":-1}]}"#,
        r#"{"entries":[{"process_group":["0","d"],"collective_seq_id":"18446744073709551615","input_sizes":[3,["a",-1]],"time_created_ns":1e300}]}"#,
    ] {
        let recording = FlightRecording::parse(odd.as_bytes()).unwrap();
        let others = parsed(recorded!("skip"));
        let mut recordings: BTreeMap<_, _> = others.into_iter().collect();
        recordings.insert(9, recording);
        let _ = compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &clock).headline;
    }
}

#[test]
fn names_of_a_rank_cannot_control_the_terminal() {
    let evil = "\u{1b}[2J\u{202e}x\n".repeat(100);
    let entry = json!({
        "process_group": [evil, evil], "profiling_name": evil, "collective_seq_id": 1, "input_sizes": [[1]],
        "input_dtypes": [evil],
    });
    let report = compare(vec![recording(&[entry]), recording(&[])]);
    let text = serde_json::to_string(&report).unwrap();
    // JSON escapes what is not printable; the texts themselves hold backslashes.
    let is_escaped = text.replace(r"\\", "").contains('\\');
    assert!(!is_escaped && text.len() < 4000, "{text}");
}

#[test]
fn the_reason_of_a_silent_rank_cannot_either() {
    let evil = "\u{1b}[2J\u{202e}x\n".repeat(100);
    let silent = BTreeMap::from([(0, evil)]);
    let report = compare_flights(&BTreeMap::new(), &silent, &Report::default(), &no_clock);
    let text = report.to_text(&no_clock);
    assert!(
        !text.contains(['\u{1b}', '\u{202e}']) && text.lines().count() == 3 && text.len() < 4000,
        "{text}"
    );
}

#[test]
fn the_text_lists_ranks_below_the_answer() {
    let first = || entry("0", 1, "nccl:all_reduce", &[&[4]], 7);
    let mut ended = entry("0", 1, "nccl:all_reduce", &[&[4]], 7);
    ended["retired"] = true.into();
    let recordings = [recording(&[first()]), recording(&[ended]), recording(&[])];
    let recordings = recordings.into_iter().enumerate().collect();
    let silent = BTreeMap::from([(3, "it has no debug server".to_owned())]);
    let text = compare_flights(&recordings, &silent, &Report::default(), &clock).to_text(&clock);
    let (_, listed) = text.split_once("\n\n").unwrap();
    let expected = "\
rank 0: in collective 1 of group 0 since 7 s: all_reduce, [4] float
rank 1: in no collective; has entered 1 of group 0
rank 2: in no collective; nothing recorded
rank 3: it has no debug server
";
    assert_eq!(listed, expected, "{text}");
    let many = (0..70).map(|rank| (rank, recording(&[first()]))).collect();
    let text = compare_flights(&many, &BTreeMap::new(), &Report::default(), &clock).to_text(&clock);
    assert!(
        text.ends_with("and 6 more ranks: --json shows all\n"),
        "{text}"
    );
}

#[test]
fn any_recordings_are_compared_without_a_panic() {
    for seed in Seeds::fixed(1000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let names = ["gloo:all_reduce", "nccl:broadcast", "x", ""];
        let recordings = (0..random.usize(1..6)).map(|_| {
            let entries: Vec<_> = (0..random.usize(0..6))
                .map(|_| {
                    let group = ["0", "1", ""][random.usize(..3)];
                    let name = names[random.usize(..4)];
                    let number = if random.u8(..) < 8 {
                        u64::MAX
                    } else {
                        random.u64(0..5)
                    };
                    let mut entry = entry(
                        group,
                        number,
                        name,
                        &[&[random.u64(0..3)]],
                        random.u64(0..9),
                    );
                    entry["retired"] = random.bool().into();
                    entry
                })
                .collect();
            recording(&entries)
        });
        let report = compare(recordings.collect());
        for finding in &report.findings {
            let names_nobody = matches!(
                finding.kind,
                FlightFindingKind::MembersMissing | FlightFindingKind::Crossed
            );
            assert_eq!(
                finding.culprits.0.is_empty(),
                names_nobody,
                "seed {seed}: {finding:?}"
            );
            assert!(
                finding.culprits.0.is_disjoint(&finding.others.0),
                "seed {seed}: {finding:?}"
            );
        }
    }
}

/// A group of survivors in this generation, of these ranks.
fn survivors(generation: u64, ranks: &[usize]) -> crate::MembershipReport {
    let mut group = crate::MembershipReport {
        generation: u32::try_from(generation).unwrap(),
        uuid: uuid(generation).to_string(),
        is_whole: true,
        is_settled: true,
        size: ranks.len(),
        ..Default::default()
    };
    group.ranks.0.extend(ranks);
    group
}

const fn uuid(generation: u64) -> u64 {
    (7 << 32) | generation
}

/// See `recorded`; the generations by their numbers.
fn of_generations(entered: &[(u64, u64)]) -> FlightRecording {
    let numbers = |&(generation, count)| (1..=count).map(move |number| (uuid(generation), number));
    let entries = entered
        .iter()
        .flat_map(numbers)
        .map(|(uuid, number)| crate::sim::Entry {
            uuid,
            subgroup: None,
            number,
            is_done: false,
        });
    crate::sim::recorded(&entries.collect::<Vec<_>>(), usize::MAX)
}

/// The headline and who is a culprit.
fn survivors_compared(
    group: &crate::MembershipReport,
    recordings: Vec<(usize, FlightRecording)>,
    silent: &[usize],
) -> (String, Vec<usize>) {
    let silent = silent.iter().map(|rank| (*rank, "refused".to_owned()));
    let report = compare_flights(
        &recordings.into_iter().collect(),
        &silent.collect(),
        &Report {
            memberships: vec![group.clone()],
            ..Report::default()
        },
        &no_clock,
    );
    let culprits = report.findings.iter().flat_map(|it| ranks(&it.culprits));
    (report.headline.clone(), culprits.collect())
}

#[test]
fn only_collectives_of_the_current_generation_are_compared() {
    // PyTorch has numbered the collectives from 1 again when rank 1 was replaced.
    let old = of_generations(&[(1, 96), (3, 53)]);
    let new = of_generations(&[(3, 53)]);
    let group = survivors(3, &[0, 1, 2]);
    let of = |one, two| vec![(0, old.clone()), (1, one), (2, two)];
    let (headline, culprits) = survivors_compared(&group, of(new.clone(), old.clone()), &[]);
    assert!(culprits.is_empty(), "{headline}");
    assert!(
        headline.contains("All ranks agree: collective 53 of group 0 (generation 3)"),
        "{headline}"
    );
    // Rank 2 hangs, before its first collective of the generation or later.
    for entered in [0, 52] {
        let behind = match entered {
            0 => of_generations(&[(1, 96)]),
            entered => of_generations(&[(1, 96), (3, entered)]),
        };
        let (headline, culprits) = survivors_compared(&group, of(new.clone(), behind), &[]);
        assert_eq!(culprits, [2], "{headline}");
        assert!(headline.starts_with("Rank 2 is behind"), "{headline}");
    }
    // The newcomer, which has no recording yet, hangs in the same way.
    let nothing = FlightRecording::parse(b"{}").unwrap();
    let (headline, culprits) = survivors_compared(&group, of(nothing, old.clone()), &[]);
    assert_eq!(culprits, [1], "{headline}");
}

#[test]
fn a_rank_that_its_group_has_left_out_is_not_compared() {
    let group = survivors(2, &[1, 2]);
    let on = || of_generations(&[(1, 5), (2, 9)]);
    // Rank 0 hangs in the first generation, and rank 3 waits to enter the group.
    let waits = FlightRecording::parse(b"{}").unwrap();
    let stuck = of_generations(&[(1, 5)]);
    let recordings = vec![(0, stuck), (1, on()), (2, on()), (3, waits)];
    let (headline, culprits) = survivors_compared(&group, recordings, &[]);
    assert!(
        culprits.is_empty() && headline.starts_with("All ranks agree"),
        "{headline}"
    );
    let recordings = vec![(1, on()), (2, on())];
    let (headline, culprits) = survivors_compared(&group, recordings, &[0]);
    assert!(
        culprits.is_empty() && headline.starts_with("All ranks agree"),
        "{headline}"
    );
}

#[test]
fn members_that_change_are_not_compared() {
    let old = || of_generations(&[(1, 5)]);
    let new = || of_generations(&[(1, 5), (2, 1)]);
    let changing = vec![(0, old()), (1, new())];
    let (headline, culprits) = survivors_compared(&survivors(1, &[0, 1]), changing.clone(), &[]);
    assert!(
        culprits.is_empty() && headline.contains("change"),
        "{headline}"
    );
    let mut broken = survivors(2, &[]);
    broken.is_whole = false;
    broken.stage = "members leave their mesh".to_owned();
    let (headline, culprits) = survivors_compared(&broken, changing.clone(), &[]);
    assert!(
        culprits.is_empty() && headline.contains("leave their mesh"),
        "{headline}"
    );
    // Without a launcher that announces the group, who is a member is not known.
    let (headline, culprits) = survivors_compared(&survivors(2, &[]), changing, &[]);
    assert!(culprits.is_empty(), "{headline}");
}

/// A recording without the generation: the program changes its group itself.
#[test]
fn numbers_that_begin_again_are_those_of_another_group() {
    let recording = |numbers: &[u64]| {
        let entries: Vec<_> = numbers
            .iter()
            .map(|number| entry("0", *number, "gloo:all_reduce", &[&[1]], *number))
            .collect();
        let json = json!({"entries": entries, "pg_status": {}}).to_string();
        FlightRecording::parse(json.as_bytes()).unwrap()
    };
    let recordings = BTreeMap::from([(0, recording(&[1, 2, 3, 1])), (1, recording(&[1]))]);
    let report = compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &no_clock);
    assert!(report.findings.is_empty(), "{}", report.headline);
    assert_eq!(recording(&[1, 1]).groups["0"].collectives.len(), 1);
    let moved = recording(&[1, 2, 1]);
    assert!(moved.has_moved_since(&recording(&[1, 2])));
}

/// The recorder is a ring: subgroups can leave nothing of the default group in it.
#[test]
fn subgroups_are_compared_within_their_generation() {
    let recording = |entered: &[(&str, u64)]| {
        let numbers = entered
            .iter()
            .flat_map(|&(group, count)| (1..=count).map(move |it| (group, it)));
        let entries =
            numbers.map(|(group, number)| entry(group, number, "gloo:all_reduce", &[&[1]], number));
        let json = json!({"entries": entries.collect::<Vec<_>>()}).to_string();
        FlightRecording::parse(json.as_bytes()).unwrap()
    };
    // Rank 2 is new. The subgroups of the second generation were left at different places.
    let old = recording(&[("2000000", 7), ("3000000", 4)]);
    let other = recording(&[("2000000", 6), ("3000000", 4)]);
    let group = survivors(3, &[0, 1, 2]);
    let of = |new| {
        vec![
            (0, old.clone()),
            (1, other.clone()),
            (2, recording(&[("3000000", new)])),
        ]
    };
    let (headline, culprits) = survivors_compared(&group, of(4), &[]);
    assert!(
        culprits.is_empty() && headline.starts_with("All ranks agree"),
        "{headline}"
    );
    let (headline, culprits) = survivors_compared(&group, of(3), &[]);
    assert_eq!(culprits, [2], "{headline}");
}
