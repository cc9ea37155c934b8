//! When a session was last used, as far as that is at rest.
//!
//! Owns how coarsely it is written: a record is written when it changes, and a session that is used
//! without a change must not expire as if it were idle. It must not know what is written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use springline_proto::call::Moment;

/// The last use at rest lags behind by one part in so many of the time after which an idle session
/// expires, so that it counts to 4 %.
const PARTS: u32 = 24;

/// It lags by no more than this.
const LAG_MAX: Duration = Duration::from_hours(1);

/// How far the last use at rest may lag behind, where idle sessions expire after `idle`.
pub(crate) fn lag(idle: Duration) -> Duration {
    (idle / PARTS).min(LAG_MAX)
}

/// When the record of one session was written, in milliseconds and one more; zero if not in this
/// process.
#[derive(Debug, Default)]
pub(crate) struct LastUse(AtomicU64);

impl LastUse {
    /// The record was written now, and says so.
    pub(crate) fn written(&self, now: Moment) {
        self.0.store(count(now), Ordering::Relaxed);
    }

    /// Whether a session that was `used` then must be written again.
    pub(crate) fn is_old(&self, used: Moment, lag: Duration) -> bool {
        let written = self.0.load(Ordering::Relaxed);
        let since = count(used).saturating_sub(written);
        written == 0 || (since > 0 && u128::from(since) >= lag.as_millis())
    }
}

fn count(moment: Moment) -> u64 {
    let millis = u64::try_from(moment.0.as_millis()).unwrap_or(u64::MAX);
    millis.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const MINUTE: Duration = Duration::from_mins(1);

    /// Looks each minute for a week at a session that is used as told: how often it was written, and
    /// how far the last use at rest lagged behind at most.
    fn week(is_used: impl Fn(u32) -> bool) -> (u32, Duration) {
        let lag = lag(7 * DAY);
        let at_rest = LastUse::default();
        let (mut writes, mut used, mut worst) = (0, Moment::default(), Duration::ZERO);
        let mut written = None;
        for minute in 0..7 * 24 * 60 {
            let now = Moment::default().after(MINUTE * minute);
            if is_used(minute) {
                used = now;
            }
            if at_rest.is_old(used, lag) {
                at_rest.written(now);
                written = Some(now);
                writes += 1;
            }
            worst = worst.max(used.since(written.unwrap_or_default()));
        }
        (writes, worst)
    }

    #[test]
    fn a_session_in_use_is_written_once_an_hour_and_an_idle_one_once() {
        let (writes, worst) = week(|_| true);
        assert_eq!(writes, 7 * 24);
        assert!(worst < Duration::from_hours(1), "{worst:?}");
        // The one write says that it was there at the start.
        assert_eq!(week(|minute| minute == 0), (1, Duration::ZERO));
        let (writes, worst) = week(|minute| minute % 600 == 0);
        assert!(writes <= 17, "{writes}");
        assert!(worst < Duration::from_hours(1), "{worst:?}");
    }

    #[test]
    fn a_short_life_is_watched_more_closely() {
        assert_eq!(lag(7 * DAY), Duration::from_hours(1));
        assert_eq!(lag(Duration::from_hours(12)), Duration::from_mins(30));
    }
}
