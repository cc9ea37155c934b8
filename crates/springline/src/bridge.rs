//! `springline bridge`: stdio to one server, with the gateway's engine inside this process.
//!
//! Owns: the definition that the command line makes, and the life of the one session. It must not
//! know transports: the engine picks them by the definition.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use springline_engine::clock;
use springline_engine::config::{
    self, Auth, Config, Definition, Entry, EntryOptions, Environment, HttpDefinition,
    ProcessEnvironment, RESERVED_HEADERS, ReadError, Secret, Settings, StdioDefinition,
};
use springline_engine::downstream::{Gate, Parts as _, Principal, Session as _, socket};
use springline_engine::gateway::{Gateway, Rest};
use springline_engine::upstream::http::{HttpShared, ProxyEnv};
use springline_proto::session::{Downstream, Endpoint, Part};
use tokio::time::timeout;
use url::Url;

use crate::stdio::{Deaf, Front, Heard, SIGNAL_GRACE, complain};

mod resume;

/// The exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// The exit code when another process has what only one may have; docs/cli.md has the table.
const TAKEN: u8 = 4;

/// Characters that the name of a server entry may have.
const NAME_MAX: usize = 32;

/// What `bridge` is told.
#[derive(Clone, Debug)]
pub struct BridgeArgs {
    /// The server.
    pub server: Server,
    /// `--header NAME:VALUE`, as written: variables in it are replaced here, so that secrets need
    /// not stand in the list of processes.
    pub headers: Vec<String>,
    /// `--bearer-env VAR`: the variable that holds a bearer token.
    pub bearer_env: Option<String>,
    /// `--timeout`: the patience with a silent call.
    pub timeout: Option<Duration>,
    /// `--resume NAME`: the session with the server goes on at the next start under this name.
    pub resume: Option<String>,
    /// `--state-dir`: where that is kept.
    pub state_dir: Option<PathBuf>,
}

/// The server that is bridged to.
#[derive(Clone, Debug)]
pub enum Server {
    /// A Streamable HTTP endpoint.
    Url(String),
    /// A program that speaks on its standard input and output.
    Command {
        /// The program.
        program: String,
        /// Its arguments, as they are.
        args: Vec<String>,
    },
}

/// What is wrong with the command line.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A name under which nothing can be kept.
    #[error("--resume: a name has 1 to 32 letters, digits, `-` or `_`")]
    ResumeName,
    /// A program ends with the bridge.
    #[error("--resume is for a URL: a program ends with the bridge, and its session with it")]
    ResumeProgram,
    /// The endpoint is no URL that can be used.
    #[error("the URL {0}")]
    Url(String),
    /// The built-in settings do not fit this machine.
    #[error("the built-in settings cannot be used: {0}")]
    Settings(String),
    /// A header without a value. What was given is not repeated: it may be a secret.
    #[error("--header: write NAME:VALUE; what was given has no colon")]
    NoColon,
    /// A header that cannot be sent.
    #[error("--header {name}: {problem}")]
    Header {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// The token's variable is missing.
    #[error("--bearer-env: the variable {0} is not set")]
    Bearer(String),
    /// A header or token for a program.
    #[error("--header and --bearer-env are for a URL; a program gets its secrets by environment")]
    Program,
}

