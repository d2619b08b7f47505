//! A list in few bytes: docs/spec/wire-extensions.md, section 9.13.
//!
//! After a death nearly all seats are equal to the seats of the previous list, which its reader has. The changes in
//! them follow from that list: the previous rank, and the two numbers in torch's handle, which are the rank and the
//! uuid of the previous list. The change therefore has about ten bytes for a row of seats, and one byte for each seat
//! whose step differs.
//!
//! Other seats are written out, such as all seats of a first list. The members of a node mostly differ by their
//! numbers only, which are one more than the previous member's, so these members are *counted* from the first one.

use crate::codec::{
    Encode, HANDLE_BYTES_MAX, MEMBERS_MAX, Malformed, NONE, byte_of, put_u32, put_u64, saturated,
    take, u32_of, u64_of,
};
use crate::record::{Attempt, MemberKey, Record, Seat};
use std::collections::HashMap;
use std::sync::Arc;

/// Set in the attempt of a list, which has 63 bits.
const CHANGE: u64 = 1 << 63;

/// The base of a change that has none.
const NO_BASE: u64 = u64::MAX;

/// The most bytes of a handle that other handles are counted from: a few bytes of input make thousands of them.
/// Torch's have 27 to 45.
const COUNTED_HANDLE_BYTES_MAX: usize = 256;

/// A piece of seats of the base.
const OF_BASE: u8 = 1;
/// Their handles have other numbers.
const NUMBERED: u8 = 2;
/// The previous ranks are the positions in the base, not the previous ranks in the base.
const MOVED: u8 = 4;
/// Their steps differ.
const STEPS: u8 = 8;
/// A piece of seats that are counted from the first one, which is written out.
const COUNTED: u8 = 16;

/// Seats that follow each other in the list.
struct Piece {
    count: usize,
    kind: u8,
    base_rank: usize,
}

/// Appends `list`, as its difference from `base` if there is one.
pub fn encode_list(list: &Record, base: Option<&Record>, out: &mut Vec<u8>) {
    put_u64(out, list.attempt.uuid() | CHANGE);
    put_u64(out, base.map_or(NO_BASE, |base| base.attempt.uuid()));
    put_u32(out, saturated(list.source));
    put_u32(out, saturated(list.seats.len()));
    let of_base = base.into_iter().flat_map(|base| &base.seats);
    let ranks = of_base.enumerate().map(|(rank, seat)| (seat.member, rank));
    let ranks: HashMap<_, _> = ranks.collect();
    let in_base = |seat: &Seat| {
        let (base, rank) = (base?, *ranks.get(&seat.member)?);
        Some((kind_of(seat, base, rank)?, rank))
    };
    let mut seats = &list.seats[..];
    while !seats.is_empty() {
        let piece = first_piece(seats, in_base);
        let (of_piece, others) = seats.split_at(piece.count);
        encode_piece(&piece, of_piece, out);
        seats = others;
    }
}

/// Reads a list, which may be encoded as its difference from the list `base`.
///
/// # Errors
/// [`Malformed`] if the bytes are not a list, or are the difference from another list.
pub fn decode_list(bytes: &[u8], base: Option<&Arc<Record>>) -> Result<Record, Malformed> {
    let mut rest = bytes;
    let number = u64_of(&mut rest)?;
    // Without the bit it is no attempt.
    let attempt = Attempt::from_uuid(number ^ CHANGE).ok_or(Malformed)?;
    let base_number = u64_of(&mut rest)?;
    let base = base.filter(|base| base.attempt.uuid() == base_number);
    if base.is_none() && base_number != NO_BASE {
        return Err(Malformed);
    }
    let base = base.map(|base| &**base);
    let source = u32_of(&mut rest)? as usize;
    let count = u32_of(&mut rest)?;
    if count > MEMBERS_MAX || source >= count as usize {
        return Err(Malformed);
    }
    let count = count as usize;
    let mut seats = Vec::with_capacity(count);
    while seats.len() < count {
        decode_piece(&mut rest, base, count - seats.len(), &mut seats)?;
    }
    if !rest.is_empty() {
        return Err(Malformed);
    }
    Ok(Record {
        attempt,
        seats,
        source,
    })
}

/// The longest piece that these seats begin with. `in_base` returns the seat of the base that a seat is derived from,
/// and how.
fn first_piece(seats: &[Seat], in_base: impl Fn(&Seat) -> Option<(u8, usize)>) -> Piece {
    let first = &seats[0];
    let (kind, base_rank, count) = match in_base(first) {
        Some((kind, base_rank)) => {
            let follows = |index, seat: &Seat| in_base(seat) == Some((kind, base_rank + index));
            (kind, base_rank, row(seats, follows))
        }
        None => {
            let follows = |index, seat: &Seat| {
                let step = seat.step;
                let is_next = |counted: Seat| Seat { step, ..counted } == *seat;
                in_base(seat).is_none() && counted(first, index).is_some_and(is_next)
            };
            (COUNTED, 0, row(seats, follows))
        }
    };
    let steps_differ = seats[..count].iter().any(|seat| seat.step != first.step);
    let kind = if steps_differ { kind | STEPS } else { kind };
    Piece {
        count,
        kind,
        base_rank,
    }
}

/// How many seats are in a row with the first one: they follow, and their steps differ little.
fn row(seats: &[Seat], follows: impl Fn(usize, &Seat) -> bool) -> usize {
    let difference = |seat: &Seat| step_difference(seat.step, seats[0].step);
    let others = seats.iter().enumerate().skip(1);
    let row =
        others.take_while(|(index, seat)| difference(seat).is_some() && follows(*index, seat));
    1 + row.count()
}

