//! Faults of the HTTP server: settings that last and rules that are spent.
//!
//! Owns the script of misbehaviour. Everything is plain data, so that a rule
//! reads the same in a test and over the control endpoint. Must not know how a
//! fault is carried out.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An HTTP answer that is given as it stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Additional headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Body; `$ID` stands for the raw id of the request.
    #[serde(default)]
    pub body: String,
}

impl Reply {
    /// An answer with an empty body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// An answer with a JSON-RPC error that echoes the request's id.
    pub fn error(status: u16, code: i64, message: &str) -> Self {
        let error = serde_json::json!({"code": code, "message": message});
        Self::status(status)
            .header("content-type", "application/json")
            .body(format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{error}}}"#))
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }
}

/// What a rule does to a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Action {
    /// Refuses with this answer; nothing is executed.
    Reply(Reply),
    /// Drops the connection; nothing is executed.
    CutBefore,
    /// Executes, then drops the connection before any byte of the answer.
    CutAfter,
    /// Executes, sends the head and half of the body, then drops the connection.
    CutBody,
    /// Executes and answers 200 with an empty body.
    EmptyBody,
    /// Executes and answers with JSON that breaks off.
    Malformed,
    /// Executes and answers with this `Content-Type`.
    MediaType {
        /// The header's value.
        value: String,
    },
    /// Executes and answers with an id that nobody asked for.
    WrongId,
    /// Waits at a gate before anything is executed or answered.
    HoldBefore {
        /// The gate.
        gate: String,
    },
    /// Executes, then waits at a gate before the head of the answer.
    HoldAfter {
        /// The gate.
        gate: String,
    },
    /// Answers in this form.
    Answer {
        /// The form.
        form: Answers,
    },
    /// Answers 202 with this body where a bare 202 is due.
    AcceptedBody {
        /// The body.
        body: String,
    },
    /// Executes, then answers with this instead of the result.
    ReplyAfter(Reply),
}

/// A rule: an action for the next requests that match.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Rule {
    /// JSON-RPC method, `GET`, `DELETE`, `POST`, `response`, or `*`.
    pub on: String,
    /// Matching requests that pass untouched before the rule begins.
    #[serde(default)]
    pub skip: u64,
    /// How many requests it meets; `None` is all.
    #[serde(default)]
    pub times: Option<u64>,
    /// What is done.
    pub action: Action,
}

impl Rule {
    /// A rule for the next matching request.
    pub fn once(on: &str, action: Action) -> Self {
        Self::times(on, 1, action)
    }

    /// A rule for the next `times` matching requests.
    pub fn times(on: &str, times: u64, action: Action) -> Self {
        Self {
            on: on.to_owned(),
            skip: 0,
            times: Some(times),
            action,
        }
    }

    /// A rule for all matching requests.
    pub fn always(on: &str, action: Action) -> Self {
        Self {
            on: on.to_owned(),
            skip: 0,
            times: None,
            action,
        }
    }

    /// The same rule after `skip` matching requests.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }
}

/// The form in which requests are answered.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// JSON, or SSE when something else comes before the result.
    #[default]
    Auto,
    /// SSE always.
    Sse,
    /// SSE with ids and a priming event.
    Primed,
    /// As `Primed`, and the stream ends after the priming event: the answer
    /// waits for a GET with `Last-Event-ID`.
    Polling,
    /// As `Polling`, but the connection is dropped instead of ended.
    Torn,
}

/// How an unknown session id is refused.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Gone {
    /// HTTP status.
    pub status: u16,
    /// JSON-RPC code.
    pub code: i64,
    /// Message.
    pub message: String,
    /// An empty body instead of the JSON-RPC error.
    #[serde(default)]
    pub bare: bool,
}

impl Default for Gone {
    fn default() -> Self {
        Self {
            status: 404,
            code: -32001,
            message: "Session not found".to_owned(),
            bare: false,
        }
    }
}

/// The credential of the scheme `rmq-hmac-sha256`, revision 1.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Hmac {
    /// Access key.
    pub access_key: String,
    /// Secret key.
    pub secret_key: String,
    /// Instance id.
    pub instance_id: String,
}

