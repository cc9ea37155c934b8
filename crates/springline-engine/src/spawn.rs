//! The one place that spawns tasks.
//!
//! Owns: the name that every task carries in the logs, and work that needs no task of its own. It
//! must not know what a task does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Spawns `future` under a span that carries `name`, a short noun phrase from the code ("stdio
/// reader"), never something that a peer sent.
///
/// Dropping the handle detaches the task; it runs on until it ends or the runtime stops.
///
/// # Panics
/// Outside a tokio runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that the ban points to"
)]
pub fn named<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    // A root: a task outlives the one that spawned it, and a chain of such tasks, each the child of
    // the last, would keep the spans of them all.
    let span = tracing::info_span!(parent: None, "task", name);
    tokio::spawn(future.instrument(span))
}

/// Runs `work`, which may block, on a thread of its own kind. Nobody waits for it.
///
/// # Panics
/// Outside a tokio runtime.
pub fn blocking(work: impl FnOnce() + Send + 'static) {
    drop(tokio::task::spawn_blocking(work));
}

/// Work that somebody waits for and runs in the task that waits: no other task takes a turn for it.
/// Dropped unfinished, it goes on in a task of its own.
pub(crate) struct Work {
    name: &'static str,
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Work {
    /// Runs on until it waits. Says whether it is done.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(future) = &mut self.future {
            match future.as_mut().poll(cx) {
                Poll::Ready(()) => self.future = None,
                Poll::Pending => return false,
            }
        }
        true
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Without a runtime nothing goes on.
        if let Some(future) = self.future.take()
            && Handle::try_current().is_ok()
        {
            named(self.name, future);
        }
    }
}

/// Room for one piece of work that an input causes, at the side of whoever brings the input.
#[derive(Default)]
pub struct Errand {
    has_room: bool,
    work: Option<Work>,
}

impl Errand {
    /// No room: all work gets a task of its own.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Room for one.
    pub(crate) fn one() -> Self {
        Self {
            has_room: true,
            work: None,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.has_room
    }

    /// Takes work on; only where there is room.
    pub(crate) fn take_on(
        &mut self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.has_room = false;
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        // A piece that is there already would go on in a task of its own.
        self.work = Some(Work {
            name,
            future: Some(future),
        });
    }

    /// What was taken on.
    pub(crate) fn into_work(self) -> Option<Work> {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_goes_on_by_itself() {
        let (start, begun) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let mut errand = Errand::one();
        errand.take_on("test", async move {
            begun.await.unwrap();
            tell.send(7).unwrap();
        });
        assert!(!errand.has_room(), "there is room for one");
        let mut work = errand.into_work().unwrap();
        poll_fn(|cx| {
            assert!(!work.poll(cx), "it waits");
            Poll::Ready(())
        })
        .await;
        drop(work);
        start.send(()).unwrap();
        assert_eq!(told.await, Ok(7));
    }

    #[test]
    fn work_ends_where_there_is_no_runtime() {
        let mut errand = Errand::one();
        errand.take_on("test", std::future::pending());
        drop(errand.into_work());
        assert!(!Errand::none().has_room());
    }
}
