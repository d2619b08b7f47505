//! The phases of a job whose ranks connect through simulated relays: those of
//! [`ranks`](super::super::workload::ranks), with the same requests.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::TlsClient;

use super::node::Ask;
use super::nodes::{Nodes, Turns};
use crate::failure::Failure;
use crate::workload::nccl_roots::NcclRoots;
use crate::workload::requests;
use crate::workload::setting::Setting;

/// The job's size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) nodes: usize,
    pub(super) ranks_per_node: usize,
}

impl Shape {
    pub(super) const fn ranks(self) -> usize {
        self.nodes * self.ranks_per_node
    }
}

/// A job whose ranks are connected.
#[derive(Debug)]
pub(super) struct RelayedJob {
    nodes: Nodes,
}

impl RelayedJob {
    /// Measures connect, the handshakes, SESSION, the ranks' OPENs, and PING and ADD to `init/` of each rank, until the
    /// last answer.
    pub(super) fn connect(
        shape: Shape,
        setting: &Setting,
        tls: Option<&TlsClient>,
    ) -> Result<(Self, Duration), Failure> {
        let mut nodes = Nodes::new(setting.server, tls.cloned(), shape.ranks_per_node)?;
        let address = setting.server;
        let (ping, count) = (requests::ping(), requests::count_worker());
        let join = Ask {
            requests: &[&ping, &count],
            reply_bytes: requests::JOINED_BYTES,
        };
        let mut joined = Vec::with_capacity(shape.ranks());
        let start = Instant::now();
        nodes.connect(shape.nodes, setting.connect_window, join, |reply| {
            let (nonce, count) = reply.split_at(requests::HELLO_REPLY.len());
            joined.extend(requests::number(count));
            if nonce == requests::HELLO_REPLY {
                return Ok(());
            }
            Err(Failure::wrong_answer(
                address,
                "PING",
                format!("{nonce:02x?}"),
            ))
        })?;
        let time = start.elapsed();
        if !requests::are_consecutive(joined, shape.ranks()) {
            let detail = "the counts are not consecutive".to_owned();
            return Err(nodes.wrong_answer("ADD", detail));
        }
        Ok((Self { nodes }, time))
    }

    /// Each rank sets a key to a value as long as gloo's address of a rank.
    pub(super) fn publish(&mut self) -> Result<(), Failure> {
        let address = self.nodes.address();
        let ping = requests::ping();
        for rank in 0..self.nodes.ranks() {
            let key = format!("bench/default_pg/0//cpu//0/{rank}");
            let set = requests::set(&key, &[7; 154]);
            let ask = Ask {
                requests: &[&set, &ping],
                reply_bytes: requests::HELLO_REPLY.len(),
            };
            self.nodes.ask_one(rank, ask)?;
        }
        self.nodes.run(Turns::Together, |_, reply| {
            expect(address, reply, requests::HELLO_REPLY)
        })
    }

    /// The store was restarted and is at this address: measures connect, the handshakes, SESSION, OPEN and RESUME of the
    /// ranks, and an ADD of each, until the last answer.
    pub(super) fn carry_over(
        &mut self,
        address: SocketAddr,
        setting: &Setting,
    ) -> Result<Duration, Failure> {
        let add = requests::add("bench/back", 1);
        let ask = Ask {
            requests: &[&add],
            reply_bytes: 8,
        };
        let mut sums = Vec::with_capacity(self.nodes.ranks());
        let start = Instant::now();
        self.nodes
            .carry_over(address, setting.connect_window, ask, |reply| {
                sums.extend(requests::number(reply));
                Ok(())
            })?;
        let time = start.elapsed();
        if !requests::are_consecutive(sums, self.nodes.ranks()) {
            let detail = "the counts are not consecutive".to_owned();
            return Err(self.nodes.wrong_answer("ADD", detail));
        }
        Ok(time)
    }

