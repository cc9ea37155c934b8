//! Calls over pipes: a direct stdio server, `bridge` to an HTTP server, `connect` through the
//! gateway to a stdio server, and the programs of others in their places.

use crate::Run;
use crate::call::Mix;
use crate::load::Load;
use crate::process::{self, Home, Program};
use crate::report::{Goal, Report, line};
use crate::rival::Rivals;
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
    let home = Home::with_program(&direct)?;
    let gateway = home.start(&options.springline).await?;
    let folder = tempfile::tempdir()?;
    let mut bridges = vec![(
        OWN,
        Program::new(&options.springline, ["bridge", &echo.url]),
    )];
    let mut paths = vec![(OWN, home.connect(&options.springline))];
    let mut daemon = None;
    if let Some(peers) = &options.peers {
        let rivals = Rivals::new(peers);
        bridges.extend(rivals.bridges(&echo.url, folder.path()));
        match rivals.mux(&direct).await {
            Ok(Some((server, program))) => {
                daemon = Some(server);
                paths.push(("rmcp-mux", program));
            }
            Ok(None) => {}
            Err(error) => line(&format!("rmcp-mux: left out: {error:#}")),
        }
    }
    head(report);
    for (side, programs) in [bridges, paths].iter().enumerate() {
        for (in_flight, names, goals) in CELLS {
            let (Some(name), Some(goal)) = (names.get(side), goals.get(side)) else {
                continue;
            };
            let load = Load {
                sessions: 1,
                in_flight,
                amount: options.amount(),
                mix: Mix::Small,
            };
            let cell = Cell {
                name,
                load,
                goal: Goal::AtLeast(*goal),
                added: Goal::None,
            };
            let mut ways = vec![Way::stdio("direct", &direct)];
            ways.extend(
                programs
                    .iter()
                    .map(|(name, program)| Way::stdio(name, program)),
            );
            measure(&cell, ways, options.rounds(), report).await?;
        }
    }
    drop(daemon);
    gateway.stop().await
}
