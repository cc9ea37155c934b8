//! Who an upstream belongs to: one session, all that share it, or nobody any more.

use std::sync::{Arc, Weak};

use springline_proto::call::{CallKey, SessionKey};
use springline_proto::session::Input as SessionInput;
use springline_proto::upstream::{Input, Moved, SessionEvent};
use springline_store::SessionDigest;

use super::global::GlobalCell;
use super::session::SessionCell;
use super::upstream::UpstreamCell;
use crate::spawn::Errand;

/// The home of an upstream.
#[derive(Clone)]
pub(crate) enum Home {
    /// One session.
    Session(Weak<SessionCell>),
    /// Several sessions.
    Global(Weak<GlobalCell>),
    /// Nobody: it is only there to be ended.
    Nobody,
}

impl Home {
    fn session(&self, key: SessionKey) -> Option<Arc<SessionCell>> {
        match self {
            Self::Session(session) => session.upgrade(),
            Self::Global(global) => global.upgrade()?.session(key),
            Self::Nobody => None,
        }
    }

    /// Tells a session what happened to the server that it knows by this name.
    pub(super) fn tell(&self, session: SessionKey, server: Arc<str>, event: SessionEvent) {
        if let Some(session) = self.session(session) {
            session.input(SessionInput::Upstream { server, event });
        }
    }

    /// Passes a request on to whatever its session uses by this name now. What several sessions share
    /// keeps its own requests.
    pub(super) fn pass_on(&self, server: &Arc<str>, key: CallKey, moved: Box<Moved>) {
        let input = Input::Take { key, moved };
        if let (SessionKey::SHARED, Self::Global(global)) = (key.session, self) {
            if let Some(global) = global.upgrade() {
                global.take(input);
            }
        } else if let Some(session) = self.session(key.session) {
            session.to_upstream(server, input, &mut Errand::none());
        }
    }

    /// The last call of an upstream on its way out is over.
    pub(super) fn left(&self, cell: &Arc<UpstreamCell>) {
        match self {
            Self::Session(session) => {
                if let Some(session) = session.upgrade() {
                    session.left(cell);
                }
            }
            Self::Global(global) => {
                if let Some(global) = global.upgrade() {
                    global.left(cell);
                }
            }
            Self::Nobody => {}
        }
    }

    /// What stands for a session at rest, if it outlives the process. `owner` stands for whom the
    /// upstream belongs to.
    pub(super) fn at_rest(
        &self,
        owner: SessionDigest,
        session: SessionKey,
    ) -> Option<SessionDigest> {
        match self {
            Self::Session(_) => Some(owner),
            Self::Global(_) => self.session(session)?.at_rest_key(),
            Self::Nobody => None,
        }
    }
}
