//! What a seed decides before a run begins: peers, settings, faults and the clients' deeds.
//!
//! A random subset of the faults is on in each run (swarm testing): a run with all of them on
//! hardly ever gets far. The deeds are listed up front, so that a regression can tell whether its
//! seed still means the same.

use std::time::Duration;

use springline_proto::settings::{ReplayPolicy, StateLossPolicy, UpstreamSettings};

use crate::random::Random;

macro_rules! faults {
    ($($name:ident),* $(,)?) => {
        /// What can go wrong by itself.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(crate) enum Fault { $($name),* }

        impl Fault {
            const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

faults! {
    // On the way.
    NotSent, CutBefore, CutAfter, Hang, Slow, LateTimer, Ghost,
    // A server that speaks HTTP.
    ErrorBefore, ErrorAfter, Refused, LosesSession, EmptyAnswer, StreamCut, StreamResumes,
    LiesOfLoss, GetFails, GetBreaks,
    // Any server.
    AnswersError, WrongId, Twice, Garbage, TooLarge, Asks, ListsDiffer,
    // The handshake.
    InitializeStatus, InitializeError, InitializeEmpty, InitializeUseless, InitializeCut,
    InitializedRefused,
    // A child.
    SpawnFails, SlowStart, WaitsForTurn, Exits, PipeClosed,
}

/// How likely each fault is, of 1,000.
#[derive(Clone, Debug)]
pub(crate) struct Rates([u64; Fault::ALL.len()]);

impl Rates {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut rates = [0; Fault::ALL.len()];
        let share = random.pick(&[80, 200, 400]);
        for rate in &mut rates {
            if random.chance(share) {
                *rate = random.pick(&[20, 80, 200, 500, 1000]);
            }
        }
        Self(rates)
    }

    /// Whether a fault strikes now.
    pub(crate) fn strikes(&self, random: &mut Random, fault: Fault) -> bool {
        let rate = self.0[fault as usize];
        rate > 0 && random.chance(rate)
    }

    /// From here on nothing goes wrong any more.
    pub(crate) fn heal(&mut self) {
        self.0 = [0; Fault::ALL.len()];
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ask {
    /// A tool with a side effect.
    Tool,
    /// A tool that the operator named safe.
    SafeTool,
    /// A tool with `readOnlyHint`, if the server has listed it so.
    HintedTool,
    Read,
    List,
    Subscribe,
    SetLevel,
    /// A method that nobody knows.
    Other,
}

/// One thing that somebody does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Deed {
    /// The client sends `initialize`, with parameters that differ each time.
    Start,
    Call {
        ask: Ask,
        progress: bool,
    },
    /// Takes back the call that is so many before the last.
    Cancel {
        back: u64,
    },
    Notify,
    Attach(bool),
    Retire,
    Close {
        end_session: bool,
    },
    /// The server forgets all sessions.
    LoseSessions,
    /// Connections are refused for a while.
    Down(Duration),
    /// The server wants other credentials; whether the sources hold them already.
    Rotate {
        known: bool,
    },
    /// The child is killed.
    Kill,
}

/// A deed, when, and at which upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) seat: usize,
    pub(crate) deed: Deed,
}

/// How a server tells that it knows a session no more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LossForm {
    NotFound,
    NotFoundRpc,
    NpmEverything,
    InvalidRequest,
    Code,
}

/// Answers that are too large to be held, and how they go wrong; by numbers of their own, so that the
/// other seeds keep their meaning.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    /// How often, of 1,000, an answer is large; how often such a one is cut, and how often it turns
    /// out to be none.
    pub(crate) rates: (u64, u64, u64),
    pub(crate) random: Random,
}

