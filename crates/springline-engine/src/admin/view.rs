//! The state of the gateway as JSON.
//!
//! Owns: the shapes of `/api/servers`, `/api/sessions` and of what is told of the state folder. It must not look anything up itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use springline_proto::session::Endpoint;
use springline_proto::upstream::Standby;

use crate::event::rfc3339;
use crate::gateway::{InstanceView, RestingView, ServerView, SessionView, Unwritable};

/// Of an instance that takes no new calls, and of a server that has no other.
const DRAINING: &str = "draining";

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
        "reason": reason(server),
        "instances": server.instances.iter().map(instance).collect::<Vec<_>>(),
    })
}

fn reason(server: &ServerView) -> Option<&str> {
    if !server.is_configured {
        return Some("it is not configured any more");
    }
    let reason = server.unavailable.as_ref().or(server.failure.as_ref());
    reason.map(String::as_str)
}

/// The state of a server as a whole: that of its best instance that takes calls.
pub(super) fn state(server: &ServerView) -> &'static str {
    if !server.is_configured {
        return DRAINING;
    }
    if server.unavailable.is_some() {
        return "unavailable";
    }
    let best = server
        .instances
        .iter()
        .filter(|instance| !instance.is_draining)
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
        "state": instance_state(instance),
        "generation": match instance.standby {
            Standby::Ready(generation) => Value::from(generation.0),
            _ => Value::Null,
        },
        "pending": instance.pending,
        "pids": instance.pids,
    })
}

/// The state of one upstream.
pub(super) fn instance_state(instance: &InstanceView) -> &'static str {
    if instance.is_draining {
        return DRAINING;
    }
    standby_name(instance.standby)
}

fn standby_name(standby: Standby) -> &'static str {
    match standby {
        Standby::Idle => "idle",
        Standby::Starting => "starting",
        Standby::Ready(_) => "ready",
        Standby::Waiting => "waiting",
        Standby::Closed => "closed",
    }
}

/// The live sessions, and those at rest that are shown of the `at_rest` that there are.
pub(super) fn sessions(
    mut sessions: Vec<SessionView>,
    resting: &[RestingView],
    at_rest: usize,
) -> Value {
    // The table of sessions has no order of its own.
    sessions.sort_by(|left, right| left.digest.cmp(&right.digest));
    let rows = sessions.iter().map(session);
    json!({
        "sessions": rows.chain(resting.iter().map(session_at_rest)).collect::<Vec<_>>(),
        "atRest": at_rest,
    })
}

fn session(session: &SessionView) -> Value {
    json!({
        "session": session.digest,
        "state": "open",
        "principal": session.principal.to_string(),
        "endpoint": path_of(&session.endpoint),
        "client": session.client.as_ref().map(client),
        "protocol": session.version.map(springline_proto::version::Version::as_str),
        "pending": session.pending,
        "attached": session.attached,
        "idleMs": millis(session.idle),
    })
}

/// Its digest is not known: nothing at rest leads to its id.
fn session_at_rest(session: &RestingView) -> Value {
    json!({
        "session": Value::Null,
        "state": "at rest",
        "principal": session.principal.as_ref().map(ToString::to_string),
        "endpoint": path_of(&session.endpoint),
        "client": session.client.as_ref().map(client),
        "protocol": session.version,
        "pending": 0,
        "attached": false,
        "idleMs": millis(session.idle),
    })
}

fn path_of(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::All => "/mcp".to_owned(),
        Endpoint::One(server) => format!("/mcp/{server}"),
    }
}

fn client((name, version): &(String, String)) -> Value {
    json!({ "name": name, "version": version })
}

/// Whether the state folder takes writes. Why not may name a path, so it is not for everybody.
pub(super) fn state_folder(unwritable: &[Unwritable], is_full: bool) -> Value {
    let failure = |held: &Unwritable| {
        let mut failure = json!({ "what": held.what, "since": time(held.since) });
        if is_full && let Some(object) = failure.as_object_mut() {
            object.insert("cause".to_owned(), held.cause.as_str().into());
        }
        failure
    };
    json!({
        "writable": unwritable.is_empty(),
        "failures": unwritable.iter().map(failure).collect::<Vec<_>>(),
    })
}

/// Why the gateway is not ready, if so, for everybody.
pub(super) fn unwritable(unwritable: &[Unwritable]) -> Option<String> {
    let failures: Vec<String> = unwritable
        .iter()
        .map(|held| format!("{} since {}", held.what, time(held.since)))
        .collect();
    let failures = failures.join(", ");
    (!failures.is_empty()).then(|| format!("the state folder cannot be written: {failures}"))
}

fn time(at: SystemTime) -> String {
    rfc3339(
        at.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis(),
    )
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
