//! Answers: which messages they hold, and how they ended.
//!
//! Owns: media types, event streams, refusals. It must not decide what to do about any of them: it
//! reports, the machine judges. A 2xx that holds no message is never made a success.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use springline_proto::error::sanitise;
use springline_proto::json::{Skim, Span, elements};
use springline_proto::message::{Kind, Message, ParseError, ParseErrorKind};
use springline_proto::settings::HELD_MAX;
use springline_proto::sse::{SseDecoder, SseItem};
use springline_proto::upstream::{End, Purpose, Refusal, Stretch};

use super::body::{Collected, Inflow, drain};
use super::exchange::Exchange;
use super::field::Fields;
use super::request::Answer;
use super::stretch::{LargeEvents, Passed, pass_body};

/// A minted session id longer than this is refused; real ones have 32 to 64 characters.
const SESSION_ID_MAX: usize = 1024;

/// Of a body that is no answer, this much is quoted.
const EXCERPT_MAX: usize = 200;

/// What an answer says that it holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Media {
    Json,
    EventStream,
    /// Nothing is said.
    Unnamed,
    Other,
}

impl Media {
    /// Case and parameters do not matter (RFC 9110, 8.3.1).
    fn of(fields: &Fields) -> Self {
        let Some(value) = fields.first("content-type") else {
            return Self::Unnamed;
        };
        // As nearly every server spells it.
        match value {
            b"application/json" => return Self::Json,
            b"text/event-stream" => return Self::EventStream,
            _ => {}
        }
        match kind_of(fields).as_str() {
            "" => Self::Unnamed,
            "application/json" => Self::Json,
            "text/event-stream" => Self::EventStream,
            other if other.starts_with("application/") && other.ends_with("+json") => Self::Json,
            _ => Self::Other,
        }
    }
}

/// The media type without its parameters; empty if none is named.
fn kind_of(fields: &Fields) -> String {
    let value = fields.first("content-type");
    let text = value.map(String::from_utf8_lossy);
    let text = text.as_deref().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// How an exchange ended, and the message that came with the end, which was not reported.
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) last: Option<Message>,
}

impl From<End> for Ending {
    fn from(end: End) -> Self {
        Self { end, last: None }
    }
}

/// The answer to a request, if it is one message that is here already and whole: then nothing is left
/// to be waited for. Nothing is taken of any other.
pub(super) fn at_hand(exchange: &Exchange, purpose: Purpose, answer: &mut Answer) -> Option<Bytes> {
    let is_plain = answer.status == StatusCode::OK
        && purpose == Purpose::Request
        && matches!(Media::of(&answer.fields), Media::Json | Media::Unnamed)
        && !answer.fields.has("content-encoding");
    let max = exchange.wire.limits.body_max;
    is_plain.then(|| answer.body.at_hand(max)).flatten()
}

/// Reports such an answer, but for its last message.
pub(super) fn report_at_hand(exchange: &Exchange, answer: Answer, body: Bytes) -> Ending {
    // Before the message is told, so that whoever waits for it finds the connection.
    answer.after.give_back(&exchange.wire, answer.body);
    let what = || describe(answer.status, &answer.fields);
    report_body(exchange, true, what, body)
}

/// Reads the answer to a POST and reports what it holds, but for its last message. Cancel safe:
/// dropping it closes the connection.
pub(super) async fn read_post(
    exchange: &Exchange,
    purpose: Purpose,
    stretches: bool,
    answer: Box<Answer>,
) -> Ending {
    let answer = *answer;
    if !answer.status.is_success() {
        return End::Refused(refusal(exchange, answer).await).into();
    }
    if purpose == Purpose::Initialize
        && let Some(value) = answer.fields.first("mcp-session-id")
    {
        match session_id(value) {
            Ok(id) => exchange.minted(id),
            Err(cause) => return broken(cause.to_owned()).into(),
        }
    }
    let awaits = matches!(purpose, Purpose::Initialize | Purpose::Request);
    if matches!(answer.status.as_u16(), 202 | 204) {
        return accepted(exchange, answer).await.into();
    }
    let end = match Media::of(&answer.fields) {
        Media::EventStream if awaits => read_stream(exchange, answer, None, stretches).await,
        Media::Json | Media::Unnamed => {
            return read_json(exchange, awaits, stretches, answer).await;
        }
        Media::EventStream | Media::Other if !awaits => accepted(exchange, answer).await,
        Media::Other if purpose == Purpose::Initialize => {
            End::Refused(refusal(exchange, answer).await)
        }
        Media::EventStream | Media::Other => other_media(answer).await,
    };
    end.into()
}

