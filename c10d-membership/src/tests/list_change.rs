//! A list as its difference from an earlier list, or with counted seats: docs/spec/wire-extensions.md, MEMBERSHIP 12
//! and 13.

use std::sync::Arc;

use crate::codec::{Encode, Malformed};
use crate::list_change::{decode_list, encode_list};
use crate::{Attempt, MemberKey, Nonce, Record, Seat};

fn attempt(count: u32) -> Attempt {
    Attempt::new(Nonce::new(0xff00_0000), count)
}

/// Members 0 to `count` in their first generation, with handles as torch has them.
fn first(count: usize) -> Record {
    let seats = (0..count).map(|id| Seat {
        member: MemberKey::new(id as u64, 1),
        handle: format!("gloo:{id}:-1:{id}:10.0.0.{}:29500", id / 8).into(),
        step: 0,
        previous: None,
    });
    Record {
        attempt: attempt(1),
        seats: seats.collect(),
        source: 0,
    }
}

/// The list after one in which only `stay` ranks stay, at these steps.
fn next(base: &Record, stay: impl Fn(usize) -> bool, step: impl Fn(usize) -> u64) -> Record {
    let seats = base.seats.iter().enumerate();
    let seats = seats.filter(|(rank, _)| stay(*rank)).map(|(rank, seat)| {
        let mut parts = seat.handle.splitn(4, ':').skip(3);
        let uuid = base.attempt.uuid();
        let rest = parts.next().expect("it is torch's");
        Seat {
            member: seat.member,
            handle: format!("gloo:{rank}:{uuid}:{rest}").into(),
            step: step(rank),
            previous: Some(rank as u32),
        }
    });
    Record {
        attempt: attempt(base.attempt.count() + 1),
        seats: seats.collect(),
        source: 0,
    }
}

/// The bytes of a change, which is read as it was written.
fn change(list: &Record, base: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_list(list, Some(base), &mut bytes);
    let base = Arc::new(base.clone());
    check(&bytes, list, Some(&base));
    assert_eq!(decode_list(&bytes, None), Err(Malformed));
    bytes
}

/// The bytes of a list with counted seats, which is read as it was written.
fn counted(list: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_list(list, None, &mut bytes);
    check(&bytes, list, None);
    // A reader may have another list.
    let base = Arc::new(first(5));
    assert_eq!(decode_list(&bytes, Some(&base)).as_ref(), Ok(list));
    bytes
}

