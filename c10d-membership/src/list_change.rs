//! A list as what differs from an earlier one, which its reader has: docs/wire-extensions.md, section 9.13.
//!
//! After a death nearly all seats are those of the list before. What changes in them follows from it: the rank before,
//! and the two numbers in a handle of torch, which are the rank and the uuid of the list before. So the change has some
//! ten bytes for a row of seats, and one byte for each seat whose step differs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::attempt::Attempt;
use crate::codec::{
    Encode, HANDLE_BYTES_MAX, Malformed, SEAT_BYTES_MIN, byte_of, decode_all, put_u32, put_u64,
    saturated, take, u32_of, u64_of,
};
use crate::record::{Record, Seat};

/// Set in the attempt of a change. Attempts have 63 bits.
const CHANGE: u64 = 1 << 63;

/// A piece of seats that are written out.
const WRITTEN: u8 = 0;
/// A piece of seats of the base.
const OF_BASE: u8 = 1;
/// Their handles have other numbers.
const NUMBERED: u8 = 2;
/// Their previous ranks are those of the base, not those that the base has.
const MOVED: u8 = 4;
/// Their steps differ.
const STEPS: u8 = 8;

/// Seats that follow each other in both lists.
struct Piece {
    seats: Range<usize>,
    kind: u8,
    base_rank: usize,
}

/// Appends `list` as what differs from `base`.
pub fn encode_change(list: &Record, base: &Record, out: &mut Vec<u8>) {
    put_u64(out, list.attempt.uuid() | CHANGE);
    base.attempt.encode(out);
    put_u32(out, saturated(list.source));
    put_u32(out, saturated(list.seats.len()));
    let ranks = base.seats.iter().enumerate();
    let ranks: HashMap<_, _> = ranks.map(|(rank, seat)| (seat.member, rank)).collect();
    let mut rank = 0;
    while rank < list.seats.len() {
        let piece = piece_from(rank, list, base, |seat| ranks.get(&seat.member).copied());
        rank = piece.seats.end;
        encode_piece(&piece, &list.seats[piece.seats.clone()], out);
    }
}

/// Reads a list, or what differs from the list that the reader has.
///
/// # Errors
/// [`Malformed`], also if it differs from another list.
pub fn decode_list(bytes: &[u8], base: Option<&Arc<Record>>) -> Result<Record, Malformed> {
    let mut rest = bytes;
    let number = u64_of(&mut rest)?;
    if number & CHANGE == 0 {
        return decode_all(bytes);
    }
    let attempt = Attempt::from_uuid(number & !CHANGE).ok_or(Malformed)?;
    let base_attempt = Attempt::decode(&mut rest)?;
    let base = base.filter(|base| base.attempt == base_attempt);
    let base = base.ok_or(Malformed)?;
    let source = u32_of(&mut rest)? as usize;
    let count = u32_of(&mut rest)? as usize;
    if count > base.seats.len() + rest.len() / SEAT_BYTES_MIN || source >= count {
        return Err(Malformed);
    }
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

/// The longest piece that begins at this rank.
fn piece_from(
    first: usize,
    list: &Record,
    base: &Record,
    rank_in_base: impl Fn(&Seat) -> Option<usize>,
) -> Piece {
    let kind_of = |rank: usize| {
        let seat = &list.seats[rank];
        let base_rank = rank_in_base(seat)?;
        let kind = kind_of(seat, base, base_rank)?;
        Some((kind, base_rank))
    };
    let piece = |count: usize, kind, base_rank| Piece {
        seats: first..first + count,
        kind,
        base_rank,
    };
    let ranks = first..list.seats.len();
    let Some((kind, base_rank)) = kind_of(first) else {
        let count = ranks.take_while(|rank| kind_of(*rank).is_none()).count();
        return piece(count, WRITTEN, 0);
    };
    let first_step = list.seats[first].step;
    let mut steps_differ = false;
    let count = ranks.take_while(|rank| {
        let next = (kind, base_rank + rank - first);
        let difference = step_difference(list.seats[*rank].step, first_step);
        let follows = kind_of(*rank) == Some(next) && difference.is_some();
        steps_differ |= follows && difference != Some(0);
        follows
    });
    let count = count.count();
    piece(
        count,
        if steps_differ { kind | STEPS } else { kind },
        base_rank,
    )
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

/// What torch makes of a member's handle when it takes a rank in an attempt: `gloo:<rank>:<uuid>:..`.
fn numbered(handle: &str, rank: usize, attempt: Attempt) -> Option<String> {
    let mut parts = handle.splitn(4, ':');
    let name = parts.next()?;
    let rest = parts.nth(2)?;
    Some(format!("{name}:{rank}:{}:{rest}", attempt.uuid()))
}

fn step_difference(step: u64, first: u64) -> Option<i8> {
    let difference = step.wrapping_sub(first).cast_signed();
    i8::try_from(difference).ok()
}

fn encode_piece(piece: &Piece, seats: &[Seat], out: &mut Vec<u8>) {
    put_u32(out, saturated(seats.len()));
    out.push(piece.kind);
    if piece.kind == WRITTEN {
        for seat in seats {
            seat.encode(out);
        }
        return;
    }
    put_u32(out, saturated(piece.base_rank));
    let first_step = seats.first().map_or(0, |seat| seat.step);
    put_u64(out, first_step);
    if piece.kind & STEPS != 0 {
        let steps = seats
            .iter()
            .map(|seat| step_difference(seat.step, first_step));
        out.extend(steps.map(|it| it.unwrap_or_default().cast_unsigned()));
    }
}

fn decode_piece(
    bytes: &mut &[u8],
    base: &Record,
    count_max: usize,
    seats: &mut Vec<Seat>,
) -> Result<(), Malformed> {
    let count = u32_of(bytes)? as usize;
    let kind = byte_of(bytes)?;
    if !(1..=count_max).contains(&count) {
        return Err(Malformed);
    }
    if kind == WRITTEN {
        for _ in 0..count {
            seats.push(Seat::decode(bytes)?);
        }
        return Ok(());
    }
    if kind & OF_BASE == 0 || kind > OF_BASE | NUMBERED | MOVED | STEPS {
        return Err(Malformed);
    }
    let base_rank = u32_of(bytes)? as usize;
    let first_step = u64_of(bytes)?;
    let steps = match kind & STEPS {
        0 => &[],
        _ => take(bytes, count)?,
    };
    let of_base = base.seats.get(base_rank..).ok_or(Malformed)?;
    let of_base = of_base.get(..count).ok_or(Malformed)?;
    for (index, seat) in of_base.iter().enumerate() {
        let rank = base_rank + index;
        let difference = steps
            .get(index)
            .map_or(0, |step| i64::from(step.cast_signed()));
        let handle = match kind & NUMBERED {
            0 => Arc::clone(&seat.handle),
            _ => numbered(&seat.handle, rank, base.attempt)
                .filter(|handle| handle.len() <= HANDLE_BYTES_MAX as usize)
                .ok_or(Malformed)?
                .into(),
        };
        seats.push(Seat {
            member: seat.member,
            handle,
            step: first_step.wrapping_add_signed(difference),
            previous: match kind & MOVED {
                0 => seat.previous,
                _ => Some(saturated(rank)),
            },
        });
    }
    Ok(())
}
