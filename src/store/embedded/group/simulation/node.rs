//! A simulated member: what [`taking_part`](super::super::super::taking_part) and
//! [`incoming`](super::super::super::incoming) do with threads and clocks, in steps.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use raft::eraftpb::MessageType;
use rand::RngExt as _;
use xxhash_rust::xxh3::xxh3_64;

use super::super::super::entry::Note;
use super::super::super::kept::Last;
use super::super::super::log::AppendError;
use super::super::super::others::Others;
use super::super::super::progress::Progress;
use super::super::super::seal::SealedGroup;
use super::super::super::words::{Piece, Said, Word};
use super::super::super::{changing, message};
use super::super::{ELECTION_TICKS, Member, ProposeError, Successor};
use super::World;
use super::calls::Calls;
use super::disk::{Disk, State};
use super::running::{Receiving, Running};
use crate::store::{MemberChange, MemberMessage, Membership};

/// A tick so long that nobody is ever taken to be silent: the simulation has clocks of its own.
const ENDLESS: Duration = Duration::from_secs(1 << 30);

/// After how many ticks a member says who it is.
const HELLO_TICKS: u64 = 10;

/// After how many ticks a leader writes what the others have acknowledged into the log.
const NOTE_TICKS: u64 = 60;

/// A member that has asked for nothing of a state for so many ticks, and says that it receives none, has given it up.
const GIVEN_UP_TICKS: u64 = 15;

/// An offer of which nothing was asked for so many ticks ends.
const UNUSED_TICKS: u64 = 100;

/// A piece that has not come after so many ticks is asked for again.
const ASK_AGAIN_TICKS: u64 = 5;

/// When no piece has come for so many ticks, the state is given up.
const SILENT_TICKS: u64 = 30;

/// A member of the simulation.
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) disk: Disk,
    /// The members that it was started with.
    peers: Vec<u64>,
    /// What its process has in memory; `None` while there is no process.
    pub(super) running: Option<Running>,
    /// It does nothing before this step.
    pub(super) wakes: u64,
    /// Its disk writes nothing before this step.
    pub(super) writes: u64,
    /// In how many of four ticks of the others its clock ticks.
    pub(super) pace: u32,
    /// A copy of its directory.
    pub(super) copy: Option<Disk>,
}

impl Node {
    pub(super) fn new(number: u64, disk: Disk, peers: Vec<u64>) -> Self {
        Self { number, disk, peers, running: None, wakes: 0, writes: 0, pace: 4, copy: None }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the state that it has applied, while it runs.
    pub(super) fn state(&self) -> Option<&State> {
        self.running.as_ref().map(|running| &running.state)
    }

    pub(super) fn directory(&self) -> u64 {
        self.disk.files().group.directory
    }

    /// Returns whether the group was founded with its directory.
    pub(super) fn is_founder(&self) -> bool {
        !self.disk.files().group.founders.is_empty()
    }

    /// Returns the members of the group as it knows them when it is started.
    pub(super) fn known_members(&self) -> Arc<Membership> {
        self.disk.files().known_members()
    }

    /// Returns whether it leads and has applied all that was committed before its term.
    pub(super) fn leads(&self) -> bool {
        self.running.as_ref().is_some_and(Running::leads)
    }

    /// Returns the directory of a member as it was heard of last.
    pub(super) fn hears(&self, member: u64) -> Option<u64> {
        let heard = self.running.as_ref().and_then(|running| running.others.lately(member));
        heard.map(|hello| hello.directory)
    }

    /// Returns what it knows, for whoever looks for the cause of a failure.
    pub(super) fn describe(&self) -> String {
        let files = self.disk.files();
        let SealedGroup { directory, founders, known, is_admitted, .. } = &files.group;
        let mut lines = vec![format!(
            "member {} in directory {directory}, founders {founders:?}, admitted {is_admitted}, known {known:?}, {:?}, \
             flushed {:?}, log to {}, members at start {:?}",
            self.number,
            files.vote,
            files.flushed.last,
            files.last(),
            files.known_members().seats,
        )];
        let Some(Running { member, others, state, receiving, .. }) = &self.running else {
            return lines.remove(0) + ", dead";
        };
        lines.push(format!(
            "{:?}, applied {:?}, disowned {}, openings {:?}",
            member.position(),
            state.last,
            others.is_disowned(),
            files.openings
        ));
        lines.push(format!("members {:?}", member.members().seats));
        lines.extend(
            receiving.iter().map(|of| format!("receives piece {} of {:?} from {}", of.next, of.offer, of.from)),
        );
        for (of, progress) in member.node.raft.prs().iter().filter(|(of, _)| **of != self.number) {
            let (way, state) = (others.way(*of, MessageType::MsgRequestVote), progress.state);
            lines.push(format!("to {of}: {way:?}, {state}, has {}, next {}", progress.matched, progress.next_idx));
        }
        lines.join("\n    ")
    }

    /// Returns whether its process was told that its directory went back in time.
    pub(super) fn went_back(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.others.openings.went_back())
    }

