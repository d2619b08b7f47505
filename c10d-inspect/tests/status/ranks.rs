//! Ranks that make a gloo group, with the bytes that PyTorch sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use byteorder::{BigEndian, ByteOrder, LittleEndian, WriteBytesExt};

use crate::front::LIMIT;

const MAGIC: u32 = 0x3C85_F7CE;
const READY: u8 = 0;

/// A rank's connection to the store.
#[derive(Debug)]
pub(crate) struct Rank {
    stream: TcpStream,
    rank: usize,
    size: usize,
    prefix: String,
}

impl Rank {
    /// Connects, and counts itself.
    pub(crate) fn connect(store: SocketAddr, rank: usize, size: usize) -> Self {
        let stream = TcpStream::connect(store).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let mut rank = Self {
            stream,
            rank,
            size,
            prefix: "/default_pg/0//cpu//0/".to_owned(),
        };
        let mut hello = vec![0];
        hello.write_u32::<LittleEndian>(MAGIC).expect("memory");
        let pid = 4700 + u32::try_from(rank.rank).expect("a small one");
        hello.push(13);
        hello.write_u32::<LittleEndian>(pid).expect("memory");
        rank.send(&hello);
        rank.read::<4>();
        let mut add = vec![4];
        put_bytes(&mut add, b"init/");
        add.write_i64::<LittleEndian>(1).expect("memory");
        rank.send(&add);
        rank.read::<8>();
        rank
    }

    /// Uses another group name.
    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            ..self
        }
    }

    /// Publishes its address.
    pub(crate) fn publish(&mut self, host: &str) {
        let mut address = Vec::new();
        put_bytes(&mut address, host.as_bytes());
        let mut socket = Vec::new();
        socket.write_u16::<LittleEndian>(2).expect("memory");
        let port = 40_000 + u16::try_from(self.rank).expect("a small one");
        socket.write_u16::<BigEndian>(port).expect("memory");
        socket.extend([127, 0, 0, 1]);
        socket.resize(128, 0);
        socket.write_i64::<LittleEndian>(-1).expect("memory");
        put_bytes(&mut address, &socket);
        for pair in 0..self.size {
            let pair = i64::try_from(pair).expect("a small one");
            address.write_i64::<LittleEndian>(pair).expect("memory");
        }
        let mut set = vec![1];
        put_bytes(&mut set, self.key(self.rank).as_bytes());
        put_bytes(&mut set, &address);
        self.send(&set);
    }

    /// Waits for and reads the address of another rank, which is there.
    pub(crate) fn read_address(&mut self, of: usize) {
        for _ in 0..2 {
            self.start_to_wait(of);
            self.finish_waiting();
        }
        let mut get = vec![3];
        put_bytes(&mut get, self.key(of).as_bytes());
        self.send(&get);
        let length = LittleEndian::read_u64(&self.read::<8>());
        let mut value = vec![0; usize::try_from(length).expect("short")];
        self.stream.read_exact(&mut value).expect("a value");
    }

    /// Asks for the address of another rank, without waiting for the answer.
    pub(crate) fn start_to_wait(&mut self, of: usize) {
        let mut wait = vec![6];
        wait.write_u64::<LittleEndian>(1).expect("memory");
        put_bytes(&mut wait, self.key(of).as_bytes());
        self.send(&wait);
    }

    /// Takes the answer to a wait.
    pub(crate) fn finish_waiting(&mut self) {
        assert_eq!(self.read(), [READY]);
    }

    fn key(&self, rank: usize) -> String {
        format!("{}{rank}", self.prefix)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).expect("a reply");
        bytes
    }
}

fn put_bytes(message: &mut Vec<u8>, bytes: &[u8]) {
    message
        .write_u64::<LittleEndian>(bytes.len() as u64)
        .expect("memory");
    message.extend_from_slice(bytes);
}

/// The ranks of a job of four, all in init_process_group but rank 2, which has not connected.
pub(crate) fn job_without_rank_2(store: SocketAddr) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = [0, 1, 3].map(|rank| Rank::connect(store, rank, 4)).into();
    for rank in &mut ranks {
        rank.publish("gpu-node-1");
    }
    for rank in &mut ranks {
        rank.read_address(0);
        rank.read_address(1);
        rank.start_to_wait(2);
    }
    ranks
}
