//! The one place that reads a clock.
//!
//! Owns: the choice of clock. It must not know what the time is used for. Everything else takes
//! time as an argument or calls this, so that tests can pause it (I12).

use std::sync::OnceLock;
use std::time::SystemTime;

use springline_proto::call::Moment;
use tokio::time::Instant;

/// The monotonic time, for deadlines and durations. Under `tokio::time::pause` it stands still and
/// moves with the runtime's timers.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that the ban points to"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// The monotonic time as the machines count it: since the first call of this function.
pub fn moment() -> Moment {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Moment(now().saturating_duration_since(*ORIGIN.get_or_init(now)))
}

/// The wall time, for records and for people. It may jump: never use it for a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that the ban points to"
)]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::now;

    #[tokio::test(start_paused = true)]
    async fn the_clock_stands_still_when_the_runtime_does() {
        let before = now();
        assert_eq!(now(), before);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(now() - before, Duration::from_mins(1));
    }
}
