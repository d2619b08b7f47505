//! The bytes of replies, for the server and the client.

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::SendBuf;

use super::handshake::REFUSED_NONCE;
use crate::message::Reply;
use crate::stored_value::Value;

/// CHECK: all keys exist.
pub(crate) const CHECK_READY: u8 = 0;
/// CHECK: a key is missing.
pub(crate) const CHECK_NOT_READY: u8 = 1;
/// A wait or a barrier is complete.
pub(crate) const STOP_WAITING: u8 = 0;
/// A cancel has taken effect.
pub(crate) const WAIT_CANCELED: u8 = 1;
/// TRY_ADD: the sum follows.
pub(crate) const ADDED: u8 = 0;
/// TRY_ADD: the value is not a number; its length and first bytes follow.
pub(crate) const NOT_A_NUMBER: u8 = 1;
/// COMPARE_EXCHANGE: nothing was written; the reply of COMPARE_SET follows.
pub(crate) const NOT_EXCHANGED: u8 = 0;
/// COMPARE_EXCHANGE: the desired value was written; it follows.
pub(crate) const EXCHANGED: u8 = 1;

/// SET_EPHEMERAL: the connection owns the key.
pub(crate) const OWNED: u8 = 0;
/// SET_EPHEMERAL: it does not; the value follows.
pub(crate) const NOT_OWNED: u8 = 1;
/// SET_EPHEMERAL: it owns as many keys as it may.
pub(crate) const TOO_MANY_OWNED: u8 = 2;
/// KEEP_ALIVE: no key has ended by silence.
pub(crate) const KEPT_ALIVE: u8 = 0;
/// KEEP_ALIVE: the keys have ended by silence.
pub(crate) const ENDED_BY_SILENCE: u8 = 1;

/// The request was refused: the size of the data and the limit on it follow.
pub(crate) const FULL: u8 = 3;

/// Appends a piece of a reply to the send buffer of a connection.
#[inline]
pub(crate) fn encode_reply(reply: Reply<'_>, out: &mut SendBuf) {
    match reply {
        Reply::Nonce(nonce) => {
            let mut word = [0; 4];
            LittleEndian::write_u32(&mut word, nonce);
            out.push(&word);
        }
        Reply::Integer(number) => {
            let mut word = [0; 8];
            LittleEndian::write_i64(&mut word, number);
            out.push(&word);
        }
        Reply::Ready(true) => out.push(&[CHECK_READY]),
        Reply::Ready(false) => out.push(&[CHECK_NOT_READY]),
        Reply::StopWaiting => out.push(&[STOP_WAITING]),
        Reply::WaitCanceled => out.push(&[WAIT_CANCELED]),
        Reply::Exchanged(true) => out.push(&[EXCHANGED]),
        Reply::Exchanged(false) => out.push(&[NOT_EXCHANGED]),
        Reply::Added(sum) => {
            let mut word = [0; 8];
            LittleEndian::write_i64(&mut word, sum);
            out.push(&[ADDED]);
            out.push(&word);
        }
        Reply::NotANumber { head, length } => {
            out.push(&[NOT_A_NUMBER]);
            push_length(length, out);
            push_blob(head, out);
        }
        Reply::Owned => out.push(&[OWNED]),
        Reply::NotOwned => out.push(&[NOT_OWNED]),
        Reply::TooManyOwned => out.push(&[TOO_MANY_OWNED]),
        Reply::KeptAlive(true) => out.push(&[KEPT_ALIVE]),
        Reply::KeptAlive(false) => out.push(&[ENDED_BY_SILENCE]),
        Reply::Value(None) => push_length(0, out),
        Reply::Value(Some(value)) => push_value(value, out),
        Reply::Bytes(bytes) => push_blob(bytes, out),
        Reply::Refused { used, limit } => {
            let mut word = [0; 4];
            LittleEndian::write_u32(&mut word, REFUSED_NONCE);
            out.push(&word);
            push_length(used, out);
            push_length(limit, out);
        }
        Reply::Full { used, limit } => {
            out.push(&[FULL]);
            push_length(used, out);
            push_length(limit, out);
        }
        Reply::Encoded(reply) => match reply.shared() {
            Some((shared, start)) => out.push_shared(shared.clone(), start),
            None => out.push(reply.as_bytes()),
        },
    }
}

/// Decodes a count or length.
pub(crate) fn read_u64(word: [u8; 8]) -> u64 {
    LittleEndian::read_u64(&word)
}

/// Decodes a number.
pub(crate) fn read_i64(word: [u8; 8]) -> i64 {
    LittleEndian::read_i64(&word)
}

/// Decodes a nonce.
pub(crate) fn read_u32(word: [u8; 4]) -> u32 {
    LittleEndian::read_u32(&word)
}

fn push_value(value: &Value, out: &mut SendBuf) {
    let bytes = value.as_bytes();
    match value.shared() {
        Some((shared, start)) => {
            push_length(bytes.len(), out);
            out.push_shared(shared.clone(), start);
        }
        None => push_blob(bytes, out),
    }
}

fn push_blob(bytes: &[u8], out: &mut SendBuf) {
    let mut word = [0; 8];
    LittleEndian::write_u64(&mut word, bytes.len() as u64);
    out.push_pair(&word, bytes);
}

fn push_length(length: usize, out: &mut SendBuf) {
    let mut word = [0; 8];
    LittleEndian::write_u64(&mut word, length as u64);
    out.push(&word);
}
