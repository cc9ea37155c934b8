//! What a seed decides of a run with clients and sessions: endpoints, pipes, settings, deeds.

use std::time::Duration;

use springline_proto::settings::SessionSettings;

use crate::Scene;
use crate::plan::{Ask, Large, LossForm, Plan, Rates, settings};
use crate::random::Random;

/// How a client is attached and what it speaks to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    pub(crate) pipe: bool,
    /// One server entry by place; none: all of them.
    pub(crate) entry: Option<usize>,
}

/// Which cursor a client names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    None,
    /// The last that it saw on the stream.
    Last,
    /// An older one.
    Older,
    /// Another session's.
    Foreign,
    Forged,
}

/// One thing that a client, or the world around, does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Opens the session, if there is none.
    Open,
    /// On a pipe: `initialize` once more.
    Again,
    Call {
        ask: Ask,
        progress: bool,
        json: bool,
        /// Takes an id that may be in flight.
        same_id: bool,
        entry: usize,
    },
    Cancel {
        back: u64,
    },
    Notify,
    /// The connection of a POST breaks.
    Break {
        back: u64,
    },
    /// Opens the GET stream.
    Listen(Named),
    /// Closes it; a pipe goes.
    Leave,
    /// Comes back to the answer of a POST.
    Resume {
        back: u64,
        named: Named,
    },
    /// Ends the session.
    Close,
    /// The gateway is killed before so many more outputs.
    Crash {
        outputs: u64,
        /// Meanwhile the server forgets its sessions, and answers them with 401 or 403.
        shut: bool,
        /// What the gateway kept of answers is gone.
        lose_answers: bool,
    },
    LoseSessions,
    Down(Duration),
    Rotate {
        known: bool,
    },
    Kill,
    /// A new configuration comes, in which one entry is another.
    Reload {
        entry: usize,
        change: Change,
    },
    /// From now until the next start nothing more goes to rest of sessions and upstreams.
    StoreFails,
    /// The disk takes no more writes, to the journal or of records.
    DiskFails {
        journal: bool,
        records: bool,
    },
    /// It takes them again: what waited is written.
    DiskHeals,
}

/// What a new configuration says of one entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The same server, with other knobs.
    Knobs,
    /// The same text, with another value of a credential.
    Rotated,
    /// Another server, perhaps carried by something else.
    Other { carried: bool },
    /// It is gone.
    Removed,
    /// It is there again: as it was, or as another server.
    Added { other: bool },
    /// All sessions share it from now on, or no longer.
    Scope,
}

/// A deed, when and whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) client: usize,
    pub(crate) act: Act,
}

/// How an entry is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// All sessions share it at first.
    pub(crate) global: bool,
    /// It is a second name for this one.
    pub(crate) alias: Option<usize>,
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct StackPlan {
    pub(crate) base: Plan,
    /// For each server entry, whether it is reached by HTTP.
    pub(crate) entries: Vec<bool>,
    /// In the scene that has shared ones, for each of them.
    pub(crate) shares: Vec<Share>,
    pub(crate) clients: Vec<Stand>,
    pub(crate) settings: SessionSettings,
    pub(crate) steps: Vec<Step>,
    /// The longest way between two machines, in microseconds.
    pub(crate) lag: u64,
    /// How often, of 1,000, a write takes its time; none in the scene without reloads.
    pub(crate) slow_store: Option<u64>,
}

