//! The bytes of the requests. All keys start with `bench/`, except `init/`.

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::Opcode;
use c10d_store::unstable::{RequestBuf, VALIDATION_MAGIC};

/// The nonce, which replaces the process id of PyTorch's clients; below 2^16.
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

/// Counts a worker under `init/`.
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
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Wait).user_keys(&[key]);
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

/// The answer to a GET of a value.
pub(crate) fn blob(value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    LittleEndian::write_u64(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
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
