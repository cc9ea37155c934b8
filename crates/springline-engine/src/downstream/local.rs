//! A connection on the unix socket, of which only what comes in wakes its task.
//!
//! Owns: its two directions. It must not know what is said.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::reactor::{Room, register};

/// Such a connection.
#[derive(Debug)]
pub struct LocalStream {
    socket: AsyncFd<UnixStream>,
    room: Room,
}

impl LocalStream {
    /// Takes a connection over, on the reactor of this task.
    ///
    /// # Errors
    /// The reactor does not take it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
            room: Room::default(),
        })
    }
}

impl AsyncRead for LocalStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let room = buffer.initialize_unfilled();
            match ready.get_inner().read(room) {
                Ok(count) => {
                    // Less than there is room for is all that there is; an end is told for good.
                    if count > 0 && count < room.len() {
                        ready.clear_ready();
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for LocalStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { socket, room } = self.get_mut();
        room.poll_write(cx, socket.get_ref(), |mut socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { socket, room } = self.get_mut();
        room.poll_write(cx, socket.get_ref(), |mut socket| {
            socket.write_vectored(slices)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (LocalStream, LocalStream) {
        let (left, right) = UnixStream::pair().unwrap();
        let new = |stream| LocalStream::new(stream).unwrap();
        (new(left), new(right))
    }

    #[tokio::test]
    async fn more_than_fits_is_waited_for_and_the_end_is_seen() {
        let (mut ours, mut theirs) = pair();
        let sent = vec![b'x'; 4 << 20];
        let write = async {
            ours.write_all(&sent).await.unwrap();
            assert!(!ours.room.is_awaited());
            ours.shutdown().await.unwrap();
            let mut answer = [0; 8];
            let count = ours.read(&mut answer).await.unwrap();
            answer[..count].to_vec()
        };
        let read = async {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap();
            theirs.write_all(b"done").await.unwrap();
            all
        };
        let (answer, all) = tokio::join!(write, read);
        assert!(all == sent);
        assert_eq!(answer, b"done");
    }

    #[tokio::test]
    async fn an_end_right_behind_the_last_words_is_seen() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"last").await.unwrap();
        drop(theirs);
        let mut buffer = [0; 64];
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 4);
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 0);
        let broken = ours.write_all(b"x").await.unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }
}
