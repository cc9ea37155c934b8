//! The same conformance contents on the published `rmcp` server.
//!
//! Owns the translation into the crate's types. It is a second opinion: its
//! transport was written by others, so what passes here and on our own server
//! does not hang on our reading of the protocol. Must not know the test server.

#![expect(
    deprecated,
    reason = "logging and sampling belong to the legacy revisions"
)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::conformance::{self, Asked};
use crate::world::Outcome;

/// The pace of logging and progress, as the scenarios ask.
const PACE: Duration = Duration::from_millis(50);

/// The server; it keeps no state.
#[derive(Clone, Copy, Debug)]
pub struct Peer;

type Reply<T> = Result<T, ErrorData>;

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// The crate's type for a result that we have as JSON.
fn typed<T: DeserializeOwned>(value: Value) -> Reply<T> {
    serde_json::from_value(value).map_err(internal)
}

fn settled<T: DeserializeOwned>(outcome: Outcome) -> Reply<T> {
    match outcome {
        Outcome::Result(text) => serde_json::from_str(&text).map_err(internal),
        Outcome::Error(-32002, message) => Err(ErrorData::resource_not_found(message, None)),
        Outcome::Error(_, message) => Err(ErrorData::invalid_params(message, None)),
        Outcome::Cut(_) | Outcome::Silent => Err(internal("nothing to answer")),
    }
}

fn untyped(value: &impl Serialize) -> Reply<Value> {
    serde_json::to_value(value).map_err(internal)
}

impl Peer {
    async fn run(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Reply<CallToolResult> {
        let name = request.name.as_ref();
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let peer = &context.peer;
        match name {
            "test_tool_with_logging" => {
                for text in conformance::LOGGED {
                    let message = json!({"level": "info", "logger": "fixture", "data": text});
                    let sent = peer.notify_logging_message(typed(message)?).await;
                    sent.map_err(internal)?;
                    tokio::time::sleep(PACE).await;
                }
                settled(Outcome::text("Tool with logging executed successfully"))
            }
            "test_tool_with_progress" => {
                if let Some(token) = context.meta.get_progress_token() {
                    let token = untyped(&token)?;
                    for progress in [0, 50, 100] {
                        let step =
                            json!({"progressToken": token, "progress": progress, "total": 100});
                        let sent = peer.notify_progress(typed(step)?).await;
                        sent.map_err(internal)?;
                        tokio::time::sleep(PACE).await;
                    }
                }
                settled(Outcome::text("Tool with progress executed successfully"))
            }
            _ => match conformance::asked(name, &arguments) {
                Some(Asked::Sampling(params)) => {
                    let answer = peer.create_message(typed(params)?).await;
                    let answer = untyped(&answer.map_err(internal)?)?;
                    settled(conformance::sampled(&answer))
                }
                Some(Asked::Elicitation(lead, params)) => {
                    let answer = peer.create_elicitation(typed(params)?).await;
                    let answer = untyped(&answer.map_err(internal)?)?;
                    settled(conformance::elicited(lead, &answer))
                }
                None => settled(conformance::content(name, &arguments)),
            },
        }
    }
}

impl ServerHandler for Peer {
    fn get_info(&self) -> ServerConfig {
        let info = json!({
            "protocolVersion": crate::world::LATEST,
            "capabilities": crate::world::capabilities(),
            "serverInfo": {"name": "springline-fixture-rmcp", "version": env!("CARGO_PKG_VERSION")},
        });
        typed(info).unwrap_or_default()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Reply<CallToolResponse> {
        self.run(request, context).await.map(Into::into)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Reply<ListToolsResult> {
        typed(json!({"tools": conformance::tools()}))
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Reply<ListResourcesResult> {
        typed(conformance::resources())
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Reply<ListResourceTemplatesResult> {
        typed(conformance::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<ReadResourceResponse> {
        let result: Reply<ReadResourceResult> = settled(conformance::read(&request.uri));
        result.map(Into::into)
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Reply<ListPromptsResult> {
        typed(conformance::prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<GetPromptResponse> {
        let result: Reply<GetPromptResult> = settled(conformance::prompt(&untyped(&request)?));
        result.map(Into::into)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<CompleteResult> {
        settled(conformance::completion(&untyped(&request)?))
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<()> {
        Ok(())
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<()> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Reply<()> {
        Ok(())
    }
}

/// Serves on stdin and stdout until stdin ends.
pub async fn serve_stdio() -> anyhow::Result<()> {
    let running = Peer.serve(rmcp::transport::stdio()).await?;
    running.waiting().await?;
    Ok(())
}

/// Listens on a port of 127.0.0.1 and gives the URL; serves until the runtime
/// ends.
pub async fn serve_http(port: u16) -> io::Result<String> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let sessions = Arc::new(LocalSessionManager::default());
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(|| Ok(Peer), sessions, config);
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let service = service.clone();
            let answer = service_fn(move |request| {
                let service = service.clone();
                async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            tokio::spawn(connection);
        }
    });
    Ok(url)
}
