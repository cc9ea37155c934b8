//! The defaults that the machines work with: one place, with the source of each number.
//!
//! The configuration overrides them (DESIGN.md section 3.2) and takes its own defaults from here.

use std::time::Duration;

/// The largest message that is taken, in bytes, in either direction and on every transport.
pub const BODY_MAX: usize = 64 * 1024 * 1024;

/// An answer up to this many bytes is held, checked as a whole and passed on; a larger one may pass
/// while it comes. It is also the largest that is kept for a client that comes back.
pub const HELD_MAX: usize = 1024 * 1024;

/// Subscriptions to resources that are remembered of one session with one server, and the bytes of
/// their URIs: what is remembered goes into a record each time (I8).
pub(crate) const SUBSCRIPTIONS_MAX: usize = 1000;
/// See [`SUBSCRIPTIONS_MAX`].
pub(crate) const SUBSCRIPTION_BYTES_MAX: usize = 512 * 1024;

/// How an upstream is started, recovered and asked. All spans are wall time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UpstreamSettings {
    /// From the start of an instance until it is ready; also the bound of one recovery attempt.
    pub start_timeout: Duration,
    /// How long refused connections are retried before the call fails, `not_executed`.
    pub reconnect_wait: Duration,
    /// First and last pause between two attempts on a refused connection.
    pub reconnect_pause: (Duration, Duration),
    /// First and last pause after a failed recovery; doubles, with jitter.
    pub recovery_backoff: (Duration, Duration),
    /// A call's patience since the last message on it.
    pub call_timeout: Duration,
    /// A call's patience in all, less the time in which the client is asked something.
    pub call_timeout_max: Duration,
    /// A child of a session without an attached client is ended after this.
    pub detached_idle: Duration,
    /// The same for a child to which nothing came but for its lists and the log level.
    pub unused_idle: Duration,
    /// An instance that carried no message for this long is ended, if set.
    pub idle_timeout: Option<Duration>,
    /// The GET stream stays open this long after the last request.
    pub listen_linger: Duration,
    /// Attempts to resume one broken stream by GET behind the same event.
    pub resume_attempts_max: u32,
    /// Pages that are read of one list of an upstream.
    pub list_pages_max: u32,
    /// Calls that may wait for one upstream at once.
    pub waiting_max: usize,
    /// What is sent again after a session loss.
    pub replay: ReplayPolicy,
    /// Tools that the operator named safe to run again.
    pub safe_tools: Vec<String>,
    /// What the client hears of lost in-session state.
    pub on_state_loss: StateLossPolicy,
}

/// What is sent once more after the server refused it because the session was gone.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ReplayPolicy {
    /// Everything: a 404 refuses before it executes.
    #[default]
    AfterSessionLoss,
    /// Reads, and tools with a hint that the operator trusts.
    Annotated,
    /// Reads only.
    Never,
}

/// What happens when an upstream had to start afresh.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StateLossPolicy {
    /// One log message to the client, where logging was announced.
    #[default]
    Notify,
    /// Only an event of the gateway.
    Hide,
    /// Calls that would need the lost state end in an error instead of being sent once more.
    Fail,
}

impl UpstreamSettings {
    /// What holds when nobody says anything.
    pub const DEFAULT: Self = Self {
        start_timeout: Duration::from_mins(1),
        reconnect_wait: Duration::from_secs(10),
        reconnect_pause: (Duration::from_millis(50), Duration::from_secs(1)),
        recovery_backoff: (Duration::from_millis(100), Duration::from_secs(5)),
        call_timeout: Duration::from_hours(1),
        call_timeout_max: Duration::from_hours(24),
        detached_idle: Duration::from_mins(30),
        unused_idle: Duration::from_mins(2),
        idle_timeout: None,
        listen_linger: Duration::from_mins(5),
        resume_attempts_max: 5,
        list_pages_max: 100,
        waiting_max: 256,
        replay: ReplayPolicy::AfterSessionLoss,
        safe_tools: Vec::new(),
        on_state_loss: StateLossPolicy::Notify,
    };
}

impl Default for UpstreamSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long a session of the socket waits for its client after a cut, or after a start of the gateway.
pub const COMEBACK_MAX: Duration = Duration::from_mins(1);

/// How a session treats its client. All spans are wall time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SessionSettings {
    /// A POST that is not answered by then is answered as a stream.
    pub stream_after: Duration,
    /// Requests that one session may have pending.
    pub pending_max: usize,
    /// Messages held for a client that has no stream open; the oldest is dropped beyond it.
    pub held_max: usize,
    /// How long a server's request outside any call waits for a GET stream.
    pub ask_wait: Duration,
    /// How long the client may take to answer a server's question; the clock of the call that
    /// caused it stands still meanwhile.
    pub ask_timeout: Duration,
    /// How long a list on `/mcp` waits for entries that were never listed.
    pub list_wait: Duration,
    /// Events kept for redelivery, for each session.
    pub redelivery_events_max: usize,
    /// Bytes kept for redelivery, for each session.
    pub redelivery_bytes_max: usize,
    /// How long an event is kept for redelivery.
    pub redelivery_age_max: Duration,
}

impl SessionSettings {
    /// What holds when nobody says anything.
    pub const DEFAULT: Self = Self {
        stream_after: Duration::from_millis(500),
        pending_max: 256,
        held_max: 64,
        ask_wait: Duration::from_secs(5),
        ask_timeout: Duration::from_hours(1),
        list_wait: Duration::from_secs(10),
        redelivery_events_max: 1000,
        redelivery_bytes_max: 16 * 1024 * 1024,
        redelivery_age_max: Duration::from_hours(1),
    };
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}
