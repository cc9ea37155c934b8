//! One client of the gateway's socket, as `springline connect` is one, without a process for it:
//! `springline/1` as `docs/socket-protocol.md` has it.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::call::{Call, INITIALIZE, INITIALIZED, Mix, id_of};
use crate::load::{Amount, FAULTS_MAX, PATIENCE, Until};
use crate::tally::{Fault, Outcome, Tally};
use crate::wire::{Connection, Stream};

/// An open session on the socket.
pub(crate) struct Attached {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    sent: u64,
    received: u64,
    /// The last id that was used.
    id: u64,
}

impl Attached {
    /// Connects, upgrades and shakes hands.
    pub(crate) async fn open(socket: &Path) -> Result<Self, Fault> {
        let connection = Connection::open_socket(socket, "connect?server=echo").await?;
        let (stream, buffer) = connection.upgrade("springline/1").await?;
        let mut client = Self {
            stream,
            buffer,
            sent: 0,
            received: 0,
            id: 0,
        };
        client
            .stream
            .write_all(b"H {\"version\":\"0.1.0\"}\n")
            .await?;
        client.send(INITIALIZE).await?;
        loop {
            let message = client.message().await?;
            if id_of(&message) == Some(0) {
                break;
            }
        }
        client.send(INITIALIZED).await?;
        Ok(client)
    }

    async fn send(&mut self, message: &str) -> Result<(), Fault> {
        self.sent += 1;
        let frame = format!("M {} {} {message}\n", self.sent, self.received);
        self.stream.write_all(frame.as_bytes()).await?;
        Ok(())
    }

    /// The next message; frames of other kinds are skipped.
    async fn message(&mut self) -> Result<Vec<u8>, Fault> {
        loop {
            let end = loop {
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    break end;
                }
                self.buffer.reserve(4 * 1024);
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    return Err(Fault::Closed);
                }
            };
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let mut parts = line.splitn(4, |byte| *byte == b' ');
            if parts.next() == Some(b"M") {
                self.received += 1;
                let body = parts.nth(2).ok_or(Fault::Garbled("half a frame"))?;
                return Ok(body.trim_ascii_end().to_vec());
            }
        }
    }

    /// Makes one call and checks its answer.
    async fn call(&mut self) -> Result<Duration, Fault> {
        self.id += 1;
        let call = Call::new(Mix::Small, self.id);
        let begun = Instant::now();
        self.send(&call.body).await?;
        loop {
            let message = timeout(PATIENCE, self.message());
            let message = message.await.map_err(|_| Fault::Silent)??;
            // What is no answer, such as a notification, has no id of ours.
            if id_of(&message) == Some(call.id) {
                call.check(&message)?;
                return Ok(begun.elapsed());
            }
        }
    }

    async fn run(mut self, until: Until) -> (Self, Tally) {
        let mut tally = Tally::default();
        while !until.is_over(tally.times.len()) && tally.failed() < FAULTS_MAX {
            match self.call().await {
                Ok(took) => tally.times.push(took),
                Err(fault) => tally.fail(fault),
            }
        }
        let frame = format!("A {}\n", self.received);
        if let Err(error) = self.stream.write_all(frame.as_bytes()).await {
            tally.fail(error.into());
        }
        (self, tally)
    }
}

/// Opens so many clients, one after the other.
pub(crate) async fn open(socket: &Path, clients: usize) -> anyhow::Result<Vec<Attached>> {
    let mut opened = Vec::with_capacity(clients);
    for _ in 0..clients {
        opened.push(Attached::open(socket).await?);
    }
    Ok(opened)
}

/// Lets clients call at once, and gives them back.
pub(crate) async fn drive(
    clients: Vec<Attached>,
    amount: Amount,
) -> anyhow::Result<(Vec<Attached>, Outcome)> {
    let count = clients.len();
    let begun = Instant::now();
    let until = amount.share(count);
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| tokio::spawn(client.run(until)))
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
