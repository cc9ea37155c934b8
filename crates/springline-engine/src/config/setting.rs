//! The settings of the gateway as a whole.
//!
//! Owns the typed form of the top-level `springline` block after all layers (built-in < files <
//! environment < flags) and the rules that span several of its keys. It must not know where a layer
//! came from beyond the place that it names in an error.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;

use super::default::{Home, Preset, declaration};
use super::environment::Environment;
use super::place::{Place, Problem};
use super::secret::Secret;
use super::value::{Given, Layer};

/// The port of a listener whose address names none.
pub const PORT_DEFAULT: u16 = 7333;

/// Where the HTTP listener listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listen {
    /// As it was written, for people.
    pub text: String,
    /// Every address to bind; two for `localhost`, which is both loopback addresses.
    pub addresses: Vec<SocketAddr>,
}

impl Listen {
    /// Reads `ADDRESS:PORT`, `ADDRESS` (port 7333) or `localhost[:PORT]`. `None` if it is neither;
    /// names other than `localhost` are not looked up, because what they mean can change.
    pub fn parse(text: &str) -> Option<Listen> {
        let (host, port) = match text.rsplit_once(':') {
            _ if text.parse::<IpAddr>().is_ok() => (text, PORT_DEFAULT),
            Some((host, port)) if !host.is_empty() => (host, port.parse().ok()?),
            Some(_) => return None,
            None => (text, PORT_DEFAULT),
        };
        let addresses = if host.eq_ignore_ascii_case("localhost") {
            let both = [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                IpAddr::from(Ipv6Addr::LOCALHOST),
            ];
            both.map(|address| SocketAddr::new(address, port)).to_vec()
        } else {
            let bare = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            vec![SocketAddr::new(bare.unwrap_or(host).parse().ok()?, port)]
        };
        Some(Listen {
            text: text.to_owned(),
            addresses,
        })
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        self.addresses
            .iter()
            .all(|address| address.ip().to_canonical().is_loopback())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Every setting of the gateway. The meaning and default of each field stand in the declaration
/// table of [`super::default`] under the same name.
#[derive(Clone, Debug)]
#[expect(
    missing_docs,
    reason = "the declaration table documents every key once"
)]
pub struct Settings {
    /// The listener; `None` if there is to be none.
    pub listen: Option<Listen>,
    /// The accepted bearer tokens by name; empty if the listener asks for none.
    pub tokens: IndexMap<String, Secret>,
    /// Further origins, in lower case, without a path.
    pub allowed_origins: Vec<String>,
    /// Further hosts, in lower case.
    pub allowed_hosts: Vec<String>,
    pub cors: bool,
    pub socket: PathBuf,
    /// Whether the socket's path is the built-in one, whose folder we may create.
    pub socket_is_default: bool,
    pub state_dir: PathBuf,
    pub body_max: usize,
    pub stream_after: Duration,
    pub heartbeat: Duration,
    /// `None`: as many as the limits of the process allow.
    pub connections_max: Option<usize>,
    pub session_idle: Duration,
    pub sessions_max: usize,
    pub pending_max: usize,
    pub concurrent_starts: usize,
    pub children_max: usize,
    pub child_idle: Duration,
    pub child_unused: Duration,
    pub list_wait: Duration,
    pub ask_timeout: Duration,
    pub delete_timeout: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub redelivery_events: usize,
    pub redelivery_bytes: usize,
    pub redelivery_age: Duration,
    /// Bytes of events that all sessions together keep for redelivery.
    pub redelivery_total: usize,
    pub line_buffers: usize,
    pub events_max: usize,
    /// `None`: an orderly stop waits for the deadlines of the calls.
    pub drain: Option<Duration>,
    /// For entries whose block says nothing else.
    pub start_timeout: Duration,
    /// For entries whose block says nothing else.
    pub call_timeout: Duration,
    /// For entries whose block says nothing else.
    pub call_timeout_max: Duration,
    /// For entries whose block says nothing else.
    pub reconnect_wait: Duration,
}

impl Settings {
    /// The settings of an empty configuration on the given machine.
    pub fn built_in(environment: &dyn Environment) -> Result<Settings, Problem> {
        Self::from_layer(&Layer::new(), environment)
    }

