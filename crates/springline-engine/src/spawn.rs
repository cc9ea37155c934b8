//! The one place that spawns tasks.
//!
//! Owns: the name that every task carries in the logs, and work that needs no task of its own. It
//! must not know what a task does.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
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

/// Who gave work away, and may take it back.
pub(crate) trait Recall: Send + Sync {
    /// Whether the work of this number is still wanted. Whoever takes it back from now on wakes `cx`.
    fn is_wanted(&self, number: u64, cx: &Context<'_>) -> bool;
}

/// Work, and who may take it back. It is no future around the work: that would be one more thing to
/// hold it, made and moved for each call.
struct Task {
    recall: Arc<dyn Recall>,
    number: u64,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.recall.is_wanted(self.number, cx) {
            self.future.as_mut().poll(cx)
        } else {
            Poll::Ready(())
        }
    }
}

/// Work that somebody waits for and runs in the task that waits: no other task takes a turn for it.
/// Dropped unfinished, it goes on in a task of its own.
pub(crate) struct Work {
    name: &'static str,
    task: Option<Task>,
}

impl Work {
    /// Runs on until it waits. Says whether it is done.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(task) = &mut self.task {
            match task.poll(cx) {
                Poll::Ready(()) => self.task = None,
                Poll::Pending => return false,
            }
        }
        true
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Without a runtime nothing goes on.
        if let Some(mut task) = self.task.take()
            && Handle::try_current().is_ok()
        {
            named(self.name, poll_fn(move |cx| task.poll(cx)));
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

    /// Takes work on, which `recall` knows by this number; only where there is room.
    pub(crate) fn take_on(
        &mut self,
        name: &'static str,
        (recall, number): (Arc<dyn Recall>, u64),
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.has_room = false;
        let task = Task {
            recall,
            number,
            future: Box::pin(future),
        };
        // A piece that is there already would go on in a task of its own.
        self.work = Some(Work {
            name,
            task: Some(task),
        });
    }

    /// What was taken on.
    pub(crate) fn into_work(self) -> Option<Work> {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// Wants all work until it is set.
    impl Recall for AtomicBool {
        fn is_wanted(&self, _: u64, _: &Context<'_>) -> bool {
            !self.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_goes_on_by_itself() {
        let (start, begun) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let mut errand = Errand::one();
        errand.take_on("test", (Arc::new(AtomicBool::default()), 1), async move {
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
        let recall = Arc::new(AtomicBool::default());
        errand.take_on("test", (recall, 1), std::future::pending());
        drop(errand.into_work());
        assert!(!Errand::none().has_room());
    }

    #[tokio::test]
    async fn work_that_is_taken_back_ends_without_another_turn() {
        let recall = Arc::new(AtomicBool::default());
        let (tell, told) = oneshot::channel::<()>();
        let mut errand = Errand::one();
        errand.take_on("test", (Arc::clone(&recall) as _, 1), async move {
            let _held = tell;
            std::future::pending::<()>().await;
        });
        let mut work = errand.into_work().unwrap();
        let mut poll = async || poll_fn(|cx| Poll::Ready(work.poll(cx))).await;
        assert!(!poll().await, "it waits");
        recall.store(true, Ordering::SeqCst);
        assert!(poll().await, "nobody wants it");
        assert!(told.await.is_err(), "what it held is let go");
    }
}
