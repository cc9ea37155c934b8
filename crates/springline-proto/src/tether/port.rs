//! What goes into the tether and what comes out of it.

use bytes::Bytes;

use crate::json::Pieces;
use crate::message::Message;
use crate::session::Welcome;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The client said something.
    Client(Message),
    /// There is a connection, and the gateway has said its hello.
    Attached {
        /// Whether it knows the session that was named.
        is_resumed: bool,
        /// Where to go on.
        welcome: Welcome,
    },
    /// The gateway sent a message.
    Frame {
        /// Its number.
        number: u64,
        /// The last frame of ours that it has taken.
        received: u64,
        /// The message.
        body: Bytes,
    },
    /// The gateway has taken our frames up to this one.
    Acknowledged(u64),
    /// The gateway ends as soon as nothing is pending.
    Stopping,
    /// The gateway ended the session.
    Ended,
    /// The connection is gone.
    Cut,
    /// No connection can be had. What waits is answered: with this `error` member if it was never
    /// sent.
    Refused {
        /// Raw JSON.
        error: String,
    },
    /// The deadline has come.
    Timer,
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Output {
    /// Pass this on to the client.
    ToClient(Pieces),
    /// Send this frame.
    ToGateway {
        /// Its number.
        number: u64,
        /// The last frame of the gateway's that was received.
        received: u64,
        /// The message.
        body: Pieces,
    },
    /// Acknowledge the gateway's frames up to this one.
    Acknowledge(u64),
    /// Close this connection without a goodbye: the session goes on.
    Leave,
    /// Close this connection with a goodbye: its session is of no use, for this reason.
    Abandon(String),
}

/// What the client's requests need while there is no connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// There is a connection, or nothing to connect for.
    Nothing,
    /// A connection, if a gateway is there.
    Gateway,
    /// A connection, and a gateway if there is none.
    Start,
}
