//! Writing to a child's stdin, one line after the other.
//!
//! Owns the order of the lines and the knowledge whether a byte of one left (I4 rests on it). What
//! waits already leaves in one write. Must not know what a line says.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use springline_proto::call::ExchangeId;
use springline_proto::json::Pieces;
use springline_proto::upstream::{End, Input};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::instance::Instance;

/// Messages that leave in one write at most.
const TOGETHER_MAX: usize = 64;

/// Bytes that do, but for one message that is longer by itself: half of what a pipe holds by default.
const TOGETHER_BYTES_MAX: usize = 32 * 1024;

/// A message that waits to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) exchange: ExchangeId,
    /// Without raw line ends.
    pub(super) body: Pieces,
}

/// What a broken stdin left unwritten.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// The messages that were under way.
    batch: Batch,
    queue: mpsc::Receiver<Outgoing>,
}

impl Unwritten {
    /// Reports all of it with the cause of the loss, in order; new messages are refused from now on.
    pub(super) fn report(mut self, instance: &Instance, cause: &str) {
        let cause = || cause.into();
        self.queue.close();
        let mut started = self.batch.written > 0;
        let mut rest = self.batch.messages;
        while let Some(Outgoing { exchange, body }) =
            rest.pop_front().or_else(|| self.queue.try_recv().ok())
        {
            instance.dequeued(body.len());
            // A line without its end is no message, but a server may have read it all the same.
            let end = if std::mem::take(&mut started) {
                End::Broken { cause: cause() }
            } else {
                End::NotSent { cause: cause() }
            };
            report(instance, exchange, end);
        }
    }
}

/// Messages that are being written.
#[derive(Debug, Default)]
struct Batch {
    messages: VecDeque<Outgoing>,
    /// Bytes of all, with a line end each.
    len: usize,
    /// Bytes of the first that have left.
    written: usize,
}

impl Batch {
    fn push(&mut self, message: Outgoing) {
        self.len += message.body.len() + 1;
        self.messages.push_back(message);
    }

    fn has_room(&self) -> bool {
        self.messages.len() < TOGETHER_MAX && self.len < TOGETHER_BYTES_MAX
    }

    /// Tries to write all of it, in one write. Cancel safe: what left is told in `self`.
    async fn write(&mut self, stdin: &mut pipe::Sender) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(2 * self.messages.len());
        for message in &self.messages {
            slices.extend(message.body.iter().map(|segment| IoSlice::new(segment)));
            slices.push(IoSlice::new(b"\n"));
        }
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, self.written);
        match stdin.write_vectored(rest).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            count => {
                self.written += count;
                Ok(())
            }
        }
    }

    /// The next message that has left as a whole.
    fn done(&mut self) -> Option<Outgoing> {
        let len = self.messages.front()?.body.len() + 1;
        self.written = self.written.checked_sub(len)?;
        self.len -= len;
        self.messages.pop_front()
    }
}

/// Writes until stdin breaks or `stop` turns true, and returns what was not written; or until the
/// queue is closed and empty (none). Then stdin is closed; so it is on cancellation.
pub(super) async fn run(
    instance: Arc<Instance>,
    mut stdin: pipe::Sender,
    mut queue: mpsc::Receiver<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> Option<Unwritten> {
    let mut batch = Batch::default();
    loop {
        if batch.messages.is_empty() {
            let message = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Some(Unwritten { batch, queue }),
                message = queue.recv() => message,
            };
            batch.push(message?);
        }
        while batch.has_room()
            && let Ok(message) = queue.try_recv()
        {
            batch.push(message);
        }
        let written = tokio::select! {
            biased;
            written = batch.write(&mut stdin) => written,
            _ = stop.wait_for(|stop| *stop) => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if let Err(error) = written {
            let started = batch.written > 0;
            tracing::debug!(%error, started, "stdin of a child is broken");
            return Some(Unwritten { batch, queue });
        }
        while let Some(Outgoing { exchange, body }) = batch.done() {
            instance.dequeued(body.len());
            report(&instance, exchange, End::Accepted);
        }
    }
}

fn report(instance: &Instance, exchange: ExchangeId, end: End) {
    instance.report(Input::Ended {
        generation: instance.generation(),
        exchange,
        end,
    });
}
