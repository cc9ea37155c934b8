//! Closed-loop load over HTTP: each session has its calls in flight, each on a connection of its
//! own, and every answer is checked.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::call::{Call, INITIALIZE, INITIALIZED, Mix};
use crate::tally::{Fault, Outcome, Tally};
use crate::wire::Connection;

/// How long one call may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A client gives up after so many errors.
pub(crate) const FAULTS_MAX: u64 = 20;

/// How many sessions are opened at once.
const OPENERS: usize = 8;

/// What is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) sessions: usize,
    /// Calls in flight of each session.
    pub(crate) in_flight: usize,
    pub(crate) amount: Amount,
    pub(crate) mix: Mix,
}

/// How long a load goes on.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Calls of all sessions together.
    Calls(usize),
    Time(Duration),
}

/// When one client stops.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Calls(usize),
    Instant(Instant),
}

impl Amount {
    /// The share of one of so many clients.
    pub(crate) fn share(self, clients: usize) -> Until {
        match self {
            Self::Calls(calls) => Until::Calls(calls.div_ceil(clients.max(1))),
            Self::Time(time) => Until::Instant(Instant::now() + time),
        }
    }
}

impl Until {
    /// Whether a client that made so many calls stops.
    pub(crate) fn is_over(self, calls: usize) -> bool {
        match self {
            Self::Calls(max) => calls >= max,
            Self::Instant(end) => Instant::now() >= end,
        }
    }
}

/// One client with a session.
pub(crate) struct Client {
    url: String,
    connection: Connection,
    pub(crate) session: String,
    /// The last id that was used.
    id: u64,
}

impl Client {
    /// Opens a session.
    pub(crate) async fn open(url: &str) -> Result<Self, Fault> {
        let mut connection = Connection::open(url).await?;
        let request = connection.render("POST", None, INITIALIZE);
        let answer = connection.exchange(&request).await?;
        if answer.status != 200 {
            return Err(Fault::Status(answer.status));
        }
        let session = answer.header("mcp-session-id");
        let session = session.ok_or(Fault::Wrong("no session id"))?.to_owned();
        let request = connection.render("POST", Some(&session), INITIALIZED);
        let answer = connection.exchange(&request).await?;
        if answer.status != 202 {
            return Err(Fault::Status(answer.status));
        }
        Ok(Self {
            url: url.to_owned(),
            connection,
            session,
            id: 0,
        })
    }

    /// Another connection to the same session, whose ids begin elsewhere.
    pub(crate) async fn again(url: &str, session: &str, first: u64) -> Result<Self, Fault> {
        Ok(Self {
            url: url.to_owned(),
            connection: Connection::open(url).await?,
            session: session.to_owned(),
            id: first,
        })
    }

    /// Makes the next call and checks its answer.
    pub(crate) async fn call(&mut self, mix: Mix) -> Result<Duration, Fault> {
        self.id += 1;
        let call = Call::new(mix, self.id);
        let request = self
            .connection
            .render("POST", Some(&self.session), &call.body);
        let begun = Instant::now();
        let exchange = timeout(PATIENCE, self.connection.exchange(&request));
        let answer = exchange.await.map_err(|_| Fault::Silent)??;
        let took = begun.elapsed();
        if answer.status != 200 {
            return Err(Fault::Status(answer.status));
        }
        call.check(answer.message())?;
        Ok(took)
    }

    /// Opens the connection anew, as after an error.
    pub(crate) async fn reconnect(&mut self) -> Result<(), Fault> {
        self.connection = Connection::open(&self.url).await?;
        Ok(())
    }

    /// Ends the session.
    pub(crate) async fn end(mut self) -> Result<(), Fault> {
        let request = self.connection.render("DELETE", Some(&self.session), "");
        self.connection.exchange(&request).await?;
        Ok(())
    }

    async fn run(mut self, until: Until, mix: Mix) -> (Self, Tally) {
        let mut tally = Tally::default();
        while !until.is_over(tally.times.len()) && tally.failed() < FAULTS_MAX {
            match self.call(mix).await {
                Ok(took) => tally.times.push(took),
                Err(fault) => {
                    tally.fail(fault);
                    if let Err(fault) = self.reconnect().await {
                        tally.fail(fault);
                    }
                }
            }
        }
        (self, tally)
    }
}

/// Opens so many sessions, some at once.
pub(crate) async fn open(url: &str, sessions: usize) -> anyhow::Result<Vec<Client>> {
    open_as(url, sessions, |client| client).await
}

/// Opens so many sessions and closes the connection of each at once; tells their ids.
pub(crate) async fn leave(url: &str, sessions: usize) -> anyhow::Result<Vec<String>> {
    open_as(url, sessions, |client| client.session).await
}

async fn open_as<T: Send + 'static>(
    url: &str,
    sessions: usize,
    keep: fn(Client) -> T,
) -> anyhow::Result<Vec<T>> {
    let tasks: Vec<_> = (0..OPENERS.min(sessions))
        .map(|opener| {
            let url = url.to_owned();
            tokio::spawn(async move {
                let mut kept = Vec::new();
                for _ in (opener..sessions).step_by(OPENERS) {
                    kept.push(keep(Client::open(&url).await?));
                }
                Ok::<_, Fault>(kept)
            })
        })
        .collect();
    let mut kept = Vec::with_capacity(sessions);
    for task in tasks {
        kept.extend(task.await??);
    }
    Ok(kept)
}

/// Runs a load against an endpoint, in sessions of its own that end with it. The first call of each
/// connection does not count.
pub(crate) async fn run(url: &str, load: Load) -> anyhow::Result<Outcome> {
    let mut clients = open(url, load.sessions).await?;
    let heads: Vec<String> = clients.iter().map(|one| one.session.clone()).collect();
    for session in &heads {
        for more in 1..load.in_flight {
            let first = 1_000_000_000 * u64::try_from(more)?;
            clients.push(Client::again(url, session, first).await?);
        }
    }
    // With its first call a session may be opened with the server, too: what every way does once.
    let once = Amount::Calls(clients.len());
    let (clients, first) = drive(clients, once, load.mix).await?;
    let (mut clients, mut outcome) = drive(clients, load.amount, load.mix).await?;
    outcome.add_faults(first.faults);
    clients.truncate(load.sessions);
    for client in clients {
        // A session that a fault took is not ended twice.
        drop(client.end().await);
    }
    Ok(outcome)
}

/// Lets clients call at once, and gives them back in the same order.
pub(crate) async fn drive(
    clients: Vec<Client>,
    amount: Amount,
    mix: Mix,
) -> anyhow::Result<(Vec<Client>, Outcome)> {
    let count = clients.len();
    let begun = Instant::now();
    let until = amount.share(count);
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| tokio::spawn(client.run(until, mix)))
        .collect();
    let mut tally = Tally::default();
    let mut clients = Vec::with_capacity(count);
    for task in tasks {
        let (client, counted) = task.await?;
        clients.push(client);
        tally.add(counted);
    }
    Ok((clients, tally.outcome(begun.elapsed())))
}
