//! What came of a load: how long each call took, and what went wrong, by kind.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a call had no right answer.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Fault {
    /// The other side closed in the middle.
    Closed,
    /// The system refused.
    Io(io::ErrorKind),
    /// An HTTP status.
    Status(u16),
    /// A JSON-RPC error, its code.
    Rpc(i64),
    /// An answer, but not to this call, or not what was asked for.
    Wrong(&'static str),
    /// Bytes that are no answer.
    Garbled(&'static str),
    /// No answer within the patience of the load.
    Silent,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => out.write_str("closed"),
            Self::Io(kind) => write!(out, "{kind}"),
            Self::Status(status) => write!(out, "HTTP {status}"),
            Self::Rpc(code) => write!(out, "JSON-RPC {code}"),
            Self::Wrong(what) => write!(out, "wrong: {what}"),
            Self::Garbled(what) => write!(out, "garbled: {what}"),
            Self::Silent => out.write_str("no answer"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            kind => Self::Io(kind),
        }
    }
}

/// Errors by kind.
pub(crate) type Faults = BTreeMap<Fault, u64>;

/// Calls so far.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) times: Vec<Duration>,
    pub(crate) faults: Faults,
}

impl Tally {
    /// Counts an error.
    pub(crate) fn fail(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// How many calls failed.
    pub(crate) fn failed(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds what another client counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        add(&mut self.faults, other.faults);
    }

    /// The figures, for a load that took so long.
    pub(crate) fn outcome(mut self, took: Duration) -> Outcome {
        self.times.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let rate = self.times.len() as f64 / took.as_secs_f64();
        Outcome {
            calls: self.times.len(),
            rate,
            p50: quantile(&self.times, 50),
            p99: quantile(&self.times, 99),
            faults: self.faults,
        }
    }
}

/// The figures of one load.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) calls: usize,
    /// Right answers a second.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) faults: Faults,
}

impl Outcome {
    /// Adds the errors of calls that are not in the figures.
    pub(crate) fn add_faults(&mut self, others: Faults) {
        add(&mut self.faults, others);
    }
}

fn add(faults: &mut Faults, others: Faults) {
    for (fault, count) in others {
        *faults.entry(fault).or_default() += count;
    }
}

/// The value below which so many percent of sorted times are.
pub(crate) fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len().saturating_sub(1)) * percent / 100;
    sorted.get(at).copied().unwrap_or_default()
}

/// Errors as a cell of a table: none, or how many of which kind.
pub(crate) fn list(faults: &Faults) -> String {
    if faults.is_empty() {
        return "0".to_owned();
    }
    let each = faults
        .iter()
        .map(|(fault, count)| format!("{count} {fault}"));
    each.collect::<Vec<_>>().join(", ")
}
