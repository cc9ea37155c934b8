//! The stdio transport: servers that are children of the gateway (2025-11-25 basic/transports).
//!
//! Owns the instances of one server entry: their start, their pipes, their end. Must not know what a
//! message means. What a child writes that is no message is counted and skipped; what it writes to
//! stderr is drained always and quoted when it is lost.

mod budget;
mod instance;
mod intake;
mod tail;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use springline_proto::call::{ExchangeId, Generation};
use springline_proto::json::Pieces;
use springline_proto::settings::BODY_MAX;
use springline_proto::upstream::{End, Input};
use tokio::sync::{mpsc, watch};

pub use self::budget::{LINE_BUFFERS_MAX, LineBudget};
use self::instance::Instance;
use self::writer::Outgoing;
use super::Sink;
pub use super::child::ChildSpec;
use crate::spawn;

/// The bounds of the transport.
#[derive(Clone, Debug)]
pub struct StdioLimits {
    /// The longest line that is kept, in bytes; of a longer one only the id is looked for.
    pub frame_max: usize,
    /// Messages that wait to be written to one child; one more is refused as not sent.
    pub queue_max: usize,
    /// Bytes that wait to be written to one child; a message waits alone whatever its size.
    pub queue_bytes_max: usize,
    /// From the end of stdin to SIGTERM.
    pub stdin_grace: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_grace: Duration,
    /// How long the end of a killed group is waited for.
    pub kill_grace: Duration,
    /// How long the pipes of a child are read after its exit, or its exit is waited for after it
    /// closed a pipe.
    pub exit_drain: Duration,
    /// What the unfinished lines of all children may hold together.
    pub line_budget: Arc<LineBudget>,
}

impl Default for StdioLimits {
    /// The graces are those that hosts commonly give.
    fn default() -> Self {
        Self {
            frame_max: BODY_MAX,
            queue_max: 1024,
            queue_bytes_max: 128 * 1024 * 1024,
            stdin_grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(3),
            kill_grace: Duration::from_secs(2),
            exit_drain: Duration::from_millis(500),
            line_budget: LineBudget::new(LINE_BUFFERS_MAX),
        }
    }
}

impl StdioLimits {
    /// The longest that the end of a child takes.
    fn end_max(&self) -> Duration {
        self.stdin_grace + self.term_grace + self.kill_grace + self.exit_drain
    }
}

/// What an operator may see of a child.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChildView {
    /// Which instance it is.
    pub generation: Generation,
    /// Its process and group; none while it starts.
    pub pid: Option<u32>,
    /// Whether its end was begun.
    pub ending: bool,
    /// Lines on its stdout that were no messages.
    pub lines_skipped: u64,
}

/// The children of one server entry. Dropping it begins the end of all.
#[derive(Debug)]
pub struct StdioTransport {
    spec: Arc<ChildSpec>,
    sink: Weak<dyn Sink>,
    limits: StdioLimits,
    /// Guards nothing but the table itself; never held across a call of the sink or a wait.
    children: Arc<Mutex<BTreeMap<Generation, Arc<Instance>>>>,
    /// How many instances have not come to their end.
    live: watch::Sender<usize>,
}

impl StdioTransport {
    /// A transport without children. Nothing is reported once the sink is gone.
    pub fn new(spec: ChildSpec, sink: Weak<dyn Sink>, limits: StdioLimits) -> Self {
        Self {
            spec: Arc::new(spec),
            sink,
            limits,
            children: Arc::default(),
            live: watch::Sender::new(0),
        }
    }

    /// Starts a child. Reports [`Input::Opened`], or [`Input::Lost`] if it cannot run.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(&self, generation: Generation) {
        self.open_holding(generation, ());
    }

    /// The same; `held` is dropped when the child is gone.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open_holding(&self, generation: Generation, held: impl Send + 'static) {
        let (queue, messages) = mpsc::channel(self.limits.queue_max.max(1));
        let instance = Arc::new(Instance::new(
            generation,
            Arc::clone(&self.spec.server),
            Weak::clone(&self.sink),
            queue,
        ));
        self.children
            .lock()
            .insert(generation, Arc::clone(&instance));
        self.live.send_modify(|live| *live += 1);
        let spec = Arc::clone(&self.spec);
        let limits = self.limits.clone();
        let children = Arc::clone(&self.children);
        let live = self.live.clone();
        spawn::named("stdio child", async move {
            instance::run(&instance, spec, messages, &limits).await;
            children.lock().remove(&generation);
            live.send_modify(|live| *live = live.saturating_sub(1));
            drop(held);
        });
    }

    /// Queues a message for a child. Ends in one [`Input::Ended`]: accepted once the whole line was
    /// written, not sent if provably no byte of it was, else broken. Nothing is reported for an
    /// instance that is lost or ended.
    pub fn send(&self, generation: Generation, exchange: ExchangeId, body: Pieces) {
        let Some(instance) = self.children.lock().get(&generation).cloned() else {
            return;
        };
        let message = Outgoing {
            exchange,
            body: body.one_line(),
        };
        if let Err(cause) = instance.enqueue(message, self.limits.queue_bytes_max) {
            instance.report(Input::Ended {
                generation,
                exchange,
                end: End::NotSent {
                    cause: cause.into(),
                },
            });
        }
    }

    /// Begins the end of a child: what is queued is written, stdin is closed, then SIGTERM and
    /// SIGKILL go to its group, each after its grace. Nothing more is reported of it, save an input
    /// that was on its way already.
    pub fn end(&self, generation: Generation) {
        if let Some(instance) = self.children.lock().get(&generation) {
            instance.end();
        }
    }

    /// Ends all children at once and waits for their exits, no longer than the graces together.
    /// Cancel safe: the ends go on.
    pub async fn shut_down(&self) {
        self.end_all();
        let mut live = self.live.subscribe();
        let all = live.wait_for(|live| *live == 0);
        if tokio::time::timeout(self.limits.end_max(), all)
            .await
            .is_err()
        {
            tracing::warn!(server = %self.spec.server, "a child outlasted SIGKILL");
        }
    }

    /// The children that have not come to their end, by generation.
    pub fn snapshot(&self) -> Vec<ChildView> {
        let children = self.children.lock();
        children.values().map(|instance| instance.view()).collect()
    }

    fn end_all(&self) {
        for instance in self.children.lock().values() {
            instance.end();
        }
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.end_all();
    }
}

#[cfg(test)]
mod tests;
