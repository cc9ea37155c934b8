//! Recognising that the server forgot the session, and what follows from it.

use crate::call::{Generation, Moment};
use crate::error;
use crate::settings::StateLossPolicy;
use crate::upstream::instance::Standing;
use crate::upstream::port::{Event, Refusal, Route, SessionEvent};
use crate::upstream::{Phase, Upstream};

/// Words beside "session" that mean that it is gone, in the 400 of servers that know no 404.
const GONE_WORDS: [&str; 6] = [
    "not found",
    "no valid",
    "invalid",
    "expired",
    "terminated",
    "unknown",
];

/// Whether this refusal says that the session is gone (DESIGN.md section 5). Only a request that
/// carried a session id can be told so: without one, 404 is a wrong URL.
pub(super) fn is_session_gone(refusal: &Refusal, route: &Route) -> bool {
    if route.session_id.is_none() {
        return false;
    }
    match refusal.status {
        404 => true,
        400 => is_gone_error(refusal.rpc_code, &refusal.text),
        _ => false,
    }
}

/// Whether a JSON-RPC error speaks of a lost session: -32001 always, -32000 and -32600 by words.
pub(super) fn is_gone_error(code: Option<i64>, text: &str) -> bool {
    match code {
        Some(-32001) => true,
        Some(-32000 | -32600) => {
            let text = text.to_ascii_lowercase();
            text.contains("session") && GONE_WORDS.iter().any(|words| text.contains(words))
        }
        _ => false,
    }
}

impl Refusal {
    /// Whether the answer to an `initialize` says that there is no MCP endpoint at its URL. Whoever
    /// answers with a JSON-RPC error is one.
    pub(super) fn is_no_endpoint(&self) -> bool {
        self.rpc_code.is_none()
            && match self.status {
                401 | 403 | 429 => false,
                404 | 405 | 410 | 501 => true,
                status => self.foreign && status < 500,
            }
    }

    /// The status and the server's words, cleaned.
    pub(super) fn for_people(&self) -> String {
        let mut text = format!("HTTP {}", self.status);
        if let Some(code) = self.rpc_code {
            text.push_str(", error ");
            text.push_str(&code.to_string());
        }
        let words = error::sanitise(&self.text, error::CAUSE_MAX);
        if !words.is_empty() {
            text.push_str(": ");
            text.push_str(&words);
        }
        text
    }
}

impl Upstream {
    /// The server does not know the session of this generation any more. A verdict about an older
    /// generation changes nothing (I3).
    pub(super) fn lose_session(&mut self, now: Moment, generation: Generation, refusal: &Refusal) {
        if !matches!(self.phase, Phase::Ready(ready) if ready == generation) {
            return;
        }
        self.leave_service(now, generation);
        if let Some(instance) = self.instances.get_mut(&generation) {
            instance.standing = Standing::Forgotten;
        }
        let cause = refusal.for_people();
        self.emit(Event::Lost {
            generation,
            exited: false,
            cause: cause.clone().into(),
        });
        self.note_state_loss(&format!("the server lost the session ({cause})"));
    }

    /// Tells the client, once for each loss, that what the server knew of it is gone.
    pub(super) fn note_state_loss(&mut self, reason: &str) {
        // Of no concern to the client once another machine serves it.
        let concerns = self.drain.is_none();
        if concerns && self.config.settings.on_state_loss != StateLossPolicy::Hide {
            let reason = error::sanitise(reason, error::CAUSE_MAX).into();
            self.tell(SessionEvent::StateLost { reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: Option<i64>, text: &str) -> Refusal {
        Refusal {
            status,
            rpc_code: code,
            text: text.into(),
            foreign: false,
            retry_after: None,
            answer: None,
        }
    }

    #[test]
    fn session_loss_is_recognised_only_with_a_session_id_and_known_words() {
        let with = Route {
            session_id: Some("s".into()),
            version: None,
        };
        let npm = "Bad Request: No valid session ID provided";
        let cases = [
            (refusal(404, None, ""), true),
            (refusal(404, Some(-32601), "Method not found"), true),
            (refusal(400, Some(-32000), npm), true),
            (refusal(400, Some(-32001), "anything"), true),
            (refusal(400, Some(-32600), "Session expired"), true),
            (refusal(400, Some(-32600), "Invalid request"), false),
            (refusal(400, None, "session not found"), false),
            (refusal(401, Some(-32001), "session not found"), false),
            (refusal(503, None, "session not found"), false),
        ];
        for (refusal, gone) in cases {
            assert_eq!(is_session_gone(&refusal, &with), gone, "{refusal:?}");
            assert!(!is_session_gone(&refusal, &Route::default()), "{refusal:?}");
        }
    }
}