/// How a seat follows from one of the base; `None` if it does not.
fn kind_of(seat: &Seat, base: &Record, base_rank: usize) -> Option<u8> {
    let earlier = &base.seats[base_rank];
    let mut kind = OF_BASE;
    if seat.previous != earlier.previous {
        if seat.previous.map(|it| it as usize) != Some(base_rank) {
            return None;
        }
        kind |= MOVED;
    }
    if seat.handle != earlier.handle {
        if *seat.handle != *numbered(&earlier.handle, base_rank, base.attempt)? {
            return None;
        }
        kind |= NUMBERED;
    }
    Some(kind)
}

/// The handle that torch makes of a member's handle when it takes a rank in an attempt: `gloo:<rank>:<uuid>:..`.
fn numbered(handle: &str, rank: usize, attempt: Attempt) -> Option<String> {
    let mut parts = handle.splitn(4, ':');
    let name = parts.next()?;
    let rest = parts.nth(2)?;
    Some(format!("{name}:{rank}:{}:{rest}", attempt.uuid()))
}

/// The seat `index` after `first`, with the same step, if each of its numbers is greater by `index`: id, previous
/// rank, and in a handle `gloo:<rank>:<uuid>:<first rank>:..` the two ranks.
fn counted(first: &Seat, index: usize) -> Option<Seat> {
    if index == 0 {
        return Some(first.clone());
    }
    let index = u32::try_from(index).ok()?;
    if first.handle.len() > COUNTED_HANDLE_BYTES_MAX {
        return None;
    }
    let more = |number: u64| number.checked_add(u64::from(index));
    let mut parts = first.handle.splitn(5, ':');
    let mut part = || parts.next();
    let (name, rank, uuid, first_rank) = (part()?, part()?, part()?, part()?);
    let (rank, first_rank) = (more(rank.parse().ok()?)?, more(first_rank.parse().ok()?)?);
    let mut handle = format!("{name}:{rank}:{uuid}:{first_rank}");
    if let Some(rest) = part() {
        handle = handle + ":" + rest;
    }
    let MemberKey { id, incarnation } = first.member;
    let previous = match first.previous {
        None => None,
        Some(rank) => Some(rank.checked_add(index).filter(|rank| *rank != NONE)?),
    };
    Some(Seat {
        member: MemberKey::new(more(id.0)?, incarnation.0),
        handle: handle.into(),
        step: first.step,
        previous,
    })
}

fn step_difference(step: u64, first: u64) -> Option<i8> {
    let difference = step.wrapping_sub(first).cast_signed();
    i8::try_from(difference).ok()
}

fn step_at(index: usize, first: u64, steps: &[u8]) -> u64 {
    let difference = steps
        .get(index)
        .map_or(0, |step| i64::from(step.cast_signed()));
    first.wrapping_add_signed(difference)
}

fn encode_piece(piece: &Piece, seats: &[Seat], out: &mut Vec<u8>) {
    put_u32(out, saturated(seats.len()));
    out.push(piece.kind);
    let Some(first) = seats.first() else {
        return;
    };
    if piece.kind & COUNTED != 0 {
        first.encode(out);
    } else {
        put_u32(out, saturated(piece.base_rank));
        put_u64(out, first.step);
    }
    if piece.kind & STEPS != 0 {
        let steps = seats.iter().map(|it| step_difference(it.step, first.step));
        out.extend(steps.map(|it| it.unwrap_or_default().cast_unsigned()));
    }
}

fn decode_piece(
    bytes: &mut &[u8],
    base: Option<&Record>,
    count_max: usize,
    seats: &mut Vec<Seat>,
) -> Result<(), Malformed> {
    let count = u32_of(bytes)? as usize;
    let kind = byte_of(bytes)?;
    if !(1..=count_max).contains(&count) {
        return Err(Malformed);
    }
    let steps_count = if kind & STEPS == 0 { 0 } else { count };
    match kind & !STEPS {
        COUNTED => {
            let first = Seat::decode(bytes)?;
            let steps = take(bytes, steps_count)?;
            for index in 0..count {
                let seat = counted(&first, index).ok_or(Malformed)?;
                let step = step_at(index, first.step, steps);
                seats.push(Seat { step, ..seat });
            }
        }
        of_base if of_base & OF_BASE != 0 && of_base <= OF_BASE | NUMBERED | MOVED => {
            let base = base.ok_or(Malformed)?;
            let base_rank = u32_of(bytes)? as usize;
            let first_step = u64_of(bytes)?;
            let steps = take(bytes, steps_count)?;
            let earlier = base.seats.get(base_rank..).ok_or(Malformed)?;
            let earlier = earlier.get(..count).ok_or(Malformed)?;
            for (index, earlier) in earlier.iter().enumerate() {
                let rank = base_rank + index;
                let handle = match kind & NUMBERED {
                    0 => Arc::clone(&earlier.handle),
                    _ => numbered(&earlier.handle, rank, base.attempt)
                        .filter(|handle| handle.len() <= HANDLE_BYTES_MAX as usize)
                        .ok_or(Malformed)?
                        .into(),
                };
                seats.push(Seat {
                    member: earlier.member,
                    handle,
                    step: step_at(index, first_step, steps),
                    previous: match kind & MOVED {
                        0 => earlier.previous,
                        _ => Some(saturated(rank)),
                    },
                });
            }
        }
        _ => return Err(Malformed),
    }
    Ok(())
}
