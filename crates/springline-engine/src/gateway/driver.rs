//! Drives one machine: inputs go in, one at a time, and what comes out is done in order.
//!
//! Whoever brings an input drives the machine, unless somebody does already; then the input is left
//! with them. So no lock is ever waited for while another is held, and inputs keep their order. Must
//! not know what an input means.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Weak;
use std::thread::LocalKey;

use parking_lot::{Mutex, MutexGuard};
use springline_proto::call::Moment;
use springline_proto::session::{Input as SessionInput, Output as SessionOutput, Session};
use springline_proto::shared::Serving;
use springline_proto::upstream::{Input as UpstreamInput, Output as UpstreamOutput};

use super::inbox::Inbox;
use super::timer::{Timer, Wake};
use crate::clock;

/// Rooms for outputs that a thread keeps: as many as machines of a kind drive each other at once.
const SPARE_MAX: usize = 4;

/// A larger room is not kept.
const SPARE_OUTPUTS_MAX: usize = 32;

/// Room for outputs that no turn uses now.
type Spare<T> = RefCell<Vec<VecDeque<T>>>;

thread_local! {
    static OF_SESSIONS: Spare<SessionOutput> = const { RefCell::new(Vec::new()) };
    static OF_UPSTREAMS: Spare<UpstreamOutput> = const { RefCell::new(Vec::new()) };
}

/// A machine of the core, as its driver sees it.
pub(crate) trait Machine {
    /// What goes in.
    type Input;
    /// What comes out.
    type Output: 'static;
    /// The input that says that a deadline has come.
    const TIMER: Self::Input;

    fn handle(&mut self, now: Moment, input: Self::Input);
    fn lend_room(&mut self, room: VecDeque<Self::Output>);
    fn take_outputs(&mut self) -> VecDeque<Self::Output>;
    fn next_deadline(&self) -> Option<Moment>;
    /// The thread's rooms for outputs of this kind.
    fn spare() -> &'static LocalKey<Spare<Self::Output>>;
}

impl Machine for Session {
    type Input = SessionInput;
    type Output = SessionOutput;
    const TIMER: SessionInput = SessionInput::Timer;

    fn handle(&mut self, now: Moment, input: SessionInput) {
        Session::handle(self, now, input);
    }

    fn lend_room(&mut self, room: VecDeque<Self::Output>) {
        Session::lend_room(self, room);
    }

    fn take_outputs(&mut self) -> VecDeque<Self::Output> {
        Session::take_outputs(self)
    }

    fn next_deadline(&self) -> Option<Moment> {
        Session::next_deadline(self)
    }

    fn spare() -> &'static LocalKey<Spare<Self::Output>> {
        &OF_SESSIONS
    }
}

impl Machine for Serving {
    type Input = UpstreamInput;
    type Output = UpstreamOutput;
    const TIMER: UpstreamInput = UpstreamInput::Timer;

    fn handle(&mut self, now: Moment, input: UpstreamInput) {
        Serving::handle(self, now, input);
    }

    fn lend_room(&mut self, room: VecDeque<Self::Output>) {
        Serving::lend_room(self, room);
    }

    fn take_outputs(&mut self) -> VecDeque<Self::Output> {
        Serving::take_outputs(self)
    }

    fn next_deadline(&self) -> Option<Moment> {
        Serving::next_deadline(self)
    }

    fn spare() -> &'static LocalKey<Spare<Self::Output>> {
        &OF_UPSTREAMS
    }
}

/// The machine and what its driver keeps beside it.
struct Core<M> {
    machine: M,
    /// The deadline that the timer knows of.
    armed: Option<Moment>,
}