    /// Starts its process with what its disk has.
    pub(super) fn start(&mut self, world: &mut World) {
        let (vote, state, entries) = self.disk.open(world.random.random());
        let had = entries.last().map_or(state.last, |entry| Last { number: entry.index, term: entry.term });
        let earlier = Arc::new(self.disk.clone());
        let member =
            Member::new(self.number, state.members.clone(), vote, state.last, entries, Some(earlier)).expect("it fits");
        let openings = self.disk.files().openings.clone();
        let others = Others::of(&self.disk.files().group, ENDLESS);
        let mut others = others.opened_with(openings, had, vote.term);
        others.agree(self.number, &state.members);
        self.running = Some(Running {
            member,
            others,
            state,
            waiting: VecDeque::new(),
            unwritten: VecDeque::new(),
            is_writing: false,
            ticks: 0,
            receiving: None,
            calls: Calls::default(),
        });
    }

    /// Lets its process die.
    pub(super) fn crash(&mut self, world: &mut World) {
        self.running = None;
        self.disk.files().crash(&mut world.random);
        self.wakes = world.now + world.random.random_range(0..300);
        world.counts.crashes += 1;
    }

    /// Puts the copy, if there is one, in the place of its directory, while its process is dead.
    pub(super) fn put_back(&mut self) {
        if let Some(copy) = self.copy.take() {
            (self.running, self.disk) = (None, copy);
        }
    }

    /// Takes messages of other members, lets its clock tick where that `is_tick`, and then does what there is to do.
    pub(super) fn turn(&mut self, messages: Vec<MemberMessage>, is_tick: bool, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        running.let_take_part(self.number);
        for message in messages {
            self.hear(message, world);
        }
        if is_tick {
            self.tick(world);
        }
        self.proceed(world);
    }

    fn tick(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        running.ticks += 1;
        // The library draws it from a generator of its own.
        let drawn = xxh3_64(&[world.seed, self.number, running.ticks >> 4].map(u64::to_le_bytes).concat());
        let timeout = ELECTION_TICKS + usize::try_from(drawn % ELECTION_TICKS as u64).expect("small");
        running.member.node.raft.set_randomized_election_timeout(timeout);
        running.member.tick();
        self.ask_again(world);
        if self.running.as_ref().is_some_and(|running| running.ticks.is_multiple_of(HELLO_TICKS)) {
            self.say_hello(world);
        }
    }

    fn say_hello(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let mut all: BTreeSet<u64> = running.member.members().seats.keys().copied().collect();
        all.extend(&self.peers);
        all.extend(running.others.that_are_there());
        for to in all.into_iter().filter(|to| *to != self.number) {
            running.greet(self.number, to, world);
        }
        let mut files = self.disk.files();
        let ticks = running.ticks;
        let offered: Vec<(u64, u64)> = files.offers.iter().map(|(of, (_, _, used))| (*of, *used)).collect();
        for (of, used) in offered {
            let is_received = running.member.receives(of).is_none() && running.member.is_caught_up(of);
            let is_unused = ticks.saturating_sub(used) > UNUSED_TICKS;
            if is_received || is_unused {
                files.offers.remove(&of);
            }
            if is_unused && !is_received {
                running.member.has_received(of, false);
            }
            // It was made since the last time.
            files.offers.entry(of).and_modify(|(_, _, used)| *used = (*used).min(ticks));
        }
        drop(files);
        let is_noted = self.note_acknowledged(world);
        let Some(running) = &mut self.running else { return };
        if running.leads() {
            let (members, others) = (running.member.members(), &mut running.others);
            let own = (self.number, running.member.position().term, world.identity());
            let is_caught_up = |number| running.member.is_caught_up(number);
            let next = changing::with_vote(members, others, |number| is_noted && is_caught_up(number))
                .or_else(|| changing::with_version(members, others, own, is_caught_up))
                .or_else(|| changing::with_directories(members, others, own.0, is_caught_up));
            if let Some(next) = next {
                self.propose_members(&next, world);
            }
        }
    }

