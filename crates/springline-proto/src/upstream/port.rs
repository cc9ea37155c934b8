//! What goes into the upstream machine and what comes out of it.
//!
//! Drivers and the simulator speak these values; neither decides anything of the protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{CallKey, ExchangeId, Generation, InstanceKey, SessionKey};
use crate::error::Fault;
use crate::json::Pieces;
use crate::message::Message;
use crate::method::ListKind;
use crate::version::Version;

/// What the upstream's `initialize` carries: the client's own parameters, raw.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// The raw JSON of `params` of the client's `initialize`, with a version that we speak.
    pub params: Bytes,
}

/// One session's use of one server entry. Where an upstream serves several sessions, this says for
/// whom something is; a session that knows the same server by two names has two of them.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Binding {
    /// The session.
    pub session: SessionKey,
    /// The name by which it knows the server.
    pub server: Arc<str>,
}

/// Something that happened, told to the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// What a session says to an upstream that others use too
    /// ([`Shared`](crate::shared::Shared)).
    Of {
        /// Who says it.
        binding: Binding,
        /// What.
        input: Box<Input>,
    },
    /// What the client had set up before the restart of the gateway. An upstream of one session
    /// knows it from its own record; one that is shared learns from it whose it is.
    Holds {
        /// The URIs to which the client subscribed.
        subscriptions: Vec<Box<str>>,
        /// The raw log level that it set.
        level: Option<Bytes>,
    },
    /// What an upstream of one session leaves to a shared one that takes its place for that session.
    Join(Box<super::Legacy>),
    /// A session wants the instance to be ready; answered by [`SessionEvent::Started`] or
    /// [`SessionEvent::Failed`]. With a `hello` that differs from the present one, the present
    /// generation is ended and a new one starts (the client sent `initialize` again).
    Start {
        /// Who asks.
        key: CallKey,
        /// The parameters of the handshake.
        hello: Hello,
    },
    /// A request of a client. Answered exactly once (I1), unless cancelled.
    Call {
        /// Who asks.
        key: CallKey,
        /// The request, with the client's own id and progress token.
        message: Message,
        /// Whether a large answer may come in stretches: nothing in it is to be read or rewritten.
        stretches: bool,
    },
    /// A notification of a client. Dropped if no generation is ready.
    Notify {
        /// The notification.
        message: Message,
    },
    /// The client's answer to a request of the server. Dropped if it belongs to an old generation, or
    /// to an instance of another machine (I2).
    Reply {
        /// Who asked.
        instance: InstanceKey,
        /// The server's own id, raw.
        id: Bytes,
        /// The answer as the client sent it; its id is replaced.
        message: Message,
    },
    /// The client does not want the answer any more; none is given.
    Cancel {
        /// The request.
        key: CallKey,
        /// The client's `notifications/cancelled`; its `requestId` is replaced. Without one, a
        /// notification is made.
        message: Option<Message>,
    },
    /// The client is being asked something for this call (`true`), or has answered (`false`): the
    /// clock of the call stops meanwhile.
    Asking {
        /// The call.
        key: CallKey,
        /// Whether a question begins or ends.
        begins: bool,
    },
    /// The parameters of the handshake, should one be needed: after a restart of the gateway, before
    /// the first call. Changes nothing that is there.
    Greet {
        /// The parameters.
        hello: Hello,
    },
    /// A client is attached, or not any more.
    Attached(bool),
    /// The present generation takes nothing new, finishes what it has, and is ended; the next call
    /// starts a new one.
    Retire,
    /// The upstream goes out of service: what is with its instances may finish, nothing new enters,
    /// then they are ended, sessions by DELETE, and the machine is closed.
    Drain(super::Drain),
    /// A request that the machine before this one had not sent.
    Take {
        /// Who asks.
        key: CallKey,
        /// The request.
        moved: Box<super::Moved>,
    },
    /// Other spans and policies, from now on, also for what is under way.
    Settings(Box<crate::settings::UpstreamSettings>),
    /// The upstream is done with: pending calls fail with this fault, instances are ended.
    Close {
        /// What pending calls hear.
        fault: Fault,
        /// Whether an HTTP session of the server is ended by DELETE.
        end_session: bool,
    },
    /// Driver: there is no room for the child that [`Output::Reserve`] asked for, since as many run as
    /// may (`max`). [`Input::Admitted`] comes when there is.
    Crowded {
        /// Which.
        generation: Generation,
        /// How many may run.
        max: usize,
    },
    /// Driver: the turn in the start budget, which [`Output::Reserve`] asked for, has come: the time
    /// for the start counts from here. An instance that nobody wants any more is not opened.
    Admitted {
        /// Which.
        generation: Generation,
    },
    /// Driver: the instance can take its handshake (a child runs; HTTP: at once).
    Opened {
        /// Which.
        generation: Generation,
    },
    /// Driver: the head of an HTTP answer to the handshake carried this session id.
    Minted {
        /// Which.
        generation: Generation,
        /// The exchange.
        exchange: ExchangeId,
        /// `Mcp-Session-Id`; visible ASCII, checked by the driver.
        session_id: Arc<str>,
    },
    /// Driver: a message from the server.
    Message {
        /// From which instance.
        generation: Generation,
        /// On which exchange; none on stdio and on nothing else.
        exchange: Option<ExchangeId>,
        /// The message.
        message: Message,
    },
    /// Driver: a stretch of an answer that is too large to be held. Only on an exchange whose
    /// [`Output::Send`] allowed it, and until [`Stretch::End`] nothing else comes on it but its end or
    /// [`Input::Garbled`], which then is about this answer.
    Stretch {
        /// From which instance.
        generation: Generation,
        /// On which exchange.
        exchange: ExchangeId,
        /// What.
        stretch: Stretch,
    },
    /// Driver: an exchange is over. Nothing more comes on it.
    Ended {
        /// Of which instance.
        generation: Generation,
        /// Which.
        exchange: ExchangeId,
        /// How.
        end: End,
    },
    /// Driver: it could not write down that this request leaves ([`Output::Sent`]), so it did not do
    /// the [`Output::Send`] that followed (I4). Nothing more comes on the exchange.
    Withheld {
        /// Which exchange.
        exchange: ExchangeId,
        /// Why, for people.
        cause: Box<str>,
    },
    /// Driver: the instance is gone (child exited, pipe closed). Messages that it wrote before
    /// were given before.
    Lost {
        /// Which.
        generation: Generation,
        /// For people: exit status and the last lines of stderr.
        cause: Box<str>,
        /// Whether it never ran (spawn failed): nothing was executed.
        never_ran: bool,
    },
    /// Driver: a message from the server could not be read; the stream goes on.
    Garbled {
        /// From which instance.
        generation: Generation,
        /// On which exchange, if known.
        exchange: Option<ExchangeId>,
        /// The id of the answer that was too large to keep, if it could be read.
        id: Option<Bytes>,
        /// What was wrong.
        cause: Box<str>,
        /// Whether it passed the cap on frames and bodies.
        too_large: bool,
    },
    /// Driver: credential sources were read again.
    Credentials {
        /// Whether a value differs from the one that was refused.
        changed: bool,
    },
    /// The deadline that the machine named has come.
    Timer,
}

