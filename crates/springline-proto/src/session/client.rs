//! What a session knows of its client, and what its client was told.
//!
//! Owns the reading of `initialize`, its parameters and its result. Must not keep raw messages:
//! a session lives for days.

use std::borrow::Cow;

use bytes::Bytes;

use crate::json::{self, Span};
use crate::method::{ListKind, Method};

/// Longest name and version of a client that are told, in characters.
const TEXT_MAX: usize = 128;

/// The client, as `initialize` describes it. Unverified.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one capability of its own"
)]
pub(super) struct Client {
    roots: bool,
    sampling: bool,
    elicit_form: bool,
    elicit_url: bool,
    tasks: bool,
}

impl Client {
    /// Reads the raw `params` of `initialize`.
    pub(super) fn of(params: &[u8]) -> Self {
        let has = |names: &[&str]| has_object(params, &[&["capabilities"], names].concat());
        let elicitation = has(&["elicitation"]);
        let elicit_url = has(&["elicitation", "url"]);
        Self {
            roots: has(&["roots"]),
            sampling: has(&["sampling"]),
            // An empty object means forms alone (2025-11-25 client/elicitation, capabilities).
            elicit_form: elicitation && (has(&["elicitation", "form"]) || !elicit_url),
            elicit_url,
            tasks: has(&["tasks"]),
        }
    }

    /// Whether a server may send this request to the client.
    pub(super) fn takes(&self, method: Method, name: &str, params: Option<&Bytes>) -> bool {
        if name.starts_with("tasks/") {
            return self.tasks;
        }
        if method == Method::RootsList {
            return self.roots;
        }
        if method == Method::CreateMessage {
            return self.sampling;
        }
        if method != Method::Elicit {
            return true;
        }
        let mode = params.and_then(|params| {
            let span = json::member(params, Span::whole(params), "mode")?;
            json::string(span.of(params)).map(Cow::into_owned)
        });
        if mode.as_deref() == Some("url") {
            self.elicit_url
        } else {
            self.elicit_form
        }
    }
}

/// Name and version of the client, from the raw `params` of `initialize`.
pub(super) fn name_of(params: &[u8]) -> Option<(String, String)> {
    let text = |names: &[&str]| {
        let span = json::path(params, Span::whole(params), names)?;
        let text = json::string(span.of(params))?;
        Some(text.chars().take(TEXT_MAX).collect())
    };
    let name = text(&["clientInfo", "name"])?;
    Some((name, text(&["clientInfo", "version"]).unwrap_or_default()))
}

/// What the result of `initialize` promised to the client.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one promise of its own"
)]
pub(super) struct Announced {
    pub(super) logging: bool,
    tools_changed: bool,
    prompts_changed: bool,
    resources_changed: bool,
}

impl Announced {
    /// Reads the raw `result` of `initialize`.
    pub(super) fn of(result: &[u8]) -> Self {
        let changed = |kind: ListKind| {
            let names = ["capabilities", kind.capability(), "listChanged"];
            json::path(result, Span::whole(result), &names)
                .is_some_and(|span| span.of(result) == b"true")
        };
        Self {
            logging: has_object(result, &["capabilities", "logging"]),
            tools_changed: changed(ListKind::Tools),
            prompts_changed: changed(ListKind::Prompts),
            resources_changed: changed(ListKind::Resources),
        }
    }

    /// Whether changes of this list were announced.
    pub(super) fn list_changed(self, kind: ListKind) -> bool {
        match kind {
            ListKind::Tools => self.tools_changed,
            ListKind::Prompts => self.prompts_changed,
            ListKind::Resources | ListKind::Templates => self.resources_changed,
        }
    }
}

/// How grave a log message is (RFC 5424, as 2025-11-25 server/utilities/logging has it).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Level(u8);

impl Level {
    pub(super) const WARNING: Self = Self(3);

    const NAMES: [&str; 8] = [
        "\"debug\"",
        "\"info\"",
        "\"notice\"",
        "\"warning\"",
        "\"error\"",
        "\"critical\"",
        "\"alert\"",
        "\"emergency\"",
    ];

    /// Reads the raw JSON of a level.
    pub(crate) fn parse(raw: &[u8]) -> Option<Self> {
        let text = json::string(raw)?;
        let at = Self::NAMES
            .iter()
            .position(|name| name.trim_matches('"') == text)?;
        u8::try_from(at).ok().map(Self)
    }

    /// The raw JSON of the level.
    pub(crate) fn raw(self) -> &'static str {
        Self::NAMES
            .get(usize::from(self.0))
            .copied()
            .unwrap_or_default()
    }
}

fn has_object(bytes: &[u8], names: &[&str]) -> bool {
    json::path(bytes, Span::whole(bytes), names)
        .is_some_and(|span| span.of(bytes).first() == Some(&b'{'))
}
