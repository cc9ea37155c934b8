//! What goes into the session machine and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{ClientExchange, Connection};
use crate::json::Pieces;
use crate::message::{Message, ParseError};
use crate::upstream;

/// What a session's client speaks to: decides names, lists and `initialize`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Endpoint {
    /// One server; names, URIs, unknown methods and capabilities untouched.
    One(Arc<str>),
    /// Every server behind one endpoint, with names of our own.
    All,
}

impl Endpoint {
    /// The one server, if it is one.
    pub fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::One(server) => Some(server),
            Self::All => None,
        }
    }
}

/// How the client is attached; decides where messages to it go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Downstream {
    /// Streamable HTTP: POST exchanges and a GET stream.
    Http,
    /// One ordered pipe of lines that ends with its client (`bridge`).
    Pipe,
    /// Numbered frames on the gateway's socket (`connect`): a client whose connection was cut takes
    /// the session up again.
    Socket,
}

/// What a client of the socket knows when it attaches; nothing at its first time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Comeback {
    /// The last frame of ours that it has.
    pub received: u64,
    /// Its frames with requests that it has no answer to, and still wants one.
    pub pending: Vec<u64>,
}

/// What a client of the socket is told when it attached.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Welcome {
    /// The last frame of its that was taken. It sends again what came after it.
    pub taken: u64,
    /// Requests in frames up to that one to which no answer will come.
    pub fates: Vec<(u64, Fate)>,
}

/// Why a request of the socket gets no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It was never sent: the client may send it again.
    NotSent,
    /// It may have been sent, and nobody knows more.
    Sent,
    /// It was answered, and the answer is gone.
    Lost,
}

/// What a server entry offers, as last seen; from it `/mcp` answers before the server runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Remembered {
    /// The raw `result` of its last `initialize`.
    pub initialize: Option<Bytes>,
    /// The raw pages of its last lists, by kind.
    pub lists: std::collections::BTreeMap<crate::method::ListKind, Vec<Bytes>>,
}

/// One server entry as a session on `/mcp` sees it.
#[derive(Clone, Debug)]
pub struct EntryView {
    /// Its name.
    pub name: Arc<str>,
    /// Why it cannot be used (configuration error, launcher missing), if so.
    pub unavailable: Option<Arc<str>>,
    /// What is remembered of it.
    pub remembered: Option<Arc<Remembered>>,
}

/// Media types that the client of a POST takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Accept {
    /// JSON and event streams.
    Both,
    /// JSON only: the answer is never a stream.
    Json,
}

/// A message of the socket's client. Boxed in the input, whose size each session's inbox pays.
#[derive(Clone, Debug)]
pub struct ClientFrame {
    /// On which connection; what comes on an older one is dropped.
    pub connection: Connection,
    /// Its number.
    pub number: u64,
    /// The last frame of ours that the client has.
    pub received: u64,
    /// The message.
    pub line: Result<Message, ParseError>,
    /// What to answer in place of taking the message up, if anything: the gateway is stopping.
    pub refusal: Option<Bytes>,
}

/// Something that happened, told to the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message of the client.
    Message {
        /// HTTP: the POST that carried it. None on a pipe.
        exchange: Option<ClientExchange>,
        /// What the POST's answer may be.
        accept: Accept,
        /// The message.
        message: Message,
    },
    /// Pipe: a line that is no message; answered without an id unless one could be read.
    Malformed(ParseError),
    /// HTTP: the connection of a POST broke. Not a cancellation (2025-11-25 basic/transports).
    ExchangeGone(ClientExchange),
    /// HTTP: the client opened a GET stream, perhaps to resume another. Pipe: it is attached.
    StreamOpened {
        /// Its name from now on. A newer one replaces the older.
        connection: Connection,
        /// `Last-Event-ID`.
        cursor: Option<Box<str>>,
    },
    /// The GET stream, the pipe or the socket is gone.
    StreamClosed(Connection),
    /// Socket: the client attached, perhaps again. A newer connection replaces the older.
    Attached {
        /// Its name from now on.
        connection: Connection,
        /// What it knows.
        comeback: Comeback,
    },
    /// Socket: a frame with a message.
    Frame(Box<ClientFrame>),
    /// Socket: the client has our frames up to this one.
    Acknowledged {
        /// On which connection.
        connection: Connection,
        /// The number.
        received: u64,
    },
    /// An upstream of this session reports.
    Upstream {
        /// Its server entry.
        server: Arc<str>,
        /// What.
        event: upstream::SessionEvent,
    },
    /// `/mcp`: the entries, or what is remembered of them, changed.
    Entries(Vec<EntryView>),
    /// What is at rest of the session is to be written again: its last use there is old.
    Keep,
    /// All sessions together hold too much for redelivery: events go until this one holds no more than
    /// `most` bytes. A client that comes back for one of them hears that it is lost.
    Shed {
        /// Bytes that may stay.
        most: usize,
    },
    /// The deadline that the machine named has come.
    Timer,
    /// The session ends (DELETE, expiry, stop). Pending requests end in an error.
    Close,
}

