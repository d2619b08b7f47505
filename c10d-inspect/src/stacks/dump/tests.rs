use super::*;

macro_rules! recorded {
    ($rank:literal) => {
        include_str!(concat!(
            "../../../testdata/torch-2.15.0/skip/",
            $rank,
            ".traceback.txt"
        ))
    };
}

#[test]
fn ranks_with_equal_stacks_are_shown_once_and_the_odd_one_first() {
    let texts = [recorded!(0), recorded!(1), recorded!(2), recorded!(3)];
    let stacks = texts.map(|text| Stacks::parse_faulthandler(text).unwrap());
    let groups = StackGroup::of(stacks.into_iter().enumerate());
    let shown: Vec<String> = groups.iter().map(StackGroup::to_string).collect();
    assert_eq!(
        shown,
        [
            "Rank 2: /home/user/train.py:5 in stuck_in_user_code\n  \
             main thread, most recent call last:\n    \
             /home/user/train.py:35 in <module>\n    \
             /home/user/train.py:20 in main\n    \
             /home/user/train.py:5 in stuck_in_user_code",
            "Ranks 0, 1 and 3: torch/distributed/distributed_c10d.py:4181 in all_reduce, called from \
             /home/user/train.py:21 in main\n  \
             main thread, most recent call last:\n    \
             /home/user/train.py:35 in <module>\n    \
             /home/user/train.py:21 in main\n    \
             torch/distributed/c10d_logger.py:83 in wrapper\n    \
             torch/distributed/distributed_c10d.py:4181 in all_reduce",
        ]
    );
}

#[test]
fn the_main_thread_is_first_and_threads_without_python_are_left_out() {
    let text = "Current thread 0x00007f (most recent call first):\n  <no Python frame>\n\n\
                Thread 0x00007e [loader] (most recent call first):\n  File \"/usr/lib64/python3.11/queue.py\", line 171 in get\n\n\
                Thread 0x00007d (most recent call first):\n  File \"a.py\", line 2 in f\n  File \"a.py\", line 9 in <module>\n";
    let stacks = Stacks::parse_faulthandler(text).unwrap();
    assert_eq!(stacks.threads.len(), 2);
    assert_eq!(stacks.position().unwrap(), "a.py:2 in f");
    let loader = &stacks.threads[1];
    assert_eq!(loader.name.as_deref(), Some("loader"));
    assert_eq!(loader.frames[0].file, "python3.11/queue.py");
    assert!(loader.frames[0].is_library);
    assert!(!stacks.is_cut);
}

#[test]
fn answers_without_a_python_frame_are_none() {
    for text in [
        "",
        "pong",
        "  File \"a.py\", line 1 in f\n",
        "Thread 0x1 (most recent call first):\n  <no Python frame>\n",
        "Thread 0x1 (most recent call first):\n  File \"a.py\", line\n  File \"a.py\n File in\n",
    ] {
        assert_eq!(Stacks::parse_faulthandler(text), None, "{text:?}");
    }
}

#[test]
fn a_hostile_answer_is_cut_and_cannot_control_the_terminal() {
    let frame = "  File \"\u{1b}[31m.py\", line 99999999999 in \u{9b}2J\u{202e}f\n";
    let thread = format!(
        "Thread 0x1 (most recent call first):\n{}",
        frame.repeat(1000)
    );
    let stacks = Stacks::parse_faulthandler(&thread.repeat(300)).unwrap();
    assert_eq!(stacks.clone().cleaned(), stacks);
    assert!(stacks.is_cut);
    assert_eq!(stacks.threads.len(), THREADS_MAX);
    assert_eq!(stacks.threads[0].frames.len(), FRAMES_MAX);
    let shown = StackGroup::of([(0, stacks)])[0].to_string();
    let is_clean = shown
        .chars()
        .all(|character| character == '\n' || !character.is_control());
    assert!(is_clean && !shown.contains('\u{202e}'));
    assert!(shown.contains("\\u{1b}[31m.py:0 in \\u{9b}2J\\u{202e}f"));
}
