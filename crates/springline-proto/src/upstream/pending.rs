//! A request that is not answered yet: where it is, and how long it waits.

use std::time::Duration;

use bytes::Bytes;

use crate::call::{ExchangeId, Generation, Moment, UpstreamId};
use crate::error::Outcome;
use crate::json;
use crate::message::Message;
use crate::method::{ListKind, Method, ReplayClass};
use crate::settings::{ReplayPolicy, UpstreamSettings};
use crate::upstream::hint::Hints;

/// What a request is for.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Nothing is sent: somebody waits for the instance to be ready.
    Start,
    /// A client's request.
    Client(Message),
    /// A ping of ours: the session may be gone.
    Ping,
    /// A subscription or log level that is made again after a recovery.
    Remake(Bytes),
    /// A list that is read again after a recovery.
    Reread(ListKind, Option<Bytes>),
}

/// Where a request is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// In the queue for a ready instance.
    Waiting,
    /// The connection was refused; it is tried again at this moment.
    Pausing(Moment),
    /// Refused for its credentials; these are being read again.
    Unauthorized,
    /// Refused for its credentials on a resumed session; the verdict on another request, which
    /// started first, decides.
    Parked,
    /// With an instance.
    Sent {
        generation: Generation,
        id: UpstreamId,
        exchange: ExchangeId,
    },
}

/// Whether a large answer goes by in stretches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stretches {
    /// It is held, and comes as one message.
    Never,
    Allowed,
    /// Some of it has passed: there can be no other answer, and no second try (I1).
    Begun,
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) task: Task,
    pub(super) method: Method,
    pub(super) place: Place,
    pub(super) stretches: Stretches,
    /// It was sent again once: the replay budget is spent (I5).
    pub(super) replayed: bool,
    /// It was sent again after an unknown outcome: whatever a later answer says, the first one may
    /// have run.
    pub(super) may_have_run: bool,
    /// It was sent with credentials of this epoch.
    pub(super) credential_epoch: u64,
    /// It was sent again with fresh credentials: that chance is spent.
    pub(super) reauthorized: bool,
    /// Since when connections are refused, and how often.
    pub(super) unreachable: Option<(Moment, u32)>,
    pub(super) accepted: Moment,
    heard: Moment,
    asking: u32,
    asking_since: Moment,
    asked: Duration,
}

impl Pending {
    pub(super) fn new(now: Moment, task: Task, method: Method) -> Self {
        Self {
            task,
            method,
            place: Place::Waiting,
            stretches: Stretches::Never,
            replayed: false,
            may_have_run: false,
            credential_epoch: 0,
            reauthorized: false,
            unreachable: None,
            accepted: now,
            heard: now,
            asking: 0,
            asking_since: now,
            asked: Duration::ZERO,
        }
    }

    /// Whether no client waits for it.
    pub(super) fn is_internal(&self) -> bool {
        !matches!(self.task, Task::Start | Task::Client(_))
    }

    /// Whether it sets up state: that must be done where it is used from now on, and is safe to
    /// repeat.
    pub(super) fn sets_up(&self) -> bool {
        matches!(
            self.method,
            Method::Subscribe | Method::Unsubscribe | Method::SetLevel
        )
    }

    /// What is known of its execution if it ends now.
    pub(super) fn outcome_if_dropped(&self) -> Outcome {
        match self.place {
            Place::Sent { .. } => Outcome::Unknown,
            Place::Waiting | Place::Pausing(_) | Place::Unauthorized | Place::Parked => {
                self.outcome_of(Outcome::NotExecuted)
            }
        }
    }

    /// What a verdict about the last try means for the request as a whole.
    pub(super) fn outcome_of(&self, last: Outcome) -> Outcome {
        match last {
            Outcome::NotExecuted if self.may_have_run => Outcome::Unknown,
            Outcome::NotExecuted | Outcome::Unknown | Outcome::Executed => last,
        }
    }

    /// Whether its answer has begun to pass.
    pub(super) fn is_passing(&self) -> bool {
        self.stretches == Stretches::Begun
    }

    /// Whether it may be sent again though it may have run (I4).
    pub(super) fn is_repeatable(&self, settings: &UpstreamSettings) -> bool {
        self.method.replay_class() == ReplayClass::Safe || self.is_safe_tool(settings)
    }

    /// Whether it may be sent again after the server refused it for want of a session.
    pub(super) fn survives_session_loss(&self, settings: &UpstreamSettings, hints: &Hints) -> bool {
        match settings.replay {
            ReplayPolicy::AfterSessionLoss => true,
            ReplayPolicy::Annotated => self.is_repeatable(settings) || self.is_hinted(hints),
            ReplayPolicy::Never => self.is_repeatable(settings),
        }
    }

    fn is_hinted(&self, hints: &Hints) -> bool {
        let Task::Client(message) = &self.task else {
            return false;
        };
        self.method == Method::ToolsCall && hints.has(message.param("name").as_ref())
    }

    fn is_safe_tool(&self, settings: &UpstreamSettings) -> bool {
        let Task::Client(message) = &self.task else {
            return false;
        };
        if self.method != Method::ToolsCall || settings.safe_tools.is_empty() {
            return false;
        }
        let name = message.param("name");
        let name = name.as_deref().and_then(json::string);
        name.is_some_and(|name| settings.safe_tools.iter().any(|tool| *tool == name))
    }

    /// A message on this call came: its patience starts anew.
    pub(super) fn heard(&mut self, now: Moment) {
        self.heard = self.heard.max(now);
    }

    /// The client is asked, or has answered. The clock stands still meanwhile.
    pub(super) fn asking(&mut self, now: Moment, begins: bool) {
        if begins {
            if self.asking == 0 {
                self.asking_since = now;
            }
            self.asking = self.asking.saturating_add(1);
        } else if self.asking > 0 {
            self.asking -= 1;
            if self.asking == 0 {
                let span = now.since(self.asking_since);
                self.asked = self.asked.saturating_add(span);
                self.heard = self.heard.after(span);
            }
        }
    }

    /// Nothing is asked for it any more; the next message, or sending it, starts its patience anew.
    pub(super) fn asked_no_more(&mut self) {
        self.asking = 0;
    }

    /// When its patience ends.
    pub(super) fn expires(&self, settings: &UpstreamSettings) -> Option<Moment> {
        if self.asking > 0 {
            return None;
        }
        let hard = self
            .accepted
            .after(settings.call_timeout_max)
            .after(self.asked);
        Some(self.heard.after(settings.call_timeout).min(hard))
    }

    pub(super) fn next_deadline(&self, settings: &UpstreamSettings) -> Option<Moment> {
        let expires = self.expires(settings);
        match self.place {
            Place::Pausing(at) => Some(expires.map_or(at, |end| end.min(at))),
            Place::Waiting | Place::Unauthorized | Place::Parked | Place::Sent { .. } => expires,
        }
    }
}
