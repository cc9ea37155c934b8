//! One request on `/mcp` or `/mcp/{server}`.
//!
//! Owns: what POST, GET and DELETE ask of a session, and the statuses of refusals from the media
//! types on (DESIGN.md section 5, "HTTP answers"). It must not know what an accepted message does.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body::Body;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::json::{Pieces, Snippet};
use springline_proto::message::{Kind, Message, ParseError, ParseErrorKind};
use springline_proto::method::Method;
use springline_proto::session::{Accept, Downstream, Endpoint, Part};
use springline_proto::version::Version;

use super::answer::{self, Answer, AnswerBody, EventBody, StreamManners};
use super::body::{self, ReadError};
use super::field::{self, Field, Fields};
use super::guard::{self, Announced};
use super::port::{Gate, OpenError, Parts, Principal, Session};
use super::route::{Desk, INVALID_REQUEST};
use super::setting::HttpSettings;

/// The one code of ours inside the reserved range: clients key on it (DESIGN.md section 5).
const SESSION_NOT_FOUND: i32 = -32001;

/// Bytes that are read of a request that has no session. An `initialize` names a client and its
/// capabilities, and comes to a few KiB.
pub(crate) const SESSIONLESS_MAX: usize = 256 * 1024;

/// One request on an endpoint of the protocol, past place and credentials.
pub(crate) struct Call<'a, G, F> {
    pub(crate) desk: &'a Desk<G>,
    pub(crate) fields: &'a F,
    pub(crate) principal: Principal,
    pub(crate) endpoint: Endpoint,
    pub(crate) settings: &'a HttpSettings,
}

/// A message that was taken, and what will answer it. It needs nothing of the request any more.
pub(crate) struct Posted<P> {
    parts: P,
    id: Option<Snippet>,
    /// The session that the message opened.
    opened: Option<HeaderValue>,
    /// The one server that it is for, if it is.
    server: Option<Arc<str>>,
    heartbeat: Duration,
}