impl Large {
    /// In some of the seeds; in none of those that stored regressions name.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x1A26_E000_1A26_E000);
        let rates = if matches!(seed % 11, 2 | 6 | 8) {
            let some = [0, 50, 300];
            let share = random.pick(&[200, 600, 1000]);
            (share, random.pick(&some), random.pick(&some))
        } else {
            (0, 0, 0)
        };
        Self { rates, random }
    }

    /// From here on nothing goes wrong any more.
    pub(crate) fn heal(&mut self) {
        (self.rates.1, self.rates.2) = (0, 0);
    }
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) large: Large,
    /// For each upstream, whether it is reached by HTTP.
    pub(crate) seats: Vec<bool>,
    pub(crate) settings: UpstreamSettings,
    pub(crate) rates: Rates,
    pub(crate) steps: Vec<Step>,
    pub(crate) loss_form: LossForm,
    /// Whether the HTTP server mints session ids.
    pub(crate) sessions: bool,
    pub(crate) random: Random,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let seats: Vec<bool> = (0..=random.below(3)).map(|_| random.chance(650)).collect();
        let settings = settings(&mut random);
        let rates = Rates::draw(&mut random);
        let steps = steps(&mut random, seats.len());
        Self {
            large: Large::draw(seed),
            seats,
            settings,
            rates,
            steps,
            loss_form: random.pick(&[
                LossForm::NotFound,
                LossForm::NotFoundRpc,
                LossForm::NpmEverything,
                LossForm::InvalidRequest,
                LossForm::Code,
            ]),
            sessions: random.chance(850),
            random,
        }
    }

    /// A number that changes when this seed would do something else.
    pub(crate) fn print(&self) -> u64 {
        // Not the settings: a new one with a default leaves a seed's meaning as it was.
        let drawn = (
            &self.seats,
            &self.rates,
            &self.steps,
            self.loss_form,
            self.sessions,
        );
        crate::trace::fold(format!("{drawn:?} {:?}", self.random).as_bytes())
    }

    /// When the faults stop.
    pub(crate) fn ends(&self) -> Duration {
        self.steps.last().map_or(Duration::ZERO, |step| step.at)
    }
}

pub(crate) fn settings(random: &mut Random) -> UpstreamSettings {
    let call_timeout = random.millis(2_000, 20_000);
    UpstreamSettings {
        start_timeout: random.millis(1_000, 5_000),
        reconnect_wait: random.millis(500, 5_000),
        call_timeout,
        call_timeout_max: call_timeout * 3,
        detached_idle: random.millis(500, 20_000),
        idle_timeout: random.chance(200).then(|| random.millis(500, 10_000)),
        listen_linger: random.millis(500, 10_000),
        waiting_max: usize::try_from(random.pick(&[2, 8, 64])).unwrap_or(8),
        replay: random.pick(&[
            ReplayPolicy::AfterSessionLoss,
            ReplayPolicy::AfterSessionLoss,
            ReplayPolicy::Annotated,
            ReplayPolicy::Never,
        ]),
        safe_tools: vec!["safe".into()],
        on_state_loss: random.pick(&[
            StateLossPolicy::Notify,
            StateLossPolicy::Notify,
            StateLossPolicy::Hide,
            StateLossPolicy::Fail,
        ]),
        ..UpstreamSettings::default()
    }
}

fn steps(random: &mut Random, seats: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for seat in 0..seats {
        let at = random.millis(0, 50);
        let deed = Deed::Start;
        steps.push(Step { at, seat, deed });
    }
    let pace = random.pick(&[5, 50, 500, 2_000]);
    let rough = random.chance(300);
    let mut at = Duration::ZERO;
    for _ in 0..10 + random.below(40) {
        // Bursts: several deeds in the same moment.
        if random.chance(600) {
            at += random.millis(0, pace);
        }
        let seat = usize::try_from(random.below(seats as u64)).unwrap_or(0);
        let deed = deed(random, rough);
        steps.push(Step { at, seat, deed });
    }
    steps.sort_by_key(|step| step.at);
    steps
}

fn deed(random: &mut Random, rough: bool) -> Deed {
    match random.below(if rough { 100 } else { 86 }) {
        0..60 => Deed::Call {
            ask: random.pick(&[
                Ask::Tool,
                Ask::Tool,
                Ask::Tool,
                Ask::SafeTool,
                Ask::HintedTool,
                Ask::Read,
                Ask::List,
                Ask::List,
                Ask::Subscribe,
                Ask::SetLevel,
                Ask::Other,
            ]),
            progress: random.chance(400),
        },
        60..67 => Deed::Cancel {
            back: random.below(4),
        },
        67..71 => Deed::Notify,
        71..75 => Deed::Attach(random.chance(500)),
        75..80 => Deed::LoseSessions,
        80..83 => Deed::Down(random.millis(10, 6_000)),
        83..86 => Deed::Kill,
        86..91 => Deed::Start,
        91..94 => Deed::Retire,
        94..96 => Deed::Close {
            end_session: random.chance(700),
        },
        _ => Deed::Rotate {
            known: random.chance(700),
        },
    }
}
