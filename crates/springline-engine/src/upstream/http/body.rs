//! Bodies of answers, decoded.
//!
//! Owns: the bound on what is kept of an answer (I8), and gzip. It must not know what the bytes
//! mean. A body goes into one buffer, once.

use std::io::{self, Write as _};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use springline_proto::json::Skim;

use super::field::Fields;
use super::framing::Body;

/// Compressed bytes that are decoded at a time: a bomb can swell a step to 1,000 times this, and
/// the cap is looked at after each.
const STEP: usize = 8 * 1024;

/// A body that nobody wants is read up to this, so that its connection can be used again.
const DRAIN_MAX: usize = 64 * 1024;

/// And for at most this long.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// An answer over the cap is searched for its id up to this many times the cap.
const SKIM_FACTOR: u64 = 16;

/// Why an answer's body could not be read on.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the connection broke in the answer's body: {0}")]
    Broken(io::Error),
    #[error("the answer's gzip is damaged: {0}")]
    Gzip(io::Error),
}

enum Coding {
    Plain,
    Gzip {
        decoder: Box<MultiGzDecoder<Vec<u8>>>,
        /// Received, not decoded yet.
        pending: Bytes,
        /// Whether any byte came: no byte at all is an empty body and no damage.
        begun: bool,
        ended: bool,
    },
}

/// An answer's body, decoded.
pub(super) struct Inflow {
    body: Body,
    coding: Coding,
}

impl Inflow {
    /// Takes over a body; an encoding that was not asked for is an error that names it.
    pub(super) fn new(body: Body, fields: &Fields) -> Result<Self, String> {
        let mut coding = Coding::Plain;
        for value in fields.all("content-encoding") {
            for name in String::from_utf8_lossy(value).split(',') {
                let name = name.trim().to_ascii_lowercase();
                match (name.as_str(), &coding) {
                    ("" | "identity", _) => {}
                    ("gzip" | "x-gzip", Coding::Plain) => {
                        coding = Coding::Gzip {
                            decoder: Box::new(MultiGzDecoder::new(Vec::new())),
                            pending: Bytes::new(),
                            begun: false,
                            ended: false,
                        };
                    }
                    _ => return Err(name),
                }
            }
        }
        Ok(Self { body, coding })
    }