async fn other_media(answer: Answer) -> End {
    let what = describe(answer.status, &answer.fields);
    match Inflow::new(answer.body, &answer.fields) {
        Ok(mut inflow) => {
            let (head, _) = inflow.head(EXCERPT_MAX).await;
            broken(no_message(&what, &head))
        }
        Err(_) => broken(no_message(&what, b"")),
    }
}

/// Reads the answer to a GET: an event stream, or a refusal.
pub(super) async fn read_get(exchange: &Exchange, answer: Answer, from: Option<Arc<str>>) -> End {
    if !answer.status.is_success() {
        return End::Refused(refusal(exchange, answer).await);
    }
    if Media::of(&answer.fields) == Media::EventStream {
        return read_stream(exchange, answer, from, false).await;
    }
    broken(format!(
        "{} to a GET, which is no event stream",
        describe(answer.status, &answer.fields)
    ))
}

async fn accepted(exchange: &Exchange, mut answer: Answer) -> End {
    if drain(&mut answer.body).await {
        answer.after.give_back(&exchange.wire, answer.body);
    }
    End::Accepted
}

async fn read_json(exchange: &Exchange, awaits: bool, stretches: bool, answer: Answer) -> Ending {
    let what = || describe(answer.status, &answer.fields);
    let mut inflow = match Inflow::new(answer.body, &answer.fields) {
        Ok(inflow) => inflow,
        Err(_) if !awaits => return End::Accepted.into(),
        Err(coding) => {
            let coding = sanitise(&coding, 40);
            let cause = format!(
                "{} in the encoding {coding:?}, which was not asked for",
                what()
            );
            return broken(cause).into();
        }
    };
    let body_max = exchange.wire.limits.body_max;
    let held_max = if stretches {
        HELD_MAX.min(body_max)
    } else {
        body_max
    };
    let collected = match inflow.collect(body_max, held_max).await {
        Ok(Collected::More(begun)) => {
            let passed = Box::pin(pass_body(exchange, &mut inflow, begun)).await;
            match passed {
                Passed::Whole => {
                    let after = (answer.after, inflow.into_body());
                    after.0.give_back(&exchange.wire, after.1);
                    exchange.stretch(Stretch::End);
                    return End::Complete.into();
                }
                Passed::Ended(end) => return end.into(),
                Passed::Not(begun) => inflow.collect_on(begun, body_max).await,
            }
        }
        other => other,
    };
    let body = match collected {
        Ok(Collected::Whole(body)) => body,
        // The bounds are the same: it cannot be.
        Ok(Collected::More(_)) => return End::Complete.into(),
        Ok(Collected::TooLarge { seen, id }) => {
            exchange.garbled(
                id,
                format!("{} with {seen} bytes or more, over {body_max}", what()),
                true,
            );
            return End::Complete.into();
        }
        // Nothing was awaited, and the status said that it was taken.
        Err(_) if !awaits => return End::Accepted.into(),
        Err(error) => return broken(error.to_string()).into(),
    };
    // Before the message is told, so that whoever waits for it finds the connection.
    answer.after.give_back(&exchange.wire, inflow.into_body());
    report_body(exchange, awaits, what, body)
}

