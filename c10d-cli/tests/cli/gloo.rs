//! Ranks of a job from the store's side: the requests of PyTorch 2.15 for a gloo group.

use std::io::{Read, Write};
use std::net::TcpStream;

use c10d_store::Opcode;

use crate::process::Server;

/// The bytes of a socket address in gloo's value: the size of `struct sockaddr_storage`.
const ADDRESS_BYTES: usize = 128;

/// A rank that has published its address and waits for that of rank `missing`. The process id is 4000 + rank.
pub(crate) fn rank_that_waits(server: &Server, rank: u32, world: u64, missing: u32) -> TcpStream {
    let mut stream = server.connect();
    let mut request = Vec::new();
    request.extend([Opcode::Validate as u8, 0xce, 0xf7, 0x85, 0x3c]);
    request.push(Opcode::Ping as u8);
    let pid = bytes_of(u64::from(4000 + rank));
    request.extend(&pid[..4]);
    request.push(Opcode::Add as u8);
    request.extend(text(b"init/"));
    request.extend(bytes_of(1));
    request.push(Opcode::Set as u8);
    request.extend(text(&key_of(rank)));
    request.extend(text(&published(world)));
    request.push(Opcode::Wait as u8);
    request.extend(bytes_of(1));
    request.extend(text(&key_of(missing)));
    stream.write_all(&request).unwrap();
    // The answers to PING and ADD: the server has read the rest when it sends them, or will soon.
    stream.read_exact(&mut [0; 4 + 8]).unwrap();
    stream
}

fn key_of(rank: u32) -> Vec<u8> {
    format!("/default_pg/0//cpu//0/{rank}").into_bytes()
}

/// The value with the address of a rank: host name, socket address, sequence number, and an id for each pair.
fn published(world: u64) -> Vec<u8> {
    let mut address = vec![0; ADDRESS_BYTES];
    address[..8].copy_from_slice(&[2, 0, 0xb5, 0x0b, 127, 0, 0, 1]);
    let mut value = text(b"vm");
    value.extend(bytes_of(ADDRESS_BYTES as u64 + 8));
    value.extend(address);
    value.extend([0xff; 8]);
    value.extend((0..world).flat_map(bytes_of));
    value
}

/// A length and the bytes.
fn text(bytes: &[u8]) -> Vec<u8> {
    [&bytes_of(bytes.len() as u64)[..], bytes].concat()
}

/// A number as PyTorch sends it on common processors: the least significant byte first.
fn bytes_of(number: u64) -> [u8; 8] {
    std::array::from_fn(|at| (number >> (8 * at)) as u8)
}