/// Runs `bridge` until its client has finished, and says how it ended.
pub async fn run(args: BridgeArgs) -> ExitCode {
    let config = match configure(&args, &ProcessEnvironment) {
        Ok(config) => config,
        Err(error) => {
            complain("bridge", &error.to_string());
            return ExitCode::from(USAGE);
        }
    };
    let (_claim, rest) = match open_rest(&args, &config.settings).await {
        Ok(opened) => opened,
        Err((code, text)) => {
            complain("bridge", &text);
            return code;
        }
    };
    let mut front = match Front::open("bridge", config.settings.body_max) {
        Ok(front) => front,
        Err(error) => {
            complain("bridge", &format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let server: Arc<str> = config
        .servers
        .keys()
        .next()
        .map_or("server", String::as_str)
        .into();
    let proxies = ProxyEnv::read(|name| std::env::var(name).ok());
    let http = Arc::new(HttpShared::new(proxies, Arc::new(clock::wall)));
    let gateway = Gateway::new(&config, http, rest);
    if let Some(name) = &args.resume {
        resume::tell(&gateway, name);
    }
    let after = if args.resume.is_some() {
        After::Keep
    } else {
        After::End
    };
    let ended = carry(&gateway, Endpoint::One(server), &mut front, after).await;
    // The session upstream is ended by DELETE unless it is kept, a child by the end of its input.
    let was_in_vain = front.was_in_vain();
    let shut_down = timeout(SIGNAL_GRACE, gateway.shut_down(Duration::ZERO));
    let is_over = if ended.is_ok() {
        // The last answers do not wait for the server's end.
        tokio::join!(shut_down, front.close()).0.is_ok()
    } else {
        shut_down.await.is_ok()
    };
    if !is_over {
        complain("bridge", "the server did not end in time");
    }
    if was_in_vain {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// What outlives the process, and the right to it; or how to end, and why.
async fn open_rest(
    args: &BridgeArgs,
    settings: &Settings,
) -> Result<(Option<resume::Claim>, Rest), (ExitCode, String)> {
    let Some(name) = &args.resume else {
        return match Rest::in_memory() {
            Ok(rest) => Ok((None, rest)),
            Err(error) => Err((ExitCode::FAILURE, error.to_string())),
        };
    };
    match resume::claim(&settings.state_dir, name).await {
        Ok((claim, rest)) => Ok((Some(claim), rest)),
        Err(error @ resume::ResumeError::Taken { .. }) => {
            Err((ExitCode::from(TAKEN), error.to_string()))
        }
        Err(error) => Err((ExitCode::FAILURE, error.to_string())),
    }
}

/// The configuration of a gateway with this one server.
fn configure(args: &BridgeArgs, environment: &dyn Environment) -> Result<Config, UsageError> {
    match (&args.resume, &args.server) {
        (Some(_), Server::Command { .. }) => return Err(UsageError::ResumeProgram),
        (Some(name), _) if !resume::is_name(name) => return Err(UsageError::ResumeName),
        _ => {}
    }
    let (name, definition) = match &args.server {
        Server::Url(url) => {
            let definition = http_definition(url, args, environment)?;
            let host = definition.url.host_str().unwrap_or_default();
            let port = definition.url.port();
            let name = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            (name, Definition::Http(definition))
        }
        Server::Command { .. } if !args.headers.is_empty() || args.bearer_env.is_some() => {
            return Err(UsageError::Program);
        }
        Server::Command { program, args } => {
            let name = Path::new(program)
                .file_name()
                .unwrap_or_default()
                .to_string_lossy();
            let definition = StdioDefinition::new(program.clone(), args.clone());
            (name.into_owned(), Definition::Stdio(definition))
        }
    };
    let settings = settings(args, environment)?;
    let mut options = EntryOptions::from_settings(&settings);
    if let Some(timeout) = args.timeout {
        options.call_timeout = timeout;
        options.call_timeout_max = options.call_timeout_max.max(timeout);
    }
    let name = entry_name(&name);
    let entry = Entry::synthetic(&name, definition, options);
    Ok(Config {
        servers: [(name, entry)].into_iter().collect(),
        settings,
        notes: Vec::new(),
        files: Vec::new(),
    })
}

/// The built-in settings. Only what is kept needs a state folder.
fn settings(args: &BridgeArgs, environment: &dyn Environment) -> Result<Settings, UsageError> {
    let told = args.state_dir.clone().or_else(|| {
        let folder = environment.var("SPRINGLINE_STATE_DIR");
        folder.filter(|folder| !folder.is_empty()).map(Into::into)
    });
    let settings = if args.resume.is_some() && told.is_none() {
        Settings::built_in(environment)
    } else {
        Settings::built_in(&Stateless(environment))
    };
    let mut settings = settings.map_err(|problem| UsageError::Settings(problem.to_string()))?;
    if let Some(folder) = told {
        settings.state_dir = folder;
    }
    Ok(settings)
}

/// The machine, with some state folder in any case, for when none need be known.
struct Stateless<'a>(&'a dyn Environment);

impl Environment for Stateless<'_> {
    fn var(&self, name: &str) -> Option<OsString> {
        if name == "XDG_STATE_HOME" {
            return Some("/nonexistent".into());
        }
        self.0.var(name)
    }

    fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
        self.0.read(path, max)
    }

    fn uid(&self) -> u32 {
        self.0.uid()
    }
}

/// A name for errors, made of what the server is called.
fn entry_name(text: &str) -> String {
    let name: String = text
        .chars()
        .map(|c| {
            let is_plain = c.is_ascii_alphanumeric() || matches!(c, '.' | ':');
            if is_plain { c } else { '-' }
        })
        .take(NAME_MAX)
        .collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "server".to_owned()
    } else {
        name.to_owned()
    }
}

fn http_definition(
    text: &str,
    args: &BridgeArgs,
    environment: &dyn Environment,
) -> Result<HttpDefinition, UsageError> {
    let mut url = Url::parse(text).map_err(|error| {
        let text = format!("cannot be read ({error}); write it in full, like https://host/mcp");
        UsageError::Url(text)
    })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        let text = "must begin with http:// or https:// and name a host";
        return Err(UsageError::Url(text.to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let text = "must have no user name or password; use --header or --bearer-env";
        return Err(UsageError::Url(text.to_owned()));
    }
    url.set_fragment(None);
    let mut definition = HttpDefinition::new(url);
    definition.headers = headers(&args.headers, environment)?;
    if let Some(variable) = &args.bearer_env {
        let token = environment
            .var(variable)
            .and_then(|value| value.into_string().ok());
        let token = token.filter(|token| !token.trim().is_empty());
        let token = token.ok_or_else(|| UsageError::Bearer(variable.clone()))?;
        definition.auth = Some(Auth::Bearer {
            token: Secret::new(token.trim()),
        });
    }
    Ok(definition)
}

fn headers(written: &[String], environment: &dyn Environment) -> Result<HeaderMap, UsageError> {
    let mut headers = HeaderMap::new();
    for text in written {
        // Without a colon the whole may be a secret: it is not repeated.
        let Some((name, value)) = text.split_once(':') else {
            return Err(UsageError::NoColon);
        };
        let name = name.trim().to_ascii_lowercase();
        let refuse = |problem: &str| {
            Err(UsageError::Header {
                name: name.clone(),
                problem: problem.to_owned(),
            })
        };
        let Ok(header) = HeaderName::try_from(name.as_str()) else {
            return refuse("this is no name of a header; write NAME:VALUE");
        };
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return refuse("this header belongs to the protocol");
        }
        let value = match config::expand(value.trim(), environment) {
            Ok(value) => value,
            Err(problem) => return refuse(&problem.to_string()),
        };
        let Ok(mut value) = HeaderValue::try_from(value) else {
            return refuse("its value has characters that no header may have");
        };
        value.set_sensitive(true);
        headers.append(header, value);
    }
    Ok(headers)
}

/// What becomes of a session when its client has finished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum After {
    /// It is ended.
    End,
    /// It is left as it is, for whoever owns the gate.
    Keep,
}

