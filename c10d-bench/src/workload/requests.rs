//! The bytes of the requests. All keys start with `bench/`, except `init/`.

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::Opcode;
use c10d_store::unstable::{RequestBuf, VALIDATION_MAGIC};

/// In place of the process id that PyTorch's clients send; below 2^16.
const NONCE: u32 = 4242;

/// The answer to [`hello`] and to [`ping`].
pub(in super::super) const HELLO_REPLY: [u8; 4] = [NONCE as u8, (NONCE >> 8) as u8, 0, 0];

/// The answer that ends a wait or a barrier.
pub(in super::super) const STOP_WAITING: [u8; 1] = [0];

/// The answer to CANCEL_WAIT.
pub(in super::super) const WAIT_CANCELED: [u8; 1] = [1];

/// The handshake of PyTorch's clients: VALIDATE and PING.
pub(in super::super) fn hello() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Validate).u32(VALIDATION_MAGIC);
    request.opcode(Opcode::Ping).u32(NONCE);
    request.to_bytes()
}

/// The length of the answer to [`join`].
pub(in super::super) const JOINED_BYTES: usize = HELLO_REPLY.len() + 8;

/// The handshake of a worker, which is also counted under `init/`.
pub(in super::super) fn join() -> Vec<u8> {
    [hello(), count_worker()].concat()
}

/// The part of [`join`] that counts the worker.
pub(in super::super) fn count_worker() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Add).raw_key(b"init/").i64(1);
    request.to_bytes()
}

pub(in super::super) fn ping() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Ping).u32(NONCE);
    request.to_bytes()
}

pub(in super::super) fn add(key: &str, delta: i64) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Add).user_key(key).i64(delta);
    request.to_bytes()
}

pub(in super::super) fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Set).user_key(key).value(value);
    request.to_bytes()
}

pub(in super::super) fn get(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Get).user_key(key);
    request.to_bytes()
}

pub(in super::super) fn wait(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Wait).user_keys(&[key]);
    request.to_bytes()
}

/// A wait that ends with the value, an extension of this project's server.
pub(in super::super) fn wait_get(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::WaitGet).user_keys(&[key]);
    request.to_bytes()
}

/// A key that ends with its connection, whose will is a value of the other key: an extension of this project's server.
pub(in super::super) fn set_ephemeral(key: &str, will_key: &str, will: &[u8]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request
        .opcode(Opcode::SetEphemeral)
        .user_key(key)
        .value(b"");
    request.user_key(will_key).value(will);
    request.to_bytes()
}

pub(in super::super) fn cancel() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::CancelWait);
    request.to_bytes()
}

pub(in super::super) fn barrier(key: &str, world_size: i64) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request
        .opcode(Opcode::Barrier)
        .user_key(key)
        .i64(world_size);
    request.to_bytes()
}

pub(in super::super) fn delete(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::DeleteKey).user_key(key);
    request.to_bytes()
}

/// Names that begin like this are deleted: an extension of this project's server.
pub(in super::super) fn delete_prefix(prefix: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::DeletePrefix).user_key(prefix).u32(0);
    request.to_bytes()
}

/// All keys get the same value.
pub(in super::super) fn multi_set(
    keys: impl ExactSizeIterator<Item = String>,
    value: &[u8],
) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::MultiSet).count(keys.len());
    for key in keys {
        request.user_key(&key).value(value);
    }
    request.to_bytes()
}

/// The answer to a GET of a value.
pub(in super::super) fn blob(value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    LittleEndian::write_u64(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
    bytes
}

/// The number in the answer to an ADD; `None` for another length.
pub(in super::super) fn number(reply: &[u8]) -> Option<i64> {
    (reply.len() == 8).then(|| LittleEndian::read_i64(reply))
}

/// Whether the numbers are some n + 1 to n + `count`, each once, as the answers to ADDs of 1 by all ranks are.
pub(in super::super) fn are_consecutive(mut numbers: Vec<i64>, count: usize) -> bool {
    numbers.sort_unstable();
    numbers.len() == count && numbers.windows(2).all(|pair| pair[0] + 1 == pair[1])
}
