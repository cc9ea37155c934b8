//! Reading the body of a request.
//!
//! Owns: the cap and the patience. It must not know what the body means.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use springline_proto::json::Skim;
use tokio::time::timeout;

use crate::clock;

/// Bytes that are reserved on the word of `Content-Length` alone.
const AHEAD_MAX: usize = 256 * 1024;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is larger than the cap.
    #[error("the body is larger than {max} bytes")]
    TooLarge {
        /// The cap.
        max: usize,
        /// The id of the message, where it was read nevertheless.
        id: Option<Bytes>,
    },
    /// No byte came for too long, or too few did.
    #[error("the body stopped coming, or came too slowly")]
    Stalled,
    /// The connection broke.
    #[error("the body broke off")]
    Broken,
}

/// Bytes of a body over the cap that are still read, so that a client that writes first and reads
/// afterwards meets the refusal and not a reset connection.
const DISCARD_MAX: u64 = 256 * 1024 * 1024;

/// How long a body over the cap may pause before it is refused: who sends is read to the end, who
/// waits is told.
const DISCARD_PAUSE: Duration = Duration::from_millis(250);

/// How long a body over the cap is read at all.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// Bytes that a body brings in a second, at the least: what is slower only keeps its connection busy.
const RATE_MIN: usize = 1024;

/// Reads a body into one buffer, at most `max` bytes. A body that came as one piece is not copied.
///
/// Not cancel safe: what was read is lost.
pub async fn read<B>(body: B, max: usize, patience: Duration) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes>,
{
    let expected = body.size_hint().exact();
    let mut body = pin!(body);
    if expected.is_some_and(|length| length > max as u64) {
        let id = discard(body, Skim::new()).await;
        return Err(ReadError::TooLarge { max, id });
    }
    let expected = expected.and_then(|length| usize::try_from(length).ok());
    let mut whole = BytesMut::new();
    let until = clock::now() + patience;
    loop {
        let earned = Duration::from_secs((whole.len() / RATE_MIN) as u64);
        let left = (until + earned).saturating_duration_since(clock::now());
        let frame = match timeout(patience.min(left), body.frame()).await {
            Err(_) => return Err(ReadError::Stalled),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(Err(_))) => return Err(ReadError::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.is_empty() {
            if expected == Some(data.len()) {
                return Ok(data);
            }
            // What a head announces costs nothing until it comes: it may never come (I8).
            whole.reserve(expected.unwrap_or(0).min(AHEAD_MAX));
        }
        if whole.len() + data.remaining() > max {
            let mut skim = Skim::new();
            skim.push(&whole);
            skim.push(&data);
            drop((whole, data));
            let id = discard(body, skim).await;
            return Err(ReadError::TooLarge { max, id });
        }
        whole.extend_from_slice(&data);
    }
}

/// Reads on without keeping anything but the id of the message.
pub(super) async fn discard<B: Body<Data = Bytes>>(
    mut body: std::pin::Pin<&mut B>,
    mut skim: Skim,
) -> Option<Bytes> {
    let until = clock::now() + DISCARD_TIME;
    while skim.seen() < DISCARD_MAX && clock::now() < until {
        match timeout(DISCARD_PAUSE, body.frame()).await {
            Ok(Some(Ok(frame))) => skim.push(frame.data_ref().map_or(&[], |data| data)),
            _ => break,
        }
    }
    skim.id().cloned()
}