/// The bytes are read as the list, and none may be missing or follow.
fn check(bytes: &[u8], list: &Record, base: Option<&Arc<Record>>) {
    assert_eq!(decode_list(bytes, base).as_ref(), Ok(list));
    for length in 0..bytes.len().min(1000) {
        assert_eq!(decode_list(&bytes[..length], base), Err(Malformed));
    }
    let longer = [bytes, &[0]].concat();
    assert_eq!(decode_list(&longer, base), Err(Malformed));
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 12.
#[test]
fn a_death_among_ten_thousand_is_told_in_a_hundred_bytes() {
    let committed = next(&first(10_000), |_| true, |_| 7);
    let after = next(&committed, |rank| rank != 4711, |_| 8);
    assert!(change(&after, &committed).len() <= 100);
    let mut whole = Vec::new();
    after.encode(&mut whole);
    assert!(whole.len() > 700_000);
    // The survivors have done different steps.
    let uneven = next(
        &committed,
        |rank| rank != 4711,
        |rank| 8 + (rank % 2) as u64,
    );
    assert!(change(&uneven, &committed).len() < 10_100);
    // An attempt that failed is the base of the next one: the handles are those that torch has had.
    let mut again = after.clone();
    again.attempt = attempt(9);
    again.seats.remove(17);
    assert!(change(&again, &after).len() <= 100);
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 13.
#[test]
fn a_first_list_of_ten_thousand_is_told_in_few_bytes() {
    // Each eight have an address.
    let list = first(10_000);
    assert!(counted(&list).len() < 95_000);
    let mut of_one_host = first(10_000);
    for (rank, seat) in of_one_host.seats.iter_mut().enumerate() {
        seat.handle = format!("gloo:{rank}:-1:{rank}:127.0.0.1:29500").into();
    }
    assert!(counted(&of_one_host).len() < 100);
    // A newcomer gets the list of a later generation so too, whose members have done different steps.
    let later = next(&of_one_host, |rank| rank != 17, |rank| (rank % 2) as u64);
    assert!(counted(&later).len() < 10_200);
    let mut joined = later.clone();
    joined.seats.extend((0..2000).map(|id| Seat {
        member: MemberKey::new(20_000 + id, 3),
        handle: format!("gloo:{id}:-1:{}:127.0.0.1:29500", 20_000 + id).into(),
        step: 0,
        previous: None,
    }));
    let mut bytes = Vec::new();
    encode_list(&joined, Some(&later), &mut bytes);
    check(&bytes, &joined, Some(&Arc::new(later)));
    assert!(bytes.len() < 10_400);
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 13: seats that do not count from the first are written.
#[test]
fn what_cannot_be_counted_is_written() {
    let whole = |list: &Record| {
        let mut bytes = Vec::new();
        list.encode(&mut bytes);
        bytes.len()
    };
    let change_all: [fn(usize, &mut Seat); 6] = [
        |rank, seat| seat.member = MemberKey::new(rank as u64, rank as u64),
        |rank, seat| seat.member = MemberKey::new(rank as u64 * 2, 1),
        |rank, seat| seat.previous = Some(5 - rank as u32),
        |rank, seat| seat.step = rank as u64 * 1000,
        |rank, seat| seat.handle = format!("gloo:{rank}:-1:x").into(),
        |rank, seat| {
            let address = "x".repeat(250);
            seat.handle = format!("gloo:{rank}:-1:{rank}:{address}").into();
        },
    ];
    for (case, change) in change_all.into_iter().enumerate() {
        let mut list = first(4);
        for (rank, seat) in list.seats.iter_mut().enumerate() {
            change(rank, seat);
        }
        assert!(counted(&list).len() > whole(&list), "{case}");
    }
    // The last numbers that there are.
    let mut list = first(3);
    for (rank, seat) in list.seats.iter_mut().enumerate() {
        let number = u64::MAX - 2 + rank as u64;
        seat.member = MemberKey::new(number, 1);
        seat.handle = format!("gloo:{number}:-1:{number}").into();
        seat.previous = Some(u32::MAX - 3 + rank as u32);
    }
    let mut bytes = counted(&list);
    assert!(bytes.len() < whole(&list));
    // One seat more, which would have no number.
    bytes[20] += 1;
    bytes[24] += 1;
    assert_eq!(decode_list(&bytes, None), Err(Malformed));
}

/// Lists that differ in any way.
#[test]
fn random_changes_are_read_as_they_were_written() {
    let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
    for _ in 0..500 {
        let base = next(&first(random.usize(1..40)), |_| true, |_| 7);
        let rare = random.usize(2..10);
        let dead: Vec<bool> = base
            .seats
            .iter()
            .map(|_| random.usize(..rare) == 0)
            .collect();
        let mut list = next(&base, |rank| !dead[rank], |_| 8);
        for seat in &mut list.seats {
            match random.usize(..rare * 4) {
                0 => seat.step = random.u64(..),
                1 => seat.handle = "".into(),
                2 => seat.handle = "gloo:1:2".into(),
                3 => seat.previous = None,
                4 => seat.member = MemberKey::new(random.u64(..50), 2),
                5 => seat.step += 1,
                _ => {}
            }
        }
        if random.bool() {
            random.shuffle(&mut list.seats);
        }
        if !list.seats.is_empty() {
            change(&list, &base);
            counted(&list);
        }
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 12: changes that our servers do not send.
#[test]
fn what_is_no_change_is_refused() {
    let base = Arc::new(first(4));
    let list = next(&base, |rank| rank != 1, |_| 3);
    let good = change(&list, &base);
    let refused = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        assert_eq!(decode_list(&bytes, Some(&base)), Err(Malformed), "{at}");
    };
    // Another base, no source, more seats than there can be, no seats in a piece, more than the list has.
    refused(8, 9);
    refused(16, 3);
    refused(20, 0xff);
    refused(24, 0);
    refused(24, 4);
    // A kind without a base, unknown kinds, ranks that the base does not have.
    refused(28, 2);
    refused(28, 16 | 1);
    refused(28, 8);
    refused(28, 32 | 1);
    refused(29, 4);
    // A list in the form that the journal has.
    let mut kept = Vec::new();
    list.encode(&mut kept);
    assert_eq!(decode_list(&kept, Some(&base)), Err(Malformed));
    // A handle that would exceed the limit.
    let mut long = first(1);
    long.seats[0].handle = format!("gloo:1:1:{}", "x".repeat(4090)).into();
    let mut after = next(&long, |_| true, |_| 1);
    let mut bytes = Vec::new();
    encode_list(&after, Some(&long), &mut bytes);
    let long = Arc::new(long);
    assert_eq!(decode_list(&bytes, Some(&long)), Err(Malformed));
    after.seats.clear();
    bytes.clear();
    encode_list(&after, Some(&long), &mut bytes);
    assert_eq!(decode_list(&bytes, Some(&long)), Err(Malformed), "nobody");
}