impl StackPlan {
    pub(crate) fn draw(seed: u64, scene: Scene) -> Self {
        let (kind, reloads, least) = match scene {
            Scene::Upstream | Scene::Stack => (0x57AC_57AC_57AC_57AC, false, 0),
            Scene::Reload => (0x2E10_AD00_2E10_AD00, true, 0),
            Scene::Global => (0x610B_A100_610B_A100, true, 1),
        };
        let mut random = Random::new(seed ^ kind);
        let entries: Vec<bool> = (0..=random.below(3)).map(|_| random.chance(650)).collect();
        let clients: Vec<Stand> = (0..=random.below(3) + least)
            .map(|_| Stand {
                pipe: random.chance(300),
                entry: random
                    .chance(650)
                    .then(|| at(random.below(entries.len() as u64))),
            })
            .collect();
        let upstream = settings(&mut random);
        let rates = Rates::draw(&mut random);
        let mut steps = steps(&mut random, clients.len(), entries.len());
        if !reloads {
            add_outages(seed, &mut steps);
        }
        let slow_store = reloads.then(|| {
            add_reloads(&mut random, &mut steps, entries.len());
            random.pick(&[0, 0, 50, 400])
        });
        let shares = if scene == Scene::Global {
            share_some(&mut random, &mut steps, entries.len())
        } else {
            Vec::new()
        };
        let mut settings = SessionSettings {
            stream_after: random.millis(1, 800),
            pending_max: at(random.pick(&[4, 64, 256])),
            held_max: at(random.pick(&[2, 64])),
            ask_wait: random.millis(100, 5_000),
            list_wait: random.millis(100, 5_000),
            redelivery_events_max: at(random.pick(&[4, 1000, 1000])),
            ..SessionSettings::default()
        };
        // Nothing is drawn for it, so that stored seeds keep their meaning.
        settings.ask_timeout = settings.ask_wait * 3;
        let lag = random.pick(&[0, 100, 3_000]);
        let base = Plan {
            large: Large::draw(seed),
            seats: Vec::new(),
            settings: upstream,
            rates,
            steps: Vec::new(),
            loss_form: random.pick(&[
                LossForm::NotFound,
                LossForm::NotFoundRpc,
                LossForm::NpmEverything,
                LossForm::InvalidRequest,
                LossForm::Code,
            ]),
            sessions: random.chance(900),
            random,
        };
        Self {
            base,
            entries,
            shares,
            clients,
            settings,
            steps,
            lag,
            slow_store,
        }
    }

    /// A number that changes when this seed would do something else.
    pub(crate) fn print(&self) -> u64 {
        let drawn = (&self.entries, &self.clients, &self.steps, self.lag);
        let store = self
            .slow_store
            .map_or(String::new(), |slow| slow.to_string());
        let shares = match &self.shares[..] {
            [] => String::new(),
            shares => format!("{shares:?}"),
        };
        crate::trace::fold(format!("{drawn:?} {}{store}{shares}", self.base.print()).as_bytes())
    }

    /// When the faults stop.
    pub(crate) fn ends(&self) -> Duration {
        self.steps.last().map_or(Duration::ZERO, |step| step.at)
    }
}

/// Tells the draws of outages from the others.
const OUTAGES: u64 = 0xD15C_0000_D15C_0007;

