//! Lines from standard input and to standard output, by whichever way these can be waited for.
//!
//! Owns: the queue of what standard output has not taken. It must not know what a line says.

use springline_engine::downstream::outgoing::Outgoing;
use springline_proto::frame::{Line, LineFramer};
use springline_proto::json::Pieces;
use tokio::sync::{mpsc, oneshot, watch};

use super::Deaf;
use super::stream::{Input, Output};
use super::thread::{self, ANSWERS_MAX};

/// Bytes read at once: what a pipe holds by default.
const READ_MAX: usize = 64 * 1024;

/// Bytes that may wait for standard output; [`ANSWERS_MAX`] lines may, whatever their length.
const WAITING_MAX: usize = 256 * 1024;

/// The lines of the client.
pub(super) enum Lines {
    /// A thread reads them.
    Thread(mpsc::Receiver<Line>),
    /// They are read as they come.
    Stream(Box<Reader>),
}

pub(super) struct Reader {
    stream: Input,
    framer: LineFramer,
    buffer: Vec<u8>,
    is_over: bool,
}

impl Lines {
    /// Takes standard input over.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn open(line_max: usize) -> std::io::Result<Self> {
        let Some(stream) = Input::open() else {
            return thread::read(line_max).map(Self::Thread);
        };
        Ok(Self::Stream(Box::new(Reader {
            stream,
            framer: LineFramer::new(line_max),
            buffer: vec![0; READ_MAX],
            is_over: false,
        })))
    }

    /// The next line; nothing after the last. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Line> {
        match self {
            Self::Thread(lines) => lines.recv().await,
            Self::Stream(reader) => reader.next().await,
        }
    }
}

impl Reader {
    async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.framer.next() {
                return Some(line);
            }
            if self.is_over {
                return self.framer.finish();
            }
            // An error is an end as well.
            let count = self.stream.read(&mut self.buffer).await.unwrap_or(0);
            self.is_over = count == 0;
            self.framer
                .push(self.buffer.get(..count).unwrap_or_default());
        }
    }
}

/// The lines for the client.
pub(super) enum Answers {
    /// A thread writes them.
    Thread {
        out: mpsc::Sender<Pieces>,
        flushed: oneshot::Receiver<()>,
    },
    /// They are written when nothing else is to be done.
    Stream {
        out: Outgoing<Output>,
        /// How many were put since nothing waited.
        lines: usize,
    },
}

impl Answers {
    /// Takes standard output over. `broken` is told if a thread cannot write any more.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn open(broken: watch::Sender<bool>) -> std::io::Result<Self> {
        if let Some(stream) = Output::open() {
            let out = Outgoing::new(stream);
            return Ok(Self::Stream { out, lines: 0 });
        }
        let (out, flushed) = thread::write(broken)?;
        Ok(Self::Thread { out, flushed })
    }

    /// Takes a line; waits while too many wait. Not cancel safe.
    ///
    /// # Errors
    /// Nobody reads.
    pub(super) async fn put(&mut self, data: Pieces) -> Result<(), Deaf> {
        match self {
            Self::Thread { out, .. } => out.send(data).await.map_err(|_| Deaf),
            Self::Stream { out, lines } => {
                *lines = if out.is_empty() { 1 } else { *lines + 1 };
                out.put("", &data.one_line());
                if *lines > ANSWERS_MAX && out.len() > WAITING_MAX {
                    out.flush().await.map_err(|_| Deaf)?;
                }
                Ok(())
            }
        }
    }

    /// Writes what waits, as far as that is to be done here. Cancel safe.
    ///
    /// # Errors
    /// Nobody reads.
    pub(super) async fn flush(&mut self) -> Result<(), Deaf> {
        match self {
            Self::Stream { out, .. } if !out.is_empty() => out.flush().await.map_err(|_| Deaf),
            Self::Stream { .. } | Self::Thread { .. } => Ok(()),
        }
    }

    /// Writes what waits whenever that is possible; ends only when nobody reads. Cancel safe.
    pub(super) async fn work(&mut self) -> Deaf {
        match self.flush().await {
            Ok(()) => std::future::pending().await,
            Err(deaf) => deaf,
        }
    }

    /// Waits until all is written, or cannot be.
    pub(super) async fn close(mut self) {
        // That nobody reads is no news at the end.
        self.flush().await.unwrap_or_default();
        if let Self::Thread { out, flushed } = self {
            drop(out);
            drop(flushed.await);
        }
    }
}
