//! The bytes of the requests. All keys start with `bench/`, except `init/`.

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::Opcode;
use c10d_store::unstable::{RequestBuf, VALIDATION_MAGIC};

/// In place of the process id that PyTorch's clients send; below 2^16.
const NONCE: u32 = 4242;

/// The answer to [`hello`] and to [`ping`].
pub(crate) const HELLO_REPLY: [u8; 4] = [NONCE as u8, (NONCE >> 8) as u8, 0, 0];

/// The answer that ends a wait or a barrier.
pub(crate) const STOP_WAITING: [u8; 1] = [0];

/// The answer to CANCEL_WAIT.
pub(crate) const WAIT_CANCELED: [u8; 1] = [1];

/// The handshake of PyTorch's clients: VALIDATE and PING.
pub(crate) fn hello() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Validate).u32(VALIDATION_MAGIC);
    request.opcode(Opcode::Ping).u32(NONCE);
    request.to_bytes()
}

/// The length of the answer to [`join`].
pub(crate) const JOINED_BYTES: usize = HELLO_REPLY.len() + 8;

/// The handshake of a worker, which is also counted under `init/`.
pub(crate) fn join() -> Vec<u8> {
    [hello(), count_worker()].concat()
}

/// The part of [`join`] that counts the worker.
pub(crate) fn count_worker() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Add).raw_key(b"init/").i64(1);
    request.to_bytes()
}

pub(crate) fn ping() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Ping).u32(NONCE);
    request.to_bytes()
}

pub(crate) fn add(key: &str, delta: i64) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Add).user_key(key).i64(delta);
    request.to_bytes()
}

pub(crate) fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Set).user_key(key).value(value);
    request.to_bytes()
}

pub(crate) fn get(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Get).user_key(key);
    request.to_bytes()
}

pub(crate) fn wait(key: &str) -> Vec<u8> {
    wait_all(&[key])
}

pub(crate) fn wait_all(keys: &[&str]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Wait).user_keys(keys);
    request.to_bytes()
}

pub(crate) fn multi_get(keys: &[&str]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::MultiGet).user_keys(keys);
    request.to_bytes()
}

/// A wait that ends with the value, an extension of this project's server.
pub(crate) fn wait_get(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::WaitGet).user_keys(&[key]);
    request.to_bytes()
}

/// A key that ends with its connection, whose will is a value of the other key: an extension of this project's server.
pub(crate) fn set_ephemeral(key: &str, will_key: &str, will: &[u8]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request
        .opcode(Opcode::SetEphemeral)
        .user_key(key)
        .value(b"");
    request.user_key(will_key).value(will);
    request.to_bytes()
}

pub(crate) fn cancel() -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::CancelWait);
    request.to_bytes()
}

pub(crate) fn barrier(key: &str, world_size: i64) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request
        .opcode(Opcode::Barrier)
        .user_key(key)
        .i64(world_size);
    request.to_bytes()
}

pub(crate) fn delete(key: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::DeleteKey).user_key(key);
    request.to_bytes()
}

/// Names that begin like this are deleted: an extension of this project's server.
pub(crate) fn delete_prefix(prefix: &str) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::DeletePrefix).user_key(prefix).u32(0);
    request.to_bytes()
}

/// All keys get the same value.
pub(crate) fn multi_set(keys: impl ExactSizeIterator<Item = String>, value: &[u8]) -> Vec<u8> {
    let mut request = RequestBuf::new();
    request.opcode(Opcode::MultiSet).count(keys.len());
    for key in keys {
        request.user_key(&key).value(value);
    }
    request.to_bytes()
}

/// The answer to a GET of a value.
pub(crate) fn blob(value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    LittleEndian::write_u64(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
    bytes
}

/// The answer with a number, as that to an ADD.
pub(crate) fn number_reply(number: i64) -> [u8; 8] {
    let mut bytes = [0; 8];
    LittleEndian::write_i64(&mut bytes, number);
    bytes
}

/// The number in the answer to an ADD; `None` for another length.
pub(crate) fn number(reply: &[u8]) -> Option<i64> {
    (reply.len() == 8).then(|| LittleEndian::read_i64(reply))
}

/// Whether the numbers are some n + 1 to n + `count`, each once, as the answers to ADDs of 1 by all ranks are.
pub(crate) fn are_consecutive(mut numbers: Vec<i64>, count: usize) -> bool {
    numbers.sort_unstable();
    numbers.len() == count && numbers.windows(2).all(|pair| pair[0] + 1 == pair[1])
}