fn report_body(
    exchange: &Exchange,
    awaits: bool,
    what: impl Fn() -> String,
    body: Bytes,
) -> Ending {
    if !awaits && body.iter().all(u8::is_ascii_whitespace) {
        return End::Accepted.into();
    }
    match report(exchange, body) {
        Ok(last) => Ending {
            end: End::Complete,
            last,
        },
        Err(_) if !awaits => End::Accepted.into(),
        // Nothing of it is quoted: what is meant to be an answer may hold secrets.
        Err((error, body)) => {
            let what = what();
            let cause = if body.iter().all(u8::is_ascii_whitespace) {
                no_message(&what, b"")
            } else {
                format!("{what} holds no JSON-RPC message: {error}")
            };
            let cause = cause.into_boxed_str();
            End::Unreadable { cause }.into()
        }
    }
}

/// Reports each message of a batch (2025-03-26 allows batches of answers); one alone is given back.
fn report(exchange: &Exchange, body: Bytes) -> Result<Option<Message>, (ParseError, Bytes)> {
    match Message::try_parse(body) {
        Ok(message) => return Ok(Some(message)),
        Err((error, body)) if error.kind == (ParseErrorKind::Batch { empty: false }) => {
            if springline_proto::json::validate(&body).is_err() {
                return Err((error, body));
            }
            for span in elements(&body, Span::whole(&body)) {
                match Message::parse(span.slice(&body)) {
                    Ok(message) => exchange.message(message),
                    Err(error) => exchange.garbled(error.id.clone(), error.to_string(), false),
                }
            }
        }
        Err(error) => return Err(error),
    }
    Ok(None)
}

/// Reports each message of an event stream as it comes. `from` is the event id at which it begins.
async fn read_stream(
    exchange: &Exchange,
    answer: Answer,
    from: Option<Arc<str>>,
    stretches: bool,
) -> End {
    let mut inflow = match Inflow::new(answer.body, &answer.fields) {
        Ok(inflow) => inflow,
        Err(coding) => {
            return broken(format!(
                "an event stream in the encoding {:?}, which was not asked for",
                sanitise(&coding, 40)
            ));
        }
    };
    let mut decoder = SseDecoder::new(exchange.wire.limits.body_max);
    let mut large = LargeEvents::new(exchange, stretches);
    let whole = loop {
        match large.next(&mut inflow).await {
            None => break true,
            Some(Err(error)) => {
                tracing::debug!(server = %exchange.wire.server, %error, "an event stream broke");
                break false;
            }
            Some(Ok(chunk)) => {
                large.push(&mut decoder, &chunk);
                while let Some(item) = decoder.next() {
                    if let Some(item) = large.take(item) {
                        report_event(exchange, item);
                    }
                }
                large.begin(&mut decoder);
            }
        }
    };
    if whole {
        answer.after.give_back(&exchange.wire, inflow.into_body());
    }
    // An empty id means "no id" (WHATWG HTML, 9.2.6); a stream that sets none goes on from `from`.
    let last = decoder.last_event_id().map(Arc::from).or(from);
    End::StreamEnded {
        last_event_id: last.filter(|id| !id.is_empty()),
        retry: decoder.retry(),
    }
}

fn report_event(exchange: &Exchange, item: SseItem) {
    match item {
        SseItem::Event { event, data, .. } => {
            // The priming event carries an id and no data (2025-11-25 basic/transports).
            if data.iter().all(u8::is_ascii_whitespace) {
                return;
            }
            let told = report(exchange, data).map(|alone| {
                if let Some(message) = alone {
                    exchange.message(message);
                }
            });
            if let Err((error, data)) = told {
                // An event of another type is not ours to understand.
                if event.is_none_or(|event| event == "message") {
                    // Not JSON, and yet an answer to something: that must not wait for the end.
                    let id = error.id.clone().or_else(|| Skim::answer_id(&data));
                    exchange.garbled(id, error.to_string(), false);
                }
            }
        }
        // Taken before.
        SseItem::Bytes(_) | SseItem::Passed => {}
        SseItem::TooLong { len_seen, id, .. } => {
            let max = exchange.wire.limits.body_max;
            exchange.garbled(
                id,
                format!("an event of {len_seen} bytes, over {max}"),
                true,
            );
        }
    }
}