fn at(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn steps(random: &mut Random, clients: usize, entries: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for client in 0..clients {
        let at = random.millis(0, 50);
        let act = Act::Open;
        steps.push(Step { at, client, act });
    }
    let pace = random.pick(&[5, 50, 500, 2_000]);
    let crashes = random.pick(&[0, 20, 60]);
    let mut when = Duration::from_millis(20);
    for _ in 0..10 + random.below(50) {
        if random.chance(600) {
            when += random.millis(0, pace);
        }
        let client = at(random.below(clients as u64));
        let act = if random.chance(crashes) {
            Act::Crash {
                outputs: random.below(30),
                shut: random.chance(250),
                lose_answers: random.chance(200),
            }
        } else {
            act(random, entries)
        };
        steps.push(Step {
            at: when,
            client,
            act,
        });
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// Reloads come in bursts too: before the one before has drained.
fn add_reloads(random: &mut Random, steps: &mut Vec<Step>, entries: usize) {
    let ends = steps.last().map_or(Duration::ZERO, |step| step.at);
    let span = u64::try_from(ends.as_millis()).unwrap_or(0);
    for _ in 0..=random.below(12) {
        let mut when = random.millis(0, span);
        let entry = at(random.below(entries as u64));
        for _ in 0..=random.below(3) {
            let act = if random.chance(30) {
                Act::StoreFails
            } else {
                let change = change(random);
                Act::Reload { entry, change }
            };
            steps.push(Step {
                at: when,
                client: 0,
                act,
            });
            if random.chance(500) {
                when += random.millis(0, 40);
            }
        }
    }
    steps.sort_by_key(|step| step.at);
}

/// Times in which the disk takes no writes, with a kill in the midst of some. They are drawn apart, so that
/// stored seeds keep their meaning.
fn add_outages(seed: u64, steps: &mut Vec<Step>) {
    let mut random = Random::new(seed ^ OUTAGES);
    if !random.chance(300) {
        return;
    }
    let ends = steps.last().map_or(Duration::ZERO, |step| step.at);
    let span = u64::try_from(ends.as_millis()).unwrap_or(0);
    for _ in 0..=random.below(3) {
        let begins = random.millis(0, span);
        let over = begins + random.millis(0, span);
        let mut add = |at: Duration, act| {
            let client = 0;
            let at = at.min(ends);
            steps.push(Step { at, client, act });
        };
        let journal = random.chance(800);
        let records = !journal || random.chance(500);
        add(begins, Act::DiskFails { journal, records });
        if random.chance(500) {
            let crash = Act::Crash {
                outputs: random.below(30),
                shut: random.chance(250),
                lose_answers: random.chance(200),
            };
            let within = u64::try_from(over.saturating_sub(begins).as_millis()).unwrap_or(0);
            add(begins + random.millis(0, within), crash);
        }
        add(over, Act::DiskHeals);
    }
    steps.sort_by_key(|step| step.at);
}

/// Which entries are shared, and when that changes.
fn share_some(random: &mut Random, steps: &mut [Step], entries: usize) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for entry in 0..entries {
        let names = entry > 0 && random.chance(400);
        let of = at(random.below(entry.max(1) as u64));
        let alias = (names && shares[of].alias.is_none()).then_some(of);
        let global = random.chance(750);
        shares.push(Share { global, alias });
    }
    for step in steps {
        if let Act::Reload { change, .. } = &mut step.act
            && random.chance(150)
        {
            *change = Change::Scope;
        }
    }
    shares
}

fn change(random: &mut Random) -> Change {
    match random.below(100) {
        0..10 => Change::Knobs,
        10..25 => Change::Rotated,
        25..50 => Change::Other {
            carried: random.chance(150),
        },
        50..72 => Change::Removed,
        _ => Change::Added {
            other: random.chance(250),
        },
    }
}

fn named(random: &mut Random) -> Named {
    random.pick(&[
        Named::Last,
        Named::Last,
        Named::Last,
        Named::Older,
        Named::Foreign,
        Named::Forged,
    ])
}

fn act(random: &mut Random, entries: usize) -> Act {
    let back = random.below(4);
    match random.below(100) {
        0..50 => Act::Call {
            ask: random.pick(&[
                Ask::Tool,
                Ask::Tool,
                Ask::Tool,
                Ask::SafeTool,
                Ask::HintedTool,
                Ask::Read,
                Ask::List,
                Ask::Subscribe,
                Ask::SetLevel,
                Ask::Other,
            ]),
            progress: random.chance(400),
            json: random.chance(150),
            same_id: random.chance(250),
            entry: at(random.below(entries as u64)),
        },
        50..56 => Act::Cancel { back },
        56..58 => Act::Notify,
        58..65 => Act::Break { back },
        65..70 => {
            let named = if random.chance(500) {
                Named::None
            } else {
                named(random)
            };
            Act::Listen(named)
        }
        70..73 => Act::Leave,
        73..82 => {
            let named = named(random);
            Act::Resume { back, named }
        }
        82..86 => Act::Open,
        86..88 => Act::Again,
        88..90 => Act::Close,
        90..94 => Act::LoseSessions,
        94..96 => Act::Down(random.millis(10, 6_000)),
        96..98 => Act::Kill,
        _ => Act::Rotate {
            known: random.chance(700),
        },
    }
}
