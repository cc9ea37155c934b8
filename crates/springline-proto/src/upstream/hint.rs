//! Tools that say of themselves that they may run again (2025-06-18 schema, `ToolAnnotations`).
//!
//! Only where the operator trusts such hints (`replay: annotated`), and only for requests that the
//! server refused: a hint is no proof, so an unknown outcome is never answered by a second run.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::json;
use crate::message::Message;
use crate::settings::{ReplayPolicy, UpstreamSettings};

/// Names that are kept; a server with more such tools has the rest treated as unsafe (I8).
const NAMES_MAX: usize = 1024;
/// Longer names are not kept.
const NAME_LEN_MAX: usize = 256;

/// The hinted tools of the list that was seen last.
#[derive(Clone, Debug, Default)]
pub(super) struct Hints {
    names: BTreeSet<Box<str>>,
}

impl Hints {
    /// A page of `tools/list` came; the first one begins a new list.
    pub(super) fn observe(&mut self, settings: &UpstreamSettings, first: bool, answer: &Message) {
        if settings.replay != ReplayPolicy::Annotated {
            return;
        }
        if first {
            self.names.clear();
        }
        let bytes = answer.bytes();
        let tools = answer
            .envelope()
            .result
            .and_then(|result| json::member(bytes, result, "tools"));
        let Some(tools) = tools else { return };
        for tool in json::elements(bytes, tools) {
            let says = |hint| {
                json::path(bytes, tool, &["annotations", hint])
                    .is_some_and(|span| span.of(bytes) == b"true")
            };
            // Later pages win: a name without a hint takes back an earlier one.
            let hinted = says("readOnlyHint") || says("idempotentHint");
            let name =
                json::member(bytes, tool, "name").and_then(|span| json::string(span.of(bytes)));
            let Some(name) = name else { continue };
            if !hinted {
                self.names.remove(&*name);
            } else if self.names.len() < NAMES_MAX && name.len() <= NAME_LEN_MAX {
                self.names.insert(name.into());
            }
        }
    }

    /// Whether the tool of this name has such a hint; `name` is raw JSON.
    pub(super) fn has(&self, name: Option<&Bytes>) -> bool {
        let name = name.and_then(|raw| json::string(raw));
        name.is_some_and(|name| self.names.contains(&*name))
    }
}
