//! The commands that ask a running gateway: `status`, `servers`, `sessions`, `tools`, `call`,
//! `restart`, `reload`, `stop`, `events`.
//!
//! Owns: what they print. With `--json` that is the gateway's own answer, byte for byte. It must
//! not know how the gateway comes to an answer.

use http_body_util::BodyExt as _;
use serde_json::Value;
use springline_engine::config::{self, Overrides, ProcessEnvironment, Sources};
use springline_proto::json::{self, Span};

use crate::api::{Api, Failure};
use crate::cli::{AskArgs, CallArgs, EventsArgs, PlaceArgs, RestartArgs, StopArgs, ToolsArgs};
use crate::console::{Console, clean, span};
use crate::exit::Exit;

type Ended = Result<Exit, Failure>;

/// Connects to the gateway at `--socket`, else at the socket that configuration and environment name.
/// Nothing else of the configuration counts: a gateway that runs can be asked whatever is wrong with
/// a file by now.
async fn connect(place: PlaceArgs) -> Result<Api, Failure> {
    let sources = Sources::from_files(place.config);
    let overrides = Overrides {
        socket: place.socket,
        ..Overrides::default()
    };
    let socket = config::socket(&sources, &overrides, &ProcessEnvironment).map_err(|error| {
        let text = format!("configuration refused: {error}; --socket PATH goes without it");
        Failure::new(Exit::Config, text)
    })?;
    Api::connect(&socket).await.map_err(|mut failure| {
        // A gateway that did not start for this very reason is not there to say so.
        let is_named = overrides.socket.is_some();
        let loaded = config::load(&sources, &overrides, &ProcessEnvironment);
        if let (false, Err(error)) = (is_named, loaded) {
            failure.text = format!("{}; the configuration is refused: {error}", failure.text);
        }
        failure
    })
}

/// Asks for a document and prints it: raw, or as `show` does.
async fn document(
    args: AskArgs,
    path: &str,
    show: fn(&mut Console, &Value) -> std::io::Result<()>,
) -> Ended {
    let body = connect(args.place).await?.get(path).await?;
    let mut console = Console::new();
    if args.json {
        console.raw(&body)?;
    } else {
        show(&mut console, &parse(&body)?)?;
    }
    console.flush()?;
    Ok(Exit::Done)
}

fn parse(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body)
        .map_err(|_| Failure::new(Exit::Failed, "the gateway's answer is no JSON"))
}

/// A member as text; nothing for null.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

fn items<'a>(body: &'a Value, name: &str) -> &'a [Value] {
    body[name].as_array().map_or(&[], Vec::as_slice)
}

fn age(value: &Value) -> String {
    span(value.as_u64().unwrap_or_default())
}

