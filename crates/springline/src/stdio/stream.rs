//! One of the standard streams on the reactor, for as long as it is a pipe or a socket: no thread
//! has to be woken for a message.
//!
//! Owns: that reads and writes do not wait, although other processes may share the stream and rely
//! on theirs to. It must not know lines.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags};
use springline_engine::reactor::{Room, register};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, Interest};

/// What `fstatfs` says of a pipe without a name (statfs(2), `PIPEFS_MAGIC`).
const PIPEFS: u64 = 0x5049_5045;

/// Standard input.
#[derive(Debug)]
pub(super) struct Input(AsyncFd<Own>);

/// Standard output.
#[derive(Debug)]
pub(super) struct Output {
    own: Own,
    room: Room,
}

/// A stream that is ours alone, or used as if it were. `O_NONBLOCK` belongs to the open file, which
/// whoever started us may share: it is set on nothing that is not ours.
#[derive(Debug)]
enum Own {
    /// The same pipe, opened once more.
    Pipe(OwnedFd),
    /// Each call says that it must not wait.
    Socket(OwnedFd),
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (Self::Pipe(fd) | Self::Socket(fd)) = self;
        fd.as_fd()
    }
}

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Own {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self {
            Self::Pipe(fd) => retry_on_intr(|| rustix::io::read(fd, &mut *buffer))?,
            Self::Socket(fd) => {
                let flags = RecvFlags::DONTWAIT;
                let (count, _) = retry_on_intr(|| rustix::net::recv(fd, &mut *buffer, flags))?;
                count
            }
        };
        Ok(count)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let count = match self {
            Self::Pipe(fd) => retry_on_intr(|| rustix::io::write(fd, bytes)),
            Self::Socket(fd) => retry_on_intr(|| rustix::net::send(fd, bytes, flags)),
        };
        Ok(count?)
    }
}

impl Own {
    /// A stream, unless only a thread can wait for it: a file, a terminal, a pipe with a name, or a
    /// pipe that may not be opened once more.
    fn take(shared: BorrowedFd<'_>, access: OFlags) -> io::Result<Option<Self>> {
        Ok(
            match FileType::from_raw_mode(rustix::fs::fstat(shared)?.st_mode) {
                // One with a name tells nothing of writers that went before it was opened.
                FileType::Fifo if is_nameless(shared)? => {
                    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
                    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    Some(Self::Pipe(rustix::fs::open(path, flags, Mode::empty())?))
                }
                FileType::Socket => Some(Self::Socket(shared.try_clone_to_owned()?)),
                _ => None,
            },
        )
    }
}

impl Input {
    /// Standard input, if it can be waited for on the reactor.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn open() -> Option<Self> {
        told(Self::take(io::stdin().as_fd()))
    }

    fn take(shared: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let own = Own::take(shared, OFlags::RDONLY)?;
        let registered = own.map(|own| register(own, Interest::READABLE));
        Ok(registered.transpose()?.map(Self))
    }

    /// Reads some bytes; zero at the end. Cancel safe.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|own| own.get_ref().read(buffer)) {
                Ok(Ok(count)) => {
                    // Less than was asked for is all that there is; what comes later is told anew,
                    // and an end is told for good.
                    if (1..buffer.len()).contains(&count) {
                        ready.clear_ready();
                    }
                    return Ok(count);
                }
                Ok(failed) => return failed,
                Err(_) => {}
            }
        }
    }
}

impl Output {
    /// Standard output, if it can be waited for on the reactor.
    pub(super) fn open() -> Option<Self> {
        told(Self::take(io::stdout().as_fd()))
    }

    fn take(shared: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let own = Own::take(shared, OFlags::WRONLY)?;
        let room = Room::default();
        Ok(own.map(|own| Self { own, room }))
    }
}

impl AsyncWrite for Output {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { own, room } = self.get_mut();
        room.poll_write(cx, own, |own| own.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn is_nameless(pipe: BorrowedFd<'_>) -> io::Result<bool> {
    let found = rustix::fs::fstatfs(pipe)?;
    Ok(u64::try_from(found.f_type).is_ok_and(|kind| kind == PIPEFS))
}

/// A stream that cannot be had is left to a thread.
fn told<T>(taken: io::Result<Option<T>>) -> Option<T> {
    taken.unwrap_or_else(|error| {
        tracing::debug!(%error, "a standard stream is left to a thread");
        None
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _, pipe};
    use std::os::unix::net::UnixStream;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn input(fd: impl AsFd) -> Option<Input> {
        Input::take(fd.as_fd()).unwrap()
    }

    fn output(fd: impl AsFd) -> Output {
        Output::take(fd.as_fd()).unwrap().unwrap()
    }

    fn is_blocking(fd: impl AsFd) -> bool {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        !flags.contains(OFlags::NONBLOCK)
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_and_stays_as_it_was_for_others() {
        let (theirs, mut writer) = pipe().unwrap();
        let stream = input(&theirs).unwrap();
        assert!(is_blocking(&theirs));
        let mut buffer = [0; 4];
        for text in ["abcd", "ef"] {
            writer.write_all(text.as_bytes()).unwrap();
            let count = stream.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..count], text.as_bytes());
        }
        // The end comes together with what was written last.
        writer.write_all(b"g").unwrap();
        drop(writer);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 1);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_was_written_and_closed_before_is_read() {
        let (theirs, mut writer) = pipe().unwrap();
        writer.write_all(b"ab").unwrap();
        drop(writer);
        let stream = input(&theirs).unwrap();
        let mut buffer = [0; 4];
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 2);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_full_pipe_is_waited_for() {
        let (mut reader, theirs) = pipe().unwrap();
        let mut stream = output(&theirs);
        assert!(is_blocking(&theirs));
        drop(theirs);
        let sent = vec![b'x'; 1 << 20];
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        stream.write_all(&sent).await.unwrap();
        drop(stream);
        assert!(read.join().unwrap() == sent);
    }

    #[tokio::test]
    async fn a_pipe_without_a_reader_is_an_error() {
        let (reader, theirs) = pipe().unwrap();
        let mut stream = output(&theirs);
        drop(reader);
        let error = stream.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_socket_is_used_in_both_directions_and_stays_as_it_was_for_others() {
        let (theirs, mut client) = UnixStream::pair().unwrap();
        let input = input(&theirs).unwrap();
        let mut output = output(&theirs);
        client.write_all(b"ab").unwrap();
        let mut buffer = [0; 4];
        assert_eq!(input.read(&mut buffer).await.unwrap(), 2);
        let sent = vec![b'x'; 1 << 20];
        let read = std::thread::spawn(move || {
            let mut all = vec![0; 1 << 20];
            client.read_exact(&mut all).unwrap();
            all
        });
        output.write_all(&sent).await.unwrap();
        assert!(
            read.join().unwrap() == sent,
            "what does not fit is waited for"
        );
        assert_eq!(input.read(&mut buffer).await.unwrap(), 0);
        assert!(is_blocking(&theirs));
    }

    #[tokio::test]
    async fn files_and_devices_are_left_to_a_thread() {
        let file = tempfile::tempfile().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for fd in [file.as_fd(), null.as_fd()] {
            assert!(input(fd).is_none());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("named");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let named = std::fs::File::options().read(true).write(true).open(&path);
        assert!(input(named.unwrap()).is_none());
    }
}
