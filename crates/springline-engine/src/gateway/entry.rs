//! A server entry at work: what it is configured as, and the transport that carries it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use springline_proto::call::Generation;
use springline_proto::settings::UpstreamSettings;
use springline_proto::upstream::{Output, Transport};

use super::credential::http_spec;
use super::rest::{Identities, Rest};
use super::room::Room;
use super::upstream::UpstreamCell;
use crate::config::{Definition, Entry, Scope, Secret, Settings};
use crate::spawn::Errand;
use crate::upstream::http::{HttpLimits, HttpShared, HttpTransport, Post};
use crate::upstream::launcher_problem;
use crate::upstream::stdio::{ChildSpec, ChildView, LineBudget, StdioLimits, StdioTransport};

/// A server entry as the gateway uses it.
#[derive(Clone, Debug)]
pub(crate) struct EntrySpec {
    pub(crate) name: Arc<str>,
    /// How it is reached, or why it cannot be.
    pub(crate) definition: Result<Definition, Arc<str>>,
    pub(crate) settings: Arc<UpstreamSettings>,
    /// The definition with its credentials, as a keyed digest.
    pub(crate) identity: [u8; 32],
    /// The name under which its instance is known if several sessions use it.
    pub(crate) instance: Arc<str>,
    /// What an instance of it belongs to.
    pub(crate) scope: Scope,
    /// Makes that digest of the definition with other credentials.
    pub(super) identities: Identities,
    /// The entry as configured, to read its credentials again.
    pub(crate) entry: Arc<Entry>,
}

impl EntrySpec {
    pub(crate) fn new(entry: &Entry, settings: &Settings, rest: &Rest) -> Self {
        let definition = match &entry.definition {
            Ok(definition) => Ok(definition.clone()),
            Err(error) => Err(Arc::from(error.to_string())),
        };
        let identities = rest.identities();
        let identity = definition
            .as_ref()
            .map_or([0; 32], |definition| identities.of(definition));
        Self {
            name: Arc::from(entry.name.as_str()),
            definition,
            settings: Arc::new(upstream_settings(entry, settings)),
            identity,
            identities,
            instance: Arc::from(entry.instance_name()),
            scope: entry.options.scope,
            entry: Arc::new(entry.clone()),
        }
    }

    /// Whether all sessions use one instance of it.
    pub(crate) fn is_global(&self) -> bool {
        self.scope == Scope::Global && self.definition.is_ok()
    }

    /// The same under the name of its instance.
    pub(crate) fn of_instance(self: &Arc<Self>) -> Arc<Self> {
        if self.name == self.instance {
            return Arc::clone(self);
        }
        Arc::new(Self {
            name: Arc::clone(&self.instance),
            ..Self::clone(self)
        })
    }

    pub(crate) fn transport(&self) -> Transport {
        match &self.definition {
            Ok(Definition::Stdio(_)) => Transport::Stdio,
            Ok(Definition::Http(_)) | Err(_) => Transport::Http,
        }
    }

    pub(crate) fn unavailable(&self) -> Option<Arc<str>> {
        self.definition.as_ref().err().cloned()
    }

    /// Why it cannot be used, as people want to know before they call it: a launcher that is not
    /// installed counts, although it may be by the time of the call. Blocks on the disk.
    pub(crate) fn problem(&self) -> Option<String> {
        match &self.definition {
            Err(reason) => Some(reason.to_string()),
            Ok(Definition::Stdio(child)) => {
                let path = child.env.get("PATH").map(Secret::expose);
                launcher_problem(&child.command, path)
            }
            Ok(Definition::Http(_)) => None,
        }
    }
}

fn upstream_settings(entry: &Entry, settings: &Settings) -> UpstreamSettings {
    let options = &entry.options;
    UpstreamSettings {
        start_timeout: options.start_timeout,
        reconnect_wait: options.reconnect_wait,
        recovery_backoff: (settings.backoff_min, settings.backoff_max),
        call_timeout: options.call_timeout,
        call_timeout_max: options.call_timeout_max,
        detached_idle: settings.child_idle,
        unused_idle: settings.child_unused,
        idle_timeout: options.idle_timeout,
        waiting_max: settings.pending_max,
        replay: options.replay,
        safe_tools: options.safe_tools.clone(),
        on_state_loss: options.on_state_loss,
        ..UpstreamSettings::default()
    }
}

/// What carries the messages of one upstream.
pub(crate) struct Carrier {
    server: Arc<str>,
    kind: Kind,
}

enum Kind {
    Child(StdioTransport),
    Http(HttpTransport),
    /// The entry cannot be used; its machine is closed from the start.
    Nothing,
}

