//! The state of the gateway as JSON.
//!
//! Owns: the shapes of `/api/servers` and `/api/sessions`. It must not look anything up itself.

use std::time::Duration;

use serde_json::{Value, json};
use springline_proto::session::Endpoint;
use springline_proto::upstream::Standby;

use crate::gateway::{InstanceView, ServerView, SessionView};

pub(super) fn servers(servers: &[ServerView]) -> Value {
    json!({ "servers": servers.iter().map(server).collect::<Vec<_>>() })
}

fn server(server: &ServerView) -> Value {
    json!({
        "server": server.name,
        "transport": match (&server.unavailable, server.is_child) {
            (_, true) => "stdio".into(),
            (None, false) => "http".into(),
            (Some(_), false) => Value::Null,
        },
        "state": state(server),
        "reason": server.unavailable.as_ref().or(server.failure.as_ref()),
        "instances": server.instances.iter().map(instance).collect::<Vec<_>>(),
    })
}

/// The state of a server as a whole: that of its best instance.
pub(super) fn state(server: &ServerView) -> &'static str {
    if server.unavailable.is_some() {
        return "unavailable";
    }
    let best = server
        .instances
        .iter()
        .map(|instance| instance.standby)
        .min_by_key(|standby| match standby {
            Standby::Ready(_) => 0,
            Standby::Starting => 1,
            Standby::Waiting => 2,
            Standby::Idle => 3,
            Standby::Closed => 4,
        });
    match best {
        None | Some(Standby::Closed) => "idle",
        Some(standby) => standby_name(standby),
    }
}

fn instance(instance: &InstanceView) -> Value {
    json!({
        "session": instance.session,
        "state": standby_name(instance.standby),
        "generation": match instance.standby {
            Standby::Ready(generation) => Value::from(generation.0),
            _ => Value::Null,
        },
        "pending": instance.pending,
        "pids": instance.pids,
    })
}

pub(super) fn standby_name(standby: Standby) -> &'static str {
    match standby {
        Standby::Idle => "idle",
        Standby::Starting => "starting",
        Standby::Ready(_) => "ready",
        Standby::Waiting => "waiting",
        Standby::Closed => "closed",
    }
}

pub(super) fn sessions(mut sessions: Vec<SessionView>) -> Value {
    // The table of sessions has no order of its own.
    sessions.sort_by(|left, right| left.digest.cmp(&right.digest));
    json!({ "sessions": sessions.iter().map(session).collect::<Vec<_>>() })
}

fn session(session: &SessionView) -> Value {
    json!({
        "session": session.digest,
        "principal": session.principal.to_string(),
        "endpoint": match &session.endpoint {
            Endpoint::All => "/mcp".to_owned(),
            Endpoint::One(server) => format!("/mcp/{server}"),
        },
        "client": session.client.as_ref().map(|(name, version)| {
            json!({ "name": name, "version": version })
        }),
        "protocol": session.version.map(springline_proto::version::Version::as_str),
        "pending": session.pending,
        "attached": session.attached,
        "idleMs": millis(session.idle),
    })
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