    fn note_acknowledged(&mut self, world: &mut World) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| running.leads()) else { return true };
        let committed = running.member.position().committed;
        let all = running.others.to_note(self.number, |number| running.member.acknowledged(number, committed));
        let is_unnoted = running.others.openings.has_unnoted(&all);
        if all.is_empty() || !is_unnoted && running.ticks % NOTE_TICKS > 0 {
            return true;
        }
        let members = Arc::clone(running.member.members());
        let note = Note { acknowledged: all, sum: Some(running.state.sum()) };
        let proposed = running.member.propose_members(&members, &note, &mut self.disk.clone());
        world.changed = world.changed.max(running.member.last());
        let is_noted = proposed.is_ok();
        if is_noted {
            running.others.openings.has_noted(&note.acknowledged);
        }
        self.has_proposed(proposed, world);
        is_noted || !is_unnoted
    }

    /// Asks for a piece of a state again, or gives that up.
    fn ask_again(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let Some(receiving) = &mut running.receiving else { return };
        if running.ticks - receiving.came > SILENT_TICKS {
            running.receiving = None;
        } else if running.ticks - receiving.asked > ASK_AGAIN_TICKS {
            receiving.asked = running.ticks;
            let (to, ask) = (receiving.from, receiving.ask());
            running.say(self.number, to, &Word::Ask(ask), world);
        }
    }

    fn hear(&mut self, message: MemberMessage, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let from = message.from;
        let Some((identity, said)) = running.understand(&message) else { return };
        match said {
            Said::Library(bytes, directories) => {
                let message = message::decode(&MemberMessage { bytes, ..message }).expect("readable");
                if running.others.takes(from, identity, directories, (&message, running.member.last())) {
                    running.member.step(message);
                }
            }
            Said::Word(Word::Hello(hello)) => {
                if running.others.hear(from, identity, hello) {
                    running.greet(self.number, from, world);
                }
                let mut files = self.disk.files();
                let used = files.offers.get(&from).map(|(_, _, used)| *used);
                let is_unused = used.is_some_and(|used| running.ticks.saturating_sub(used) > GIVEN_UP_TICKS);
                let received = running.member.receives(from).and_then(|number| match hello.last >= number {
                    true => Some(true),
                    false => (!hello.receives && is_unused).then_some(false),
                });
                if let Some(is_received) = received {
                    running.member.has_received(from, is_received);
                }
                if received == Some(false) {
                    files.offers.remove(&from);
                }
            }
            Said::Word(Word::Offer(offer)) => {
                if running.receiving.is_none() && running.lacks(offer.last) {
                    let (came, asked) = (running.ticks, running.ticks);
                    let receiving = Receiving { from, offer, next: 0, came, asked };
                    running.say(self.number, from, &Word::Ask(receiving.ask()), world);
                    running.receiving = Some(receiving);
                }
            }
            Said::Word(Word::Ask(ask)) => {
                let answer = self.disk.answer(from, ask, running.ticks);
                running.say(self.number, from, &answer, world);
            }
            Said::Word(Word::Opened(opened)) => {
                let position = running.member.position();
                let acknowledged = running.member.acknowledged(from, u64::MAX).map(|last| (last, position.term));
                let heard = running.others.hear_opened(from, &opened, acknowledged);
                if let Some(went_back) = heard.err().filter(|_| position.is_leader) {
                    running.say(self.number, from, &Word::WentBack(went_back), world);
                }
            }
            Said::Word(Word::WentBack(said)) => {
                if running.member.position().leader == Some(from) {
                    running.others.hear_went_back(from, &said);
                }
            }
            Said::Word(Word::Declines) => {
                running.others.decline(from);
                running.member.keep_lead(from);
            }
            // States are not compared here.
            Said::Word(Word::Sum(_) | Word::Lend(_)) => {}
            Said::Word(Word::Piece(piece)) => self.receive(from, piece, world),
            // The log has neither.
            Said::Word(Word::Output(_) | Word::Audit(_)) => {}
            Said::Word(Word::Gone(offer)) => {
                running.receiving.take_if(|receiving| receiving.offer.number == offer);
            }
        }
    }

    /// Takes a piece of a state, and begins with that when it is whole.
    fn receive(&mut self, from: u64, piece: Piece, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let ticks = running.ticks;
        let Some(receiving) = &mut running.receiving else { return };
        if piece.offer != receiving.offer.number || piece.at.keyspace != receiving.next {
            return;
        }
        receiving.came = ticks;
        receiving.next += 1;
        if !piece.is_last {
            (receiving.from, receiving.asked) = (from, ticks);
            let ask = receiving.ask();
            return running.say(self.number, from, &Word::Ask(ask), world);
        }
        let state = State::decode(&piece.items);
        assert_eq!(state.last, receiving.offer.last, "it is not what was offered");
        running.receiving = None;
        let position = running.member.position();
        let lacks_it = running.lacks(state.last);
        if !lacks_it || position.term < state.last.term {
            return;
        }
        // Its process begins again, with the state if it is marked as whole by then.
        self.crash(world);
        if world.random.random_range(0..8) > 0 {
            self.disk.files().begin_with(state);
            world.counts.installed += 1;
        }
    }

    /// Proposes an entry of the world's, if it leads.
    pub(super) fn propose(&mut self, world: &mut World) {
        // What the member has comes first.
        self.write_all(world);
        let writes = self.writes <= world.now;
        let leading = self.running.as_mut().filter(|running| running.leads() && running.unwritten.is_empty());
        let Some(running) = leading.filter(|_| writes) else { return };
        let frame = world.entry(running.state.last.term);
        running.calls.proposes(running.member.last() + 1);
        let (mut log, mut disk) = (self.disk.clone(), self.disk.clone());
        let proposed = running.member.propose(running.state.last.term, frame, &mut log, &mut disk);
        self.has_proposed(proposed, world);
    }

    fn propose_members(&mut self, next: &Membership, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let proposed = running.member.propose_members(next, &Note::default(), &mut self.disk.clone());
        world.changed = world.changed.max(running.member.last());
        self.has_proposed(proposed, world);
    }

    fn has_proposed(&mut self, proposed: Result<(u64, Progress), ProposeError>, world: &mut World) {
        match proposed {
            Ok((_, progress)) => self.conclude(Ok(progress), world),
            Err(ProposeError::Append(AppendError::Failed(error))) => {
                self.conclude(Err(AppendError::Failed(error)), world);
            }
            // Nothing was written.
            Err(ProposeError::Append(AppendError::Full(_)) | ProposeError::Deposed | ProposeError::Changing) => {}
        }
    }

    /// Changes the members as somebody asks for it.
    pub(super) fn change(&mut self, change: &MemberChange, world: &mut World) {
        let Some(running) = self.running.as_ref().filter(|running| running.leads()) else { return };
        if matches!(change, MemberChange::Remove { member, .. } if *member == self.number) {
            return;
        }
        if let Ok(Some(next)) = changing::after(change, running.member.members(), &running.others, self.number) {
            self.propose_members(&next, world);
        }
    }

    /// Hands over the lead, where it has that.
    pub(super) fn hand_over(&mut self, to: Successor, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        world.counts.handed_over += u64::from(running.leads());
        running.member.hand_over(to, |number| running.others.may_take_lead(number));
        self.proceed(world);
    }

    /// Takes a call that writes nothing, and asks the others whether it leads, or leaves that to what it proposes next.
    pub(super) fn call(&mut self, world: &mut World) {
        let Some(running) = self.running.as_mut().filter(|running| running.leads()) else { return };
        let known = world.history.len() as u64;
        running.calls.take(world.acknowledged, running.state.last.number);
        if world.random.random()
            && let Some(round) = running.calls.begin_round(known)
        {
            running.member.ask(round);
        }
        self.proceed(world);
    }

    /// Does what there is to do after something has happened to it.
    fn proceed(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        running.seal(&self.disk);
        let progress = running.member.advance(&mut self.disk.clone());
        self.conclude(progress, world);
    }
}
