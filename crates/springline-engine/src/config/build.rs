//! From the values of an entry to its definition.
//!
//! Owns the rules of each transport: which keys it takes, which belong together, which values no
//! process or header can carry. It must not know how a value was written.

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use indexmap::IndexMap;
use url::Url;

use super::definition::{
    Auth, Ca, Definition, HttpDefinition, RESERVED_HEADERS, StdioDefinition, origin, sanitised_url,
};
use super::document::{Node, Value};
use super::expand::Expander;
use super::nearest::nearest;
use super::place::{Place, Problem, ProblemKind};
use super::secret::Secret;
use super::value::{Given, Layer};

/// The parts from which a definition is built.
pub(crate) struct Parts<'a> {
    /// The entry as written, for places.
    pub(crate) node: &'a Node,
    /// The entry's own keys.
    pub(crate) entry: &'a Layer,
    /// The keys of its `springline` block.
    pub(crate) block: &'a Layer,
    /// The values of its `envFile`.
    pub(crate) env_file: &'a IndexMap<String, Secret>,
    /// What strings are expanded with.
    pub(crate) expander: &'a Expander<'a>,
}

impl Parts<'_> {
    /// Builds the definition, or says what is missing or wrong.
    pub(crate) fn build(&self) -> Result<Definition, Problem> {
        let transport = self.transport()?;
        match (self.entry.get("command"), self.entry.get("url")) {
            (Some((command, _)), Some(_)) => Err(Problem::invalid(
                command,
                "the entry has both `command` and `url`",
                "keep `command` for a child process, or `url` for an HTTP server",
            )),
            (Some((place, Given::Text(command))), None) => {
                if let Some((at, "http")) = transport {
                    return Err(mismatch(at, "command", "stdio"));
                }
                self.stdio(place, command).map(Definition::Stdio)
            }
            (None, Some((place, Given::Secret(url)))) => {
                if let Some((at, "stdio")) = transport {
                    return Err(mismatch(at, "url", "http"));
                }
                self.http(place, url).map(Definition::Http)
            }
            _ => Err(self.nothing_to_run()),
        }
    }

    /// What `type` or `transport` says, as `stdio` or `http`.
    fn transport(&self) -> Result<Option<(&Place, &'static str)>, Problem> {
        let mut found: Option<(&Place, &'static str)> = None;
        for key in ["type", "transport"] {
            let Some((place, Given::Text(text))) = self.entry.get(key) else {
                continue;
            };
            let transport = match text.as_str() {
                "sse" => {
                    return Err(Problem::new(
                        ProblemKind::Unavailable,
                        place,
                        "the old HTTP+SSE transport is not supported yet",
                        "use the server's Streamable HTTP endpoint with `\"type\": \"http\"`",
                    ));
                }
                "stdio" => "stdio",
                _ => "http",
            };
            if found.is_some_and(|(_, other)| other != transport) {
                return Err(Problem::invalid(
                    place,
                    "`type` and `transport` contradict each other",
                    "remove one of the two",
                ));
            }
            found = Some((place, transport));
        }
        Ok(found)
    }

    fn nothing_to_run(&self) -> Problem {
        for other in ["serverUrl", "httpUrl", "uri", "endpoint"] {
            if let Some(member) = self.node.member(other) {
                return Problem::invalid(
                    &member.place,
                    "the entry has neither `command` nor `url`",
                    format!("rename `{other}` to `url`"),
                );
            }
        }
        for near in ["command", "url"] {
            if let Value::Object(members) = &self.node.value
                && let Some(member) = members
                    .iter()
                    .find(|member| nearest(&member.name, std::iter::once(near)).is_some())
            {
                return Problem::invalid(
                    &member.place,
                    "the entry has neither `command` nor `url`",
                    format!("did you mean `{near}` by `{}`?", member.name),
                );
            }
        }
        Problem::invalid(
            &self.node.place,
            "the entry has neither `command` nor `url`",
            "give it a `command` (with `args`) for a child process, or the `url` of an HTTP server",
        )
    }

    fn stdio(&self, place: &Place, command: &str) -> Result<StdioDefinition, Problem> {
        Self::refuse_keys(self.entry, &["headers"], "stdio")?;
        Self::refuse_keys(self.block, &["ca", "auth.type"], "stdio")?;
        if command.trim() != command {
            return Err(Problem::invalid(
                place,
                "`command` starts or ends with white space",
                "remove it; arguments belong into `args`",
            ));
        }
        let mut env = self.env_file.clone();
        if let Some((at, Given::Secrets(values))) = self.entry.get("env") {
            if let Some(name) = values.keys().find(|name| bad_variable(name)) {
                return Err(Problem::invalid(
                    at,
                    format!("{name:?} cannot be the name of a variable in `env`"),
                    "a name is not empty and holds no = and no NUL",
                ));
            }
            env.extend(
                values
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
        }
        let args = match self.entry.get("args") {
            Some((_, Given::List(args))) => args.clone(),
            _ => Vec::new(),
        };
        Ok(StdioDefinition {
            command: command.to_owned(),
            args,
            env,
            cwd: path(self.entry, "cwd"),
        })
    }

    fn http(&self, place: &Place, text: &Secret) -> Result<HttpDefinition, Problem> {
        Self::refuse_keys(self.entry, &["args", "cwd", "env"], "http")?;
        let mut url = parse_url(place, text.expose())?;
        url.set_fragment(None);
        let headers = self.headers()?;
        let auth = self.auth()?;
        if let (true, Some((at, _))) = (
            headers.contains_key(http::header::AUTHORIZATION),
            self.block.get("auth.type"),
        ) {
            return Err(Problem::invalid(
                at,
                "the entry has both an Authorization header and `springline.auth`",
                "remove one of the two",
            ));
        }
        let ca = match self.block.get("ca") {
            Some((at, Given::Path(path))) => {
                let written = self
                    .node
                    .member("springline")
                    .and_then(|block| block.node.member("ca"));
                let shown = written.map_or(String::new(), |ca| ca.node.shown_path(path));
                let pem = self.expander.read(path, &shown, at)?;
                Some(Ca {
                    path: path.clone(),
                    pem: Arc::from(pem),
                })
            }
            _ => None,
        };
        let shown = if self.path_holds_variable() {
            format!("{}/…", origin(&url))
        } else {
            sanitised_url(&url)
        };
        Ok(HttpDefinition {
            url,
            headers,
            auth,
            ca,
            shown,
        })
    }

    /// Whether a variable was put into the URL before its query: its value must not be shown.
    fn path_holds_variable(&self) -> bool {
        let raw = self.node.member("url").map(|member| &member.node.value);
        let Some(Value::Text(raw)) = raw else {
            return false;
        };
        raw.split(['?', '#'])
            .next()
            .is_some_and(|before| before.contains("${"))
    }

    fn refuse_keys(layer: &Layer, keys: &[&str], transport: &str) -> Result<(), Problem> {
        for key in keys {
            if let Some((place, given)) = layer.get(key) {
                // Empty leftovers of a template do no harm.
                let empty = match given {
                    Given::List(values) => values.is_empty(),
                    Given::Secrets(values) => values.is_empty(),
                    _ => false,
                };
                if !empty {
                    let key = key.split('.').next().unwrap_or(key);
                    return Err(Problem::invalid(
                        place,
                        format!("`{key}` has no meaning for a server of type {transport}"),
                        "remove it",
                    ));
                }
            }
        }
        Ok(())
    }

    fn headers(&self) -> Result<HeaderMap, Problem> {
        let mut headers = HeaderMap::new();
        let Some((at, Given::Secrets(values))) = self.entry.get("headers") else {
            return Ok(headers);
        };
        for (name, value) in values {
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                Problem::invalid(
                    at,
                    format!("{name:?} cannot be the name of a header"),
                    "use letters, digits and -",
                )
            })?;
            if RESERVED_HEADERS.contains(&parsed.as_str()) {
                continue;
            }
            let value = header_value(at, &format!("the header {name}"), value.expose())?;
            if headers.insert(parsed, value).is_some() {
                return Err(Problem::invalid(
                    at,
                    format!("the header {name} is given twice"),
                    "remove one of the two; upper and lower case are the same",
                ));
            }
        }
        Ok(headers)
    }

    fn auth(&self) -> Result<Option<Auth>, Problem> {
        let Some((at, Given::Text(kind))) = self.block.get("auth.type") else {
            return match self.block.iter().find(|(key, _)| key.starts_with("auth.")) {
                Some((key, (place, _))) => Err(Problem::invalid(
                    place,
                    format!("`{key}` stands in an `auth` without `type`"),
                    "add \"type\": \"bearer\" or \"type\": \"rmq-hmac-sha256\"",
                )),
                None => Ok(None),
            };
        };
        let needed: &[&str] = match kind.as_str() {
            "bearer" => &["auth.token"],
            _ => &["auth.accessKey", "auth.secretKey", "auth.instanceId"],
        };
        for (key, (place, _)) in self.block {
            if key.starts_with("auth.") && *key != "auth.type" && !needed.contains(key) {
                return Err(Problem::invalid(
                    place,
                    format!("`{key}` does not belong to an `auth` of type {kind}"),
                    format!("remove it; {kind} takes {}", needed.join(", ")),
                ));
            }
        }
        let secret = |key: &str| match self.block.get(key) {
            Some((_, Given::Secret(secret))) => Ok(secret.clone()),
            Some((_, Given::Text(text))) => Ok(Secret::new(text.as_str())),
            _ => Err(Problem::invalid(
                at,
                format!("an `auth` of type {kind} needs `{key}`"),
                format!("add it; {kind} takes {}", needed.join(", ")),
            )),
        };
        if kind == "bearer" {
            let token = secret("auth.token")?;
            header_value(at, "`auth.token`", token.expose())?;
            return Ok(Some(Auth::Bearer { token }));
        }
        let instance_id = secret("auth.instanceId")?.expose().to_owned();
        header_value(at, "`auth.instanceId`", &instance_id)?;
        Ok(Some(Auth::RmqHmacSha256 {
            access_key: secret("auth.accessKey")?,
            secret_key: secret("auth.secretKey")?,
            instance_id,
        }))
    }
}

fn path(layer: &Layer, key: &str) -> Option<PathBuf> {
    match layer.get(key) {
        Some((_, Given::Path(path))) => Some(path.clone()),
        _ => None,
    }
}

fn bad_variable(name: &str) -> bool {
    name.is_empty() || name.contains(['=', '\0'])
}

fn mismatch(at: &Place, key: &str, transport: &str) -> Problem {
    Problem::invalid(
        at,
        format!("the type does not fit an entry with `{key}`"),
        format!("remove it, or write \"{transport}\""),
    )
}

/// A sensitive header value; its text never comes back out in an error.
fn header_value(at: &Place, name: &str, text: &str) -> Result<HeaderValue, Problem> {
    let mut value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        Problem::invalid(
            at,
            format!("{name} holds a character that no header can carry"),
            "look for a line break or another control character in it",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn parse_url(place: &Place, text: &str) -> Result<Url, Problem> {
    match Url::parse(text.trim()) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        _ => Err(Problem::invalid(
            place,
            "`url` is not the URL of an HTTP server",
            "write it in full, like \"https://api.example/mcp\"",
        )),
    }
}
