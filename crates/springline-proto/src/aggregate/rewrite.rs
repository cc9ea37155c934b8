//! Names and URIs in messages, to a server and from it.
//!
//! Owns the places where they stand (2025-11-25 schema). Must not know lists.

use bytes::Bytes;

use crate::json::{self, Pieces, Span, Splice};
use crate::message::Message;
use crate::method::Method;
use crate::names;

/// A request under the server's own names.
pub(crate) struct Routed<'a> {
    /// The server that the name or URI belongs to.
    pub(crate) server: &'a str,
    /// The request as that server reads it.
    pub(crate) message: Message,
}

/// The request with `params.name` replaced.
pub(crate) fn route_name<'a>(message: &Message, server: &'a str, own: &str) -> Option<Routed<'a>> {
    let span = message.param_span("name")?;
    replaced(message, span, own).map(|message| Routed { server, message })
}

/// The request with the server's own URI in `params.uri`.
pub(crate) fn route_uri<'a>(message: &Message, uri: &'a str) -> Option<Routed<'a>> {
    let (server, own) = names::split_resource_uri(uri)?;
    let span = message.param_span("uri")?;
    replaced(message, span, own).map(|message| Routed { server, message })
}

/// `completion/complete` with the server's own URI or name in `params.ref`.
pub(crate) fn route_ref<'a>(
    message: &Message,
    member: &str,
    server: &'a str,
    own: &str,
) -> Option<Routed<'a>> {
    let params = message.envelope().params?;
    let span = json::path(message.bytes(), params, &["ref", member])?;
    replaced(message, span, own).map(|message| Routed { server, message })
}

/// The answer of a server as the client reads it: under its id, and with its URIs.
pub(crate) fn answer(server: &str, method: Method, message: &Message, id: &[u8]) -> Pieces {
    let (Some(span), bytes) = (message.envelope().id, message.bytes()) else {
        return message.with_id(id);
    };
    let mut edits = Edits {
        server,
        bytes,
        splice: message.splice(),
    };
    edits.splice = edits.splice.replace_copied(span, id);
    if let Some(result) = message.envelope().result {
        if method == Method::ToolsCall {
            edits.contents(json::member(bytes, result, "content"));
        } else if method == Method::PromptsGet {
            for entry in edits.elements(json::member(bytes, result, "messages")) {
                edits.contents(json::member(bytes, entry, "content"));
            }
        } else if method == Method::ResourcesRead {
            for entry in edits.elements(json::member(bytes, result, "contents")) {
                edits.uri(entry);
            }
        }
    }
    edits.splice.finish()
}

/// `notifications/resources/updated` with the URI that clients know.
pub(crate) fn updated(server: &str, message: &Message) -> Option<Message> {
    let span = message.param_span("uri")?;
    let uri = json::string(span.of(message.bytes()))?;
    replaced(message, span, &names::resource_uri(server, &uri))
}

/// A request of a server under our id; people read which server asks.
pub(crate) fn question(server: &str, message: &Message, id: &[u8]) -> Pieces {
    let Some(span) = message.envelope().id else {
        return message.with_id(id);
    };
    let splice = message.splice().replace_copied(span, id);
    match text_of_question(message) {
        // Behind the quote; a server's name needs no escape.
        Some(text) => splice
            .insert_at(text.start + 1, format!("[{server}] "))
            .finish(),
        None => splice.finish(),
    }
}

/// The text that people read first in an elicitation or a sampling request.
fn text_of_question(message: &Message) -> Option<Span> {
    let (bytes, params) = (message.bytes(), message.envelope().params?);
    let is_text = |span: &Span| span.of(bytes).first() == Some(&b'"');
    let method = Method::parse(&message.method()?);
    if method == Method::Elicit {
        return json::member(bytes, params, "message").filter(is_text);
    }
    if method != Method::CreateMessage {
        return None;
    }
    json::elements(bytes, json::member(bytes, params, "messages")?)
        .filter_map(|entry| json::member(bytes, entry, "content"))
        .flat_map(|content| one_or_many(bytes, content))
        .find_map(|content| json::member(bytes, content, "text").filter(is_text))
}

/// The edits of one answer.
struct Edits<'a> {
    server: &'a str,
    bytes: &'a Bytes,
    splice: Splice<'a>,
}

impl Edits<'_> {
    fn elements(&self, array: Option<Span>) -> Vec<Span> {
        array
            .map(|array| json::elements(self.bytes, array).collect())
            .unwrap_or_default()
    }

    /// Links and embedded resources in content, which is one object or an array.
    fn contents(&mut self, content: Option<Span>) {
        let Some(content) = content else {
            return;
        };
        for item in one_or_many(self.bytes, content) {
            let kind = json::member(self.bytes, item, "type").map(|span| span.of(self.bytes));
            if kind == Some(br#""resource_link""#) {
                self.uri(item);
            } else if kind == Some(br#""resource""#)
                && let Some(resource) = json::member(self.bytes, item, "resource")
            {
                self.uri(resource);
            }
        }
    }

    fn uri(&mut self, object: Span) {
        let Some(span) = json::member(self.bytes, object, "uri") else {
            return;
        };
        if let Some(uri) = json::string(span.of(self.bytes)) {
            let new = json::quote(&names::resource_uri(self.server, &uri));
            let splice = std::mem::replace(&mut self.splice, Splice::new(self.bytes));
            self.splice = splice.replace(span, new);
        }
    }
}

fn one_or_many(bytes: &[u8], value: Span) -> Vec<Span> {
    if value.of(bytes).first() == Some(&b'[') {
        json::elements(bytes, value).collect()
    } else {
        vec![value]
    }
}

fn replaced(message: &Message, span: Span, text: &str) -> Option<Message> {
    let bytes = message
        .splice()
        .replace(span, json::quote(text))
        .finish()
        .to_bytes();
    Message::parse(bytes).ok()
}