/// One part of the answer to a POST or GET.
#[derive(Clone, Debug)]
pub enum Part {
    /// 202 without a body.
    Accepted,
    /// A whole JSON answer, status 200. The driver adds the session id to that of `initialize`.
    Json(Pieces),
    /// The HTTP request is refused: a 4xx status with a JSON-RPC body.
    Refuse {
        /// The status.
        status: u16,
        /// The body.
        body: Bytes,
    },
    /// A large JSON answer begins, status 200: its bytes follow as [`Part::Bytes`], then [`Part::End`].
    Open {
        /// Its length in bytes, if that is known.
        len: Option<u64>,
    },
    /// An event stream begins, status 200.
    Begin,
    /// One event. An empty `data` is the priming event.
    Event {
        /// Its cursor.
        id: Option<Arc<str>>,
        /// `retry`, once for a stream.
        retry: Option<Duration>,
        /// One message, or nothing.
        data: Pieces,
    },
    /// A large event begins on a stream: its message follows as [`Part::Bytes`], then
    /// [`Part::Close`].
    OpenEvent,
    /// The next bytes of what was opened.
    Bytes(Bytes),
    /// The large event is complete.
    Close {
        /// Its cursor.
        id: Arc<str>,
    },
    /// What was opened is not completed: the connection is aborted, so that nobody takes what came
    /// for the whole.
    Cut,
    /// Socket: the first part.
    Welcome(Welcome),
    /// Socket: one numbered message.
    Frame {
        /// Its number.
        number: u64,
        /// The message.
        data: Pieces,
    },
    /// The stream is complete.
    End,
}

/// What the journal knows of a call that was not finished when the gateway ended.
#[derive(Clone, Debug)]
pub struct PastCall {
    /// Its number in the session.
    pub number: u64,
    /// The client's frame that brought it; 0 if none did.
    pub frame: u64,
    /// How far it came.
    pub fate: Past,
}

/// How far a call came before the gateway ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Past {
    /// It was accepted and never sent: it did not run.
    NotSent,
    /// It was sent, and no answer came.
    Sent,
    /// It was answered, and the answer is not held.
    Lost,
    /// It was answered with this message.
    Answered(Bytes),
}

/// A step in the life of a call, for the journal.
#[derive(Clone, Debug)]
pub enum Mark {
    /// Accepted; not sent yet.
    Accepted {
        /// The client's frame that brought it; 0 if none did.
        frame: u64,
    },
    /// Answered on a stream, which the client may have to resume, or on the socket. Nothing, if the
    /// answer passed and is not kept.
    Answered(Pieces),
    /// Over for everybody.
    Settled,
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Make this record outlive the process, in place of the one before. Outputs that follow may
    /// be seen by the client and rely on it (I10).
    Persist(Box<super::Record>),
    /// Note in the journal how far a call has come. What follows may rely on it.
    Mark {
        /// The number of the call.
        number: u64,
        /// How far.
        mark: Mark,
    },
    /// Note in the journal that the client's frames up to this one were taken. What follows may
    /// rely on it: a frame is taken once, whatever happens.
    Taken(u64),
    /// A part of the answer to a POST.
    ToExchange {
        /// Which.
        exchange: ClientExchange,
        /// What.
        part: Part,
    },
    /// A part of a GET stream; on a pipe only [`Part::Event`] without an id: one line.
    ToStream {
        /// Which.
        connection: Connection,
        /// What.
        part: Part,
    },
    /// Tell the upstream of this server entry; it is made if it does not exist.
    ToUpstream {
        /// The server entry.
        server: Arc<str>,
        /// What.
        input: Box<upstream::Input>,
    },
    /// Something became known of a server entry: remember it.
    Remember {
        /// The server entry.
        server: Arc<str>,
        /// What it announced, or one list.
        what: Known,
    },
    /// So many bytes of events are held for redelivery from now on. Said when that changes; nothing is
    /// said at the end of the session, which holds none.
    Held(usize),
    /// Tell the operator.
    Emit(Event),
    /// The session is over: the driver forgets it. Comes once, last.
    Closed,
}

/// Something learned of a server entry.
#[derive(Clone, Debug)]
pub enum Known {
    /// The raw `result` of `initialize`.
    Initialize(Bytes),
    /// The raw pages of a list.
    List(crate::method::ListKind, Vec<Bytes>),
}

/// Something that an operator may want to know of a session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The handshake of the client is answered.
    Opened,
    /// The session ended.
    Closed,
    /// Socket: its client came back after a cut or a restart.
    Reattached,
    /// Socket: its client did not come back in time; the session ends.
    Abandoned,
    /// A message for the client was dropped because nothing was there to take it.
    Dropped {
        /// Why.
        reason: &'static str,
    },
}
