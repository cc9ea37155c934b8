//! The gateway is killed and started again at once, under a client that goes on calling: the pause
//! between two right answers, and what else the client was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::Run;
use crate::call::Mix;
use crate::load::Client;
use crate::pipe::Pipe;
use crate::process::{self, Home, Program, Server};
use crate::report::{Goal, Report, line, millis};
use crate::tally::{Fault, Faults, list, quantile};

/// How long a client may take to come back.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let kills = if options.smoke || options.quick {
        2
    } else {
        20
    };
    let echo = process::echo().await?;
    let home = Home::with_url(&echo.url)?;
    let http = Way::Http(home.url());
    let connect = Way::Connect(home.connect(&options.springline));
    for (name, way) in [("an HTTP client", http), ("`connect`", connect)] {
        let gateway = home.start(&options.springline).await?;
        let found = kill(options, &home, gateway, way, kills).await?;
        found.add(name, report);
    }
    Ok(())
}

/// How the client reaches the gateway.
#[derive(Clone)]
enum Way {
    Http(String),
    Connect(Program),
}

/// A client that goes on.
enum Caller {
    Http(Client),
    Connect(Pipe),
}

impl Caller {
    async fn open(way: &Way) -> anyhow::Result<Self> {
        Ok(match way {
            Way::Http(url) => Self::Http(Client::open(url).await?),
            Way::Connect(program) => Self::Connect(Pipe::open(program).await?),
        })
    }

    async fn call(&mut self) -> Result<Duration, Fault> {
        match self {
            Self::Http(client) => client.call(Mix::Small).await,
            Self::Connect(pipe) => pipe.call(Mix::Small).await,
        }
    }

    /// What a client does after an error; true if its session is lost and it needs another.
    async fn recover(&mut self, fault: &Fault) -> bool {
        match self {
            Self::Http(client) => {
                // A refused connection is tried again, not counted: nothing was asked yet.
                while client.reconnect().await.is_err() {
                    sleep(Duration::from_millis(1)).await;
                }
                *fault == Fault::Status(404)
            }
            Self::Connect(_) => *fault == Fault::Closed,
        }
    }
}

/// Right answers so far, for those who wait for one.
#[derive(Default)]
struct Shared {
    answers: AtomicUsize,
    is_over: AtomicBool,
}

/// What the client saw.
#[derive(Default)]
struct Seen {
    answers: Vec<Instant>,
    faults: Faults,
    /// Sessions that it had to open anew.
    lost: usize,
}

async fn go_on(way: Way, mut caller: Caller, shared: Arc<Shared>) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    while !shared.is_over.load(Ordering::Acquire) {
        match caller.call().await {
            Ok(_) => {
                seen.answers.push(Instant::now());
                shared.answers.fetch_add(1, Ordering::AcqRel);
            }
            Err(fault) => {
                let is_lost = caller.recover(&fault).await;
                *seen.faults.entry(fault).or_default() += 1;
                if is_lost {
                    seen.lost += 1;
                    caller = Caller::open(&way).await?;
                } else {
                    // An error that comes at once is not asked for again at once.
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
    Ok(seen)
}

/// What the kills did.
struct Found {
    kills: usize,
    pauses: Vec<Duration>,
    /// The pauses less the restart of the process.
    beyond: Vec<Duration>,
    restarts: Vec<Duration>,
    seen: Seen,
}

async fn kill(
    options: &Run,
    home: &Home,
    mut gateway: Server,
    way: Way,
    kills: usize,
) -> anyhow::Result<Found> {
    let shared = Arc::new(Shared::default());
    let caller = Caller::open(&way).await?;
    let task = tokio::spawn(go_on(way, caller, Arc::clone(&shared)));
    let mut moments = Vec::with_capacity(kills);
    for _ in 0..kills {
        more_answers(&shared, 20).await?;
        let begun = Instant::now();
        gateway.kill().await?;
        let dead = Instant::now();
        gateway = home.start(&options.springline).await?;
        moments.push((dead, begun.elapsed()));
        more_answers(&shared, 20).await?;
    }
    shared.is_over.store(true, Ordering::Release);
    let seen = task.await??;
    let (mut pauses, mut beyond, mut restarts) = (Vec::new(), Vec::new(), Vec::new());
    for (dead, restart) in moments {
        let at = seen.answers.partition_point(|answer| *answer <= dead);
        let before = at.checked_sub(1).and_then(|at| seen.answers.get(at));
        if let (Some(before), Some(after)) = (before, seen.answers.get(at)) {
            let pause = after.saturating_duration_since(*before);
            pauses.push(pause);
            beyond.push(pause.saturating_sub(restart));
            restarts.push(restart);
        }
    }
    Ok(Found {
        kills,
        pauses,
        beyond,
        restarts,
        seen,
    })
}

/// Waits until the client has so many more right answers.
async fn more_answers(shared: &Shared, count: usize) -> anyhow::Result<()> {
    let enough = shared.answers.load(Ordering::Acquire) + count;
    let deadline = Instant::now() + PATIENCE;
    while shared.answers.load(Ordering::Acquire) < enough {
        sleep(Duration::from_millis(1)).await;
        if Instant::now() > deadline {
            anyhow::bail!("the client did not come back within {PATIENCE:?}");
        }
    }
    Ok(())
}

impl Found {
    fn add(mut self, client: &str, report: &mut Report) {
        for spans in [&mut self.pauses, &mut self.beyond, &mut self.restarts] {
            spans.sort_unstable();
        }
        let cell = |spans: &[Duration]| {
            let (p50, p99) = (quantile(spans, 50), quantile(spans, 99));
            format!("{:.1} / {:.1}", millis(p50), millis(p99))
        };
        let restart = format!("the restart itself: {}", cell(&self.restarts));
        report.add(
            format!("pause at kill -9 beyond the restart, {client}, ms, p50 / p99"),
            (millis(quantile(&self.beyond, 99)), cell(&self.beyond)),
            vec![("partner", restart)],
            Goal::AtMost(150.0),
            " ms",
        );
        if !report.is_smoke {
            line("");
        }
        line(&format!(
            "{} kills under {client}: pauses of {} ms (p50 / p99), {} right answers, \
             {} session(s) lost, errors told to the client: {}.",
            self.kills,
            cell(&self.pauses),
            self.seen.answers.len(),
            self.seen.lost,
            list(&self.seen.faults)
        ));
        if self.seen.lost > 0 {
            let lost = self.seen.lost;
            report
                .faults
                .push(format!("kill -9 under {client}: {lost} session(s) lost"));
        }
    }
}
