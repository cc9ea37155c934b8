//! An MCP client inside the gateway: a session of its own to one server, for one question.
//!
//! Owns: the handshake and the pages of lists. It must not look into results: their text is passed
//! on as the server sent it.

use std::sync::Arc;

use bytes::Bytes;
use springline_proto::json::{self, Span};
use springline_proto::message::{Kind, Message};
use springline_proto::session::{Accept, Downstream, Endpoint, Part};

use crate::downstream::{OpenError, Principal};
use crate::gateway::{Gateway, SessionHandle};

/// Pages of one list that are read; a server whose list does not end then is at fault.
const PAGES_MAX: usize = 1000;

/// Why a question has no result.
#[derive(Debug)]
pub(super) enum AskError {
    /// No session was opened.
    Open(OpenError),
    /// The answer is an error; its raw JSON text.
    Answered(Bytes),
    /// The session ended without an answer, or the answer was none.
    Silent,
}

/// One session. Dropping it ends the session, and with it whatever is pending.
pub(super) struct Client {
    session: SessionHandle,
    next: u64,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl Client {
    /// Opens a session and makes the handshake (2025-11-25 basic/lifecycle). Waits for the server
    /// as long as that may take to start. Cancel safe: the session ends.
    pub(super) async fn open(
        gateway: &Gateway,
        principal: &Principal,
        server: &str,
    ) -> Result<Self, AskError> {
        let session = gateway
            .open(
                principal,
                Endpoint::One(Arc::from(server)),
                Downstream::Http,
            )
            .map_err(AskError::Open)?;
        let mut client = Self { session, next: 0 };
        let hello = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"springline","version":"{}"}}}}"#,
            env!("CARGO_PKG_VERSION")
        );
        client.ask("initialize", hello.as_bytes()).await?;
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let initialized = Message::parse(Bytes::from_static(initialized));
        let initialized = initialized.map_err(|_| AskError::Silent)?;
        let mut parts = client.session.post(initialized, Accept::Both);
        while parts.next().await.is_some() {}
        Ok(client)
    }

    /// Sends a request with these parameters (raw JSON) and waits for its raw result. Cancel safe.
    pub(super) async fn ask(&mut self, method: &str, params: &[u8]) -> Result<Bytes, AskError> {
        self.next += 1;
        let id = self.next.to_string();
        let mut text =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#).into_bytes();
        text.extend_from_slice(params);
        text.push(b'}');
        let message = Message::parse(text).map_err(|_| AskError::Silent)?;
        let mut parts = self.session.post(message, Accept::Both);
        // What has come of a large answer; copied, for the server waits until each part is let go.
        let mut passed = Vec::new();
        let mut is_open = false;
        while let Some(part) = parts.next().await {
            let data = match part {
                Part::Json(data) | Part::Event { data, .. } => data.to_bytes(),
                Part::Refuse { body, .. } => body,
                Part::Open { .. } | Part::OpenEvent => {
                    is_open = true;
                    continue;
                }
                Part::Bytes(bytes) => {
                    passed.extend_from_slice(&bytes);
                    continue;
                }
                Part::Close { .. } | Part::End if is_open => {
                    is_open = false;
                    std::mem::take(&mut passed).into()
                }
                Part::Begin
                | Part::Accepted
                | Part::Close { .. }
                | Part::Welcome(_)
                | Part::Frame { .. } => continue,
                Part::Cut | Part::End => break,
            };
            // The priming event has no data; notifications are of no use here.
            let Ok(answer) = Message::parse(data) else {
                continue;
            };
            match (answer.kind(), answer.result(), answer.error()) {
                (Kind::Result, Some(result), _) => return Ok(result),
                (Kind::Error, _, Some(error)) => return Err(AskError::Answered(error)),
                _ => {}
            }
        }
        Err(AskError::Silent)
    }

    /// The raw definitions of all tools.
    pub(super) async fn tools(&mut self) -> Result<Vec<Bytes>, AskError> {
        let mut tools = Vec::new();
        let mut params = b"{}".to_vec();
        for _ in 0..PAGES_MAX {
            let page = self.ask("tools/list", &params).await?;
            let whole = Span::whole(&page);
            let list = json::member(&page, whole, "tools").ok_or(AskError::Silent)?;
            tools.extend(json::elements(&page, list).map(|tool| tool.slice(&page)));
            let cursor = json::member(&page, whole, "nextCursor").map(|cursor| cursor.of(&page));
            match cursor {
                Some(cursor) if cursor.starts_with(b"\"") => {
                    params = [b"{\"cursor\":", cursor, b"}"].concat();
                }
                _ => return Ok(tools),
            }
        }
        Err(AskError::Silent)
    }
}