/// 2025-11-25 basic/transports, session management: visible ASCII only.
fn session_id(value: &[u8]) -> Result<Arc<str>, &'static str> {
    if value.is_empty() || value.len() > SESSION_ID_MAX {
        return Err("the server minted a session id that is empty or over 1024 bytes");
    }
    if !value.iter().all(u8::is_ascii_graphic) {
        return Err("the server minted a session id with characters outside 0x21-0x7E");
    }
    std::str::from_utf8(value)
        .map(Arc::from)
        .map_err(|_| "the server minted a useless session id")
}

/// What a status above 299 says, or a success of a kind that is no answer.
async fn refusal(exchange: &Exchange, answer: Answer) -> Refusal {
    let Answer {
        status,
        fields,
        body,
        credentials,
        after,
    } = answer;
    let now = exchange.wire.shared.wall();
    let mut text = String::new();
    let mut rpc_code = None;
    let mut own = None;
    let kind = kind_of(&fields);
    let mut foreign = kind == "text/html" || status.is_success();
    if let Ok(mut inflow) = Inflow::new(body, &fields) {
        let (head, whole) = inflow.head(exchange.wire.limits.refusal_max).await;
        (rpc_code, text) = explain(&head, exchange.wire.limits.refusal_max);
        foreign |= head.trim_ascii_start().starts_with(b"<") && !kind.contains("json");
        if foreign {
            text = describe_page(&kind, &head);
        }
        if whole {
            after.give_back(&exchange.wire, inflow.into_body());
            // Cut short it would be no message.
            own = Message::parse(head)
                .ok()
                .filter(|message| message.kind() == Kind::Error);
        }
    }
    if matches!(status.as_u16(), 401 | 403) {
        *exchange.wire.refused.lock() = Some(Arc::clone(&credentials));
        for value in fields.all("www-authenticate") {
            let asks = sanitise(&String::from_utf8_lossy(value), EXCERPT_MAX);
            append(&mut text, &format!("WWW-Authenticate: {asks}"));
        }
        if let Some(note) = credentials.clock_note(fields.text("date"), now) {
            append(&mut text, &note);
        }
    }
    Refusal {
        status: status.as_u16(),
        rpc_code,
        text: text.into_boxed_str(),
        foreign,
        retry_after: retry_after(&fields, now),
        answer: own,
    }
}

/// A body that is for people, by its kind and its title; what else it says would be a tangle.
fn describe_page(kind: &str, head: &[u8]) -> String {
    let kind = if kind.is_empty() { "a page" } else { kind };
    let head = String::from_utf8_lossy(head);
    // Byte by byte the same length, so that places in one are places in the other.
    let lower = head.to_ascii_lowercase();
    let title = lower.find("<title").and_then(|open| {
        let begin = open + lower.get(open..)?.find('>')? + 1;
        let end = begin + lower.get(begin..)?.find('<')?;
        head.get(begin..end)
    });
    let kind = sanitise(kind, 80);
    match title.map(|title| sanitise(title, EXCERPT_MAX)) {
        Some(title) if !title.is_empty() => format!("{kind}, titled \"{title}\""),
        _ if head.trim_start().starts_with('<') || head.trim().is_empty() => kind,
        _ => format!("{kind}, which begins: {}", sanitise(&head, EXCERPT_MAX)),
    }
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push_str("; ");
    }
    text.push_str(more);
}

/// The code and message of a JSON-RPC error, else the `message` or `error` of another JSON object,
/// else the body as text.
fn explain(head: &[u8], max: usize) -> (Option<i64>, String) {
    let clean = |text: &str| sanitise(text, max);
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(head) {
        let error = value.get("error");
        let code = error
            .and_then(|error| error.get("code"))
            .and_then(serde_json::Value::as_i64);
        let text = [
            error.and_then(|error| error.get("message")),
            value.get("message"),
            value.get("error_description"),
            error,
        ];
        if let Some(text) = text
            .into_iter()
            .flatten()
            .find_map(serde_json::Value::as_str)
        {
            return (code, clean(text));
        }
        if code.is_some() {
            return (code, String::new());
        }
    }
    (None, clean(&String::from_utf8_lossy(head)))
}

