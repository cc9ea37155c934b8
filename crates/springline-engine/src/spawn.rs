//! The one place that spawns tasks.
//!
//! Owns: the name that every task carries in the logs. It must not know what a task does.

use std::future::Future;

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
