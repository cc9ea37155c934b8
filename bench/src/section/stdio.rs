//! Calls over pipes: a direct stdio server, `bridge` to an HTTP server, `connect` through the
//! gateway to a stdio server, and the programs of others in their places.

use crate::Run;
use crate::call::Mix;
use crate::load::Load;
use crate::process::{self, Home, Program};
use crate::report::{Goal, Report};
use crate::round::{Cell, OWN, Way, head, measure};

/// Calls in flight, and the goals of the bridge and of the way through the gateway.
const CELLS: [(usize, [&str; 2], [f64; 2]); 3] = [
    (
        1,
        [
            "stdio to HTTP bridge, 1 in flight",
            "stdio to stdio, 1 in flight",
        ],
        [0.45, 0.45],
    ),
    (
        16,
        [
            "stdio to HTTP bridge, 16 in flight",
            "stdio to stdio, 16 in flight",
        ],
        [0.4, 0.4],
    ),
    (
        128,
        [
            "stdio to HTTP bridge, 128 in flight",
            "stdio to stdio, 128 in flight",
        ],
        [0.3, 0.35],
    ),
];

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let echo = process::echo().await?;
    let direct = Program::echo()?;
    let bridge = Program::new(&options.springline, ["bridge", &echo.url]);
    let home = Home::with_program(&direct)?;
    let gateway = home.start(&options.springline).await?;
    let connect = home.connect(&options.springline);
    head(report);
    for (side, own) in [bridge, connect].iter().enumerate() {
        for (in_flight, names, goals) in CELLS {
            let (Some(name), Some(goal)) = (names.get(side), goals.get(side)) else {
                continue;
            };
            let cell = Cell {
                name,
                load: Load {
                    sessions: 1,
                    in_flight,
                    amount: options.amount(),
                    mix: Mix::Small,
                },
                goal: Goal::AtLeast(*goal),
                added: Goal::None,
            };
            let ways = vec![Way::stdio("direct", &direct), Way::stdio(OWN, own)];
            measure(&cell, ways, options.rounds(), report).await?;
        }
    }
    gateway.stop().await
}
