//! `springline-sim`: runs seeds of the simulator and says how each failure is replayed.
//!
//! Owns: the command line and what is printed. It must not know how a run works.

#![expect(
    clippy::disallowed_methods,
    reason = "how long to look for failures, and where to begin, is no part of a run"
)]

use std::fmt::Display;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use springline_sim::{Bounds, Kind, Outcome, Scene, explore, run, run_twice};

const USAGE: &str = "usage: springline-sim [--scene upstream|stack|reload|global]... (--seed N [--trace] | --seeds A..B | --fresh-seconds S | --regressions | --model FAULTS)...";
/// Of so many seeds one is run twice, for I12: that costs a sixteenth.
const TWICE_EACH: u64 = 16;
/// Failures that are shown before a range ends early.
const SHOWN_MAX: u64 = 5;

/// What to run.
#[derive(Debug)]
enum Job {
    Seed(u64),
    Seeds(Range<u64>),
    Fresh(Duration),
    Regressions,
    /// Every order of events with so many faults.
    Model(u8),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((jobs, trace, scenes)) = parse(&arguments) else {
        say(USAGE);
        return ExitCode::from(2);
    };
    let mut tally = Tally {
        scenes,
        ..Tally::default()
    };
    for job in jobs {
        match job {
            Job::Seed(seed) => tally.one(seed, trace),
            Job::Seeds(seeds) => tally.range(seeds),
            Job::Fresh(span) => tally.fresh(span),
            Job::Regressions => tally.regressions(&folder()),
            Job::Model(faults) => tally.model(faults),
        }
    }
    say(format_args!(
        "{} passed, {} failed",
        tally.passed, tally.failed
    ));
    if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse(arguments: &[String]) -> Option<(Vec<Job>, bool, Vec<Scene>)> {
    let mut jobs = Vec::new();
    let mut scenes = Vec::new();
    let mut trace = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => jobs.push(Job::Seed(words.next()?.parse().ok()?)),
            "--seeds" => {
                let (first, end) = words.next()?.split_once("..")?;
                jobs.push(Job::Seeds(first.parse().ok()?..end.parse().ok()?));
            }
            "--fresh-seconds" => {
                let span = Duration::from_secs(words.next()?.parse().ok()?);
                jobs.push(Job::Fresh(span));
            }
            "--regressions" => jobs.push(Job::Regressions),
            "--model" => jobs.push(Job::Model(words.next()?.parse().ok()?)),
            "--scene" => scenes.push(scene(words.next()?)?),
            "--trace" => trace = true,
            _ => return None,
        }
    }
    if scenes.is_empty() {
        scenes = Scene::ALL.to_vec();
    }
    (!jobs.is_empty()).then_some((jobs, trace, scenes))
}

fn scene(name: &str) -> Option<Scene> {
    Scene::ALL.into_iter().find(|scene| scene.as_str() == name)
}

/// The one writer of this program's words. That nobody reads them changes nothing: the exit status
/// says the same.
fn say(text: impl Display) {
    writeln!(std::io::stdout().lock(), "{text}").unwrap_or_default();
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

#[derive(Debug, Default)]
struct Tally {
    /// Each seed runs in each of these.
    scenes: Vec<Scene>,
    passed: u64,
    failed: u64,
}

impl Tally {
    fn count(&mut self, scene: Scene, seed: u64, outcome: &Outcome) {
        match &outcome.violation {
            None => self.passed += 1,
            Some(violation) => {
                self.failed += 1;
                if self.failed <= SHOWN_MAX {
                    say(format_args!(
                        "seed {seed}: {} broken: {}\n  replay: cargo run -p springline-sim -- --scene {} --seed {seed} --trace",
                        violation.rule,
                        violation.what,
                        scene.as_str()
                    ));
                }
            }
        }
    }

    fn one(&mut self, seed: u64, trace: bool) {
        for scene in self.scenes.clone() {
            self.one_scene(scene, seed, trace);
        }
    }

    fn one_scene(&mut self, scene: Scene, seed: u64, trace: bool) {
        if trace {
            let outcome = run(scene, seed, true);
            say(outcome.trace.as_deref().unwrap_or_default());
            self.count(scene, seed, &outcome);
        } else {
            self.count(scene, seed, &run_twice(scene, seed));
        }
    }

    fn step(&mut self, seed: u64) {
        for scene in self.scenes.clone() {
            let outcome = if seed.is_multiple_of(TWICE_EACH) {
                run_twice(scene, seed)
            } else {
                run(scene, seed, false)
            };
            self.count(scene, seed, &outcome);
        }
    }

    fn range(&mut self, seeds: Range<u64>) {
        let began = Instant::now();
        let count = seeds.end.saturating_sub(seeds.start);
        for seed in seeds {
            self.step(seed);
        }
        say(format_args!(
            "{count} seeds in {:.1} s",
            began.elapsed().as_secs_f64()
        ));
    }

    fn fresh(&mut self, span: Duration) {
        let began = Instant::now();
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let first = u64::from(time.subsec_nanos()) ^ time.as_secs().rotate_left(24);
        let mut seed = first;
        while began.elapsed() < span && self.failed < SHOWN_MAX {
            self.step(seed);
            seed = seed.wrapping_add(1);
        }
        let count = seed.wrapping_sub(first);
        let took = began.elapsed().as_secs_f64();
        say(format_args!(
            "{count} fresh seeds from {first} in {took:.1} s"
        ));
    }

    /// Three callers, each kind of upstream.
    fn model(&mut self, faults: u8) {
        for kind in Kind::ALL {
            let began = Instant::now();
            let bounds = Bounds {
                kind,
                callers: 3,
                faults,
                timers: 1,
            };
            match explore(bounds) {
                Ok(explored) => {
                    self.passed += 1;
                    say(format_args!(
                        "{kind:?}: {} states, {} of them played to the end, in {:.1} s",
                        explored.states,
                        explored.ends,
                        began.elapsed().as_secs_f64()
                    ));
                }
                Err((violation, path)) => {
                    self.failed += 1;
                    say(format_args!(
                        "{kind:?}: {} broken: {}\n  after {path}",
                        violation.rule, violation.what
                    ));
                }
            }
        }
    }

    /// Each file names one seed, the print of what it decided when it was found, and the bug.
    fn regressions(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else {
            say(format_args!("{}: cannot be read", folder.display()));
            self.failed += 1;
            return;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let number = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().parse::<u64>().ok()
            };
            let named = text.lines().find_map(|line| line.strip_prefix("scene "));
            let scene = named.map_or(Some(Scene::Upstream), |name| scene(name.trim()));
            let scene = scene.unwrap_or(Scene::Upstream);
            match (number("seed "), number("print ")) {
                (Some(seed), Some(print)) if springline_sim::print(scene, seed) == print => {
                    self.one_scene(scene, seed, false);
                }
                (Some(seed), Some(_)) => {
                    self.failed += 1;
                    say(format_args!(
                        "{}: the generator changed, so seed {seed} is another run now; find one for the same bug, with print {}",
                        path.display(),
                        springline_sim::print(scene, seed)
                    ));
                }
                _ => {
                    self.failed += 1;
                    say(format_args!("{}: no seed and print in it", path.display()));
                }
            }
        }
    }
}
