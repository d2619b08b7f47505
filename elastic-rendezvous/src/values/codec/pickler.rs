//! Writes a pickle object by object, with the opcodes, memo slots and frames of Python's C pickler.

use byteorder::{ByteOrder, LittleEndian};

use super::pickle;

/// A frame ends before the first object at or beyond this length (`_pickle.c`).
const FRAME_BYTES_TARGET: usize = 64 * 1024;

const FRAME_HEADER_BYTES: usize = 9;

/// The most entries of a map or set between a MARK and its end (`_pickle.c`).
pub(super) const BATCH: usize = 1000;

/// The memo slot of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot(u32);

/// A pickle under construction.
///
/// Each object must begin with [`begin_object`](Self::begin_object) or a method that calls it, because frames
/// end there.
#[derive(Debug)]
pub(super) struct Pickler {
    bytes: Vec<u8>,
    /// The position of the current frame's header.
    frame: usize,
    /// The number of used memo slots.
    slots: u32,
}

impl Pickler {
    /// Starts a pickle with a capacity of `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        let mut pickler = Self {
            bytes: Vec::with_capacity(capacity),
            frame: 0,
            slots: 0,
        };
        pickler
            .bytes
            .extend_from_slice(&[pickle::PROTO, pickle::PROTOCOL]);
        pickler.begin_frame();
        pickler
    }

    /// Ends the pickle and returns it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.opcode(pickle::STOP);
        self.end_frame();
        self.bytes
    }

    /// Marks the start of an object.
    pub(super) fn begin_object(&mut self) {
        if self.bytes.len() - self.frame >= FRAME_HEADER_BYTES + FRAME_BYTES_TARGET {
            self.end_frame();
            self.begin_frame();
        }
    }

    /// Writes an opcode without an operand.
    pub(super) fn opcode(&mut self, opcode: u8) {
        self.bytes.push(opcode);
    }

    /// Assigns the next memo slot to the object that was just written.
    pub(super) fn memoize(&mut self) -> Slot {
        self.opcode(pickle::MEMOIZE);
        let slot = Slot(self.slots);
        self.slots += 1;
        slot
    }

    /// An object without an operand.
    pub(super) fn object(&mut self, opcode: u8) {
        self.begin_object();
        self.opcode(opcode);
    }

    /// A reference to the object of a memo slot.
    pub(super) fn get(&mut self, slot: Slot) {
        self.begin_object();
        match u8::try_from(slot.0) {
            Ok(short) => self.bytes.extend_from_slice(&[pickle::BINGET, short]),
            Err(_) => {
                self.opcode(pickle::LONG_BINGET);
                self.u32(slot.0);
            }
        }
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.object(if value {
            pickle::NEWTRUE
        } else {
            pickle::NEWFALSE
        });
    }

    /// An integer in the shortest form.
    pub(super) fn int(&mut self, value: i64) {
        self.begin_object();
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend_from_slice(&[pickle::BININT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            let mut operand = [0; 2];
            LittleEndian::write_u16(&mut operand, short);
            self.opcode(pickle::BININT2);
            self.bytes.extend_from_slice(&operand);
        } else if let Ok(word) = i32::try_from(value) {
            let mut operand = [0; 4];
            LittleEndian::write_i32(&mut operand, word);
            self.opcode(pickle::BININT);
            self.bytes.extend_from_slice(&operand);
        } else {
            let magnitude = if value < 0 { !value } else { value };
            // One bit is added for the sign.
            let bits = i64::BITS - magnitude.leading_zeros() + 1;
            let len = bits.div_ceil(8) as usize;
            let mut operand = [0; 8];
            LittleEndian::write_i64(&mut operand, value);
            self.bytes.extend_from_slice(&[pickle::LONG1, len as u8]);
            self.bytes.extend_from_slice(&operand[..len]);
        }
    }

    /// A new string.
    pub(super) fn str(&mut self, text: &str) -> Slot {
        self.begin_object();
        if let Ok(len) = u8::try_from(text.len()) {
            self.bytes
                .extend_from_slice(&[pickle::SHORT_BINUNICODE, len]);
        } else {
            // Beyond 4 GiB the length is wrong, and every reader refuses the state.
            let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
            self.opcode(pickle::BINUNICODE);
            self.u32(len);
        }
        self.bytes.extend_from_slice(text.as_bytes());
        self.memoize()
    }

    /// New bytes; a state has only short ones.
    pub(super) fn short_bytes(&mut self, bytes: &[u8; 10]) {
        self.begin_object();
        self.bytes
            .extend_from_slice(&[pickle::SHORT_BINBYTES, bytes.len() as u8]);
        self.bytes.extend_from_slice(bytes);
        self.memoize();
    }

    fn u32(&mut self, value: u32) {
        let mut operand = [0; 4];
        LittleEndian::write_u32(&mut operand, value);
        self.bytes.extend_from_slice(&operand);
    }

    fn begin_frame(&mut self) {
        self.frame = self.bytes.len();
        self.bytes.push(pickle::FRAME);
        self.bytes.extend_from_slice(&[0; FRAME_HEADER_BYTES - 1]);
    }

    fn end_frame(&mut self) {
        let content = self.frame + FRAME_HEADER_BYTES;
        let len = (self.bytes.len() - content) as u64;
        LittleEndian::write_u64(&mut self.bytes[self.frame + 1..content], len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that `write` writes, without the head and the STOP.
    fn written(write: impl FnOnce(&mut Pickler)) -> Vec<u8> {
        let mut pickler = Pickler::new(0);
        write(&mut pickler);
        let bytes = pickler.finish();
        bytes[11..bytes.len() - 1].to_vec()
    }

    #[test]
    fn integers_take_the_shortest_form() {
        let table: &[(i64, &[u8])] = &[
            (0, b"K\x00"),
            (255, b"K\xff"),
            (256, b"M\x00\x01"),
            (65_535, b"M\xff\xff"),
            (65_536, b"J\x00\x00\x01\x00"),
            (-1, b"J\xff\xff\xff\xff"),
            (i64::from(i32::MAX), b"J\xff\xff\xff\x7f"),
            (i64::from(i32::MIN), b"J\x00\x00\x00\x80"),
            (1 << 31, b"\x8a\x05\x00\x00\x00\x80\x00"),
            ((1 << 39) - 1, b"\x8a\x05\xff\xff\xff\xff\x7f"),
            (1 << 39, b"\x8a\x06\x00\x00\x00\x00\x80\x00"),
            (-(1 << 39), b"\x8a\x05\x00\x00\x00\x00\x80"),
            (-(1 << 31) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff"),
            (i64::MAX, b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"),
        ];
        for (value, expected) in table {
            assert_eq!(&written(|pickler| pickler.int(*value)), expected, "{value}");
        }
    }

    #[test]
    fn strings_of_256_bytes_have_long_lengths() {
        let short = "x".repeat(255);
        let long = "x".repeat(256);
        let short = written(|pickler| _ = pickler.str(&short));
        let long = written(|pickler| _ = pickler.str(&long));
        assert_eq!(&short[..3], b"\x8c\xffx");
        assert_eq!(&long[..6], b"X\x00\x01\x00\x00x");
    }

    #[test]
    fn memo_slots_from_256_on_have_long_numbers() {
        let bytes = written(|pickler| {
            let slots: Vec<Slot> = (0..257).map(|_| pickler.memoize()).collect();
            pickler.get(slots[255]);
            pickler.get(slots[256]);
        });
        assert_eq!(&bytes[257..], b"h\xffj\x00\x01\x00\x00");
    }

    #[test]
    fn a_frame_ends_at_the_first_object_after_64_kib() {
        let mut pickler = Pickler::new(0);
        let filler = "x".repeat(FRAME_BYTES_TARGET - 6);
        // The opcode, four bytes of length, the text, MEMOIZE: the target exactly.
        pickler.str(&filler);
        pickler.opcode(pickle::MARK);
        pickler.bool(true);
        let bytes = pickler.finish();
        let second = 11 + FRAME_BYTES_TARGET + 1;
        assert_eq!(bytes[2..11], *b"\x95\x01\x00\x01\x00\x00\x00\x00\x00");
        assert_eq!(
            bytes[second..],
            *b"\x95\x02\x00\x00\x00\x00\x00\x00\x00\x88."
        );
    }
}