/// A stretch of an answer that goes by and is not held. All of them together are one JSON-RPC answer,
/// validated as far as it came.
#[derive(Clone, Eq, PartialEq)]
pub enum Stretch {
    /// It is an answer, and these are its first bytes.
    Begin {
        /// Its id, raw, if that stands at the front.
        id: Option<Bytes>,
        /// Its length in bytes, id included, if that is known.
        len: Option<u64>,
    },
    /// Bytes that pass unchanged (I13).
    Bytes(Bytes),
    /// The id stands here, raw. Comes once, also when [`Stretch::Begin`] told it.
    Id(Bytes),
    /// It is complete.
    End,
}

/// Shows no content: results may carry secrets.
impl fmt::Debug for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { len, .. } => write!(f, "Begin({len:?} bytes)"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Id(_) => f.write_str("Id"),
            Self::End => f.write_str("End"),
        }
    }
}

/// How an exchange ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum End {
    /// stdio: written whole. HTTP: 2xx without a body that could hold an answer.
    Accepted,
    /// HTTP: the answer's body came to its proper end.
    Complete,
    /// HTTP: an event stream ended or broke. With an event id it can be resumed.
    StreamEnded {
        /// The last event id that it carried.
        last_event_id: Option<Arc<str>>,
        /// The last `retry` that it carried.
        retry: Option<Duration>,
    },
    /// No byte of the request left: refused, unresolved, no TLS, broken while connecting.
    NotSent {
        /// Why, for people.
        cause: Box<str>,
    },
    /// The connection broke, or the answer was of a foreign kind, after the request may have left.
    Broken {
        /// Why, for people.
        cause: Box<str>,
    },
    /// HTTP: the answer's body is whole, and holds no message that can be read.
    Unreadable {
        /// Why, for people; nothing of the body.
        cause: Box<str>,
    },
    /// An HTTP status that is no success.
    Refused(Refusal),
}

