//! The script of a case: steps on connections, each a value.

use std::time::Duration;

use crate::request::{Opcode, Requests};

/// Steps in their order.
pub(crate) type Script = Vec<Step>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Opened by the first step that names it.
    pub(crate) connection: String,
    pub(crate) act: Act,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Opens the connection; with the handshake of the column, or without one.
    Open {
        has_handshake: bool,
    },
    Send(Send),
    /// One of these has to arrive next. They are prefix-free.
    Receive(Vec<Vec<u8>>),
    /// A request with a known reply, which has to arrive next: nothing else was sent, and all before has been carried out.
    Fence,
    /// The server has to close, and to send nothing before.
    End,
    /// The server must send nothing and not close the connection for this long: for the rest of a request, which no
    /// fence can follow.
    Silence(Duration),
    Close,
    /// The script needs the connection no longer: another case may have it.
    Release,
    Pause(Duration),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Send {
    pub(crate) bytes: Vec<u8>,
    /// The offsets where the bytes are cut, in ascending order.
    pub(crate) cuts: Vec<usize>,
    pub(crate) pause: Duration,
}

impl Send {
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let ends = self.cuts.iter().copied().chain([self.bytes.len()]);
        starts.zip(ends).map(|(from, to)| &self.bytes[from..to])
    }
}

/// Returns the bytes that each connection sends, by its name.
pub(crate) fn streams(script: &Script) -> Vec<(&str, Vec<u8>)> {
    let mut streams: Vec<(&str, Vec<u8>)> = Vec::new();
    for step in script {
        let Act::Send(send) = &step.act else { continue };
        let stream = streams
            .iter_mut()
            .find(|(name, _)| *name == step.connection);
        match stream {
            Some((_, bytes)) => bytes.extend(&send.bytes),
            None => streams.push((&step.connection, send.bytes.clone())),
        }
    }
    streams
}

/// The commands of a script, and the keys.
pub(crate) fn commands_and_keys(script: &Script) -> (Vec<Opcode>, Vec<Vec<u8>>) {
    let (mut opcodes, mut keys) = (Vec::new(), Vec::new());
    for (_, stream) in streams(script) {
        let requests = Requests::of(&stream);
        opcodes.extend(&requests.opcodes);
        keys.extend(
            requests
                .keys
                .iter()
                .map(|range| stream[range.clone()].to_vec()),
        );
    }
    keys.sort_unstable();
    keys.dedup();
    (opcodes, keys)
}