    /// The next decoded bytes, never empty; `None` at the proper end. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Coding::Gzip {
                decoder, pending, ..
            } = &mut self.coding
                && !pending.is_empty()
            {
                let step = pending.split_to(pending.len().min(STEP));
                // The flush hands out what a streaming server has flushed.
                if let Err(error) = decoder.write_all(&step).and_then(|()| decoder.flush()) {
                    return Some(Err(BodyError::Gzip(error)));
                }
                let out = std::mem::take(decoder.get_mut());
                if out.is_empty() {
                    continue;
                }
                return Some(Ok(out.into()));
            }
            match self.body.chunk().await {
                None => return self.finish(),
                Some(Err(error)) => return Some(Err(BodyError::Broken(error))),
                Some(Ok(data)) => match &mut self.coding {
                    Coding::Plain => return Some(Ok(data)),
                    Coding::Gzip { pending, begun, .. } => {
                        *begun = true;
                        *pending = data;
                    }
                },
            }
        }
    }

    /// The body as it came, whose end says whether its connection can be used again.
    pub(super) fn into_body(self) -> Body {
        self.body
    }

    /// The rest that only the end of the compressed data gives out.
    fn finish(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Coding::Gzip {
            decoder,
            begun,
            ended,
            ..
        } = &mut self.coding
        else {
            return None;
        };
        if !*begun || std::mem::replace(ended, true) {
            return None;
        }
        if let Err(error) = decoder.try_finish() {
            return Some(Err(BodyError::Gzip(error)));
        }
        let out = std::mem::take(decoder.get_mut());
        (!out.is_empty()).then(|| Ok(out.into()))
    }

    /// Reads the whole body into one buffer of at most `held_max` bytes. Of a larger one, what was
    /// read is given back; over `max`, it is not kept, but searched for the id of the answer.
    pub(super) async fn collect(
        &mut self,
        max: usize,
        held_max: usize,
    ) -> Result<Collected, BodyError> {
        let announced = match self.coding {
            Coding::Plain => self.body.left(),
            Coding::Gzip { .. } => None,
        };
        let announced = announced.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        if announced.is_some_and(|len| len > max) {
            return Box::pin(self.skim(&[], max)).await;
        }
        if announced.is_some_and(|len| len > held_max) {
            return Ok(Collected::More(Bytes::new()));
        }
        if let Some(len) = announced {
            let whole = self.body.whole(len).await;
            return whole.map(Collected::Whole).map_err(BodyError::Broken);
        }
        let mut buffer = BytesMut::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            buffer.extend_from_slice(&chunk);
            if buffer.len() > max {
                return Box::pin(self.skim(&buffer, max)).await;
            }
            if buffer.len() > held_max {
                return Ok(Collected::More(buffer.freeze()));
            }
        }
        Ok(Collected::Whole(buffer.freeze()))
    }

    /// The same behind what was read already, up to `max` bytes in all.
    pub(super) async fn collect_on(
        &mut self,
        begun: Bytes,
        max: usize,
    ) -> Result<Collected, BodyError> {
        let mut buffer = BytesMut::from(begun);
        while let Some(chunk) = self.next().await {
            buffer.extend_from_slice(&chunk?);
            if buffer.len() > max {
                return Box::pin(self.skim(&buffer, max)).await;
            }
        }
        Ok(Collected::Whole(buffer.freeze()))
    }

    /// How many bytes are to come, if the head said so.
    pub(super) fn left(&self) -> Option<u64> {
        match self.coding {
            Coding::Plain => self.body.left(),
            Coding::Gzip { .. } => None,
        }
    }

    async fn skim(&mut self, begun: &[u8], max: usize) -> Result<Collected, BodyError> {
        let mut skim = Skim::new();
        skim.push(begun);
        while skim.seen() < (max as u64).saturating_mul(SKIM_FACTOR) {
            match self.next().await {
                None => break,
                Some(Err(error)) => return Err(error),
                Some(Ok(chunk)) => skim.push(&chunk),
            }
        }
        Ok(Collected::TooLarge {
            seen: skim.seen(),
            id: skim.id().map(|id| Bytes::copy_from_slice(id)),
        })
    }

    /// Reads the beginning of the body, for an error text: up to `max` bytes, and whether that was
    /// all. A break, a damage or a slow server ends it early.
    pub(super) async fn head(&mut self, max: usize) -> (Vec<u8>, bool) {
        let mut head = Vec::new();
        let read = async {
            loop {
                let chunk = match self.next().await {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok(chunk)) => chunk,
                };
                let room = max - head.len();
                head.extend_from_slice(chunk.get(..room.min(chunk.len())).unwrap_or_default());
                if chunk.len() > room {
                    return false;
                }
            }
        };
        let whole = tokio::time::timeout(DRAIN_PATIENCE, read)
            .await
            .unwrap_or(false);
        (head, whole)
    }
}

/// A collected body.
pub(super) enum Collected {
    Whole(Bytes),
    /// It is larger than may be held; what was read of it.
    More(Bytes),
    TooLarge {
        /// Bytes that were seen.
        seen: u64,
        /// The raw id of the message in it.
        id: Option<Bytes>,
    },
}

/// Reads a body that nobody wants, within bounds; answers whether it came to its end.
pub(super) async fn drain(body: &mut Body) -> bool {
    if body.is_done() {
        return true;
    }
    let read = async {
        let mut seen = 0;
        while let Some(chunk) = body.chunk().await {
            let Ok(chunk) = chunk else { return false };
            seen += chunk.len();
            if seen > DRAIN_MAX {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DRAIN_PATIENCE, read)
        .await
        .unwrap_or(false)
}
