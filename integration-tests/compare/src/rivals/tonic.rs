//! tonic: unary gRPC calls over HTTP/2, in plain text.
//!
//! Messages are raw bytes, not protobuf: this is the cheapest codec and needs no generated code. The rest of the
//! service corresponds to generated code. The flow control windows are larger than the default of 1 MiB for a
//! connection, which would delay large payloads.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use tonic::body::Body;
use tonic::client::Grpc as GrpcClient;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc as GrpcServer, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::contract::{Announce, MESSAGE_BYTES_MAX};
use super::runtime::{self, Caller, TokioClient};
use crate::error::CompareError;
use crate::rival::{Flavor, Rival};

const PATH: &str = "/compare.Echo/Echo";

/// Twice the largest payload.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Twice the payloads in flight.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

pub(super) fn serve(
    rival: Rival,
    flavor: Flavor,
    announce: Announce<'_>,
) -> Result<(), CompareError> {
    let runtime =
        runtime::start(flavor).map_err(CompareError::setup(rival, "cannot start tokio"))?;
    runtime.block_on(async {
        let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())
            .map_err(CompareError::setup(rival, "cannot listen"))?
            .with_nodelay(Some(true));
        incoming
            .local_addr()
            .and_then(announce)
            .map_err(CompareError::setup(rival, "cannot announce the address"))?;
        Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .add_service(EchoService)
            .serve_with_incoming(incoming)
            .await
            .map_err(CompareError::setup(rival, "cannot serve"))
    })
}

pub(super) fn connect(
    rival: Rival,
    flavor: Flavor,
    address: SocketAddr,
) -> Result<TokioClient<TonicCaller>, CompareError> {
    TokioClient::connect(rival, flavor, async move {
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(CompareError::setup(rival, "cannot connect"))?
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect()
            .await
            .map_err(CompareError::setup(rival, "cannot connect"))?;
        Ok(TonicCaller {
            rival,
            client: GrpcClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
        })
    })
}

#[derive(Debug, Clone)]
pub(super) struct TonicCaller {
    rival: Rival,
    client: GrpcClient<Channel>,
}

impl Caller for TonicCaller {
    async fn echo(&mut self, payload: Bytes) -> Result<Bytes, CompareError> {
        self.client
            .ready()
            .await
            .map_err(CompareError::call(self.rival))?;
        self.client
            .unary(
                Request::new(payload),
                PathAndQuery::from_static(PATH),
                RawCodec,
            )
            .await
            .map(Response::into_inner)
            .map_err(CompareError::call(self.rival))
    }
}

#[derive(Debug, Clone, Copy)]
struct EchoService;

impl NamedService for EchoService {
    const NAME: &'static str = "compare.Echo";
}

impl Service<HttpRequest<Body>> for EchoService {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let mut grpc = GrpcServer::new(RawCodec).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(grpc.unary(EchoMethod, request).await)
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct EchoMethod;

impl UnaryService<Bytes> for EchoMethod {
    type Response = Bytes;
    type Future = BoxFuture<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(request.into_inner())) })
    }
}

/// Passes messages on as raw bytes.
#[derive(Debug, Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.reserve(message.len());
        into.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
