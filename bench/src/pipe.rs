//! Closed-loop load on a stdio server: so many calls in flight on one pair of pipes.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::call::{Call, INITIALIZE, INITIALIZED, Mix, id_of};
use crate::load::{FAULTS_MAX, Load, PATIENCE, Until};
use crate::process::Program;
use crate::tally::{Fault, Outcome, Tally};

/// How long a peer may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A stdio server and the pipes to it; killed when dropped.
pub(crate) struct Pipe {
    /// Its end is ours.
    _child: Child,
    input: ChildStdin,
    output: ChildStdout,
    buffer: Vec<u8>,
    /// The last id that was used.
    id: u64,
}

impl Pipe {
    /// Starts a program and shakes hands with it.
    pub(crate) async fn open(program: &Program) -> anyhow::Result<Self> {
        let mut child = Command::new(&program.path)
            .args(&program.arguments)
            .envs(
                program
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {}", program.path.display()))?;
        let input = child.stdin.take().context("stdin")?;
        let output = child.stdout.take().context("stdout")?;
        let mut pipe = Self {
            _child: child,
            input,
            output,
            buffer: Vec::new(),
            id: 0,
        };
        pipe.write(INITIALIZE).await?;
        let answer = timeout(START_PATIENCE, pipe.line_with_id(0)).await;
        answer
            .map_err(|_| Fault::Silent)
            .and_then(|answered| answered)
            .with_context(|| format!("{} did not initialize", program.path.display()))?;
        pipe.write(INITIALIZED).await?;
        Ok(pipe)
    }

    async fn write(&mut self, message: &str) -> Result<(), Fault> {
        self.input
            .write_all(format!("{message}\n").as_bytes())
            .await?;
        Ok(())
    }

    async fn line_with_id(&mut self, id: u64) -> Result<(), Fault> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if id_of(&line) == Some(id) {
                    return Ok(());
                }
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        self.buffer.reserve(64 * 1024);
        if self.output.read_buf(&mut self.buffer).await? == 0 {
            return Err(Fault::Closed);
        }
        Ok(())
    }

    /// Makes one call and waits for its answer.
    pub(crate) async fn call(&mut self, mix: Mix) -> Result<Duration, Fault> {
        let mut tally = Tally::default();
        self.drive(Until::Calls(1), 1, mix, &mut tally).await?;
        let fault = tally.faults.into_keys().next();
        match (tally.times.first(), fault) {
            (Some(took), _) => Ok(*took),
            (None, fault) => Err(fault.unwrap_or(Fault::Silent)),
        }
    }

    /// Keeps so many calls in flight, and waits for the last of them.
    async fn drive(
        &mut self,
        until: Until,
        in_flight: usize,
        mix: Mix,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let mut pending: HashMap<u64, (Call, Instant)> = HashMap::with_capacity(in_flight);
        let mut sent = 0;
        let mut batch = Vec::new();
        loop {
            let has_room = pending.len() < in_flight && tally.failed() < FAULTS_MAX;
            if has_room && !until.is_over(sent) {
                self.id += 1;
                sent += 1;
                let call = Call::new(mix, self.id);
                batch.extend_from_slice(call.body.as_bytes());
                batch.push(b'\n');
                pending.insert(call.id, (call, Instant::now()));
                continue;
            }
            if pending.is_empty() {
                return Ok(());
            }
            if !batch.is_empty() {
                self.input.write_all(&batch).await?;
                batch.clear();
            }
            timeout(PATIENCE, self.fill())
                .await
                .map_err(|_| Fault::Silent)??;
            self.settle(&mut pending, tally);
        }
    }

    /// Takes the whole lines that came, and ends the calls that they answer.
    fn settle(&mut self, pending: &mut HashMap<u64, (Call, Instant)>, tally: &mut Tally) {
        let mut taken = 0;
        while let Some(rest) = self.buffer.get(taken..) {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                break;
            };
            let line = rest.get(..end).unwrap_or_default();
            taken += end + 1;
            // A notification has no id, and some peers write the id last.
            let Some(id) = id_of(line.get(..64).unwrap_or(line)).or_else(|| id_of(line)) else {
                continue;
            };
            match pending.remove(&id) {
                Some((call, begun)) => match call.check(line) {
                    Ok(()) => tally.times.push(begun.elapsed()),
                    Err(fault) => tally.fail(fault),
                },
                None => tally.fail(Fault::Wrong("an answer to no call")),
            }
        }
        self.buffer.drain(..taken);
    }
}

/// Runs a load on a program of its own.
pub(crate) async fn run(program: &Program, load: Load) -> anyhow::Result<Outcome> {
    let mut pipe = Pipe::open(program).await?;
    // The first call of a gateway opens what it needs behind it.
    pipe.call(load.mix).await?;
    let begun = Instant::now();
    let until = load.amount.share(1);
    let mut tally = Tally::default();
    if let Err(fault) = pipe
        .drive(until, load.in_flight, load.mix, &mut tally)
        .await
    {
        tally.fail(fault);
    }
    Ok(tally.outcome(begun.elapsed()))
}
