//! What the system knows of a process: memory and time of the processor.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

/// What a process and its children hold, in KiB.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    /// Shared pages divided among those who share them.
    pub(crate) proportional: u64,
}

/// Memory of a process and its children.
pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let mut sum = Memory::default();
    for pid in family(pid) {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        sum.resident += field(&text, "Rss:").with_context(|| format!("memory of {pid}"))?;
        sum.proportional += field(&text, "Pss:").unwrap_or_default();
    }
    Ok(sum)
}

/// The most that a process alone ever held resident, in KiB.
pub(crate) fn peak(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&text, "VmHWM:").context("VmHWM")
}

/// Time of the processor that all threads of a process took so far.
pub(crate) fn busy(pid: u32) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for path in threads(pid)? {
        // A thread may have ended meanwhile.
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
        sum += nanos.unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}

fn family(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut at = 0;
    while let Some(pid) = pids.get(at).copied() {
        at += 1;
        for path in threads(pid).unwrap_or_default() {
            let text = std::fs::read_to_string(path.join("children")).unwrap_or_default();
            pids.extend(
                text.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    pids
}

fn threads(pid: u32) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect())
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().split(' ').next()?.parse().ok()
}

/// How many cores there are.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load of the machine in the last 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The name of the processor.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.and_then(|rest| rest.split_once(':'));
    name.map_or("an unknown processor", |(_, name)| name.trim())
        .to_owned()
}
