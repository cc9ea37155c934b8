//! `/metrics`: the text that Prometheus reads.
//!
//! Owns: the names of the metrics. It must not measure anything itself: it writes down what others
//! count already.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use tokio::time::Instant;

use super::view::instance_state;
use crate::gateway::Gateway;

/// All metrics. Labels hold names of the configuration and words of ours only: nothing that a peer
/// sent can make the text grow.
pub(super) fn render(gateway: &Gateway, version: &str, started: Instant) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    write(&mut text, gateway, version, started).unwrap_or_default();
    text
}

fn write(text: &mut String, gateway: &Gateway, version: &str, started: Instant) -> fmt::Result {
    let (servers, sessions) = (gateway.servers(), gateway.sessions());
    head(text, "springline_info", "gauge", "The running version.")?;
    writeln!(text, "springline_info{{version=\"{version}\"}} 1")?;
    let name = "springline_uptime_seconds";
    head(text, name, "gauge", "Time since the start.")?;
    writeln!(text, "{name} {:.3}", started.elapsed().as_secs_f64())?;
    let name = "springline_sessions";
    head(text, name, "gauge", "Open sessions of clients.")?;
    let attached = sessions.iter().filter(|session| session.attached).count();
    writeln!(text, "{name}{{attached=\"true\"}} {attached}")?;
    let detached = sessions.len() - attached;
    writeln!(text, "{name}{{attached=\"false\"}} {detached}")?;
    let name = "springline_sessions_at_rest";
    let help = "Stored sessions that were not used since the start.";
    head(text, name, "gauge", help)?;
    writeln!(text, "{name} {}", gateway.at_rest())?;
    let name = "springline_state_writable";
    let help = "Whether the state folder takes writes: records of sessions, the journal of calls.";
    head(text, name, "gauge", help)?;
    let unwritable = gateway.unwritable();
    for what in ["records", "journal"] {
        let value = u8::from(unwritable.iter().all(|held| held.what != what));
        writeln!(text, "{name}{{what=\"{what}\"}} {value}")?;
    }
    let name = "springline_requests_pending";
    head(
        text,
        name,
        "gauge",
        "Requests of clients without an answer.",
    )?;
    let pending: usize = sessions.iter().map(|session| session.pending).sum();
    writeln!(text, "{name} {pending}")?;
    let name = "springline_redelivery_bytes";
    let help = "Events that sessions hold for clients that may come back.";
    head(text, name, "gauge", help)?;
    writeln!(text, "{name} {}", gateway.redelivery_bytes())?;
    let name = "springline_server_available";
    head(text, name, "gauge", "Whether the entry can be used.")?;
    for server in servers.iter().filter(|server| server.is_configured) {
        let value = u8::from(server.unavailable.is_none());
        writeln!(text, "{name}{{server=\"{}\"}} {value}", server.name)?;
    }
    let name = "springline_instances";
    head(text, name, "gauge", "Upstreams of sessions, by state.")?;
    for server in &servers {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for instance in &server.instances {
            *counts.entry(instance_state(instance)).or_default() += 1;
        }
        for (state, count) in counts {
            let server = &server.name;
            writeln!(
                text,
                "{name}{{server=\"{server}\",state=\"{state}\"}} {count}"
            )?;
        }
    }
    let name = "springline_events_total";
    head(text, name, "counter", "Events since the start, by name.")?;
    for (event, count) in gateway.events().counts() {
        writeln!(text, "{name}{{event=\"{event}\"}} {count}")?;
    }
    Ok(())
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}
