// SPDX-License-Identifier: Apache-2.0
//! Client of a daemon. One connection per request: they are rare, and a request
//! that lives for hours (console) must not stand in the way of others. Only one that
//! was answered by a document may be kept for a moment ([`Client::keeping`]).

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE as UPGRADE_HEADER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mint_types::OperationId;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::client_error::ClientError;
use crate::error::{ErrorBody, ErrorCode};
use crate::types::Line;
use crate::{FORWARDED_HEADER, OPERATION_HEADER, UPGRADE, VERSIONS_HEADER, Versions, tolerant};

/// For a connection to be made; a node that has just died does not answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection is kept for the next request. An operation asks its peers several
/// times, and each new connection costs a handshake; but a node that starts anew knows nothing
/// of it, and none does that so soon.
const KEEP: Duration = Duration::from_millis(500);
/// Longest document that is taken as an answer.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// Longest line that is taken from an answer.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Where a daemon is.
#[derive(Clone, Debug)]
enum Endpoint {
    Unix(PathBuf),
    Tls { address: SocketAddr, name: String, config: Arc<ClientConfig> },
}

/// A daemon that can be asked.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    forwarded: bool,
    versions: Versions,
    /// None: nothing is kept. Shared by clones.
    kept: Option<Arc<Mutex<Option<Kept>>>>,
}

