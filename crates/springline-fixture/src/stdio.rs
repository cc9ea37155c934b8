//! The stdio transport of the test servers, with the faults of a child.
//!
//! Owns the pipes, the signals and the grandchild. Must not know what a tool
//! does.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::account::{Account, Seen};
use crate::fault::{Faults, Settings};
use crate::http::server::FaultServer;
use crate::rpc::{self, Incoming};
use crate::session::{Line, Outbox, Session};
use crate::world::{self, Call, Face, World};

/// Bytes of the flood on stderr before each answer.
const FLOOD: usize = 256 * 1024;

/// Faults of a server on stdio.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Appends each event to this file, one JSON line each.
    #[arg(long)]
    pub ledger: Option<PathBuf>,
    /// Serves the control endpoint; its URL goes into the ledger.
    #[arg(long)]
    pub control: bool,
    /// Writes a banner to stdout at the start.
    #[arg(long)]
    pub banner: bool,
    /// Writes a line of rubbish to stdout before each message.
    #[arg(long)]
    pub rubbish: bool,
    /// Writes 256 KiB without a newline to stderr before each message.
    #[arg(long)]
    pub stderr_flood: bool,
    /// Writes this line to stderr at the start.
    #[arg(long)]
    pub stderr_line: Option<String>,
    /// Writes half a line before it ends.
    #[arg(long)]
    pub half_line: bool,
    /// Writes every byte on its own.
    #[arg(long)]
    pub one_byte: bool,
    /// Goes on when stdin ends.
    #[arg(long)]
    pub ignore_eof: bool,
    /// Goes on when SIGTERM comes.
    #[arg(long)]
    pub ignore_sigterm: bool,
    /// Starts a child of its own that outlives it and holds its pipes.
    #[arg(long)]
    pub grandchild: bool,
    /// Ends with this code instead of answering `initialize`.
    #[arg(long)]
    pub exit_in_initialize: Option<u8>,
    /// Applies the faults of `initialize` only to the first N requests for it
    /// of all processes that share the ledger.
    #[arg(long)]
    pub initialize_faults: Option<usize>,
    /// Answers `initialize` with a JSON-RPC error.
    #[arg(long)]
    pub initialize_error: bool,
    /// Answers `initialize` with a version that nobody knows.
    #[arg(long)]
    pub bad_version: bool,
    /// Writes the id of a response last.
    #[arg(long)]
    pub id_last: bool,
    /// Never answers this method; `all` for every method.
    #[arg(long)]
    pub never_answer: Option<String>,
}

/// Serves until stdin ends or the process shall end; gives the exit code.
///
/// The reader of stdin may still block then: the caller must not wait for it.
pub async fn run(face: Face, flags: Flags) -> io::Result<u8> {
    let account = match &flags.ledger {
        Some(path) => Account::with_ledger(path)?,
        None => Account::default(),
    };
    let settings = Settings {
        id_last: flags.id_last,
        ..Settings::default()
    };
    let world = Arc::new(World::new(face, Faults::new(settings), account));
    let control = if flags.control {
        let server = FaultServer::serve(Arc::clone(&world), None, true).await?;
        let url = server.url.replace("/mcp", "/__control");
        world.account.event("control", &json!({ "url": url }));
        Some(server)
    } else {
        None
    };
    watch_sigterm(&world, flags.ignore_sigterm)?;
    if flags.grandchild {
        grandchild(&world)?;
    }
    // Signals and control are in place when the ledger says that it started.
    world.account.event("start", &json!({}));
    let (pipe, lines) = mpsc::unbounded_channel();
    let mut writer = tokio::spawn(write(lines, flags.clone()));
    let reader = read(Arc::clone(&world), flags.clone(), pipe);
    let code = tokio::select! {
        code = &mut writer => code.map_err(io::Error::other)??,
        ended = reader => {
            ended?;
            // The reader has dropped its sender: what is queued is written out.
            writer.await.map_err(io::Error::other)??
        }
    };
    world.account.event("exit", &json!({ "code": code }));
    drop(control);
    Ok(code)
}

fn watch_sigterm(world: &Arc<World>, ignore: bool) -> io::Result<()> {
    if ignore {
        let mut terms = signal(SignalKind::terminate())?;
        let world = Arc::clone(world);
        tokio::spawn(async move {
            while terms.recv().await.is_some() {
                world.account.event("sigterm", &json!({}));
            }
        });
    }
    Ok(())
}

fn grandchild(world: &World) -> io::Result<()> {
    let child = std::process::Command::new(std::env::current_exe()?)
        .arg("linger")
        .stdin(Stdio::null())
        .spawn()?;
    world
        .account
        .event("grandchild", &json!({"child": child.id()}));
    Ok(())
}