impl<G: Gate, F: Fields> Call<'_, G, F> {
    /// One message of the client.
    pub(crate) async fn post<B>(&self, body: B) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        F: Sync,
    {
        let accept = match self.admit() {
            Ok(accept) => accept,
            Err(answer) => return answer,
        };
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        match self.take(body, accept) {
            Ok(mut posted) => {
                let first = posted.first().await;
                posted.answer(first)
            }
            Err(answer) => answer,
        }
    }

    /// What is judged before the body of a POST is read. Says what its answer may be.
    pub(crate) fn admit(&self) -> Result<Accept, Answer> {
        check_coding(self.fields)?;
        let refusal = match guard::announced(self.fields) {
            Announced::Json => None,
            Announced::OtherCharset => {
                Some("the body must be UTF-8: announce application/json without another charset")
            }
            Announced::Other => {
                Some("the body must be announced as Content-Type: application/json")
            }
        };
        if let Some(text) = refusal {
            return Err(close(answer::refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                None,
                INVALID_REQUEST,
                text,
            )));
        }
        guard::accept_post(self.fields).ok_or_else(|| {
            let text = "Accept must allow application/json and text/event-stream";
            close(answer::refuse(
                StatusCode::NOT_ACCEPTABLE,
                None,
                INVALID_REQUEST,
                text,
            ))
        })
    }

    /// The body of a POST.
    pub(crate) async fn read<B>(&self, body: B) -> Result<Bytes, Answer>
    where
        B: Body<Data = Bytes> + Send,
        F: Sync,
    {
        let max = self.body_max(&body);
        read_body(self.fields, body, max, self.settings)
            .await
            .map_err(|error| self.refuse_unread(error))
    }

    /// Gives the body of a POST to its session.
    pub(crate) fn take(
        &self,
        body: Bytes,
        accept: Accept,
    ) -> Result<Posted<<G::Session as Session>::Parts>, Answer> {
        let message = Message::parse(body).map_err(|error| self.refuse_unreadable(&error))?;
        let id = message.raw_id().map(Snippet::of);
        let raw_id = id.as_ref().map(Snippet::as_slice);
        let is_request = message.kind() == Kind::Request;
        let (session, opened) = if is_request && Method::of(&message) == Method::Initialize {
            let session = self.open(raw_id)?;
            let opened = HeaderValue::from_str(session.id()).ok();
            (session, opened)
        } else {
            (self.session(raw_id)?, None)
        };
        Ok(Posted {
            parts: session.post(message, accept),
            id,
            opened,
            server: self.endpoint.server().cloned(),
            heartbeat: self.settings.heartbeat,
        })
    }

    /// The cap on the body: without a session only an `initialize` is of use, and is never large.
    fn body_max<B: Body<Data = Bytes>>(&self, body: &B) -> usize {
        let max = self.settings.body_max;
        let least = max.min(SESSIONLESS_MAX);
        let is_small = body
            .size_hint()
            .upper()
            .is_some_and(|size| size <= least as u64);
        // A small one is read in any case: its session is looked up once, behind it.
        if is_small || self.session(None).is_ok() {
            max
        } else {
            least
        }
    }

    /// A body that was not read: 413 or 400; what is wrong with its session goes first.
    fn refuse_unread(&self, error: ReadError) -> Answer {
        if let ReadError::TooLarge { id, .. } = &error
            && let Err(answer) = self.session(id.as_deref())
        {
            return close(answer);
        }
        refuse_body(error, self.settings)
    }

    /// A new session, whatever session id the request may carry: some clients send a stale one.
    fn open(&self, id: Option<&[u8]>) -> Result<G::Session, Answer> {
        let endpoint = self.endpoint.clone();
        let opened = self
            .desk
            .gate
            .open(&self.principal, endpoint, Downstream::Http);
        opened.map_err(|error| refuse_open(error, &self.endpoint, id))
    }

    /// The stream of messages outside any call.
    pub(crate) async fn get(&self) -> Answer {
        if !guard::accepts_stream(self.fields) {
            let text = "Accept must allow text/event-stream";
            return answer::refuse(StatusCode::NOT_ACCEPTABLE, None, INVALID_REQUEST, text);
        }
        let session = match self.session(None) {
            Ok(session) => session,
            Err(answer) => return answer,
        };
        let cursor = match self.fields.all(Field::Cursor).next().map(field::text) {
            // An empty one says that no event has been seen.
            None | Some(Some("")) => None,
            Some(Some(text)) => Some(Box::from(text)),
            Some(None) => {
                return bad_request(None, "Last-Event-ID is not a cursor of this session");
            }
        };
        let mut parts = session.listen(cursor);
        match parts.next().await {
            Some(Part::Begin) => {
                let manners = StreamManners {
                    heartbeat: self.settings.heartbeat,
                    stopping: Some(self.desk.stopping.clone()),
                };
                answer::stream(EventBody::new(parts, manners))
            }
            Some(Part::Refuse { status, body }) => refused(status, body),
            Some(
                Part::Accepted
                | Part::Json(_)
                | Part::Open { .. }
                | Part::Event { .. }
                | Part::OpenEvent
                | Part::Bytes(_)
                | Part::Close { .. }
                | Part::Cut
                | Part::Welcome(_)
                | Part::Frame { .. }
                | Part::End,
            )
            | None => session_not_found(None),
        }
    }

    /// The end of the session.
    pub(crate) fn delete(&self) -> Answer {
        match self.session(None) {
            Ok(session) => {
                session.close();
                answer::bare(StatusCode::NO_CONTENT)
            }
            Err(answer) => answer,
        }
    }

    /// The session of a request that needs one, with its version header checked.
    ///
    /// A revision that we know but that was not negotiated is let pass: it is supported, which is
    /// all that 2025-11-25 basic/transports asks for, and some clients send the one that they asked
    /// for instead of the one that they got.
    fn session(&self, id: Option<&[u8]>) -> Result<G::Session, Answer> {
        if !self.fields.has(Field::Session) {
            let text = "the Mcp-Session-Id header is missing: send `initialize` first, then the id \
                        of its answer with every request";
            return Err(bad_request(id, text));
        }
        let session = self
            .fields
            .single(Field::Session)
            .and_then(|value| self.desk.gate.find(value, &self.principal, &self.endpoint))
            .ok_or_else(|| session_not_found(id))?;
        if self.fields.has(Field::Version) {
            let version = self.fields.single(Field::Version);
            if version
                .and_then(|version| Version::parse(version.trim()))
                .is_none()
            {
                let known = Version::ALL.map(Version::as_str).join(", ");
                let text =
                    format!("MCP-Protocol-Version names no supported revision; they are {known}");
                return Err(bad_request(id, &text));
            }
        }
        Ok(session)
    }

    /// A body that is no message: 400, with what is wrong with it.
    fn refuse_unreadable(&self, error: &ParseError) -> Answer {
        let text = match error.kind {
            ParseErrorKind::Batch { .. } if self.is_batch_era() => {
                "batches are not supported by this gateway, though 2025-03-26 has them: send each \
                 message in a POST of its own; nothing of this one was run"
                    .to_owned()
            }
            ParseErrorKind::Batch { .. } => {
                "batches are not supported: a body is one message; nothing was run".to_owned()
            }
            kind => kind.to_string(),
        };
        answer::refuse(
            StatusCode::BAD_REQUEST,
            error.id.as_deref(),
            error.code(),
            &text,
        )
    }

    fn is_batch_era(&self) -> bool {
        self.session(None)
            .is_ok_and(|session| session.version() == Some(Version::V2025_03_26))
    }
}

impl<P: Parts> Posted<P> {
    /// Waits for the first part. Cancel safe.
    pub(crate) fn first(&mut self) -> impl Future<Output = Option<Part>> + Send {
        self.parts.next()
    }

