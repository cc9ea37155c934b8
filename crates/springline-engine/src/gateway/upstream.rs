//! One upstream machine: inputs from its transport and its session go in, and what comes out is
//! done.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use springline_proto::call::{Generation, InstanceKey, Moment};
use springline_proto::error::Fault;
use springline_proto::shared::{Handover, Parted, Serving};
use springline_proto::upstream::{Binding, Event, Input, Output, Standby, UpstreamConfig};
use springline_store::{JournalError, SessionDigest};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::credential::reread;
use super::driver::{Driver, Machine as _};
use super::entry::{Carrier, EntrySpec};
use super::home::Home;
use super::keep::RecordPlace;
use super::room::Room;
use super::shared::Shared;
use super::timer::Wake;
use crate::clock;
use crate::event;
use crate::spawn::{self, Errand};
use crate::upstream::Sink;
use crate::upstream::http::{Credentials, DeleteOutcome, HttpSink};

/// Between two looks at a machine that is about to end: at first, when another thread drives it for
/// some microseconds, and later, when it waits for a server.
const SETTLE_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// How long a start may hold its turn. Long enough for what costs the machine most (interpreters
/// take 0.5 to 2 s to their first answer); a server that hangs must not keep others waiting.
const TURN_MAX: Duration = Duration::from_secs(3);

/// One upstream, of one session or of several.
pub(crate) struct UpstreamCell {
    driver: Driver<Serving>,
    carrier: Carrier,
    /// Held for a look or a change.
    served: Mutex<Served>,
    home: Home,
    shared: Arc<Shared>,
    /// What stands at rest for whom it belongs to, if that outlives the process.
    rest: Option<SessionDigest>,
    this: Weak<UpstreamCell>,
    /// Another has its place: the record at rest is that one's, whatever this one still had to write.
    /// Changed and read under the lock that orders the writes of records.
    has_heir: AtomicBool,
    /// What children hold that are starting. Held for a look or a change.
    turns: Mutex<Vec<Turn>>,
    /// The note at rest of a session that is about to be ended. Held for a change.
    leaving: Mutex<Option<Box<Bytes>>>,
}

/// What the start of one child holds, or waits for.
struct Turn {
    generation: Generation,
    /// Its place among all children, until the child has it.
    room: Option<Room>,
    /// Its turn in the start budget.
    permit: Option<OwnedSemaphorePermit>,
    /// Ends the wait for both when the start is over.
    _waits: oneshot::Sender<()>,
}

/// The entry that an upstream serves.
struct Served {
    /// As it was written last; none if it is not configured.
    spec: Option<Arc<EntrySpec>>,
    /// The digest of its definition with the credentials that are in use, if those are others than
    /// were written there.
    rotated: Option<Box<[u8; 32]>>,
}

impl Sink for UpstreamCell {
    fn input(&self, input: Input) {
        Self::input(self, input);
    }

    fn inputs(&self, first: Input, then: Input) {
        self.drive(&mut [Some(first), Some(then)], &mut Errand::none());
    }
}

impl HttpSink for UpstreamCell {
    fn reread(&self) -> Result<Credentials, String> {
        let spec = self.spec().ok_or("the entry is gone")?;
        let fresh = reread(&spec)?;
        if let Some(identity) = fresh.identity {
            self.served.lock().rotated = Some(Box::new(identity));
        }
        Ok(fresh.credentials)
    }

    fn deleted(&self, generation: Generation, outcome: DeleteOutcome) {
        let mut facts = serde_json::Map::new();
        facts.insert("server".to_owned(), self.carrier.server().as_ref().into());
        facts.insert("generation".to_owned(), generation.0.into());
        facts.insert("result".to_owned(), outcome.to_string().into());
        self.shared.events.record("session.deleted", facts);
    }
}