/// Seconds or a date (RFC 9110, 10.2.3); a date in the past is zero.
fn retry_after(fields: &Fields, now: SystemTime) -> Option<Duration> {
    let text = fields.text("retry-after")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

fn describe(status: StatusCode, fields: &Fields) -> String {
    let media = fields
        .first("content-type")
        .map_or_else(|| "no media type".into(), String::from_utf8_lossy);
    format!("HTTP {} with {}", status.as_u16(), sanitise(&media, 80))
}

fn no_message(what: &str, head: &[u8]) -> String {
    let excerpt = sanitise(&String::from_utf8_lossy(head), EXCERPT_MAX);
    if excerpt.is_empty() {
        format!("{what} and an empty body is no answer")
    } else {
        format!("{what} holds no JSON-RPC message (it begins: {excerpt})")
    }
}

fn broken(cause: String) -> End {
    End::Broken {
        cause: cause.into_boxed_str(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{Fields, Media, describe_page, explain, retry_after, session_id};

    #[test]
    fn media_types_are_known_in_any_spelling() {
        let media = |value: &str| Media::of(&Fields::made(&[("Content-Type", value)]));
        assert_eq!(media("Application/JSON;charset=UTF-8"), Media::Json);
        assert_eq!(media("application/vnd.x+json"), Media::Json);
        assert_eq!(
            media(" text/Event-Stream ; charset=utf-8"),
            Media::EventStream
        );
        assert_eq!(media("text/html"), Media::Other);
        assert_eq!(media("application/jsonp"), Media::Other);
        assert_eq!(Media::of(&Fields::default()), Media::Unnamed);
    }

    #[test]
    fn a_session_id_is_visible_ascii_of_bounded_length() {
        assert_eq!(session_id(b"a~!z").as_deref(), Ok("a~!z"));
        for bad in [&b""[..], b"a b", b"\xc3\xa9", b"a\tb", &[b'x'; 1025]] {
            assert!(session_id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_body_gives_its_code_and_its_words() {
        let rpc = br#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"No valid\nsession"}}"#;
        assert_eq!(
            explain(rpc, 99),
            (Some(-32000), "No valid session".to_owned())
        );
        assert_eq!(
            explain(br#"{"code":1,"message":"m"}"#, 99),
            (None, "m".to_owned())
        );
        assert_eq!(explain(br#"{"error":"e"}"#, 99), (None, "e".to_owned()));
        assert_eq!(explain(b"<h1>\x1b[1mNo\xff", 99).0, None);
        assert!(!explain(b"<h1>\x1b[1mNo", 99).1.contains('\x1b'));
    }

    #[test]
    fn a_page_is_told_by_its_kind_and_its_title() {
        let page = |kind, body: &str| describe_page(kind, body.as_bytes());
        assert_eq!(
            page(
                "text/html",
                "<!DOCTYPE html><HTML><Title lang=en>Not\n Found</title>"
            ),
            "text/html, titled \"Not Found\""
        );
        assert_eq!(page("text/html", "<h1>No</h1>"), "text/html");
        assert_eq!(page("", "<title>"), "a page");
        assert_eq!(page("text/plain", "OK"), "text/plain, which begins: OK");
        assert_eq!(page("image/png", ""), "image/png");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let after = |value: &str| retry_after(&Fields::made(&[("Retry-After", value)]), now);
        assert_eq!(after("120"), Some(Duration::from_mins(2)));
        assert_eq!(
            after("Sun, 06 Nov 1994 08:50:07 GMT"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(after("Sun, 06 Nov 1994 08:49:07 GMT"), Some(Duration::ZERO));
        assert_eq!(after("soon"), None);
    }
}
