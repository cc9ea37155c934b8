//! Simulator of Springline's machines: one thread, virtual time, scripted peers, a plan of faults
//! for each seed, and checkers of the invariants of DESIGN.md section 4.
//!
//! The machines are the very ones that the gateway runs; only what is around them is made up here.
//! It must not know sockets, clocks, or how the engine drives the machines.

mod agenda;
mod book;
mod child;
mod client;
mod driver;
mod peer;
mod plan;
mod random;
mod server;
mod trace;
mod world;

pub use self::book::Violation;

use self::world::World;

/// What came of one run.
#[derive(Debug)]
pub struct Outcome {
    /// The broken promise, if any.
    pub violation: Option<Violation>,
    /// A number that every run of the same seed on the same commit must share (I12).
    pub sum: u64,
    /// All inputs and outputs, one a line, if they were asked for.
    pub trace: Option<String>,
}

/// Runs one seed; with `trace`, keeps what happened.
pub fn run(seed: u64, trace: bool) -> Outcome {
    let mut world = World::new(seed, trace);
    let violation = world.run().err();
    let (sum, trace) = world.trace.finish();
    Outcome {
        violation,
        sum,
        trace,
    }
}

/// Runs one seed twice, and tells if the second run differs from the first (I12).
pub fn run_twice(seed: u64) -> Outcome {
    let first = run(seed, false);
    let second = run(seed, false);
    if first.violation.is_none() && first.sum != second.sum {
        let what = format!("two runs differ: {:x}, {:x}", first.sum, second.sum);
        let violation = Some(Violation { rule: "I12", what });
        return Outcome {
            violation,
            ..second
        };
    }
    first
}

/// What a seed decides before its run begins, as a number: it changes when the generator does, so
/// that a stored seed cannot lose its meaning unnoticed.
pub fn print(seed: u64) -> u64 {
    plan::Plan::draw(seed).print()
}

#[cfg(test)]
mod tests {
    use super::{run, run_twice};

    #[test]
    fn the_first_seeds_keep_every_promise() {
        for seed in 0..300 {
            let outcome = run(seed, false);
            assert_eq!(outcome.violation, None, "seed {seed}");
        }
    }

    #[test]
    fn a_seed_runs_the_same_way_twice_whether_or_not_it_is_traced() {
        for seed in 0..20 {
            assert_eq!(run_twice(seed).violation, None, "seed {seed}");
        }
        assert!(
            run(1, true)
                .trace
                .is_some_and(|text| text.contains("Ready"))
        );
    }
}