    /// The settings that a merged layer makes.
    pub(crate) fn from_layer(
        layer: &Layer,
        environment: &dyn Environment,
    ) -> Result<Settings, Problem> {
        let read = Reader { layer };
        let socket = read.path("socket");
        let settings = Settings {
            listen: read.listen()?,
            tokens: read.tokens()?,
            allowed_origins: read.names("allowedOrigins", origin)?,
            allowed_hosts: read.names("allowedHosts", host)?,
            cors: read.flag("cors"),
            socket_is_default: socket.is_none(),
            socket: socket.unwrap_or_else(|| default_socket(environment)),
            state_dir: match read.path("stateDir") {
                Some(path) => path,
                None => default_state_dir(environment)?,
            },
            body_max: read.number("bodyMax"),
            stream_after: read.duration("streamAfter"),
            heartbeat: read.duration("heartbeat"),
            connections_max: read.optional_number("connectionsMax"),
            session_idle: read.duration("sessionIdle"),
            sessions_max: read.number("sessionsMax"),
            pending_max: read.number("pendingMax"),
            concurrent_starts: read.number("concurrentStarts"),
            children_max: read.number("childrenMax"),
            child_idle: read.duration("childIdle"),
            child_unused: read.duration("childUnused"),
            list_wait: read.duration("listWait"),
            ask_timeout: read.duration("askTimeout"),
            delete_timeout: read.duration("deleteTimeout"),
            backoff_min: read.duration("backoffMin"),
            backoff_max: read.duration("backoffMax"),
            redelivery_events: read.number("redeliveryEvents"),
            redelivery_bytes: read.number("redeliveryBytes"),
            redelivery_age: read.duration("redeliveryAge"),
            redelivery_total: read.number("redeliveryTotalBytes"),
            line_buffers: read.number("lineBuffers"),
            events_max: read.number("eventsMax"),
            drain: read.optional_duration("drain"),
            start_timeout: read.duration("startTimeout"),
            call_timeout: read.duration("callTimeout"),
            call_timeout_max: read.duration("callTimeoutMax"),
            reconnect_wait: read.duration("reconnectWait"),
        };
        settings.check(&read)?;
        Ok(settings)
    }

    /// The rules that span several keys.
    fn check(&self, read: &Reader<'_>) -> Result<(), Problem> {
        if let Some(listen) = self.listen.as_ref().filter(|listen| !listen.is_loopback())
            && self.tokens.is_empty()
        {
            return Err(Problem::invalid(
                &read.place("listen"),
                format!("other machines can reach {listen}, and there is no authentication"),
                "add a token to `springline.auth.tokens`, or listen on 127.0.0.1",
            ));
        }
        if self.backoff_min > self.backoff_max {
            return Err(Problem::invalid(
                &read.place("backoffMin"),
                "`backoffMin` is longer than `backoffMax`",
                "make it shorter, or raise `backoffMax`",
            ));
        }
        Ok(())
    }
}

/// The folder of a user's own kind of file by the XDG rules: `variable` if it is an absolute path,
/// else `fallback` in the home.
pub(crate) fn xdg(
    environment: &dyn Environment,
    variable: &str,
    fallback: &str,
) -> Option<PathBuf> {
    absolute(environment.var(variable))
        .or_else(|| absolute(environment.var("HOME")).map(|home| home.join(fallback)))
}

fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

pub(crate) fn default_socket(environment: &dyn Environment) -> PathBuf {
    let folder = match absolute(environment.var("XDG_RUNTIME_DIR")) {
        Some(runtime) => runtime.join("springline"),
        None => Path::new("/tmp").join(format!("springline-{}", environment.uid())),
    };
    folder.join("springline.sock")
}

fn default_state_dir(environment: &dyn Environment) -> Result<PathBuf, Problem> {
    let folder = xdg(environment, "XDG_STATE_HOME", ".local/state").ok_or_else(|| {
        Problem::invalid(
            &Place::Whole,
            "there is no folder for the state: neither XDG_STATE_HOME nor HOME is set",
            "set one of them, or give --state-dir",
        )
    })?;
    Ok(folder.join("springline"))
}

/// An origin as a browser sends it: scheme, host and port, nothing else.
fn origin(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let plain =
        |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | '*' | '?' | '#');
    let good = !scheme.is_empty() && !rest.is_empty() && text.replace("://", "").chars().all(plain);
    good.then(|| text.to_lowercase())
}

