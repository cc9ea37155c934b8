//! `/api/tools` and `/api/call`.
//!
//! Owns: the shapes of their answers. It must not parse what tools take and give: arguments and
//! results pass as raw text.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use springline_proto::json::{self, Span};

use super::client::{AskError, Client};
use super::{Admin, Fields, Refusal, argument, parameter, raw_reply};
use crate::downstream::answer::Answer;
use crate::downstream::route::RouteRequest;
use crate::downstream::{OpenError, Principal};
use crate::gateway::Gateway;
use crate::spawn;

impl Admin {
    /// The tools of one server, or of all. All are asked at once, each as long as it may take to
    /// start; one that fails has an `error` in place of its `tools`.
    pub(super) async fn tools(&self, request: &RouteRequest) -> Result<Answer, Refusal> {
        let mut names = self.gateway.server_names();
        if let Some(server) = parameter(request, "server") {
            names.retain(|name| name == server);
            if names.is_empty() {
                return Err(self.unknown_server(server));
            }
        }
        let asked: Vec<_> = names
            .into_iter()
            .map(|name| {
                let (gateway, principal) = (Arc::clone(&self.gateway), request.principal.clone());
                let asked = spawn::named("tool list", {
                    let name = name.clone();
                    async move { list(&gateway, &principal, &name).await }
                });
                (name, asked)
            })
            .collect();
        let mut body = b"{\"servers\":[".to_vec();
        for (index, (name, asked)) in asked.into_iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(b"{\"server\":");
            body.extend_from_slice(json::quote(&name).as_bytes());
            match asked.await.unwrap_or(Err(AskError::Silent)) {
                Ok(tools) => {
                    body.extend_from_slice(b",\"tools\":[");
                    body.extend_from_slice(&tools.join(&b","[..]));
                    body.extend_from_slice(b"]}");
                }
                Err(error) => {
                    body.extend_from_slice(b",\"error\":");
                    body.extend_from_slice(&raw_error(error));
                    body.push(b'}');
                }
            }
        }
        body.extend_from_slice(b"]}");
        Ok(raw_reply(Bytes::from(body)))
    }

    /// Calls a tool once. `arguments` pass unchanged; `words` are made into arguments by the
    /// tool's input schema.
    pub(super) async fn call(&self, request: &RouteRequest) -> Result<Answer, Refusal> {
        let fields = Fields::of(&request.body)?;
        let (server, tool) = (fields.text("server")?, fields.text("tool")?);
        let given = Given::of(&fields)?;
        let ended = match Client::open(&self.gateway, &request.principal, &server).await {
            Ok(mut client) => call(&mut client, &server, &tool, given).await?,
            Err(AskError::Open(OpenError::UnknownServer)) => {
                return Err(self.unknown_server(&server));
            }
            Err(error) => Err(error),
        };
        let (name, text) = match ended {
            Ok(result) => ("result", result),
            Err(AskError::Open(error)) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                return Err(Refusal::new(status, "no_session", error.to_string()));
            }
            Err(error) => ("error", raw_error(error)),
        };
        let mut body = format!("{{\"{name}\":").into_bytes();
        body.extend_from_slice(&text);
        body.push(b'}');
        Ok(raw_reply(Bytes::from(body)))
    }
}

/// The arguments as they were given.
enum Given {
    Raw(Bytes),
    Words(Vec<String>),
}

impl Given {
    fn of(fields: &Fields) -> Result<Self, Refusal> {
        match (fields.raw("arguments"), fields.raw("words")) {
            (Some(_), Some(_)) => Err(Refusal::bad_request(
                "give \"arguments\" or \"words\", not both",
            )),
            (Some(raw), None) if !raw.starts_with(b"{") => {
                Err(Refusal::bad_request("\"arguments\" must be an object"))
            }
            (Some(raw), None) => Ok(Self::Raw(raw)),
            (None, Some(raw)) => serde_json::from_slice(&raw)
                .map(Self::Words)
                .map_err(|_| Refusal::bad_request("\"words\" must be an array of strings")),
            (None, None) => Ok(Self::Raw(Bytes::from_static(b"{}"))),
        }
    }
}

async fn call(
    client: &mut Client,
    server: &str,
    tool: &str,
    given: Given,
) -> Result<Result<Bytes, AskError>, Refusal> {
    let unknown = || {
        let text = format!("{server} has no tool {tool:?}; see springline tools {server}");
        Refusal::new(StatusCode::NOT_FOUND, "unknown_tool", text)
    };
    let arguments = match given {
        Given::Raw(raw) => raw,
        Given::Words(words) => {
            let tools = match client.tools().await {
                Ok(tools) => tools,
                Err(error) => return Ok(Err(error)),
            };
            let found = find(&tools, tool).ok_or_else(unknown)?;
            let schema = json::member(found, Span::whole(found), "inputSchema");
            let schema = schema.map_or(&b"{}"[..], |schema| schema.of(found));
            let object = argument::object(&words, schema).map_err(Refusal::bad_request)?;
            Bytes::from(object)
        }
    };
    let name = json::quote(tool);
    let params = [
        b"{\"name\":",
        name.as_bytes(),
        b",\"arguments\":",
        &arguments,
        b"}",
    ]
    .concat();
    let ended = client.ask("tools/call", &params).await;
    // Servers word an unknown tool in many ways; whether it is listed tells it for certain.
    if let Err(AskError::Answered(_)) = &ended
        && let Ok(tools) = client.tools().await
        && find(&tools, tool).is_none()
    {
        return Err(unknown());
    }
    Ok(ended)
}

fn find<'a>(tools: &'a [Bytes], name: &str) -> Option<&'a Bytes> {
    tools.iter().find(|tool| {
        let found = json::member(tool, Span::whole(tool), "name");
        found
            .and_then(|found| json::string(found.of(tool)))
            .as_deref()
            == Some(name)
    })
}

async fn list(
    gateway: &Gateway,
    principal: &Principal,
    server: &str,
) -> Result<Vec<Bytes>, AskError> {
    Client::open(gateway, principal, server)
        .await?
        .tools()
        .await
}

/// The error as JSON: as it was answered, else one with our words.
fn raw_error(error: AskError) -> Bytes {
    let text = match error {
        AskError::Answered(raw) => return raw,
        AskError::Open(error) => error.to_string(),
        AskError::Silent => "the session ended without a usable answer".to_owned(),
    };
    springline_proto::error::plain_error(-32603, &text).into()
}