pub(crate) async fn status(args: AskArgs) -> Ended {
    document(args, "/api/status", |console, status| {
        let state = if status["stopping"] == Value::Bool(true) {
            "stopping"
        } else {
            "running"
        };
        console.line(&format!(
            "gateway    {state} for {}, process {}, version {}",
            age(&status["uptimeMs"]),
            cell(&status["pid"]),
            clean(&cell(&status["version"])),
        ))?;
        for (name, member) in [
            ("listening", "listen"),
            ("socket", "socket"),
            ("state", "stateDir"),
            ("config", "configFiles"),
        ] {
            console.line(&format!("{name:<10} {}", clean(&cell(&status[member]))))?;
        }
        let (servers, sessions) = (&status["servers"], &status["sessions"]);
        console.line(&format!(
            "servers    {}, of which {} unavailable",
            cell(&servers["total"]),
            cell(&servers["unavailable"])
        ))?;
        console.line(&format!(
            "sessions   {}, of which {} attached; {} at rest; {} requests pending",
            cell(&sessions["total"]),
            cell(&sessions["attached"]),
            cell(&sessions["atRest"]),
            cell(&status["pending"])
        ))?;
        for failure in items(&status["state"], "failures") {
            console.line(&format!(
                "degraded   {} cannot be written since {}: {}",
                clean(&cell(&failure["what"])),
                clean(&cell(&failure["since"])),
                clean(&cell(&failure["cause"])),
            ))?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn servers(args: AskArgs) -> Ended {
    document(args, "/api/servers", |console, body| {
        let servers = items(body, "servers").iter();
        let rows: Vec<Vec<String>> = servers.flat_map(server_rows).collect();
        let head = [
            "SERVER",
            "TYPE",
            "STATE",
            "INSTANCES",
            "PENDING",
            "PIDS",
            "REASON",
        ];
        console.table(&head, &rows)
    })
    .await
}

/// What takes calls, and what is on its way out: a line each.
fn server_rows(server: &Value) -> Vec<Vec<String>> {
    let instances = items(server, "instances").iter();
    let (draining, serving): (Vec<&Value>, Vec<&Value>) =
        instances.partition(|instance| instance["state"] == "draining");
    let (state, reason) = (cell(&server["state"]), &server["reason"]);
    let reason = reason.as_str().unwrap_or_default();
    let mut rows = Vec::new();
    if state != "draining" {
        rows.push(server_row(server, &state, &serving, reason));
    }
    if !draining.is_empty() {
        let reason = if state == "draining" {
            reason
        } else {
            "takes no new calls: replaced, or its session is over"
        };
        rows.push(server_row(server, "draining", &draining, reason));
    }
    rows
}

fn server_row(server: &Value, state: &str, instances: &[&Value], reason: &str) -> Vec<String> {
    let pending: u64 = instances
        .iter()
        .filter_map(|instance| instance["pending"].as_u64())
        .sum();
    let pids: Vec<String> = instances
        .iter()
        .flat_map(|instance| items(instance, "pids"))
        .map(cell)
        .collect();
    vec![
        cell(&server["server"]),
        cell(&server["transport"]),
        state.to_owned(),
        instances.len().to_string(),
        pending.to_string(),
        if pids.is_empty() {
            "-".to_owned()
        } else {
            pids.join(" ")
        },
        reason.to_owned(),
    ]
}

pub(crate) async fn sessions(args: AskArgs) -> Ended {
    document(args, "/api/sessions", |console, body| {
        let rows: Vec<Vec<String>> = items(body, "sessions")
            .iter()
            .map(|session| {
                let client = &session["client"];
                let client = match client["name"].as_str() {
                    Some(name) => format!("{name} {}", cell(&client["version"])),
                    None => "-".to_owned(),
                };
                vec![
                    cell(&session["session"]),
                    cell(&session["state"]),
                    client,
                    cell(&session["endpoint"]),
                    cell(&session["principal"]),
                    cell(&session["protocol"]),
                    cell(&session["pending"]),
                    cell(&session["attached"]),
                    age(&session["idleMs"]),
                ]
            })
            .collect();
        let head = [
            "SESSION",
            "STATE",
            "CLIENT",
            "ENDPOINT",
            "PRINCIPAL",
            "PROTOCOL",
            "PENDING",
            "ATTACHED",
            "IDLE",
        ];
        console.table(&head, &rows)?;
        let shown = items(body, "sessions").iter();
        let shown = shown
            .filter(|session| session["state"] == "at rest")
            .count();
        let at_rest = body["atRest"].as_u64().unwrap_or_default();
        let more = at_rest.saturating_sub(shown as u64);
        if more > 0 {
            console.line(&format!("and {more} more at rest, used before these"))?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn tools(args: ToolsArgs) -> Ended {
    let path = match &args.server {
        Some(server) => format!("/api/tools?server={}", path_word(server)?),
        None => "/api/tools".to_owned(),
    };
    let body = connect(args.ask.place).await?.get(&path).await?;
    let answer = parse(&body)?;
    let mut console = Console::new();
    let mut rows = Vec::new();
    for server in items(&answer, "servers") {
        let name = cell(&server["server"]);
        if let Some(error) = server.get("error") {
            let text = clean(&cell(&error["message"]));
            // Errors of the gateway name the server already.
            if text.starts_with(&format!("{name}: ")) {
                crate::say(&text);
            } else {
                crate::say(&format!("{name}: {text}"));
            }
        }
        for tool in items(server, "tools") {
            let text = tool["description"].as_str().unwrap_or_default();
            let first = text.lines().next().unwrap_or_default();
            rows.push(vec![name.clone(), cell(&tool["name"]), first.to_owned()]);
        }
    }
    if args.ask.json {
        console.raw(&body)?;
    } else {
        console.table(&["SERVER", "TOOL", "DESCRIPTION"], &rows)?;
    }
    console.flush()?;
    let has_failed = |server: &Value| server.get("error").is_some();
    let is_failed = args.server.is_some() && items(&answer, "servers").iter().all(has_failed);
    Ok(if is_failed { Exit::Failed } else { Exit::Done })
}

/// A server's name as it may stand in a path; another cannot be the name of a server.
fn path_word(name: &str) -> Result<&str, Failure> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !name.is_empty() && name.bytes().all(is_name) {
        return Ok(name);
    }
    let text = format!("there is no server {name:?}; see springline servers");
    Err(Failure::new(Exit::Unknown, text))
}

pub(crate) async fn call(args: CallArgs) -> Ended {
    let mut request = format!(
        "{{\"server\":{},\"tool\":{},",
        json::quote(&args.server),
        json::quote(&args.tool)
    );
    if let Some(arguments) = &args.json {
        let is_object = arguments.trim_start().starts_with('{');
        if !is_object || json::validate(arguments.as_bytes()).is_err() {
            return Err(Failure::new(Exit::Usage, "--json must be a JSON object"));
        }
        request.push_str("\"arguments\":");
        request.push_str(arguments.trim());
    } else {
        request.push_str("\"words\":");
        request.push_str(&Value::from(args.words.clone()).to_string());
    }
    request.push('}');
    let mut api = connect(args.place).await?;
    let body = api.post("/api/call", request.into_bytes()).await?;
    let mut console = Console::new();
    let ended = outcome(&mut console, &body, args.raw || args.json.is_some())?;
    console.flush()?;
    Ok(ended)
}

/// Prints how a call ended. Raw text is never parsed into numbers and back.
fn outcome(console: &mut Console, body: &[u8], is_raw: bool) -> Ended {
    let member = |name| json::member(body, Span::whole(body), name).map(|span| span.of(body));
    if let Some(error) = member("error") {
        if is_raw {
            console.raw(error)?;
        }
        let error = parse(error)?;
        let data = &error["data"];
        let mut text = clean(&cell(&error["message"]));
        if let Some(outcome) = data["outcome"].as_str() {
            text = format!("{text} (outcome: {})", clean(outcome));
        }
        crate::say(&text);
        if let Some(hint) = data["hint"].as_str() {
            crate::say(&format!("hint: {}", clean(hint)));
        }
        return Ok(Exit::Call);
    }
    let Some(result) = member("result") else {
        return Err(Failure::new(
            Exit::Failed,
            "the gateway's answer has no result",
        ));
    };
    let parsed = parse(result)?;
    if is_raw {
        console.raw(result)?;
    } else {
        show_result(console, result, &parsed)?;
    }
    let is_error = parsed["isError"] == Value::Bool(true);
    Ok(if is_error { Exit::Call } else { Exit::Done })
}

fn show_result(console: &mut Console, raw: &[u8], result: &Value) -> std::io::Result<()> {
    let content = items(result, "content");
    for item in content {
        match (item["type"].as_str(), item["text"].as_str()) {
            (Some("text"), Some(text)) => console.text(text)?,
            (kind, _) => {
                let kind = kind.unwrap_or("content");
                let mime = item["mimeType"].as_str().unwrap_or_default();
                let text = format!("[{kind} {mime}; --raw shows it]");
                console.line(&clean(&text))?;
            }
        }
    }
    if content.is_empty() {
        console.raw(raw)?;
    }
    Ok(())
}

pub(crate) async fn restart(args: RestartArgs) -> Ended {
    let mut api = connect(args.ask.place).await?;
    let request = format!("{{\"server\":{}}}", json::quote(&args.server));
    let body = api.post("/api/restart", request.into_bytes()).await?;
    let mut console = Console::new();
    if args.ask.json {
        console.raw(&body)?;
    } else {
        let answer = parse(&body)?;
        let what = match answer["instances"].as_u64() {
            None | Some(0) => "nothing was running; the next call starts it".to_owned(),
            Some(1) => {
                "its instance takes no new calls and ends when those it has are done; the next \
                        call starts another"
                    .to_owned()
            }
            Some(count) => format!(
                "its {count} instances take no new calls and end when those they have are done; the \
                 next calls start others"
            ),
        };
        console.line(&format!("{}: {what}", clean(&args.server)))?;
    }
    console.flush()?;
    Ok(Exit::Done)
}

pub(crate) async fn reload(args: AskArgs) -> Ended {
    let mut api = connect(args.place).await?;
    let body = api.post("/api/reload", b"{}".to_vec()).await?;
    let answer = parse(&body)?;
    for note in items(&answer, "notes") {
        crate::say(&clean(&cell(note)));
    }
    let mut console = Console::new();
    if args.json {
        console.raw(&body)?;
    } else {
        for what in ["added", "removed", "changed", "kept"] {
            console.line(&format!("{what:<8} {}", clean(&cell(&answer[what]))))?;
        }
    }
    console.flush()?;
    Ok(Exit::Done)
}

pub(crate) async fn stop(args: StopArgs) -> Ended {
    let mut api = connect(args.ask.place).await?;
    let gone = api.pid.map(Gone::watch);
    let request = format!("{{\"endSessions\":{}}}", args.end_sessions);
    let body = api.post("/api/stop", request.into_bytes()).await?;
    let answer = parse(&body)?;
    if answer["pending"].as_u64().is_some_and(|count| count > 0) {
        crate::say(&format!(
            "waiting for {} requests in flight; a second `springline stop` ends them at once",
            cell(&answer["pending"])
        ));
    }
    if let Some(gone) = gone {
        gone.wait().await;
    }
    let mut console = Console::new();
    if args.ask.json {
        console.raw(&body)?;
    } else {
        console.line(&format!("stopped (process {})", cell(&answer["pid"])))?;
    }
    console.flush()?;
    Ok(Exit::Done)
}

/// The end of a process that is no child of ours.
struct Gone {
    pid: Option<rustix::process::Pid>,
    #[cfg(target_os = "linux")]
    fd: Option<rustix::fd::OwnedFd>,
}

/// The pause between two looks, where the system cannot tell.
const LOOK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

impl Gone {
    /// To be called while the process lives for certain, so that its number is its own.
    fn watch(pid: i32) -> Self {
        let pid = rustix::process::Pid::from_raw(pid);
        Self {
            #[cfg(target_os = "linux")]
            fd: pid.and_then(|pid| {
                rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
            }),
            pid,
        }
    }

    /// Cancel safe.
    async fn wait(self) {
        #[cfg(target_os = "linux")]
        if let Some(fd) = self.fd {
            use rustix::event::{PollFd, PollFlags, poll};
            let ended = tokio::task::spawn_blocking(move || {
                // It becomes readable when the process has ended.
                let mut polled = [PollFd::new(&fd, PollFlags::IN)];
                loop {
                    match poll(&mut polled, None) {
                        Err(rustix::io::Errno::INTR) => {}
                        ended => return ended.is_ok(),
                    }
                }
            });
            if ended.await.unwrap_or(false) {
                return;
            }
        }
        while let Some(pid) = self.pid
            && rustix::process::test_kill_process(pid).is_ok()
        {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

pub(crate) async fn events(args: EventsArgs) -> Ended {
    let path = if args.follow {
        "/api/events?follow=1"
    } else {
        "/api/events"
    };
    let mut api = connect(args.ask.place).await?;
    let mut body = api.stream(path).await?;
    let mut console = Console::new();
    let mut rest: Vec<u8> = Vec::new();
    // Without this the end of the reader would show with the next event only.
    let mut unread = std::pin::pin!(springline::stdio::unread());
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = &mut unread, if args.follow => break,
        };
        let Some(frame) = frame else {
            break;
        };
        let Ok(frame) = frame else {
            let text = "the gateway went away";
            return Err(Failure::new(Exit::Unreachable, text));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        rest.extend_from_slice(&data);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
            continue;
        };
        let whole: Vec<u8> = rest.drain(..=end).collect();
        for line in whole.trim_ascii_end().split(|byte| *byte == b'\n') {
            if args.ask.json {
                console.raw(line)?;
            } else {
                console.line(&event_line(&parse(line)?))?;
            }
        }
        console.flush()?;
    }
    Ok(Exit::Done)
}

fn event_line(event: &Value) -> String {
    let mut line = format!("{}  {:<20}", cell(&event["time"]), cell(&event["event"]));
    for (key, value) in event.as_object().into_iter().flatten() {
        if key != "time" && key != "event" && !value.is_null() {
            line.push_str("  ");
            line.push_str(key);
            line.push('=');
            line.push_str(&cell(value));
        }
    }
    clean(&line)
}
