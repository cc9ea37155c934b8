//! Which server a request on the endpoint of all servers is for.
//!
//! Owns the reading of names and URIs, and the errors where they lead nowhere. Must not know how
//! they are written: `names` and `aggregate` do.

use std::sync::Arc;

use super::Session;
use super::all::Entry;
use super::gather::List;
use crate::aggregate::{self, Routed};
use crate::error::{Fault, FaultKind, plain_error};
use crate::json;
use crate::message::Message;
use crate::method::{ListKind, Method};
use crate::names;

/// Why a request goes to no server.
pub(super) enum Astray {
    /// A JSON-RPC error of the protocol's own.
    Error(String),
    Fault(Fault),
}

impl Session {
    /// The server that a request is for, and the request as that server reads it.
    pub(super) fn route(
        &self,
        method: Method,
        message: &Message,
    ) -> Result<(Arc<str>, Message), Astray> {
        let text = |name: &str| {
            let raw = message.param(name)?;
            json::string(&raw).map(std::borrow::Cow::into_owned)
        };
        let routed = if method == Method::ToolsCall || method == Method::PromptsGet {
            let (kind, noun) = if method == Method::ToolsCall {
                (ListKind::Tools, "tool")
            } else {
                (ListKind::Prompts, "prompt")
            };
            let Some(name) = text("name") else {
                return Err(invalid("params.name is missing"));
            };
            self.own_name(kind, &name)
                .and_then(|(server, own)| {
                    self.checked(aggregate::route_name(message, server, &own))
                })
                .ok_or_else(|| {
                    let server = names::split_tool_name(&name).map(|(server, _)| server);
                    self.astray(server, || invalid(&format!("Unknown {noun}: {name}")))
                })?
        } else if matches!(
            method,
            Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe
        ) {
            let Some(uri) = text("uri") else {
                return Err(invalid("params.uri is missing"));
            };
            self.checked(aggregate::route_uri(message, &uri))
                .ok_or_else(|| {
                    let server = names::split_resource_uri(&uri).map(|(server, _)| server);
                    self.astray(server, || no_resource(&uri))
                })?
        } else if method == Method::Complete {
            self.route_completion(message)?
        } else {
            return Err(Astray::Error(plain_error(-32601, "Method not found")));
        };
        let (entry, message) = routed;
        match &entry.unavailable {
            None => Ok((Arc::clone(&entry.name), message)),
            Some(reason) => {
                let fault = Fault::new(FaultKind::ServerUnavailable).of(&entry.name);
                Err(Astray::Fault(fault.because(reason)))
            }
        }
    }

    fn route_completion(&self, message: &Message) -> Result<(&Entry, Message), Astray> {
        let (bytes, params) = (message.bytes(), message.envelope().params);
        let text = |name: &str| {
            let span = json::path(bytes, params?, &["ref", name])?;
            json::string(span.of(bytes)).map(std::borrow::Cow::into_owned)
        };
        match (text("type").as_deref(), text("name"), text("uri")) {
            (Some("ref/prompt"), Some(name), _) => self
                .own_name(ListKind::Prompts, &name)
                .and_then(|(server, own)| {
                    self.checked(aggregate::route_ref(message, "name", server, &own))
                })
                .ok_or_else(|| invalid(&format!("Unknown prompt: {name}"))),
            (Some("ref/resource"), _, Some(uri)) => names::split_resource_uri(&uri)
                .and_then(|(server, own)| {
                    self.checked(aggregate::route_ref(message, "uri", server, own))
                })
                .ok_or_else(|| no_resource(&uri)),
            _ => Err(invalid("params.ref names no prompt and no resource")),
        }
    }

    /// Why nothing is there: the server may have been until the configuration changed.
    fn astray(&self, server: Option<&str>, otherwise: impl FnOnce() -> Astray) -> Astray {
        let removed = server.and_then(|server| self.all.as_ref()?.removed.get_key_value(server));
        match removed {
            Some((server, _)) => Astray::Fault(Fault::new(FaultKind::ServerRemoved).of(server)),
            None => otherwise(),
        }
    }

    fn checked(&self, routed: Option<Routed<'_>>) -> Option<(&Entry, Message)> {
        let routed = routed?;
        Some((self.all.as_ref()?.entry(routed.server)?, routed.message))
    }

    /// The server and its own name of what clients see as `listed`. Only a name that may have been
    /// cut, or that can be read in two ways, needs the lists.
    fn own_name<'a>(&self, kind: ListKind, listed: &'a str) -> Option<(&'a str, String)> {
        let all = self.all.as_ref()?;
        let splits: Vec<(&str, &str)> = names::tool_name_splits(listed)
            .filter(|(server, _)| all.entry(server).is_some())
            .collect();
        let (server, part) = *splits.first()?;
        if splits.len() > 1 || may_be_cut(part) {
            for (server, _) in &splits {
                let pages = all.entry(server)?.lists.get(&kind).map(List::pages);
                let own =
                    pages.and_then(|pages| aggregate::original_name(kind, pages, server, listed));
                if let Some(own) = own {
                    return Some((server, own));
                }
            }
        }
        Some((server, part.to_owned()))
    }
}

/// Whether this may be the part of a name that was cut: it ends in `_` and 8 hexadecimal digits.
fn may_be_cut(part: &str) -> bool {
    part.rsplit_once('_').is_some_and(|(_, digest)| {
        digest.len() == 8 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn invalid(text: &str) -> Astray {
    Astray::Error(plain_error(-32602, text))
}

/// 2025-11-25 server/resources, error handling.
fn no_resource(uri: &str) -> Astray {
    let uri = json::quote(uri);
    Astray::Error(format!(
        r#"{{"code":-32002,"message":"Resource not found","data":{{"uri":{uri}}}}}"#
    ))
}
