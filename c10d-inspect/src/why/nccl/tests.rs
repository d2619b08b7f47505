use crate::sim::Script;
use crate::{Finding, explain};

/// Returns the cause in a job of this size, in which all parts of the id are published except the part
/// of `root`.
fn cause(size: usize, roots: usize, root: usize) -> Finding {
    let mut script = Script::new();
    let mut ranks = script.processes(2);
    let keys: Vec<String> = (0..roots)
        .map(|part| format!("/default_pg/0//cuda//0/nccl_storekey_0_{part}"))
        .collect();
    for process in &mut ranks {
        script.join(process);
    }
    let [writer, waiter] = [0, 1].map(|rank: usize| ranks[rank].connection.unwrap());
    for (part, key) in keys.iter().enumerate() {
        if part != root {
            script.store.set(writer, key, &[7; 128]);
        }
    }
    script.store.wait(waiter, &keys);
    script.pass(31.0);
    explain(&script.snapshot(), Some(size)).findings.remove(0)
}

/// The first rank of each block, as `getRootIndex` of PyTorch 2.15 counts.
#[test]
fn a_part_of_an_id_is_published_by_the_first_rank_of_its_block() {
    for (size, roots, root, expected) in [
        (16_384, 128, 1, 128),
        (16_384, 128, 127, 16_256),
        // Blocks of 100, 100 and 100 ranks; of 101, 100 and 100; of 101, 101 and 100.
        (300, 3, 1, 100),
        (301, 3, 1, 101),
        (301, 3, 2, 201),
        (302, 3, 2, 202),
    ] {
        let cause = cause(size, roots, root);
        let text = &cause.text;
        let part = format!(
            " has waited for part {root} of the NCCL id of the default group for 31 s, which rank {expected} publishes."
        );
        assert!(text.contains(&part), "{text}");
        assert!(cause.culprits.0.iter().eq([&expected]), "{text}");
    }
}