    /// ADD, then WAIT on one key, which the last one to arrive SETs. From the first request to the last wake. Returns
    /// also the number of frames with requests.
    pub(super) fn barrier_by_add_and_wait(
        &mut self,
        turns: Turns,
    ) -> Result<(Duration, usize), Failure> {
        let ranks = self.nodes.ranks();
        // The keys of the two barriers differ.
        let name = format!("{turns:?}").to_lowercase();
        let (arrivals, done) = (
            format!("bench/{name}/arrivals"),
            format!("bench/{name}/done"),
        );
        let (arrive, wait) = (requests::add(&arrivals, 1), requests::wait(&done));
        let set = requests::set(&done, b"1");
        let address = self.nodes.address();
        let (pass, release) = ([wait.as_slice()], [set.as_slice(), &wait]);
        let frames_before = self.nodes.frames();
        let start = Instant::now();
        let arrive = [arrive.as_slice()];
        self.nodes.ask_all(turns, |_| Ask {
            requests: &arrive,
            reply_bytes: 8,
        })?;
        self.nodes.run(turns, |_, reply| {
            let Some(arrived) = requests::number(reply) else {
                return expect(address, reply, requests::STOP_WAITING);
            };
            let last = usize::try_from(arrived) == Ok(ranks);
            Ok(Some(Ask {
                requests: if last { &release } else { &pass },
                reply_bytes: 1,
            }))
        })?;
        let time = start.elapsed();
        Ok((time, self.nodes.frames() - frames_before))
    }

    /// All ranks wait for one key: from its SET to the last wake-up.
    pub(super) fn one_key_wakes_all(&mut self) -> Result<Duration, Failure> {
        let (wait, ping) = (requests::wait("bench/go"), requests::ping());
        let address = self.nodes.address();
        // The answer to a PING behind the WAIT proves that it has started.
        let wait = [wait.as_slice(), &ping];
        self.nodes.ask_all(Turns::Together, |_| Ask {
            requests: &wait,
            reply_bytes: requests::HELLO_REPLY.len(),
        })?;
        self.nodes.run(Turns::Together, |_, reply| {
            expect(address, reply, requests::HELLO_REPLY)
        })?;
        self.nodes.expect_all(requests::STOP_WAITING.len());
        let set = requests::set("bench/go", b"1");
        let start = Instant::now();
        self.nodes.send_one(0, &set)?;
        self.nodes.run(Turns::Together, |_, reply| {
            expect(address, reply, requests::STOP_WAITING)
        })?;
        Ok(start.elapsed())
    }

    /// All ranks wait for the ids of NCCL's roots, which some of them set, and get them: from the first request to the last
    /// byte received.
    pub(super) fn ids_of_nccl(&mut self) -> Result<Duration, Failure> {
        let roots = NcclRoots::new(self.nodes.ranks(), "bench");
        let address = self.nodes.address();
        let sets: Vec<Option<Vec<u8>>> = (0..self.nodes.ranks()).map(|it| roots.set(it)).collect();
        let of_rank = |rank: usize| {
            let set: Option<&[u8]> = sets[rank].as_deref();
            set.into_iter().chain([roots.wait.as_slice()])
        };
        let of_ranks: Vec<Vec<&[u8]>> = (0..sets.len())
            .map(|rank| of_rank(rank).collect())
            .collect();
        let get = [roots.get.as_slice()];
        let start = Instant::now();
        self.nodes.ask_all(Turns::Together, |rank| Ask {
            requests: &of_ranks[rank],
            reply_bytes: 1,
        })?;
        self.nodes.run(Turns::Together, |_, reply| {
            if reply == roots.ids {
                return Ok(None);
            }
            expect(address, reply, requests::STOP_WAITING)?;
            Ok(Some(Ask {
                requests: &get,
                reply_bytes: roots.ids.len(),
            }))
        })?;
        Ok(start.elapsed())
    }
}

pub(super) fn expect<const N: usize>(
    address: SocketAddr,
    reply: &[u8],
    expected: [u8; N],
) -> Result<Option<Ask<'static>>, Failure> {
    if reply == expected {
        return Ok(None);
    }
    let detail = format!("{reply:02x?}");
    Err(Failure::wrong_answer(address, "a rank's request", detail))
}