    /// Answers with the first part, and with the rest if it begins a stream. A session that the
    /// message opened is named, unless it is known that it failed. Dropped before, the client is gone.
    pub(crate) fn answer(self, first: Option<Part>) -> Answer {
        let Self {
            parts,
            id,
            opened,
            server,
            heartbeat,
        } = self;
        match first {
            Some(Part::Accepted) => answer::bare(StatusCode::ACCEPTED),
            Some(Part::Json(pieces)) => {
                // A failed `initialize` has opened no session.
                let opened = opened.filter(|_| is_result(&pieces));
                named(answer::json(StatusCode::OK, pieces), opened)
            }
            Some(Part::Open { len }) => {
                let body = AnswerBody::Stream(EventBody::passing(parts, len));
                answer::json(StatusCode::OK, body)
            }
            Some(Part::Begin) => {
                let manners = StreamManners {
                    heartbeat,
                    stopping: None,
                };
                named(answer::stream(EventBody::new(parts, manners)), opened)
            }
            Some(Part::Refuse { status, body }) => refused(status, body),
            Some(
                Part::Event { .. }
                | Part::OpenEvent
                | Part::Bytes(_)
                | Part::Close { .. }
                | Part::Cut
                | Part::Welcome(_)
                | Part::Frame { .. }
                | Part::End,
            )
            | None => match id {
                Some(id) => answer::json(
                    StatusCode::OK,
                    Fault::new(FaultKind::SessionEnded)
                        .at(server.as_ref())
                        .response(id.as_slice()),
                ),
                None => answer::bare(StatusCode::ACCEPTED),
            },
        }
    }
}

fn named(mut answer: Answer, session: Option<HeaderValue>) -> Answer {
    if let Some(session) = session {
        answer.headers_mut().insert(Field::Session.name(), session);
    }
    answer
}

fn is_result(pieces: &Pieces) -> bool {
    Message::parse(pieces.to_bytes()).is_ok_and(|message| message.kind() == Kind::Result)
}

fn refused(status: u16, body: Bytes) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    answer::json(status, AnswerBody::from(body))
}

/// One body for a session that is unknown, ended, another principal's or another endpoint's.
fn session_not_found(id: Option<&[u8]>) -> Answer {
    answer::refuse(
        StatusCode::NOT_FOUND,
        id,
        SESSION_NOT_FOUND,
        "Session not found",
    )
}

fn refuse_open(error: OpenError, endpoint: &Endpoint, id: Option<&[u8]>) -> Answer {
    let kind = match error {
        OpenError::UnknownServer => {
            let text = error.to_string();
            return answer::refuse(StatusCode::NOT_FOUND, id, INVALID_REQUEST, &text);
        }
        OpenError::TooManySessions => FaultKind::TooManySessions,
        OpenError::Stopping => FaultKind::ShuttingDown,
        OpenError::NoRandom => FaultKind::Internal,
    };
    let fault = Fault::new(kind)
        .because(error.to_string())
        .at(endpoint.server());
    answer::json(StatusCode::OK, fault.response(id.unwrap_or(b"null")))
}

/// Refuses a body that is coded: it is not read, since nothing tells how large it would become.
pub(crate) fn check_coding(fields: &impl Fields) -> Result<(), Answer> {
    if guard::is_plain(fields) {
        return Ok(());
    }
    let text = "the body must not be compressed: send it without Content-Encoding";
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let mut answer = answer::refuse(status, None, INVALID_REQUEST, text);
    answer.headers_mut().insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
    Err(close(answer))
}

/// Reads the body of a request within a cap.
pub(crate) async fn read_body<B>(
    fields: &(impl Fields + Sync),
    body: B,
    max: usize,
    settings: &HttpSettings,
) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes> + Send,
{
    // Who asks before writing is told before writing.
    let is_asking = fields.has(Field::Expect);
    let is_over = body.size_hint().lower() > max as u64;
    if is_asking && is_over {
        Err(ReadError::TooLarge { max, id: None })
    } else {
        body::read(body, max, settings.read_patience).await
    }
}

/// The answer to a request whose body was not read.
pub(crate) fn refuse_body(error: ReadError, settings: &HttpSettings) -> Answer {
    let (status, id, text) = match error {
        ReadError::TooLarge { id, .. } => {
            let max = settings.body_max;
            let text = format!("the body is larger than the limit of {max} bytes; see `bodyMax`");
            (StatusCode::PAYLOAD_TOO_LARGE, id, text)
        }
        ReadError::Stalled | ReadError::Broken => {
            (StatusCode::BAD_REQUEST, None, error.to_string())
        }
    };
    close(answer::refuse(
        status,
        id.as_deref(),
        INVALID_REQUEST,
        &text,
    ))
}

/// Says that the connection ends here: what is left of the request's body is in its way.
pub(crate) fn close(mut answer: Answer) -> Answer {
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn bad_request(id: Option<&[u8]>, message: &str) -> Answer {
    answer::refuse(StatusCode::BAD_REQUEST, id, INVALID_REQUEST, message)
}