/// A connection that waits for its next request.
#[derive(Debug)]
struct Kept {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Client {
    /// The daemon behind a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: Endpoint::Unix(path.into()),
            forwarded: false,
            versions: Versions::OURS,
            kept: None,
        }
    }

    /// A peer, by mutual TLS; `name` is the one in its certificate. Requests are marked as passed on.
    pub fn tls(address: SocketAddr, name: impl Into<String>, config: Arc<ClientConfig>) -> Self {
        let endpoint = Endpoint::Tls { address, name: name.into(), config };
        Self { endpoint, forwarded: true, versions: Versions::OURS, kept: None }
    }

    /// Tells a peer these versions instead of this program's.
    #[must_use]
    pub fn speaking(mut self, versions: Versions) -> Self {
        self.versions = versions;
        self
    }

    /// Keeps a connection for half a second after a document came through it. Its clones share
    /// it. One connection to each peer is enough: hyper-util's pool is for many, to any host.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.kept = Some(Arc::default());
        self
    }

    fn name(&self) -> String {
        match &self.endpoint {
            Endpoint::Unix(path) => path.display().to_string(),
            Endpoint::Tls { address, .. } => address.to_string(),
        }
    }

    async fn connect(&self) -> Result<Box<dyn Io>, ClientError> {
        let connecting = async {
            let io: Box<dyn Io> = match &self.endpoint {
                Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Endpoint::Tls { address, name, config } => {
                    let stream = TcpStream::connect(address).await?;
                    crate::tcp::prepare(&stream)?;
                    let connector = tokio_rustls::TlsConnector::from(config.clone());
                    let name = ServerName::try_from(name.clone()).map_err(io::Error::other)?;
                    Box::new(connector.connect(name, stream).await?)
                }
            };
            Ok(io)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| ClientError::Connect { endpoint: self.name(), source })
    }

    fn broken(&self, source: hyper::Error) -> ClientError {
        ClientError::Broken { endpoint: self.name(), source: source.into() }
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let io = TokioIo::new(self.connect().await?);
        let (sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|source| self.broken(source))?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        let mut sender = self.open().await?;
        sender.send_request(request).await.map_err(|source| self.broken(source))
    }

    /// Sends what is answered by one document; on the kept connection, if there is one.
    async fn ask<T: DeserializeOwned>(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<T, ClientError> {
        let kept = match self.take_kept() {
            Some(mut kept) => kept.ready().await.is_ok().then_some(kept),
            None => None,
        };
        let mut sender = match kept {
            Some(kept) => kept,
            None => self.open().await?,
        };
        let response = match sender.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => match error.take_message() {
                // closed meanwhile, and not sent: what was sent is never sent again
                Some(request) => {
                    sender = self.open().await?;
                    let sent = sender.send_request(request).await;
                    sent.map_err(|source| self.broken(source))?
                }
                None => return Err(self.broken(error.into_error())),
            },
        };
        let answer = self.document(response).await;
        if !matches!(answer, Err(ClientError::Broken { .. })) {
            self.keep(sender);
        }
        answer
    }

    fn take_kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let slot = self.kept.as_ref()?;
        let kept = slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (kept.since.elapsed() < KEEP).then_some(kept.sender)
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let Some(slot) = self.kept.clone() else { return };
        let since = Instant::now();
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept { sender, since });
        tokio::spawn(async move {
            tokio::time::sleep(KEEP).await;
            let mut kept = slot.lock().unwrap_or_else(PoisonError::into_inner);
            // another request may have kept another one since
            if kept.as_ref().is_some_and(|kept| kept.since == since) {
                *kept = None;
            }
        });
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        upgrade: bool,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "mintd");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if self.forwarded {
            request = request.header(FORWARDED_HEADER, "1");
            request = request.header(VERSIONS_HEADER, self.versions.to_string());
        }
        if upgrade {
            request = request.header(CONNECTION, "upgrade").header(UPGRADE_HEADER, UPGRADE);
        }
        request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .expect("paths are made of checked names")
    }

    async fn document<T: DeserializeOwned>(
        &self,
        response: Response<Incoming>,
    ) -> Result<T, ClientError> {
        let status = response.status();
        let bytes = Limited::new(response.into_body(), DOCUMENT_BYTES_MAX)
            .collect()
            .await
            .map_err(|source| ClientError::Broken { endpoint: self.name(), source })?
            .to_bytes();
        if !status.is_success() {
            return Err(self.refused(status, &bytes));
        }
        tolerant::from_slice(&bytes)
            .map_err(|source| ClientError::Answer { endpoint: self.name(), source: source.into() })
    }

    fn refused(&self, status: StatusCode, bytes: &[u8]) -> ClientError {
        let body = serde_json::from_slice(bytes).unwrap_or_else(|_| {
            ErrorBody::new(ErrorCode::Failed, format_args!("{} answered {status}", self.name()))
        });
        ClientError::Refused(Box::new(body))
    }

    /// What an answer that is no success says.
    async fn error_of(&self, response: Response<Incoming>) -> ClientError {
        self.document::<serde_json::Value>(response).await.err().unwrap_or_else(|| {
            ClientError::Refused(Box::new(ErrorBody::new(ErrorCode::Failed, "no reason")))
        })
    }

    /// Any request, as somebody else asked for it; its answer as it comes.
    ///
    /// # Errors
    /// When there is no connection, or it breaks before the answer begins.
    pub async fn pass(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ClientError> {
        self.send(self.request(method, path, body, false)).await
    }

    /// GET of one document.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(self.request(Method::GET, path, None, false)).await
    }

    /// POST of one document, answered by one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).expect("requests are plain data");
        self.ask(self.request(Method::POST, path, Some(body), false)).await
    }

    /// GET or POST (with a body) that is answered by lines.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lines(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<LineReader, ClientError> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let response = self.send(self.request(method, path, body, false)).await?;
        if !response.status().is_success() {
            return Err(self.error_of(response).await);
        }
        let operation = response.headers().get(OPERATION_HEADER);
        let operation = operation.and_then(|id| id.to_str().ok()?.parse().ok());
        Ok(LineReader {
            body: response.into_body(),
            buffer: BytesMut::new(),
            endpoint: self.name(),
            operation,
        })
    }

    /// An operation: progress goes to the callback, the result is returned.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn operate<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        progress: impl FnMut(&str),
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).expect("requests are plain data");
        self.finish(self.lines(path, Some(body)).await?, progress).await
    }

    /// The answer of an operation that goes on, or is over, as [`Self::operate`] gives it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn attend<T: DeserializeOwned>(
        &self,
        path: &str,
        progress: impl FnMut(&str),
    ) -> Result<T, ClientError> {
        self.finish(self.lines(path, None).await?, progress).await
    }

    async fn finish<T: DeserializeOwned>(
        &self,
        mut lines: LineReader,
        mut progress: impl FnMut(&str),
    ) -> Result<T, ClientError> {
        while let Some(line) = lines.next::<Line>().await? {
            match line {
                Line::Progress(text) => progress(&text),
                Line::Error(error) => return Err(ClientError::Refused(Box::new(error))),
                Line::Result(value) => {
                    return tolerant::from_value(value).map_err(|source| ClientError::Answer {
                        endpoint: self.name(),
                        source: source.into(),
                    });
                }
            }
        }
        let source = match lines.operation() {
            Some(id) => format!("operation {id} goes on: mintctl operation wait {id}").into(),
            None => "it ended without a result".into(),
        };
        Err(ClientError::Broken { endpoint: self.name(), source })
    }

    /// GET of a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn bytes(&self, path: &str) -> Result<ByteReader, ClientError> {
        let response = self.send(self.request(Method::GET, path, None, false)).await?;
        if !response.status().is_success() {
            return Err(self.error_of(response).await);
        }
        let length = hyper::body::Body::size_hint(response.body()).exact();
        Ok(ByteReader { body: response.into_body(), length, endpoint: self.name() })
    }

    /// A connection that carries frames.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn upgrade(
        &self,
        path: &str,
    ) -> Result<TokioIo<hyper::upgrade::Upgraded>, ClientError> {
        let response = self.send(self.request(Method::GET, path, None, true)).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(match self.document::<serde_json::Value>(response).await {
                Err(error) => error,
                Ok(_) => ClientError::Answer {
                    endpoint: self.name(),
                    source: "no switch to frames".into(),
                },
            });
        }
        hyper::upgrade::on(response)
            .await
            .map(TokioIo::new)
            .map_err(|source| ClientError::Broken { endpoint: self.name(), source: source.into() })
    }
}

