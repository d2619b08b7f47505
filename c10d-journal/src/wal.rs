//! Whether SQLite's write-ahead log has commits that SQLite cannot see.
//!
//! SQLite reads the log up to the first frame that does not match its checksum: after a crash, that frame is where
//! the committed data ends. If a frame in the middle is damaged, the commits behind it are lost without an error.
//! Each append waits for the disk, and opening a journal empties the log, so a crash leaves one commit behind a
//! damaged frame at most: its own.
//!
//! The format is <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::io::{self, Read};

use byteorder::{BE, ByteOrder, LE};

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const MAGIC: u32 = 0x377f_0682;
const PAGE_BYTES_MIN: usize = 512;
const PAGE_BYTES_MAX: usize = 65536;

/// The result of scanning a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WalScan {
    /// The frames that SQLite reads.
    pub(crate) frames: u64,
    /// The commits among the frames from the first damaged one on.
    pub(crate) commits_after_damage: u64,
    /// The log has frames, but its header is not as it was written: SQLite ignores all of it.
    pub(crate) has_damaged_header: bool,
}

impl WalScan {
    /// Describes the loss, unless only the commit that a crash interrupted was lost.
    pub(crate) fn damage(&self) -> Option<String> {
        if self.has_damaged_header {
            return Some("the header of its write-ahead log is not as it was written".to_owned());
        }
        (self.commits_after_damage > 1).then(|| {
            format!(
                "frame {} of its write-ahead log is not as it was written, and {} commits follow it",
                self.frames + 1,
                self.commits_after_damage
            )
        })
    }
}

/// Reads a whole log.
pub(crate) fn scan(mut log: impl Read) -> io::Result<WalScan> {
    let mut scan = WalScan::default();
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut log, &mut header)? {
        return Ok(scan);
    }
    let magic = BE::read_u32(&header);
    let is_big_endian = magic & 1 == 1;
    let page_bytes = BE::read_u32(&header[8..]) as usize;
    let mut sum = checksum(is_big_endian, (0, 0), &header[..24]);
    let is_intact = magic & !1 == MAGIC
        && sum == sum_at(&header[24..])
        && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes);
    if !is_intact {
        // A log without a frame has lost nothing.
        scan.has_damaged_header = fill(&mut log, &mut [0; FRAME_HEADER_BYTES])?;
        return Ok(scan);
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes];
    let mut is_damaged = false;
    while fill(&mut log, &mut frame)? {
        let is_of_this_log = frame[8..16] == header[16..24];
        let is_commit = BE::read_u32(&frame[4..]) != 0;
        if !is_damaged {
            sum = checksum(is_big_endian, sum, &frame[..8]);
            sum = checksum(is_big_endian, sum, &frame[FRAME_HEADER_BYTES..]);
            is_damaged = !is_of_this_log || sum != sum_at(&frame[16..]);
            scan.frames += u64::from(!is_damaged);
        }
        // Those of the log before it are older than the last checkpoint.
        scan.commits_after_damage += u64::from(is_damaged && is_of_this_log && is_commit);
    }
    Ok(scan)
}

/// `false` at the end of the log, or if a part is missing.
fn fill(log: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn sum_at(bytes: &[u8]) -> (u32, u32) {
    (BE::read_u32(bytes), BE::read_u32(&bytes[4..]))
}

fn checksum(is_big_endian: bool, sum: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let read = if is_big_endian {
        BE::read_u32
    } else {
        LE::read_u32
    };
    let (mut first, mut second) = sum;
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(read(pair)).wrapping_add(second);
        second = second.wrapping_add(read(&pair[4..])).wrapping_add(first);
    }
    (first, second)
}