/// A host with or without a port, as in the `Host` header.
fn host(text: &str) -> Option<String> {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    (!text.is_empty() && text.chars().all(plain)).then(|| text.to_ascii_lowercase())
}

/// Typed reads of a layer, with the preset of the table where nothing was given.
struct Reader<'a> {
    layer: &'a Layer,
}

impl Reader<'_> {
    fn place(&self, key: &str) -> Place {
        self.layer
            .get(key)
            .map_or(Place::Whole, |(place, _)| place.clone())
    }

    fn preset(key: &str) -> Preset {
        declaration(Home::Top, key).map_or(Preset::Nothing(""), |declared| declared.preset)
    }

    fn duration(&self, key: &str) -> Duration {
        self.optional_duration(key)
            .unwrap_or_else(|| match Self::preset(key) {
                Preset::Ms(ms) => Duration::from_millis(ms),
                _ => Duration::ZERO,
            })
    }

    fn optional_duration(&self, key: &str) -> Option<Duration> {
        match self.layer.get(key) {
            Some((_, Given::Duration(duration))) => Some(*duration),
            _ => None,
        }
    }

    fn number(&self, key: &str) -> usize {
        let number = match (self.layer.get(key), Self::preset(key)) {
            (Some((_, Given::Number(number))), _) => *number,
            (_, Preset::Number(number)) => number,
            _ => 0,
        };
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    fn optional_number(&self, key: &str) -> Option<usize> {
        match self.layer.get(key) {
            Some((_, Given::Number(number))) => {
                Some(usize::try_from(*number).unwrap_or(usize::MAX))
            }
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> bool {
        match self.layer.get(key) {
            Some((_, Given::Flag(flag))) => *flag,
            _ => Self::preset(key) == Preset::Flag(true),
        }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        match self.layer.get(key) {
            Some((_, Given::Path(path))) => Some(path.clone()),
            _ => None,
        }
    }

    fn listen(&self) -> Result<Option<Listen>, Problem> {
        let text = match (self.layer.get("listen"), Self::preset("listen")) {
            (Some((_, Given::Off)), _) => return Ok(None),
            (Some((_, Given::Text(text))), _) => text.as_str(),
            (_, Preset::Text(text)) => text,
            _ => return Ok(None),
        };
        Listen::parse(text).map(Some).ok_or_else(|| {
            Problem::invalid(
                &self.place("listen"),
                "`listen` is not an address with a port",
                "write an IP address or localhost, like \"127.0.0.1:7333\" or \"[::1]:7333\"",
            )
        })
    }

    fn names(&self, key: &str, normal: fn(&str) -> Option<String>) -> Result<Vec<String>, Problem> {
        let Some((place, Given::List(texts))) = self.layer.get(key) else {
            return Ok(Vec::new());
        };
        let names = texts.iter().enumerate().map(|(at, text)| {
            normal(text).ok_or_else(|| {
                let example = if key == "allowedHosts" {
                    "write a host like \"mcp.example\" or \"mcp.example:7333\""
                } else {
                    "write an origin like \"https://app.example\", without a path; `*` is not taken"
                };
                Problem::invalid(
                    place,
                    format!("element {} of `{key}` is not valid", at + 1),
                    example,
                )
            })
        });
        names.collect()
    }

    fn tokens(&self) -> Result<IndexMap<String, Secret>, Problem> {
        let Some((place, Given::Secrets(tokens))) = self.layer.get("auth.tokens") else {
            return Ok(IndexMap::new());
        };
        for (at, (name, token)) in tokens.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if !(1..=64).contains(&name.len()) || !name.chars().all(plain) {
                return Err(Problem::invalid(
                    place,
                    format!("token name {name:?} is not valid"),
                    "use 1 to 64 of the characters A-Z a-z 0-9 . _ -",
                ));
            }
            if token.is_empty() || !token.expose().chars().all(|c| c.is_ascii_graphic()) {
                return Err(Problem::invalid(
                    place,
                    format!(
                        "token `{name}` is empty or holds a character that no header can carry"
                    ),
                    "use a long random string of visible ASCII characters",
                ));
            }
            if let Some((other, _)) = tokens.iter().take(at).find(|(_, other)| *other == token) {
                return Err(Problem::invalid(
                    place,
                    format!("tokens `{other}` and `{name}` have the same value"),
                    "give each name a value of its own: it says who a session belongs to",
                ));
            }
        }
        Ok(tokens.clone())
    }
}