/// Carries one session between the client in front and a gate, until either side ends: the client
/// by the end of its input, and then its calls in flight finish.
///
/// # Errors
/// [`Deaf`] when the client stopped reading first; nothing more can be said to it.
pub async fn carry<G: Gate>(
    gate: &G,
    endpoint: Endpoint,
    front: &mut Front,
    after: After,
) -> Result<(), Deaf> {
    let principal = Principal::Uid(socket::own_uid());
    let session = match gate.open(&principal, endpoint, Downstream::Pipe) {
        Ok(session) => session,
        Err(error) => {
            front.fail(error.to_string());
            return Err(Deaf);
        }
    };
    let mut parts = session.pipe();
    let carried = loop {
        if front.is_finished() && !front.is_waiting() {
            break Ok(());
        }
        tokio::select! {
            biased;
            part = parts.next() => match part {
                Some(Part::Event { data, .. }) => {
                    if front.pass(data).await.is_err() {
                        break Err(Deaf);
                    }
                }
                Some(
                    Part::Begin
                    | Part::Accepted
                    | Part::Json(_)
                    | Part::Open { .. }
                    | Part::OpenEvent
                    | Part::Bytes(_)
                    | Part::Close { .. }
                    | Part::Refuse { .. }
                    | Part::Welcome(_)
                    | Part::Frame { .. }
                ) => {}
                Some(Part::Cut | Part::End) | None => break Ok(()),
            },
            heard = front.heard() => match heard {
                Heard::Message(message) => session.line(Ok(message)),
                Heard::Malformed(error) => session.line(Err(error)),
                Heard::Finished => {}
                Heard::Deaf => break Err(Deaf),
            },
        }
    };
    if carried.is_ok() {
        drain(&mut parts, front).await?;
    }
    if after == After::End {
        session.close();
    }
    carried
}

/// Passes on what the server has said already.
async fn drain<P: springline_engine::downstream::Parts>(
    parts: &mut P,
    front: &mut Front,
) -> Result<(), Deaf> {
    loop {
        let next = tokio::select! {
            biased;
            part = parts.next() => part,
            () = std::future::ready(()) => return Ok(()),
        };
        match next {
            Some(Part::Event { data, .. }) => front.pass(data).await?,
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