/// An HTTP answer that refuses a request; to `initialize` also a success of a foreign kind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The status, 300 and above; to `initialize` also one of success.
    pub status: u16,
    /// The code of the JSON-RPC error in the body, if there is one.
    pub rpc_code: Option<i64>,
    /// The message of that error, or the head of the body as text; at most 4 KiB, untrusted.
    pub text: Box<str>,
    /// Whether the body is of a kind that no MCP endpoint sends: a page for people.
    pub foreign: bool,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
    /// The body, if it is a JSON-RPC error response. Whether it answers the request, its id tells.
    pub answer: Option<Message>,
}

/// What an exchange is for; tells the driver which HTTP method, and what ends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// `initialize`: its head may mint a session id.
    Initialize,
    /// `notifications/initialized`.
    Initialized,
    /// A request that awaits an answer.
    Request,
    /// A notification or an answer of the client.
    Oneway,
}

/// What an HTTP request must carry to reach its session (I14).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Route {
    /// `Mcp-Session-Id`; none on `initialize` and where the server minted none.
    pub session_id: Option<Arc<str>>,
    /// `MCP-Protocol-Version`; none before it was negotiated and where the revision has none.
    pub version: Option<Version>,
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Wait for room for a child and a turn in the start budget, and answer with
    /// [`Input::Admitted`]; with [`Input::Crowded`] first, if there is no room at once. Children only.
    Reserve {
        /// Its name from now on.
        generation: Generation,
    },
    /// Start an instance: spawn the child; HTTP answers [`Input::Opened`] at once.
    Open {
        /// Its name from now on.
        generation: Generation,
    },
    /// Write a message. Ends in one [`Input::Ended`], unless the instance is lost first.
    Send {
        /// To which instance.
        generation: Generation,
        /// Name of the exchange.
        exchange: ExchangeId,
        /// The message.
        body: Pieces,
        /// What for.
        purpose: Purpose,
        /// Headers of the session.
        route: Route,
        /// Whether it may go on a connection that could be closing (it is safe to repeat).
        repeatable: bool,
        /// Whether a large answer may be reported as [`Input::Stretch`].
        stretches: bool,
    },
    /// HTTP: resume the broken stream of an exchange by GET after a pause.
    Resume {
        /// Of which instance.
        generation: Generation,
        /// The same exchange as before.
        exchange: ExchangeId,
        /// `Last-Event-ID`.
        last_event_id: Arc<str>,
        /// The pause before it.
        delay: Duration,
        /// Headers of the session.
        route: Route,
    },
    /// HTTP: open the standalone GET stream. Ends in one [`Input::Ended`]; a refusal is
    /// [`End::Refused`].
    Listen {
        /// Of which instance.
        generation: Generation,
        /// Name of the exchange.
        exchange: ExchangeId,
        /// `Last-Event-ID` of the one before.
        last_event_id: Option<Arc<str>>,
        /// The pause before it.
        delay: Duration,
        /// Headers of the session.
        route: Route,
    },
    /// Drop an exchange, if it is still under way; no [`Input::Ended`] is needed.
    Abort {
        /// Of which instance.
        generation: Generation,
        /// Which.
        exchange: ExchangeId,
    },
    /// Read credential sources again and answer with [`Input::Credentials`].
    RefreshCredentials,
    /// End an instance. stdio: stdin closed, SIGTERM, SIGKILL. HTTP: all its exchanges are dropped
    /// and, if `delete`, one best-effort DELETE is sent. Nothing more is heard of it.
    End {
        /// Which.
        generation: Generation,
        /// Whether to DELETE the session of `route`.
        delete: bool,
        /// Headers of the session.
        route: Route,
    },
    /// Make this record outlive the process, in place of the one before. Outputs that follow may
    /// be seen by others and rely on it (I10).
    Persist(Box<super::Record>),
    /// Remove the record: its session is over.
    Forget,
    /// Note in the journal that this request is about to be sent; the [`Output::Send`] follows (I4).
    Sent {
        /// The request.
        key: CallKey,
        /// To which instance.
        generation: Generation,
    },
    /// Give a request to the machine that took the place of this one, as [`Input::Take`].
    Moved {
        /// Who asks.
        key: CallKey,
        /// The name by which that session knows the server: it may go another way by now.
        server: Arc<str>,
        /// The request.
        moved: Box<super::Moved>,
    },
    /// Tell a session.
    ToSession {
        /// Which.
        session: SessionKey,
        /// The name by which that session knows the server.
        server: Arc<str>,
        /// What.
        event: SessionEvent,
    },
    /// Tell the operator.
    Emit(Event),
}