/// Reads an answer piece by piece.
#[derive(Debug)]
pub struct ByteReader {
    body: Incoming,
    length: Option<u64>,
    endpoint: String,
}

impl ByteReader {
    /// Bytes that are still to come, if that is known.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; `None` after the last one.
    ///
    /// # Errors
    /// When the connection breaks, or the answer ends too early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|source| ClientError::Broken {
                endpoint: self.endpoint.clone(),
                source: source.into(),
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// Reads an answer line by line.
#[derive(Debug)]
pub struct LineReader {
    body: Incoming,
    buffer: BytesMut,
    endpoint: String,
    operation: Option<OperationId>,
}

impl LineReader {
    /// The operation whose answer this is, if it is one.
    pub fn operation(&self) -> Option<OperationId> {
        self.operation
    }

    /// The next line, as it came, without its end; `None` after the last one.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next_raw(&mut self) -> Result<Option<Bytes>, ClientError> {
        let broken = |source: Box<dyn std::error::Error + Send + Sync>| ClientError::Broken {
            endpoint: self.endpoint.clone(),
            source,
        };
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.split_to(end).freeze();
                self.buffer.advance(1);
                return Ok(Some(line));
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(broken("a line is too long".into()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(error.into())),
                None => return Ok(None),
            }
        }
    }

    /// The next line as a value.
    ///
    /// # Errors
    /// When the connection breaks or the line is no such value.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        match self.next_raw().await? {
            None => Ok(None),
            Some(line) => tolerant::from_slice(&line).map(Some).map_err(|source| {
                ClientError::Answer { endpoint: self.endpoint.clone(), source: source.into() }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers `{}` to everything; a connection ends after `requests` of them. Counts connections.
    async fn serve(listener: UnixListener, requests: usize, connections: Arc<AtomicUsize>) {
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                for _ in 0..requests {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    }

    /// Connections that it takes to ask three times, with such pauses.
    fn connections(requests: usize, keeps: bool, pause: Duration) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let counted = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            tokio::spawn(serve(listener, requests, counted.clone()));
            let client = Client::unix(&path);
            let client = if keeps { client.keeping() } else { client };
            for _ in 0..3 {
                tokio::time::sleep(pause).await;
                client.clone().get::<serde_json::Value>("/").await.unwrap();
            }
        });
        counted.load(Ordering::Relaxed)
    }

    #[test]
    fn connection_is_kept_for_a_moment_and_only_if_asked_for() {
        assert_eq!(connections(9, true, Duration::ZERO), 1);
        assert_eq!(connections(9, true, KEEP * 2), 3);
        assert_eq!(connections(9, false, Duration::ZERO), 3);
    }

    #[test]
    fn connection_that_the_daemon_closed_is_not_used_again() {
        assert_eq!(connections(1, true, Duration::from_millis(50)), 3);
    }

    #[test]
    fn document_without_an_end_is_not_collected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let taken = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let result = runtime.block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let counted = taken.clone();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n\"").await.unwrap();
                // a string of four times what is taken, and then an end all the same
                for _ in 0..4 * DOCUMENT_BYTES_MAX / 65536 {
                    if stream.write_all(&[b'x'; 65536]).await.is_err() {
                        return;
                    }
                    counted.fetch_add(65536, Ordering::Relaxed);
                }
                _ = stream.write_all(b"\"").await;
            });
            Client::unix(&path).get::<String>("/").await
        });
        let error = result.map(|text| text.len()).unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
        let taken = taken.load(Ordering::Relaxed);
        assert!(taken < 2 * DOCUMENT_BYTES_MAX, "{taken} bytes were taken");
    }
}