/// Writes lines until all senders are gone or one says that we end.
async fn write(mut lines: mpsc::UnboundedReceiver<Line>, flags: Flags) -> io::Result<u8> {
    let mut out = tokio::io::stdout();
    let mut err = tokio::io::stderr();
    if let Some(line) = &flags.stderr_line {
        err.write_all(format!("{line}\n").as_bytes()).await?;
        err.flush().await?;
    }
    if flags.banner {
        out.write_all(b"Welcome to the fixture!\n\n").await?;
        out.flush().await?;
    }
    let mut code = 0;
    while let Some(line) = lines.recv().await {
        let text = match line {
            Line::Message(text) => text,
            Line::Exit(asked) => {
                code = asked;
                break;
            }
        };
        if flags.stderr_flood {
            err.write_all(&vec![b'#'; FLOOD]).await?;
            err.flush().await?;
        }
        if flags.rubbish {
            out.write_all(b"DEBUG {not json\n").await?;
        }
        let bytes = format!("{text}\n").into_bytes();
        if flags.one_byte {
            for byte in bytes {
                out.write_all(&[byte]).await?;
                out.flush().await?;
            }
        } else {
            out.write_all(&bytes).await?;
            out.flush().await?;
        }
    }
    if flags.half_line {
        out.write_all(br#"{"jsonrpc":"2.0","id":1,"res"#).await?;
        out.flush().await?;
    }
    Ok(code)
}

async fn read(
    world: Arc<World>,
    flags: Flags,
    pipe: mpsc::UnboundedSender<Line>,
) -> io::Result<()> {
    let session = Arc::new(Session::new("stdio".to_owned(), Outbox::Pipe(pipe.clone())));
    world.adopt(Arc::clone(&session));
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).await? == 0 {
            break;
        }
        let Ok(message) = Incoming::parse(&line) else {
            if !line.trim_ascii().is_empty() {
                pipe_line(&pipe, rpc::error(None, -32700, "Parse error"));
            }
            continue;
        };
        record(&world, &session, &message, &line);
        take(&world, &session, &flags, &pipe, message);
    }
    world.account.event("eof", &json!({}));
    if flags.ignore_eof {
        std::future::pending::<()>().await;
    }
    world.forget();
    drop(pipe.send(Line::Exit(0)));
    Ok(())
}

fn pipe_line(pipe: &mpsc::UnboundedSender<Line>, text: String) {
    // A closed pipe means that the process is about to end.
    drop(pipe.send(Line::Message(text)));
}

fn record(world: &World, session: &Session, message: &Incoming, line: &[u8]) {
    let seen = Seen {
        method: Some(
            message
                .method
                .clone()
                .unwrap_or_else(|| "response".to_owned()),
        ),
        id: message.id_text(),
        body: String::from_utf8_lossy(line).trim_end().to_owned(),
        initialised: Some(session.initialised()),
        ..Seen::default()
    };
    world.account.event(
        "message",
        &json!({"method": seen.method, "id": seen.id, "initialised": seen.initialised}),
    );
    world.account.update(|log| {
        match seen.method.as_deref() {
            Some("initialize") => log.initializes += 1,
            Some("notifications/initialized" | "ping" | "server/discover") => {}
            _ => log.uninitialised += u64::from(seen.initialised == Some(false)),
        }
        log.seen.push(Seen {
            number: log.seen.len(),
            ..seen
        });
    });
}

/// Takes one message: a fault of the command line, or the common server.
fn take(
    world: &Arc<World>,
    session: &Arc<Session>,
    flags: &Flags,
    pipe: &mpsc::UnboundedSender<Line>,
    message: Incoming,
) {
    let (Some(method), Some(id)) = (message.method.as_deref(), message.id_text()) else {
        world::accept(world, session, &message);
        return;
    };
    let never = flags.never_answer.as_deref();
    if never == Some("all") || never == Some(method) {
        return;
    }
    if method == "initialize" && initialize_fails(flags) {
        if let Some(code) = flags.exit_in_initialize {
            drop(pipe.send(Line::Exit(code)));
            return;
        }
        if flags.initialize_error {
            pipe_line(pipe, rpc::error(Some(&id), -32603, "initialize refused"));
            return;
        }
        if flags.bad_version {
            world
                .faults
                .set(|settings| settings.version = Some("1999-01-01".to_owned()));
        }
    } else if method == "initialize" {
        world.faults.set(|settings| settings.version = None);
    }
    tokio::spawn(world::serve(Call {
        world: Arc::clone(world),
        session: Arc::clone(session),
        request: message,
        headers: BTreeMap::new(),
        outbox: Outbox::Pipe(pipe.clone()),
    }));
}

/// Whether the faults of `initialize` are still to be applied.
fn initialize_fails(flags: &Flags) -> bool {
    let Some(limit) = flags.initialize_faults else {
        return true;
    };
    let ledger = flags.ledger.as_ref().map(std::fs::read_to_string);
    let Some(Ok(text)) = ledger else { return true };
    // This request is in the ledger already.
    text.matches(r#""method":"initialize""#).count() <= limit
}
