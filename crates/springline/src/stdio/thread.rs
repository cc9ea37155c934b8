//! Standard streams that only a thread can wait for: files, terminals, devices.
//!
//! Owns: the threads that read and write, and the one that notices that the reader has gone. It must
//! not know what a line says.

use std::io::{Read as _, Write as _};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use springline_proto::frame::{Line, LineFramer};
use springline_proto::json::Pieces;
use tokio::sync::{mpsc, oneshot, watch};

/// Lines between the reading thread and the loop. A line may be as large as the cap, so this bounds
/// what an eager client can make us hold; when it is full, standard input is not read.
pub(super) const LINES_MAX: usize = 4;

/// Lines between the loop and the writing thread; when it is full, the loop waits.
pub(super) const ANSWERS_MAX: usize = 16;

/// Reads standard input until its end.
///
/// # Errors
/// The system gives no thread.
pub(super) fn read(line_max: usize) -> std::io::Result<mpsc::Receiver<Line>> {
    let (to_lines, lines) = mpsc::channel(LINES_MAX);
    // A thread of its own: the runtime would wait for a read of standard input to return.
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read_lines(&to_lines, line_max))?;
    Ok(lines)
}

/// Takes lines for standard output, and tells when all were written.
///
/// # Errors
/// As for [`read`].
pub(super) fn write(
    broken: watch::Sender<bool>,
) -> std::io::Result<(mpsc::Sender<Pieces>, oneshot::Receiver<()>)> {
    let (out, answers) = mpsc::channel(ANSWERS_MAX);
    let (to_flushed, flushed) = oneshot::channel();
    std::thread::Builder::new()
        .name("stdout".to_owned())
        .spawn(move || {
            if write_lines(answers).is_err() {
                broken.send_replace(true);
            }
            // The receiver may be gone; then nobody waits.
            to_flushed.send(()).unwrap_or_default();
        })?;
    Ok((out, flushed))
}

/// Notices that the reader of standard output has gone although nothing is written; with a file or
/// a null device, never.
///
/// # Errors
/// As for [`read`].
pub(super) fn watch(broken: watch::Sender<bool>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("stdout watch".to_owned())
        .spawn(move || watch_stdout(&broken))
        .map(drop)
}

fn read_lines(lines: &mpsc::Sender<Line>, line_max: usize) {
    let mut framer = LineFramer::new(line_max);
    let mut chunk = vec![0; 64 * 1024];
    let mut input = std::io::stdin().lock();
    loop {
        let count = match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        framer.push(chunk.get(..count).unwrap_or_default());
        while let Some(line) = framer.next() {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    }
    if let Some(line) = framer.finish() {
        // The loop may have ended already.
        drop(lines.blocking_send(line));
    }
}

fn write_lines(mut answers: mpsc::Receiver<Pieces>) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    while let Some(first) = answers.blocking_recv() {
        let mut next = Some(first);
        // What waits already leaves in the same write.
        while let Some(data) = next {
            for segment in &data.one_line() {
                out.write_all(segment)?;
            }
            out.write_all(b"\n")?;
            next = answers.try_recv().ok();
        }
        out.flush()?;
    }
    Ok(())
}

/// Blocks until the reader of standard output has gone; with a file or a null device, for ever.
fn watch_stdout(broken: &watch::Sender<bool>) {
    let out = std::io::stdout();
    // No event is asked for: errors and hang-ups are told anyway.
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    loop {
        match poll(&mut polled, None) {
            Ok(_) => {
                broken.send_replace(true);
                return;
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
