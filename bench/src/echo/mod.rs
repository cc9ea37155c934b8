//! A server as fast as is simple: it keeps sessions and answers each call with its own arguments,
//! or with as much text as the call asks for.
//!
//! Owns: what is answered; `http` and `stdio` carry it.

mod http;
mod stdio;

use serde::Deserialize;
use serde_json::value::RawValue;

/// How the server is reached.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Standard input and output in place of HTTP.
    #[arg(long)]
    stdio: bool,
    /// The address of the HTTP listener.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// Serves until it is killed, or until its input ends.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    if options.stdio {
        stdio::run().await
    } else {
        http::run(&options.listen).await
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Wanted {
    bytes: Option<usize>,
    #[serde(default)]
    stream: bool,
}

/// What is to be said to a message.
enum Reply {
    /// Nothing: it was a notification, or an answer.
    Nothing,
    Initialize(String),
    Result {
        text: String,
        /// Whether it is asked for as an event stream.
        is_stream: bool,
    },
}

/// The reply to a message, or nothing if it is no JSON.
fn reply(message: &[u8]) -> Option<Reply> {
    let envelope = serde_json::from_slice::<Envelope<'_>>(message).ok()?;
    let Some(id) = envelope.id else {
        return Some(Reply::Nothing);
    };
    let reply = match envelope.method {
        None => Reply::Nothing,
        Some("initialize") => Reply::Initialize(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"echo","version":"1"}}}}}}"#
        )),
        Some("tools/list") => Reply::Result {
            text: format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{{"name":"echo","inputSchema":{{"type":"object"}}}}]}}}}"#
            ),
            is_stream: false,
        },
        Some(_) => {
            let arguments = envelope.params.and_then(|params| params.arguments);
            let arguments = arguments.map_or("{}", RawValue::get);
            let wanted = serde_json::from_str::<Wanted>(arguments).unwrap_or_default();
            let text = wanted
                .bytes
                .map(|bytes| format!("\"{}\"", "x".repeat(bytes)));
            let text = text.as_deref().unwrap_or("\"ok\"");
            Reply::Result {
                text: format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{arguments}}}}}"#
                ),
                is_stream: wanted.stream,
            }
        }
    };
    Some(reply)
}
