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
    tokio::spawn(future.instrument(tracing::info_span!("task", name)))
}