/// Behaviour that lasts until it is changed.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent switch of a test"
)]
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// Form of answers.
    pub answers: Answers,
    /// `retry:` of a priming event, in milliseconds.
    pub retry_ms: u64,
    /// Whether `initialize` mints a session id.
    pub sessions: bool,
    /// Form in which an unknown session is refused.
    pub gone: Gone,
    /// Whether GET is served; else 405.
    pub get: bool,
    /// Whether DELETE is served; else 405.
    pub delete: bool,
    /// Whether bodies of JSON answers are compressed.
    pub gzip: bool,
    /// `Connection: close` on each answer.
    pub announce_close: bool,
    /// Closes each connection after an answer without announcing it.
    pub silent_close: bool,
    /// Sets a cookie at `initialize` and demands it afterwards.
    pub cookie: bool,
    /// Required bearer token.
    pub bearer: Option<String>,
    /// Required signature.
    pub hmac: Option<Hmac>,
    /// Version answered to `initialize` instead of the one asked for.
    pub version: Option<String>,
    /// Refuses foreign `Host` and `Origin`.
    pub local_only: bool,
    /// Writes the id of a response last, as some SDKs do.
    pub id_last: bool,
    /// Ends lines of an event stream by CR LF, and sends comments.
    pub crlf: bool,
    /// Cuts an event stream into pieces of so many bytes.
    pub pieces: Option<usize>,
    /// Tools on each page of `tools/list`.
    pub page: Option<usize>,
    /// Headers of every answer.
    pub headers: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            answers: Answers::Auto,
            retry_ms: 10,
            sessions: true,
            gone: Gone::default(),
            get: true,
            delete: true,
            gzip: false,
            announce_close: false,
            silent_close: false,
            cookie: false,
            bearer: None,
            hmac: None,
            version: None,
            local_only: false,
            id_last: false,
            crlf: false,
            pieces: None,
            page: None,
            headers: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Script {
    rules: Vec<Rule>,
    settings: Settings,
}

/// The faults of one server; changes take effect with the next request.
#[derive(Debug, Default)]
pub struct Faults {
    script: Mutex<Script>,
}

impl Faults {
    /// Faults that start with these settings.
    pub fn new(settings: Settings) -> Self {
        Self {
            script: Mutex::new(Script {
                rules: Vec::new(),
                settings,
            }),
        }
    }

    /// Adds a rule; the oldest rule that matches is spent first.
    pub fn add(&self, rule: Rule) {
        self.script.lock().rules.push(rule);
    }

    /// Drops all rules.
    pub fn clear(&self) {
        self.script.lock().rules.clear();
    }

    /// Changes the settings.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.script.lock().settings);
    }

    /// Changes the settings that are members of a JSON object.
    pub fn merge(&self, changes: &Value) -> Result<(), serde_json::Error> {
        let mut script = self.script.lock();
        let mut merged = serde_json::to_value(&script.settings)?;
        if let (Some(to), Some(from)) = (merged.as_object_mut(), changes.as_object()) {
            for (name, value) in from {
                to.insert(name.clone(), value.clone());
            }
        }
        script.settings = serde_json::from_value(merged)?;
        Ok(())
    }

    /// A copy of the settings.
    pub fn settings(&self) -> Settings {
        self.script.lock().settings.clone()
    }

    /// Takes the action for a request, spending its rule.
    pub fn take(&self, http: &str, method: Option<&str>) -> Option<Action> {
        let mut script = self.script.lock();
        let at = script.rules.iter_mut().position(|rule| {
            let matches = rule.on == "*" || rule.on == http || Some(rule.on.as_str()) == method;
            if matches && rule.skip > 0 {
                rule.skip -= 1;
                return false;
            }
            matches
        })?;
        let rule = script.rules.get_mut(at)?;
        let action = rule.action.clone();
        if let Some(times) = &mut rule.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                script.rules.remove(at);
            }
        }
        Some(action)
    }
}
