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

use super::instance::{GONE, Instance};

/// A message that waits to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) exchange: ExchangeId,
    /// Without raw line ends.
    pub(super) body: Pieces,
}

/// Writes until the queue is closed and empty, stdin breaks, or `stop` turns true; then reports
/// what was not written, and closes stdin. Cancelled, it closes stdin without a report.
pub(super) async fn run(
    instance: Arc<Instance>,
    mut stdin: pipe::Sender,
    mut queue: mpsc::Receiver<Outgoing>,
    mut stop: watch::Receiver<bool>,
) {
    let mut cause = GONE;
    loop {
        let message = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            message = queue.recv() => message,
        };
        let Some(Outgoing { exchange, body }) = message else {
            return;
        };
        let mut started = false;
        let written = tokio::select! {
            biased;
            written = write_line(&mut stdin, &body, &mut started) => written,
            _ = stop.wait_for(|stop| *stop) => Err(io::ErrorKind::BrokenPipe.into()),
        };
        instance.dequeued(body.len());
        let Err(error) = written else {
            report(&instance, exchange, End::Accepted);
            continue;
        };
        tracing::debug!(%error, started, "stdin of a child is broken");
        if !*stop.borrow() {
            cause = "the server has closed its stdin";
        }
        let cause = cause.into();
        // A line without its end is no message, but a server may have read it all the same.
        let end = if started {
            End::Broken { cause }
        } else {
            End::NotSent { cause }
        };
        report(&instance, exchange, end);
        break;
    }
    queue.close();
    while let Some(message) = queue.recv().await {
        instance.dequeued(message.body.len());
        report(
            &instance,
            message.exchange,
            End::NotSent {
                cause: cause.into(),
            },
        );
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
