//! Merged lists.
//!
//! Owns items: finding them in a server's pages, and their names on `/mcp`. Must not know when a
//! list is read.

use bytes::Bytes;

use crate::json::{self, Pieces, Span, Splice};
use crate::method::ListKind;
use crate::names;

/// Items in one page of a merged list.
const ITEMS_MAX: usize = 1000;

/// The raw items of a server's pages (raw `result` objects), in their order.
pub(crate) fn items(kind: ListKind, pages: &[Bytes]) -> Vec<Bytes> {
    let mut all = Vec::new();
    for page in pages {
        if let Some(list) = json::member(page, Span::whole(page), kind.items()) {
            all.extend(json::elements(page, list).map(|item| item.slice(page)));
        }
    }
    all
}

/// One page of a merged list as a whole answer. `parts`: each server with its pages, in the order
/// of the configuration. `cursor` makes the text of a cursor from an offset.
pub(crate) fn list_result(
    kind: ListKind,
    parts: &[(&str, &[Bytes])],
    offset: usize,
    cursor: impl FnOnce(usize) -> String,
) -> Bytes {
    let mut out = format!(r#"{{"{}":["#, kind.items()).into_bytes();
    let mut at = 0_usize;
    let end = offset.saturating_add(ITEMS_MAX);
    for (server, pages) in parts {
        for item in items(kind, pages) {
            if at >= offset && at < end {
                if at > offset {
                    out.push(b',');
                }
                for segment in &renamed(kind, server, &item) {
                    out.extend_from_slice(segment);
                }
            }
            at += 1;
        }
    }
    out.push(b']');
    if at > end {
        out.extend_from_slice(br#","nextCursor":"#);
        out.extend_from_slice(json::quote(&cursor(end)).as_bytes());
    }
    out.push(b'}');
    out.into()
}

/// The server's own name of the tool or prompt that clients see as `listed`.
pub(crate) fn original_name(
    kind: ListKind,
    pages: &[Bytes],
    server: &str,
    listed: &str,
) -> Option<String> {
    items(kind, pages).iter().find_map(|item| {
        let span = json::member(item, Span::whole(item), "name")?;
        let name = json::string(span.of(item))?;
        names::names_tool(listed, server, &name).then(|| name.into_owned())
    })
}

/// An item under its name on `/mcp`.
fn renamed(kind: ListKind, server: &str, item: &Bytes) -> Pieces {
    let member = match kind {
        ListKind::Tools | ListKind::Prompts => "name",
        ListKind::Resources => "uri",
        ListKind::Templates => "uriTemplate",
    };
    let new = json::member(item, Span::whole(item), member).and_then(|span| {
        let text = json::string(span.of(item))?;
        let new = match kind {
            ListKind::Tools | ListKind::Prompts => names::tool_name(server, &text),
            ListKind::Resources | ListKind::Templates => names::resource_uri(server, &text),
        };
        Some((span, json::quote(&new)))
    });
    match new {
        Some((span, new)) => Splice::new(item).replace(span, new).finish(),
        None => item.clone().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn items_keep_their_order_and_all_but_their_name() {
        let a = [page(
            r#"{"tools":[{"x":1.0,"name":"one"},{"name":"t w o"}],"nextCursor":"c"}"#,
        )];
        let b = [
            page(r#"{"tools":[]}"#),
            page(r#"{"tools":[{"name":"three"}]}"#),
        ];
        let result = list_result(ListKind::Tools, &[("a", &a), ("b", &b)], 0, |_| {
            String::new()
        });
        let text = String::from_utf8(result.to_vec()).unwrap();
        let cut = names::tool_name("a", "t w o");
        assert_eq!(
            text,
            format!(
                r#"{{"tools":[{{"x":1.0,"name":"a__one"}},{{"name":"{cut}"}},{{"name":"b__three"}}]}}"#
            )
        );
        assert_eq!(
            original_name(ListKind::Tools, &a, "a", &cut).as_deref(),
            Some("t w o")
        );
        assert_eq!(original_name(ListKind::Tools, &a, "b", &cut), None);
    }

    #[test]
    fn a_long_list_comes_in_pages() {
        let many = (0..2500)
            .map(|n| format!(r#"{{"uri":"u:{n}"}}"#))
            .collect::<Vec<_>>()
            .join(",");
        let pages = [Bytes::from(format!(r#"{{"resources":[{many}]}}"#))];
        let parts: [(&str, &[Bytes]); 1] = [("a", &pages)];
        for (offset, len, next) in [
            (0, 1000, Some("1000")),
            (1000, 1000, Some("2000")),
            (2000, 500, None),
        ] {
            let result = list_result(ListKind::Resources, &parts, offset, |at| at.to_string());
            let value: serde_json::Value = serde_json::from_slice(&result).unwrap();
            assert_eq!(value["resources"].as_array().unwrap().len(), len);
            assert_eq!(
                value["resources"][0]["uri"],
                format!("springline://a/u:{offset}")
            );
            assert_eq!(value["nextCursor"].as_str(), next);
        }
    }
}
