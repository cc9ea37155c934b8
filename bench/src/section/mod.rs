//! The sections of a run, in order, and what stands around their tables.

mod calls;
mod footprint;
mod pause;
mod recovery;
mod scale;
mod stdio;

use std::time::Instant;

use anyhow::bail;

use crate::kernel::{cores, load_average, processor};
use crate::report::{Report, line};
use crate::{Run, Section};

/// Runs the chosen sections and prints their tables; errors if the gateway answered wrongly.
pub(crate) async fn run(options: &Run) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut report = Report::default();
    report.is_smoke = options.smoke;
    opening(options);
    if options.wants(Section::Calls) || options.wants(Section::Large) {
        calls::run(options, &mut report).await?;
    }
    if options.wants(Section::Stdio) {
        stdio::run(options, &mut report).await?;
    }
    if options.wants(Section::Footprint) && !options.smoke {
        footprint::run(options, &mut report).await?;
    }
    if options.wants(Section::Scale) {
        scale::run(options, &mut report).await?;
    }
    if options.wants(Section::Recovery) {
        recovery::run(options, &mut report).await?;
    }
    report.print();
    line("");
    line(&format!(
        "Load at the end: {}; the run took {:.0} s.",
        load_average(),
        begun.elapsed().as_secs_f64()
    ));
    if report.faults.is_empty() {
        return Ok(());
    }
    bail!("the gateway failed: {}", report.faults.join("; "))
}

fn opening(options: &Run) {
    let words: Vec<String> = std::env::args().skip(1).collect();
    line(&format!(
        "Command: `bench {}`, commit {}.",
        words.join(" "),
        commit()
    ));
    line("");
    line(&format!(
        "Machine: {} cores, {}, load {} at the start. {} round(s), {} s for each load.",
        cores(),
        processor(),
        load_average(),
        options.rounds(),
        options.seconds().as_secs_f64()
    ));
}

/// The commit of the folder in which the run was started.
fn commit() -> String {
    let asked = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output();
    let said = asked.ok().filter(|output| output.status.success());
    let name = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}
