//! Steps of a long chore: each says what it runs, the first failure ends them, the times are told.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::say;

/// What ran so far.
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
    started: Instant,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self {
            done: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Runs one step and remembers its time. An error names the step.
    pub(crate) fn run(
        &mut self,
        name: &str,
        step: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        say::line(format_args!("\n== {name}"))?;
        let started = Instant::now();
        step().with_context(|| format!("the step \"{name}\" failed"))?;
        self.done.push((name.to_owned(), started.elapsed()));
        Ok(())
    }

    /// One line for each step, and the sum.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::from("\n== summary\n");
        for (name, took) in &self.done {
            writeln!(text, "{:>7.1} s  {name}", took.as_secs_f64()).ok();
        }
        let total = self.started.elapsed().as_secs_f64();
        write!(text, "{total:>7.1} s  all {} steps passed", self.done.len()).ok();
        text
    }
}

/// Runs a command in `root` after saying it. Errors: it is not there, or it failed.
pub(crate) fn command(
    root: &Path,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, OsString)],
) -> anyhow::Result<()> {
    say::line(format_args!("$ {program} {}", arguments.join(" ")))?;
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(root)
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`{program} {}` ended with {status}", arguments.join(" ")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("`{program}` was not found; the tests need Rust, Node.js 20 and Python 3.10")
        }
        Err(error) => Err(error).with_context(|| format!("could not start `{program}`")),
    }
}

/// Whether `program` answers to these arguments; it says nothing to the user.
pub(crate) fn answers(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::bail;

    use super::{Steps, command};

    #[test]
    fn a_failed_step_names_itself_and_is_not_in_the_summary() {
        let mut steps = Steps::new();
        steps.run("good", || Ok(())).unwrap();
        let error = steps.run("bad", || bail!("why")).unwrap_err();
        assert_eq!(format!("{error:#}"), "the step \"bad\" failed: why");
        assert!(steps.summary().contains("good"));
        assert!(!steps.summary().contains("bad"));
    }

    #[test]
    fn a_missing_program_is_named_with_what_to_install() {
        let error = command(Path::new("."), "no-such-program-here", &[], &[]).unwrap_err();
        assert!(error.to_string().contains("Node.js"), "{error}");
    }
}
