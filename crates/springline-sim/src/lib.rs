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
mod model;
mod peer;
mod plan;
mod random;
mod server;
mod stack;
mod trace;
mod world;

pub use self::book::Violation;
pub use self::model::{Bounds, Explored, Kind, explore};

use self::stack::StackPlan;
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

/// What stands around the machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scene {
    /// Upstream machines alone: their clients are made up.
    Upstream,
    /// Clients, session machines, upstream machines; the gateway is killed and started again.
    Stack,
    /// The same with other configurations while it runs, and with a store that is slow or fails.
    Reload,
    /// The same with servers that all sessions share, some of them under two names.
    Global,
}

impl Scene {
    /// All, in the order in which a seed runs in them.
    pub const ALL: [Self; 4] = [Self::Upstream, Self::Stack, Self::Reload, Self::Global];

    /// The name on the command line and in regressions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Stack => "stack",
            Self::Reload => "reload",
            Self::Global => "global",
        }
    }
}

/// Runs one seed; with `trace`, keeps what happened.
pub fn run(scene: Scene, seed: u64, trace: bool) -> Outcome {
    let (mut world, violation);
    match scene {
        Scene::Upstream => {
            world = World::new(seed, trace);
            violation = world.run().err();
        }
        Scene::Stack | Scene::Reload | Scene::Global => {
            let plan = StackPlan::draw(seed, scene);
            world = World::with_clients(plan, trace);
            violation = world.run_stack().err();
        }
    }
    let (sum, trace) = world.trace.finish();
    Outcome {
        violation,
        sum,
        trace,
    }
}

/// Runs one seed twice, and tells if the second run differs from the first (I12).
pub fn run_twice(scene: Scene, seed: u64) -> Outcome {
    let first = run(scene, seed, false);
    let second = run(scene, seed, false);
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
pub fn print(scene: Scene, seed: u64) -> u64 {
    match scene {
        Scene::Upstream => plan::Plan::draw(seed).print(),
        Scene::Stack | Scene::Reload | Scene::Global => StackPlan::draw(seed, scene).print(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Scene, run, run_twice};

    #[test]
    fn the_first_seeds_keep_every_promise() {
        for scene in Scene::ALL {
            for seed in 0..300 {
                let outcome = run(scene, seed, false);
                assert_eq!(outcome.violation, None, "{scene:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_seed_runs_the_same_way_twice_whether_or_not_it_is_traced() {
        for scene in Scene::ALL {
            for seed in 0..20 {
                let outcome = run_twice(scene, seed);
                assert_eq!(outcome.violation, None, "{scene:?}, seed {seed}");
            }
            assert!(
                run(scene, 1, true)
                    .trace
                    .is_some_and(|text| text.contains("Ready"))
            );
        }
    }
}
