//! Interleaved rounds: each way to the echo server is loaded in turn, so that a drift of the
//! machine touches all alike.

use crate::load::{self, Load};
use crate::pipe;
use crate::process::Program;
use crate::report::{Goal, Report, line, median, micros, range, spread};
use crate::tally::{Faults, Outcome, list};

/// How the echo server is reached.
#[derive(Clone)]
pub(crate) enum Path {
    Http(String),
    Stdio(Program),
}

/// One way to the echo server, and what was measured on it. The first of some is the partner of
/// the others.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    path: Path,
    rounds: Vec<Outcome>,
    /// Why it was left out in the middle.
    failure: Option<String>,
}

impl Way {
    pub(crate) fn http(name: &'static str, url: &str) -> Self {
        Self::new(name, Path::Http(url.to_owned()))
    }

    pub(crate) fn stdio(name: &'static str, program: &Program) -> Self {
        Self::new(name, Path::Stdio(program.clone()))
    }

    fn new(name: &'static str, path: Path) -> Self {
        Self {
            name,
            path,
            rounds: Vec::new(),
            failure: None,
        }
    }

    async fn load(&self, load: Load) -> anyhow::Result<Outcome> {
        match &self.path {
            Path::Http(url) => load::run(url, load).await,
            Path::Stdio(program) => pipe::run(program, load).await,
        }
    }

    fn figures(&self, pick: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.rounds.iter().map(pick).collect()
    }

    fn faults(&self) -> Faults {
        let mut sum = Faults::new();
        for (fault, count) in self.rounds.iter().flat_map(|round| &round.faults) {
            *sum.entry(fault.clone()).or_default() += count;
        }
        sum
    }
}

/// The name of the way that is judged.
pub(crate) const OWN: &str = "springline";

/// One measure.
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// Of the direct way's calls a second.
    pub(crate) goal: Goal,
    /// Of what is added to the direct way's p50, in µs.
    pub(crate) added: Goal,
}

/// The head of the table that `measure` adds to.
pub(crate) fn head(report: &Report) {
    line("");
    if report.is_smoke {
        return;
    }
    line(
        "| measure | way | calls/s | of direct (lowest to highest round) | p50 µs | p99 µs | errors |",
    );
    line("|---|---|---|---|---|---|---|");
}

/// Loads all ways in rounds, prints them, and reports the gateway's figure.
pub(crate) async fn measure(
    cell: &Cell,
    mut ways: Vec<Way>,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    for round in 0..rounds {
        let count = ways.len();
        for turn in 0..count {
            // Each round begins with another way, so that none always follows the same one.
            let Some(way) = ways.get_mut((round + turn) % count) else {
                continue;
            };
            if way.failure.is_some() {
                continue;
            }
            match way.load(cell.load).await {
                Ok(outcome) => way.rounds.push(outcome),
                Err(error) if way.name == OWN || way.name == "direct" => return Err(error),
                Err(error) => way.failure = Some(format!("{error:#}")),
            }
        }
    }
    print(cell, &ways, report);
    Ok(())
}

/// The figures of one way beside those of the direct one in the same rounds.
struct Figures {
    name: &'static str,
    ratios: Vec<f64>,
    /// What is added to the p50, in µs.
    added: Vec<f64>,
    row: String,
}

fn print(cell: &Cell, ways: &[Way], report: &mut Report) {
    let Some(direct) = ways.first() else { return };
    let mut figures = Vec::new();
    for way in ways {
        let faults = list(&way.faults());
        if way.name == OWN && faults != "0" {
            report.faults.push(format!("{}: {faults}", cell.name));
        }
        if report.is_smoke {
            let calls: usize = way.rounds.iter().map(|round| round.calls).sum();
            line(&format!(
                "{}, {}: {calls} right answers, errors: {faults}",
                cell.name, way.name
            ));
        } else if let Some(failure) = &way.failure {
            line(&format!(
                "| {} | {} | left out: {failure} | | | | |",
                cell.name, way.name
            ));
        } else {
            let beside = beside(way, direct, &faults);
            line(&format!("| {} | {} |", cell.name, beside.row));
            figures.push(beside);
        }
    }
    add(cell, &figures, report);
}

fn beside(way: &Way, direct: &Way, faults: &str) -> Figures {
    let pairs = |pick: fn(&Outcome) -> f64, join: fn(f64, f64) -> f64| {
        let (way, direct) = (way.figures(pick), direct.figures(pick));
        let pairs = way.into_iter().zip(direct);
        pairs
            .map(|(way, direct)| join(way, direct))
            .collect::<Vec<f64>>()
    };
    let ratios = pairs(|round| round.rate, |way, direct| way / direct);
    let added = pairs(|round| micros(round.p50), |way, direct| way - direct);
    let rates = way.figures(|round| round.rate);
    let ratio = if way.name == direct.name {
        noise(&rates)
    } else {
        range(&ratios, 3)
    };
    let row = format!(
        "{} | {:.0} | {ratio} | {:.0} | {:.0} | {faults}",
        way.name,
        median(&rates),
        median(&way.figures(|round| micros(round.p50))),
        median(&way.figures(|round| micros(round.p99))),
    );
    Figures {
        name: way.name,
        ratios,
        added,
        row,
    }
}

/// How far the direct way itself was from its median: what the machine did, and not the gateway.
fn noise(rates: &[f64]) -> String {
    let (low, high) = spread(rates);
    let middle = median(rates);
    format!("1 (noise: {:.2} to {:.2})", low / middle, high / middle)
}

/// Takes the gateway's figures, and those of others, to the table of goals.
fn add(cell: &Cell, figures: &[Figures], report: &mut Report) {
    let Some(own) = figures.iter().find(|one| one.name == OWN) else {
        return;
    };
    let others = || figures.iter().skip(1).filter(|one| one.name != OWN);
    report.add(
        format!("{}, of direct", cell.name),
        (median(&own.ratios), range(&own.ratios, 2)),
        others()
            .map(|one| (one.name, format!("{:.3}", median(&one.ratios))))
            .collect(),
        cell.goal,
        "",
    );
    if matches!(cell.added, Goal::AtMost(_)) {
        report.add(
            format!("{}: p50 added, µs", cell.name),
            (median(&own.added), range(&own.added, 0)),
            others()
                .map(|one| (one.name, format!("{:.0}", median(&one.added))))
                .collect(),
            cell.added,
            " µs",
        );
    }
}