/// A machine, its inputs and its place in the timer.
pub(crate) struct Driver<M: Machine> {
    /// Inputs that nobody took yet. Bounded by what machines and transports may have under way.
    inbox: Inbox<M::Input>,
    /// Held by the one who drives, or for a look; never while anything else is called.
    core: Mutex<Core<M>>,
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self {
            inbox: Inbox::default(),
            core: Mutex::new(Core {
                machine,
                armed: None,
            }),
        }
    }

    /// Leaves an input: for the one who drives now, or for a [`Self::drive`] that must follow.
    pub(crate) fn leave(&self, input: M::Input) {
        self.inbox.put(input);
    }

    /// Takes inputs and drives the machine, unless somebody does already; without any, it is those that
    /// were left before. What comes out of one turn goes to `perform` together, in its order; inputs that
    /// come meanwhile make another turn. `whom` is whom the timer wakes.
    pub(crate) fn drive(
        &self,
        inputs: &mut [Option<M::Input>],
        timer: &Timer,
        whom: &impl Fn() -> Weak<dyn Wake>,
        perform: impl FnMut(&mut VecDeque<M::Output>),
    ) {
        if self.inbox.enter(inputs) {
            self.take_turns(inputs, timer, whom, perform);
        }
    }

    fn take_turns(
        &self,
        first: &mut [Option<M::Input>],
        timer: &Timer,
        whom: &impl Fn() -> Weak<dyn Wake>,
        mut perform: impl FnMut(&mut VecDeque<M::Output>),
    ) {
        // A thread on its way out has none to spare.
        let spare = M::spare().try_with(|spare| spare.borrow_mut().pop());
        let mut room = spare.ok().flatten().unwrap_or_default();
        loop {
            {
                let mut core = self.core.lock();
                let now = clock::moment();
                core.machine.lend_room(room);
                for own in &mut *first {
                    if let Some(input) = own.take() {
                        core.machine.handle(now, input);
                    }
                }
                while let Some(input) = self.inbox.take() {
                    core.machine.handle(now, input);
                }
                room = core.machine.take_outputs();
                arm(&mut core, timer, whom);
            }
            if !room.is_empty() {
                perform(&mut room);
                room.clear();
            }
            if self.inbox.exit() {
                break;
            }
        }
        if room.capacity() <= SPARE_OUTPUTS_MAX {
            let kept = M::spare().try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_MAX {
                    spare.push(room);
                }
            });
            if kept.is_err() {
                tracing::trace!("the thread is on its way out");
            }
        }
    }

    /// The timer's word that `now` has come. Says whether a deadline has; then it wants
    /// [`Machine::TIMER`] as an input.
    pub(crate) fn is_due(
        &self,
        now: Moment,
        timer: &Timer,
        whom: &impl Fn() -> Weak<dyn Wake>,
    ) -> bool {
        let mut core = self.core.lock();
        core.armed = None;
        let deadline = core.machine.next_deadline();
        let due = deadline.is_some_and(|deadline| deadline <= now);
        if !due {
            arm(&mut core, timer, whom);
        }
        due
    }

    /// Whether nothing waits and nobody drives.
    pub(crate) fn is_idle(&self) -> bool {
        self.inbox.is_idle()
    }

    /// The machine after all inputs that were left so far: for a change that must not overtake them.
    /// What comes out waits for the next turn.
    pub(crate) fn caught_up(&self) -> impl std::ops::DerefMut<Target = M> + '_ {
        let mut core = self.core.lock();
        let now = clock::moment();
        while let Some(input) = self.inbox.take() {
            core.machine.handle(now, input);
        }
        MutexGuard::map(core, |core| &mut core.machine)
    }

    /// A look at the machine, or a change that is no input. Nothing else may be called meanwhile.
    pub(crate) fn machine(&self) -> impl std::ops::DerefMut<Target = M> + '_ {
        MutexGuard::map(self.core.lock(), |core| &mut core.machine)
    }
}

/// Tells the timer of the next deadline, if it is earlier than the one it knows of.
fn arm<M: Machine>(core: &mut Core<M>, timer: &Timer, whom: &impl Fn() -> Weak<dyn Wake>) {
    let Some(deadline) = core.machine.next_deadline() else {
        return;
    };
    if core.armed.is_none_or(|armed| deadline < armed) {
        core.armed = Some(deadline);
        timer.arm(deadline, whom());
    }
}
