//! Recognizes, in the last line of a failed worker, that the cause lies elsewhere. Pure.

use std::net::SocketAddr;

use crate::translate::{addresses, keys};

/// Texts that only gloo and NCCL print when a connection to another rank was lost.
const LOST_PEER: [&str; 5] = [
    "Connection closed by peer",
    "Connection closed by remote peer",
    "Connection refused, remote=",
    "remote process exited or there was a network error",
    "ncclRemoteError",
];

/// Texts of lost connections that any program prints, for example about its log or its files. They are about another rank only
/// beside one of [`LIBRARIES`].
const LOST_CONNECTION: [&str; 4] = [
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "Software caused connection abort",
];

/// Marks of a line of gloo or NCCL: a file of gloo, the name of NCCL or of its file.
const LIBRARIES: [&str; 4] = ["gloo/transport", "pair.cc", "NCCL", "socket.cc"];

/// Texts of PyTorch's store client whose server has closed the connection. They contain texts of [`LOST_CONNECTION`] as well.
const LOST_STORE: [&str; 5] = [
    "Connection was likely closed. Did the remote server shutdown or crash?",
    "recvValue failed on",
    "sendBytes failed on",
    "recvVector failed on",
    "failed to recv, got 0 bytes",
];

/// Texts of an operation whose other ranks did not take part in time.
const TIMEOUT: [&str; 7] = [
    "Watchdog caught collective operation timeout",
    "Some NCCL operations have failed or timed out",
    "Application timeout caused pair closure",
    "for recv operation to complete",
    "for send operation to complete",
    "timed out connecting",
    "NCCL communicator was aborted",
];

/// The reason of a worker that failed while it waited for another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Symptom {
    /// The rank lost its connection to the rank behind this address, in the form that gloo prints.
    LostPeer(Option<SocketAddr>),
    /// The rank stopped waiting for this key of the store.
    Key(String),
    LostStore,
    /// An operation of several ranks took too long.
    Timeout,
}

/// Whether the last line of a failed worker shows a cause that lies elsewhere: a lost connection, or a wait that took
/// too long.
#[must_use]
pub fn is_symptom(line: &str) -> bool {
    Symptom::of(line).is_some()
}

/// Returns the address of the rank to which a failed worker has lost its connection, in the form that gloo prints, if its
/// last line has it.
#[must_use]
pub fn lost_peer(line: &str) -> Option<SocketAddr> {
    match Symptom::of(line)? {
        Symptom::LostPeer(address) => address,
        Symptom::Key(_) | Symptom::LostStore | Symptom::Timeout => None,
    }
}

impl Symptom {
    /// `None` for a reason that lies in the worker itself, as far as the line shows.
    pub(crate) fn of(line: &str) -> Option<Self> {
        let has = |texts: &[&str]| texts.iter().any(|text| line.contains(text));
        if let Some(key) = keys(line).next().filter(|_| line.contains("timeout")) {
            return Some(Self::Key(key.to_owned()));
        }
        if has(&LOST_STORE) {
            return Some(Self::LostStore);
        }
        if has(&TIMEOUT) {
            return Some(Self::Timeout);
        }
        let is_lost = has(&LOST_PEER) || has(&LOST_CONNECTION) && has(&LIBRARIES);
        is_lost.then(|| Self::LostPeer(addresses(line).next()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_libraries_are_told_apart_from_a_programs_own() {
        let peer = |text: &str| Some(Symptom::LostPeer(Some(text.parse().unwrap())));
        for (line, expected) in [
            (
                "RuntimeError: [/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:49804. This is \
                 typically caused by a remote worker crashing.",
                peer("127.0.0.1:49804"),
            ),
            (
                "RuntimeError: [/gloo/transport/tcp/pair.cc:545] Read error [fd00::2]:9135: Connection reset by peer.",
                peer("[fd00::2]:9135"),
            ),
            (
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was \
                 a network error, NCCL version 2.27.5",
                Some(Symptom::LostPeer(None)),
            ),
            (
                "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//result/1",
                Some(Symptom::Key("/default_pg/0//result/1".to_owned())),
            ),
            (
                "torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash?",
                Some(Symptom::LostStore),
            ),
            (
                "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)",
                Some(Symptom::Timeout),
            ),
            ("ValueError: bad shard 17", None),
            ("BrokenPipeError: [Errno 32] Broken pipe", None),
            (
                "botocore.exceptions.HTTPClientError: Connection reset by peer",
                None,
            ),
            ("TimeoutError: Timed out waiting for a batch", None),
            ("KeyError: 'keys: none'", None),
            ("", None),
        ] {
            assert_eq!(Symptom::of(line), expected, "{line}");
        }
    }
}