/// What a session hears from an upstream.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// The instance is ready.
    Started {
        /// The [`Input::Start`] that this answers.
        key: CallKey,
        /// The raw JSON of the `result` of `initialize`.
        result: Bytes,
    },
    /// The answer to a call, with an id of ours where the client's belongs.
    Answer {
        /// The call.
        key: CallKey,
        /// The answer; the session puts the client's id in.
        message: Message,
    },
    /// A stretch of the answer to a call. After [`Passing::Begin`] comes [`Passing::End`], or
    /// [`SessionEvent::Failed`]: then what passed is no answer, and the client must see that.
    Passing {
        /// The call.
        key: CallKey,
        /// What.
        passing: Passing,
    },
    /// A call, or a start, ended in an error of ours.
    Failed {
        /// The call.
        key: CallKey,
        /// The error.
        fault: Fault,
        /// The server's own JSON-RPC error to the handshake, raw, if that is what happened: the
        /// owner of a first `initialize` gets it unchanged.
        server_error: Option<Bytes>,
    },
    /// A notification; a progress token in it is already the client's own.
    Notification {
        /// The call that it belongs to, if that is known.
        related: Option<CallKey>,
        /// The notification.
        message: Message,
    },
    /// A request of the server, with the server's own id.
    Request {
        /// The call that it belongs to, if that is known.
        related: Option<CallKey>,
        /// Who asks: needed to answer.
        instance: InstanceKey,
        /// The request.
        message: Message,
    },
    /// The server took back a request of its own (`notifications/cancelled`).
    Withdrawn {
        /// Who asked.
        instance: InstanceKey,
        /// The id of the server's request, raw.
        id: Bytes,
        /// The notification.
        message: Message,
    },
    /// An instance is gone: its open requests to the client need no answer any more.
    InstanceGone {
        /// Which.
        instance: InstanceKey,
    },
    /// A new instance took the place of an old one, and this is the raw JSON of the `result` of its
    /// `initialize`.
    Renewed {
        /// What it announced.
        result: Bytes,
    },
    /// The server started afresh; its in-session state is lost.
    StateLost {
        /// Why, for people.
        reason: Box<str>,
    },
    /// After a recovery this list is not what it was.
    ListChanged(ListKind),
    /// A list was read whole by the machine itself or passed by: what is remembered of the entry.
    Listed {
        /// Which.
        kind: ListKind,
        /// Its pages, raw `result` objects in order.
        pages: Vec<Bytes>,
    },
}

/// A stretch of an answer on its way to a session.
#[derive(Clone, Eq, PartialEq)]
pub enum Passing {
    /// An answer begins.
    Begin {
        /// Its length in bytes without its id, if that is known.
        len: Option<u64>,
    },
    /// Bytes that pass unchanged.
    Bytes(Bytes),
    /// The client's id goes here.
    Id,
    /// It is complete: the call is answered.
    End,
}

/// Shows no content: results may carry secrets.
impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { len } => write!(f, "Begin({len:?} bytes)"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Id => f.write_str("Id"),
            Self::End => f.write_str("End"),
        }
    }
}

/// Something that an operator may want to know; the list of events is this type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// An instance is ready.
    Ready {
        /// Which.
        generation: Generation,
        /// From its start.
        took: Duration,
        /// Whether it replaces one that was lost.
        recovery: bool,
    },
    /// An instance was lost.
    Lost {
        /// Which.
        generation: Generation,
        /// Whether a process ended; otherwise the server forgot the session.
        exited: bool,
        /// Why.
        cause: Box<str>,
    },
    /// An attempt to start or recover failed.
    StartFailed {
        /// Which.
        generation: Generation,
        /// Why.
        cause: Box<str>,
        /// The earliest next attempt, from now.
        retry_in: Duration,
    },
    /// A request was sent again to a newer generation or a fresh exchange.
    Replayed {
        /// Which call.
        key: CallKey,
        /// To which instance.
        generation: Generation,
    },
    /// The end of an instance was begun.
    Ended {
        /// Which.
        generation: Generation,
        /// Why.
        reason: &'static str,
    },
    /// A message of the server was dropped.
    Dropped {
        /// From which instance.
        generation: Generation,
        /// Why.
        reason: &'static str,
    },
    /// Something of the server could not be read.
    Unreadable {
        /// From which instance.
        generation: Generation,
        /// For people: what was wrong.
        cause: Box<str>,
    },
    /// A session of before the restart of the gateway is in use again.
    Resumed {
        /// Which.
        generation: Generation,
    },
    /// Nothing is left of an upstream that was taken out of service: its last call is over, and the
    /// end of its last instance was begun.
    Drained,
    /// Credentials were refused by the server.
    Unauthorized {
        /// By which instance.
        generation: Generation,
    },
}
