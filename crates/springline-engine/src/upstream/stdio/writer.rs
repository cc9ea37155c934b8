//! Writing to a child's stdin, one line after the other.
//!
//! Owns the order of the lines and the knowledge whether a byte of one left (I4 rests on it). Must
//! not know what a line says.

use std::io::{self, IoSlice};
use std::sync::Arc;

use springline_proto::call::ExchangeId;
use springline_proto::json::Pieces;
use springline_proto::upstream::{End, Input};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::instance::Instance;

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
    /// The message that was under way, and whether a byte of it had left.
    current: Option<(ExchangeId, bool)>,
    queue: mpsc::Receiver<Outgoing>,
}

impl Unwritten {
    /// Reports all of it with the cause of the loss, in order; new messages are refused from now on.
    pub(super) fn report(mut self, instance: &Instance, cause: &str) {
        let cause = || cause.into();
        match self.current {
            // A line without its end is no message, but a server may have read it all the same.
            Some((exchange, true)) => report(instance, exchange, End::Broken { cause: cause() }),
            Some((exchange, false)) => report(instance, exchange, End::NotSent { cause: cause() }),
            None => {}
        }
        self.queue.close();
        while let Ok(Outgoing { exchange, body }) = self.queue.try_recv() {
            instance.dequeued(body.len());
            report(instance, exchange, End::NotSent { cause: cause() });
        }
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
    loop {
        let message = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {
                return Some(Unwritten { current: None, queue });
            }
            message = queue.recv() => message,
        };
        let Outgoing { exchange, body } = message?;
        let mut started = false;
        let written = tokio::select! {
            biased;
            written = write_line(&mut stdin, &body, &mut started) => written,
            _ = stop.wait_for(|stop| *stop) => Err(io::ErrorKind::BrokenPipe.into()),
        };
        instance.dequeued(body.len());
        if let Err(error) = written {
            tracing::debug!(%error, started, "stdin of a child is broken");
            let current = Some((exchange, started));
            return Some(Unwritten { current, queue });
        }
        report(&instance, exchange, End::Accepted);
    }
}

fn report(instance: &Instance, exchange: ExchangeId, end: End) {
    instance.report(Input::Ended {
        generation: instance.generation(),
        exchange,
        end,
    });
}

/// Writes the segments and a line end. Sets `started` as soon as one byte has left, so that it holds
/// even if this is cancelled.
async fn write_line(stdin: &mut pipe::Sender, body: &Pieces, started: &mut bool) -> io::Result<()> {
    let segments = body.iter().map(|segment| IoSlice::new(segment));
    let mut slices: Vec<IoSlice<'_>> = segments.chain([IoSlice::new(b"\n")]).collect();
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        let count = stdin.write_vectored(rest).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        *started = true;
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
}
