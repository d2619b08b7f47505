//! tarpc over TCP with bincode, its fastest encoding.
//!
//! Payloads are `Bytes`, which serde copies as one block; it encodes each byte of a `Vec<u8>` separately. TCP_NODELAY is
//! set on both sides, as for all rivals; tarpc does not set it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use futures_util::StreamExt;
use tarpc::client;
use tarpc::context::{self, Context};
use tarpc::serde_transport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tokio::net::{TcpListener, TcpStream};

use super::contract::{Announce, MESSAGE_BYTES_MAX};
use super::runtime::{self, Caller, TokioClient};
use crate::error::CompareError;
use crate::rival::{Flavor, Rival};

/// A separate module, because the macro generates code in another style.
mod service {
    use bytes::Bytes;

    #[tarpc::service]
    pub(super) trait Echo {
        async fn echo(payload: Bytes) -> Bytes;
    }
}

use service::Echo as _;

#[derive(Debug, Clone, Copy)]
struct Server;

impl service::Echo for Server {
    async fn echo(self, _context: Context, payload: Bytes) -> Bytes {
        payload
    }
}

pub(super) fn serve(
    rival: Rival,
    flavor: Flavor,
    announce: Announce<'_>,
) -> Result<(), CompareError> {
    let runtime =
        runtime::start(flavor).map_err(CompareError::setup(rival, "cannot start tokio"))?;
    runtime
        .block_on(listen(announce))
        .map_err(CompareError::setup(rival, "cannot serve"))
}

async fn listen(announce: Announce<'_>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    announce(listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let requests = BaseChannel::with_defaults(transport(stream)).execute(Server.serve());
        // A task for each call, as in tarpc's examples, so that a slow call does not delay others.
        tokio::spawn(requests.for_each(async |response| {
            tokio::spawn(response);
        }));
    }
}

pub(super) fn connect(
    rival: Rival,
    flavor: Flavor,
    address: SocketAddr,
) -> Result<TokioClient<TarpcCaller>, CompareError> {
    TokioClient::connect(rival, flavor, async move {
        let stream = TcpStream::connect(address)
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(CompareError::setup(rival, "cannot connect"))?;
        let client = service::EchoClient::new(client::Config::default(), transport(stream)).spawn();
        Ok(TarpcCaller { rival, client })
    })
}

#[derive(Debug, Clone)]
pub(super) struct TarpcCaller {
    rival: Rival,
    client: service::EchoClient,
}

impl Caller for TarpcCaller {
    async fn echo(&mut self, payload: Bytes) -> Result<Bytes, CompareError> {
        self.client
            .echo(context::current(), payload)
            .await
            .map_err(CompareError::call(self.rival))
    }
}

type EchoTransport<Item, SinkItem> =
    serde_transport::Transport<TcpStream, Item, SinkItem, Bincode<Item, SinkItem>>;

fn transport<Item, SinkItem>(stream: TcpStream) -> EchoTransport<Item, SinkItem>
where
    Item: for<'de> tarpc::serde::Deserialize<'de>,
    SinkItem: tarpc::serde::Serialize,
{
    let framed = LengthDelimitedCodec::builder()
        .max_frame_length(MESSAGE_BYTES_MAX)
        .new_framed(stream);
    serde_transport::new(framed, Bincode::default())
}
