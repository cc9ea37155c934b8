//! A reload that an operator asks for: `POST /api/reload`.
//!
//! Owns the way from the request to whoever owns the configuration, and the answer. It must not know
//! where a configuration comes from.

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::{Answer, Refusal, reply};
use crate::gateway::Changes;

/// Reloads that may wait; they come one after the other, and people ask for them.
const WAITING_MAX: usize = 16;

/// What a reload did.
#[derive(Clone, Debug, Default)]
pub struct Reloaded {
    /// By entry.
    pub changes: Changes,
    /// What the operator should know: a setting that counts from the next start, for example.
    pub notes: Vec<String>,
}

/// Why the configuration was refused, with file and line: nothing changed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReloadRefused(pub String);

/// Where the answer to one reload goes.
pub(super) type Reply = oneshot::Sender<Result<Reloaded, ReloadRefused>>;

/// The reloads that were asked for.
pub type Reloads = mpsc::Receiver<Reply>;

/// Takes requests in.
pub(super) struct Desk {
    ask: mpsc::Sender<Reply>,
    /// Until somebody takes it.
    reloads: Mutex<Option<Reloads>>,
}

impl Desk {
    pub(super) fn new() -> Self {
        let (ask, reloads) = mpsc::channel(WAITING_MAX);
        Self {
            ask,
            reloads: Mutex::new(Some(reloads)),
        }
    }

    pub(super) fn take(&self) -> Option<Reloads> {
        self.reloads.lock().take()
    }

    /// Asks for a reload and waits for it. Cancel safe: the reload happens all the same.
    pub(super) async fn ask(&self) -> Result<Answer, Refusal> {
        let gone = || {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "stopping",
                "the gateway is stopping and takes no configuration any more",
            )
        };
        if self.reloads.lock().is_some() {
            // Nobody ever took it: there is no configuration to read again.
            return Err(gone());
        }
        let (answer, done) = oneshot::channel();
        self.ask.send(answer).await.map_err(|_| gone())?;
        match done.await {
            Ok(Ok(Reloaded { changes, notes })) => Ok(reply(&json!({
                "added": changes.added,
                "removed": changes.removed,
                "changed": changes.changed,
                "kept": changes.kept,
                "notes": notes,
            }))),
            Ok(Err(ReloadRefused(reason))) => {
                Err(Refusal::new(StatusCode::CONFLICT, "config_refused", reason))
            }
            Err(_) => Err(gone()),
        }
    }
}