impl UpstreamCell {
    pub(crate) fn new(
        machine: Serving,
        home: Home,
        rest: Option<SessionDigest>,
        spec: Option<Arc<EntrySpec>>,
        shared: Arc<Shared>,
        carrier: impl FnOnce(Weak<Self>) -> Carrier,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            driver: Driver::new(machine),
            carrier: carrier(this.clone()),
            home,
            shared,
            rest,
            served: Mutex::new(Served {
                spec,
                rotated: None,
            }),
            this: this.clone(),
            has_heir: AtomicBool::new(false),
            turns: Mutex::default(),
            leaving: Mutex::default(),
        })
    }

    /// Takes an input and drives the machine, unless somebody does already.
    pub(crate) fn input(&self, input: Input) {
        self.input_with(input, &mut Errand::none());
    }

    /// The same; work that this causes may be taken along.
    pub(super) fn input_with(&self, input: Input, errand: &mut Errand) {
        self.drive(&mut [Some(input)], errand);
    }

    /// Several inputs make one turn; without any, it is what was left.
    fn drive(&self, inputs: &mut [Option<Input>], errand: &mut Errand) {
        let whom = || self.this.clone() as Weak<dyn Wake>;
        self.driver
            .drive(inputs, &self.shared.timer, &whom, |outputs| {
                self.do_all(outputs, errand);
            });
    }

    /// Leaves an input for the [`Self::go_on`] that must follow.
    pub(super) fn leave(&self, input: Input) {
        self.driver.leave(input);
    }

    /// Drives the machine with what was left, unless somebody does already.
    pub(super) fn go_on(&self) {
        self.go_on_with(&mut Errand::none());
    }

    /// The same; work that this causes may be taken along.
    pub(super) fn go_on_with(&self, errand: &mut Errand) {
        self.drive(&mut [], errand);
    }

    fn do_all(&self, outputs: &mut VecDeque<Output>, errand: &mut Errand) {
        if let Err(error) = self.keep(outputs.make_contiguous()) {
            self.withhold(outputs, &error);
        }
        for output in outputs.drain(..) {
            self.perform(output, errand);
        }
    }

    /// Takes out the calls that may not leave (I4), and tells the machine so.
    fn withhold(&self, outputs: &mut VecDeque<Output>, error: &JournalError) {
        let mut leaves = false;
        outputs.retain(|output| {
            // What follows the note at once is the request itself.
            let follows = std::mem::replace(&mut leaves, matches!(output, Output::Sent { .. }));
            if let (true, Output::Send { exchange, .. }) = (follows, output) {
                let (exchange, cause) = (*exchange, error.to_string().into());
                self.driver.leave(Input::Withheld { exchange, cause });
                return false;
            }
            true
        });
    }

    /// Makes durable what the outputs ask for, before any of them is done.
    ///
    /// # Errors
    /// The calls among them may not leave.
    fn keep(&self, outputs: &[Output]) -> Result<(), JournalError> {
        let is_kept = |output: &Output| {
            matches!(
                output,
                Output::Persist(_) | Output::Forget | Output::Sent { .. }
            )
        };
        let Some(owner) = self.rest.filter(|_| outputs.iter().any(is_kept)) else {
            return Ok(());
        };
        let identity = || self.identity();
        let shared = &self.shared;
        let place = RecordPlace {
            owner,
            server: self.carrier.server(),
            identity: &identity,
            has_heir: &self.has_heir,
        };
        let session_of = |session| self.home.at_rest(owner, session);
        shared
            .rest
            .keep_upstream(&place, session_of, outputs, &shared.events)
    }

    /// The digest of the definition with the credentials that are in use.
    fn identity(&self) -> [u8; 32] {
        let served = self.served.lock();
        let written = || served.spec.as_ref().map_or([0; 32], |spec| spec.identity);
        served.rotated.as_deref().copied().unwrap_or_else(written)
    }

    fn perform(&self, output: Output, errand: &mut Errand) {
        match output {
            Output::Reserve { generation } => self.reserve(generation),
            Output::Open { generation } => {
                let room = self.take_room(generation);
                self.carrier.open(generation, room);
            }
            Output::ToSession {
                session,
                server,
                event,
            } => self.home.tell(session, server, event),
            Output::Moved { key, server, moved } => self.home.pass_on(&server, key, moved),
            Output::Emit(event) => {
                if let Some(generation) = settles_start(&event) {
                    self.release(generation);
                }
                self.shared.note_start(self.carrier.server(), &event);
                let (name, facts) = event::of_upstream(self.carrier.server(), &event);
                self.shared.events.record(name, facts);
                if event == Event::Drained
                    && let Some(this) = self.this.upgrade()
                {
                    self.home.left(&this);
                }
            }
            Output::RefreshCredentials => {
                if !self.carrier.refresh_credentials() {
                    self.input(Input::Credentials { changed: false });
                }
            }
            // Not bound to a name: it is large, and would be moved for that.
            _ => self.carrier.perform(output, errand),
        }
    }

    /// A child waits for a place among all children, and for its turn, so that a hundred servers do
    /// not start at once.
    fn reserve(&self, generation: Generation) {
        let this = self.this.clone();
        let shared = Arc::clone(&self.shared);
        let (waits, over) = oneshot::channel();
        self.turns.lock().push(Turn {
            generation,
            room: None,
            permit: None,
            _waits: waits,
        });
        spawn::named("start budget", async move {
            let admitted = async {
                let room = Self::room(&this, &shared, generation).await?;
                let permit = Arc::clone(&shared.starts).acquire_owned().await.ok()?;
                Some((room, permit))
            };
            let admitted = tokio::select! {
                admitted = admitted => admitted,
                // The start is over before it began.
                _ = over => None,
            };
            let (Some((room, permit)), Some(cell)) = (admitted, this.upgrade()) else {
                return;
            };
            cell.hold_turn(generation, room, permit);
            cell.input(Input::Admitted { generation });
            // If nobody wanted it any more, no event gives the turn back.
            if !cell.driver.machine().is_starting(generation) {
                cell.release(generation);
                return;
            }
            drop(cell);
            tokio::time::sleep(TURN_MAX).await;
            if let Some(cell) = this.upgrade() {
                cell.hand_on(generation);
            }
        });
    }

    /// A place for the child of this generation, at once or when one is free.
    async fn room(this: &Weak<Self>, shared: &Arc<Shared>, generation: Generation) -> Option<Room> {
        let rooms = &shared.rooms;
        if let Some(room) = rooms.try_take() {
            return Some(room);
        }
        let max = rooms.max();
        this.upgrade()?.input(Input::Crowded { generation, max });
        rooms.take(|| shared.evict()).await
    }

    /// Keeps the place and the turn of a start, unless that is over.
    fn hold_turn(&self, generation: Generation, room: Room, permit: OwnedSemaphorePermit) {
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.iter_mut().find(|turn| turn.generation == generation) {
            turn.room = Some(room);
            turn.permit = Some(permit);
        }
    }

    /// The place that the child of this generation takes along.
    fn take_room(&self, generation: Generation) -> Option<Room> {
        let mut turns = self.turns.lock();
        let turn = turns.iter_mut().find(|turn| turn.generation == generation);
        turn.and_then(|turn| turn.room.take())
    }

    /// Gives the turn in the start budget to another, though the start goes on.
    fn hand_on(&self, generation: Generation) {
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.iter_mut().find(|turn| turn.generation == generation) {
            turn.permit = None;
        }
    }

    /// The start of this generation is over: what it held or waited for is free.
    fn release(&self, generation: Generation) {
        self.turns
            .lock()
            .retain(|turn| turn.generation != generation);
    }

    /// When it was last used, if its child may give way to another's.
    pub(super) fn gives_way(&self) -> Option<Moment> {
        self.driver.machine().gives_way()
    }

    /// Lets its child give way, if it still may. Says which instance it was.
    pub(super) fn give_way(&self) -> Option<Generation> {
        let generation = self.driver.caught_up().give_way(clock::moment());
        self.input(Input::Timer);
        generation
    }

    /// If it goes on with a session of before the start, the transport must know it.
    pub(super) fn open_resumed(&self) {
        let (standby, _) = self.standby();
        if let Standby::Ready(generation) = standby {
            self.carrier.open(generation, None);
        }
    }

    pub(crate) fn standby(&self) -> (Standby, usize) {
        let machine = self.driver.machine();
        (machine.standby(), machine.pending_len())
    }

    /// Ends the transport once the machine has said all that it has to say: it may wait for
    /// notifications to arrive, and what it wants done may still be with another thread that
    /// drives. Waits at most so long for that. Cancel safe.
    pub(crate) async fn shut_down(&self, patience: Duration) {
        let settles = async {
            let mut pause = SETTLE_PAUSE.0;
            while !self.is_settled() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(SETTLE_PAUSE.1);
            }
        };
        if tokio::time::timeout(patience, settles).await.is_err() {
            tracing::debug!(server = %self.carrier.server(), "ended before its last words");
        }
        self.carrier.shut_down().await;
    }

    /// Whether nothing is to be done any more, as far as the machine goes.
    fn is_settled(&self) -> bool {
        self.driver.is_idle() && {
            let machine = self.driver.machine();
            machine.is_gone() || machine.standby() != Standby::Closed
        }
    }

    /// The entry that it serves.
    pub(super) fn spec(&self) -> Option<Arc<EntrySpec>> {
        self.served.lock().spec.clone()
    }

    /// Serves the same server under an entry that is written otherwise.
    pub(super) fn adopt(&self, spec: Arc<EntrySpec>, rotated: bool) {
        let settings = Box::new((*spec.settings).clone());
        *self.served.lock() = Served {
            spec: Some(spec),
            rotated: None,
        };
        self.input(Input::Settings(settings));
        if rotated {
            // Its report goes to the machine, which then knows that old refusals are old.
            self.carrier.refresh_credentials();
        }
    }

    /// Back into service, if its end was not begun. Not ahead of what it was told before: the word of
    /// a removal must not come after its return.
    pub(super) fn revive(&self) -> bool {
        self.driver.caught_up().revive()
    }

    /// Takes the place of another, with what that one left. The next input drives it.
    pub(super) fn begin(&self, config: UpstreamConfig, legacy: Handover, fault: Option<Fault>) {
        let mut machine = self.driver.machine();
        let now = clock::moment();
        *machine = Serving::succeed(config, legacy, now);
        if let Some(fault) = fault {
            // Nothing starts afresh here: whoever comes next tells of it.
            while machine.poll().is_some() {}
            let end_session = false;
            machine.handle(now, Input::Close { fault, end_session });
        }
    }

    /// Its place is taken, and the record at rest is the other's from now on: should the process end
    /// before the session is ended, the next start tells of it.
    pub(super) fn note_leaving(&self) {
        let Some(session) = self.rest else { return };
        let Some(generation) = self.driver.machine().kept() else {
            return;
        };
        let (rest, events) = (&self.shared.rest, &self.shared.events);
        let note = rest.note_leaving(session, self.carrier.server(), generation, events);
        *self.leaving.lock() = note.map(Box::new);
    }

    /// Takes that note back: the session is ended, or its end was tried.
    pub(super) fn has_left(&self) {
        if let Some(note) = self.leaving.lock().take() {
            self.shared.rest.take_back(*note, &self.shared.events);
        }
    }

    /// Goes out of service for the one that takes its place. The next input drives it.
    pub(super) fn hand_over(&self) -> Handover {
        let mut machine = self.driver.caught_up();
        // Before the end of its session can be begun: the machine is held meanwhile.
        let (rest, events) = (&self.shared.rest, &self.shared.events);
        rest.pass_record(self.rest, self.carrier.server(), &self.has_heir, events);
        machine.hand_over(clock::moment())
    }

    /// Gives one of its sessions up. The next input drives it.
    pub(super) fn part(&self, binding: &Binding, may_end: bool) -> Option<Parted> {
        let mut machine = self.driver.caught_up();
        machine.part(clock::moment(), binding, may_end)
    }

    /// Whether no session uses it.
    pub(super) fn is_unused(&self) -> bool {
        self.driver.machine().bindings_len() == 0
    }

    /// Whether this instance is, or was, one of its machine's.
    pub(super) fn has(&self, instance: InstanceKey) -> bool {
        self.driver.machine().has(instance)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.driver.machine().is_gone()
    }

    /// Whether it is on its way out and has something left to finish.
    pub(super) fn is_draining(&self) -> bool {
        self.driver.machine().upstream().is_draining()
    }

    /// Whether an instance of it is not ended yet.
    pub(super) fn has_instance(&self) -> bool {
        self.driver.machine().upstream().load().instances > 0
    }

    /// Whether its instances are child processes.
    pub(super) fn is_child(&self) -> bool {
        self.carrier.is_child()
    }

    pub(crate) fn carrier(&self) -> &Carrier {
        &self.carrier
    }
}

impl Wake for UpstreamCell {
    fn wake(&self, now: Moment) {
        let whom = || self.this.clone() as Weak<dyn Wake>;
        if self.driver.is_due(now, &self.shared.timer, &whom) {
            self.input(Serving::TIMER);
        }
    }
}

/// The generation whose start is over, for better or worse, with this event.
fn settles_start(event: &Event) -> Option<Generation> {
    match event {
        Event::Ready { generation, .. }
        | Event::StartFailed { generation, .. }
        | Event::Ended { generation, .. }
        | Event::Lost { generation, .. } => Some(*generation),
        Event::Replayed { .. }
        | Event::Drained
        | Event::Dropped { .. }
        | Event::Unreadable { .. }
        | Event::Resumed { .. }
        | Event::Unauthorized { .. } => None,
    }
}