impl Carrier {
    pub(crate) fn new(spec: &EntrySpec, cell: Weak<UpstreamCell>, limits: &Limits) -> Self {
        let kind = match &spec.definition {
            Ok(Definition::Stdio(definition)) => {
                let child = ChildSpec {
                    server: Arc::clone(&spec.name),
                    command: definition.command.clone(),
                    args: definition.args.clone(),
                    env: definition
                        .env
                        .iter()
                        .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                        .collect(),
                    cwd: definition.cwd.clone(),
                };
                Kind::Child(StdioTransport::new(child, cell, limits.stdio.clone()))
            }
            Ok(Definition::Http(definition)) => {
                let http = http_spec(&spec.name, definition);
                let (limits, shared) = (Arc::clone(&limits.http), Arc::clone(&limits.http_shared));
                Kind::Http(HttpTransport::new(http, cell, limits, shared))
            }
            Err(_) => Kind::Nothing,
        };
        Self {
            server: Arc::clone(&spec.name),
            kind,
        }
    }

    /// For a server that is not configured: carries nothing.
    pub(crate) fn nothing(server: Arc<str>) -> Self {
        Self {
            server,
            kind: Kind::Nothing,
        }
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Opens an instance; a child holds its place until it is gone.
    pub(crate) fn open(&self, generation: Generation, room: Option<Room>) {
        match &self.kind {
            Kind::Child(child) => child.open_holding(generation, room),
            Kind::Http(http) => http.open(generation),
            Kind::Nothing => {}
        }
    }

    /// Does what a transport does; everything else was taken before. An exchange over HTTP may be
    /// taken along.
    pub(crate) fn perform(&self, output: Output, errand: &mut Errand) {
        match &self.kind {
            Kind::Child(child) => match output {
                Output::Send {
                    generation,
                    exchange,
                    body,
                    ..
                } => {
                    child.send(generation, exchange, body);
                }
                Output::End { generation, .. } => child.end(generation),
                Output::Persist(_)
                | Output::Forget
                | Output::Sent { .. }
                | Output::Moved { .. }
                | Output::Reserve { .. }
                | Output::Open { .. }
                | Output::Resume { .. }
                | Output::Listen { .. }
                | Output::Abort { .. }
                | Output::RefreshCredentials
                | Output::ToSession { .. }
                | Output::Emit(_) => {}
            },
            Kind::Http(http) => perform_http(http, output, errand),
            Kind::Nothing => {}
        }
    }

    /// Reads credential sources again; says whether there are any, and so whether a report comes.
    pub(crate) fn refresh_credentials(&self) -> bool {
        match &self.kind {
            Kind::Http(http) => {
                http.refresh_credentials();
                true
            }
            Kind::Child(_) | Kind::Nothing => false,
        }
    }

    pub(crate) fn is_child(&self) -> bool {
        matches!(self.kind, Kind::Child(_))
    }

    pub(crate) fn children(&self) -> Vec<ChildView> {
        match &self.kind {
            Kind::Child(child) => child.snapshot(),
            Kind::Http(_) | Kind::Nothing => Vec::new(),
        }
    }

    /// Waits until children are gone and sessions are ended; bounded by the transports.
    pub(crate) async fn shut_down(&self) {
        match &self.kind {
            Kind::Child(child) => child.shut_down().await,
            Kind::Http(http) => http.shut_down().await,
            Kind::Nothing => {}
        }
    }
}

fn perform_http(http: &HttpTransport, output: Output, errand: &mut Errand) {
    match output {
        Output::Send {
            generation,
            exchange,
            body,
            purpose,
            route,
            repeatable,
            stretches,
        } => {
            let ask = Post {
                body,
                purpose,
                route,
                repeatable,
                stretches,
            };
            http.send(generation, exchange, ask, errand);
        }
        Output::Resume {
            generation,
            exchange,
            last_event_id,
            delay,
            route,
        } => {
            http.resume(generation, exchange, last_event_id, delay, route);
        }
        Output::Listen {
            generation,
            exchange,
            last_event_id,
            delay,
            route,
        } => {
            http.listen(generation, exchange, last_event_id, delay, route);
        }
        Output::Abort {
            generation,
            exchange,
        } => http.abort(generation, exchange),
        Output::End {
            generation,
            delete,
            route,
        } => http.end(generation, delete, route),
        Output::Persist(_)
        | Output::Forget
        | Output::Sent { .. }
        | Output::Moved { .. }
        | Output::Reserve { .. }
        | Output::Open { .. }
        | Output::RefreshCredentials
        | Output::ToSession { .. }
        | Output::Emit(_) => {}
    }
}

/// What all transports share: bounds, connections, TLS.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) stdio: StdioLimits,
    pub(crate) http: Arc<HttpLimits>,
    pub(crate) http_shared: Arc<HttpShared>,
}

impl Limits {
    pub(crate) fn new(settings: &Settings, http_shared: Arc<HttpShared>) -> Self {
        Self {
            stdio: StdioLimits {
                frame_max: settings.body_max,
                line_budget: LineBudget::new(settings.line_buffers),
                ..StdioLimits::default()
            },
            http: Arc::new(HttpLimits {
                body_max: settings.body_max,
                delete_timeout: settings.delete_timeout,
                ..HttpLimits::default()
            }),
            http_shared,
        }
    }
}

/// The longest that an orderly end of everything may take.
pub(crate) const SHUT_DOWN_MAX: Duration = Duration::from_secs(10);

/// The longest that the end of an upstream waits for what is on its way to or from its server:
/// notifications, which their machine gives 2 s, and the answer to a handshake.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_secs(3);
