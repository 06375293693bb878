//! Lists of schedules, which are partly in memory, partly being written, and partly in the database.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::super::super::budget::Budget;
use super::super::super::narrow::NarrowedSchedules;
use super::super::super::schedule_search;
use super::super::super::schedules::{Index, time_key};
use super::super::super::seal::{KeyspaceSeal, Seal, Stage};
use super::*;
use crate::job::PartitionSet;
use crate::query::kql::{Expression, Zone};
use crate::query::table::Table;
use crate::query::{Query, ScheduleFilter};
use crate::schedule::{Course, Schedule};

const ROUNDS: usize = 600;

/// Queries that indexes answer alone, in part, and not at all.
const QUERIES: &[&str] = &[
    "owner: team",
    "owner: (team or team-a)",
    "owner: nobody",
    "not owner: team",
    "owner: team* and paused: false",
    "owner: team-a and not paused: true",
    "id: (schedule-7 or schedule-3 or schedule-99 or schedule-7 or \"\")",
    "id: (schedule-7 or schedule-3) and owner: team",
    "id: schedule-7 and id: schedule-3",
    "id: schedule-1* or owner: team",
    "next_due_at < now+5s",
    "created_at > now-30s",
    "created_at > now-30s and owner: team",
    "nowhere: x",
    "*",
];

/// The schedules as they should be.
#[derive(Default)]
struct Model(BTreeMap<ScheduleId, StoredSchedule>);

impl Model {
    fn take_over(&mut self, commands: &[Command], outcomes: &Outcomes) {
        for (command, outcome) in commands.iter().zip(&outcomes.schedules) {
            let Command::Schedule(write) = command else { panic!("it writes nothing else") };
            let Ok(version) = *outcome else { continue };
            self.0.remove(write.id());
            let written = write.schedule().map(|schedule| StoredSchedule { schedule: Arc::clone(schedule), version });
            self.0.extend(written.map(|stored| (write.id().clone(), stored)));
        }
    }

    fn due(&self, due: &DueSchedules) -> Vec<StoredSchedule> {
        let at = |stored: &StoredSchedule| stored.schedule.load_at();
        let is_wanted = |stored: &&StoredSchedule| {
            at(stored).is_some_and(|at| at <= due.until) && due.partitions.contains(stored.schedule.partition())
        };
        let mut found: Vec<_> = self.0.values().filter(is_wanted).cloned().collect();
        found.sort_by_key(|stored| (at(stored), stored.schedule.id.clone()));
        found.truncate(due.limit);
        found
    }

    fn list(&self, list: &ListSchedules) -> Vec<StoredSchedule> {
        let is_wanted = |stored: &&StoredSchedule| {
            list.after.as_ref().is_none_or(|after| stored.schedule.id > *after) && list.filter.matches(&stored.schedule)
        };
        self.0.values().filter(is_wanted).take(list.limit).cloned().collect()
    }

    fn count(&self, filter: &ScheduleFilter) -> usize {
        self.0.values().filter(|stored| filter.matches(&stored.schedule)).count()
    }
}

fn some_partitions(random: &mut StdRng) -> PartitionSet {
    let is_full = random.random_range(0..2) == 0;
    Partition::all().filter(|_| is_full || random.random_range(0..2) == 0).collect()
}

fn some_filter(history: &mut History) -> ScheduleFilter {
    let owner = history::OWNERS.get(history.random.random_range(0..4));
    let query = QUERIES.get(history.random.random_range(0..2 * QUERIES.len())).map(|query| Query {
        expression: Arc::new(Expression::parse_about(Table::Schedules, query, Zone::default()).expect("a query")),
        now: history.now,
    });
    let paused = history.chance(20).then(|| history.chance(50));
    ScheduleFilter { owner: owner.map(|owner| Owner::new(owner).expect("a name")), paused, query }
}

/// What a list finds, and how many a count.
fn searched(engine: &Engine, list: &ListSchedules) -> (Vec<StoredSchedule>, usize) {
    let budget = Budget::of(Duration::from_secs(60));
    let Some(wanted) = NarrowedSchedules::of(&list.filter) else { return (Vec::new(), 0) };
    let found = schedule_search::list(engine, &wanted, list.after.as_ref(), list.limit, &budget).expect("readable");
    let count = schedule_search::count(engine, &wanted, &budget).expect("readable");
    (found, usize::try_from(count).expect("few"))
}

/// Whether there are schedules in memory, in a flush under way and in the database.
fn is_in_all_places(engine: &Engine) -> bool {
    let published = engine.published.read();
    let is_flushing = published.flushing.as_ref().is_some_and(|flushing| flushing.schedules.len() > 0);
    let all = (Bound::Unbounded, Bound::Unbounded);
    let is_stored = engine.disk.schedule_keys(&published.view.snapshot, Index::Id, all).next().is_some();
    published.unflushed.schedules.len() > 0 && is_flushing && is_stored
}

#[test]
fn lists_are_as_those_of_a_map_wherever_the_schedules_are() {
    let seed: u64 = rand::rng().random();
    println!("the seed is {seed}");
    let mut history = History::new(seed);
    let (mut machine, mut model) = (Machine::new(25), Model::default());
    let mut in_all_places = 0;
    for round in 0..ROUNDS {
        let count = history.random.random_range(1..6);
        let commands: Vec<Command> = (0..count).map(|_| Command::Schedule(history.schedule())).collect();
        let mut committed = machine.engine.commit(commands.clone()).expect("it is written");
        model.take_over(&commands, &committed.outcomes);
        history.learn(&commands, std::mem::take(&mut committed.outcomes));
        let is_late = history.chance(90);
        machine.flush_if_due(is_late);
        if history.chance(1) {
            machine = machine.restarted();
        }
        history.now = history.now.plus(Duration::from_millis(history.random.random_range(0..2_000)));

        in_all_places += usize::from(is_in_all_places(&machine.engine));
        for _ in 0..3 {
            let limit = history.random.random_range(0..30);
            let until = history.now.plus(Duration::from_secs(history.random.random_range(0..20)));
            let due = DueSchedules { partitions: some_partitions(&mut history.random), until, limit };
            let found = lists::read(&machine.engine, Wanted::from(&due)).expect("readable");
            assert_eq!(found, model.due(&due), "seed {seed}, round {round}: {due:?}");

            let after = model.0.keys().nth(history.random.random_range(0..50)).cloned();
            let list = ListSchedules { filter: some_filter(&mut history), after, limit };
            let (found, count) = searched(&machine.engine, &list);
            assert_eq!(found, model.list(&list), "seed {seed}, round {round}: {list:?}");
            assert_eq!(count, model.count(&list.filter), "seed {seed}, round {round}: {list:?}");
        }
    }
    assert!(in_all_places > 20, "seed {seed}: too seldom in all three places: {in_all_places}");
}

/// Writes so many schedules of each owner, all of which the database has then.
fn stored_of_each_owner(each: usize) -> Machine {
    let mut machine = Machine::new(1_000_000);
    let mut history = History::new(1);
    let create = |(owner, number): (&str, usize)| {
        let schedule = history.new_schedule(ScheduleId::new(format!("{number:04}-{owner}")).expect("an id"));
        let owner = Some(Owner::new(owner).expect("a name"));
        let definition = Arc::new(crate::schedule::Definition { owner, ..(*schedule.definition).clone() });
        let schedule = Schedule { definition, paused: None, ..schedule };
        Command::Schedule(ScheduleWrite::Create { schedule: Arc::new(schedule) })
    };
    let numbers = history::OWNERS.into_iter().flat_map(|owner| (0..each).map(move |number| (owner, number)));
    let commands: Vec<Command> = numbers.map(create).collect();
    machine.engine.commit(commands).expect("it is written");
    machine.flush = Some(machine.engine.begin_flush());
    machine.end_flush();
    machine
}

#[test]
fn a_query_reads_no_more_schedules_than_it_needs() {
    const EACH: usize = 1_500;
    let machine = stored_of_each_owner(EACH);
    let disk = &machine.engine.disk;
    for (query, found, most) in [
        ("owner: team", 10, 10),
        ("owner: (team or team-a)", 10, 20),
        ("owner: team and paused: false", 10, 10),
        ("owner: team and labels.team: blue", 0, EACH),
        ("owner: nobody", 0, 0),
        ("id: (0003-team or 0004-team-a or nothing)", 2, 2),
        ("id: 0003-team and owner: team-a", 0, 1),
        ("owner: team and owner: team-a", 0, 0),
        ("paused: false", 10, 10),
        ("labels.team: blue", 0, 2 * EACH),
    ] {
        let expression = Expression::parse_about(Table::Schedules, query, Zone::default()).expect("a query");
        let query_at = Query { expression: Arc::new(expression), now: Timestamp::default() };
        let filter = ScheduleFilter { query: Some(query_at), ..ScheduleFilter::default() };
        let Some(wanted) = NarrowedSchedules::of(&filter) else {
            assert_eq!((found, most), (0, 0), "{query}");
            continue;
        };
        let before = disk.schedules_read.load(Ordering::Relaxed);
        let budget = Budget::of(Duration::from_secs(60));
        let listed = schedule_search::list(&machine.engine, &wanted, None, 10, &budget).expect("readable");
        let read = disk.schedules_read.load(Ordering::Relaxed) - before;
        assert_eq!(listed.len(), found, "{query}");
        assert!(read <= most as u64, "{query}: {read} of {most}");
    }
    let all = NarrowedSchedules::of(&ScheduleFilter::default()).expect("all");
    let before = disk.schedules_read.load(Ordering::Relaxed);
    let count = schedule_search::count(&machine.engine, &all, &Budget::of(Duration::from_secs(60))).expect("readable");
    assert_eq!((count, disk.schedules_read.load(Ordering::Relaxed)), (2 * EACH as u64, before), "keys suffice");
}

#[test]
fn a_query_for_schedules_ends_with_its_time() {
    let machine = stored_of_each_owner(100);
    let paused = ScheduleFilter { paused: Some(true), ..ScheduleFilter::default() };
    let wanted = NarrowedSchedules::of(&paused).expect("some may match");
    let over = Budget::of(Duration::ZERO);
    let listed = schedule_search::list(&machine.engine, &wanted, None, 1, &over);
    assert!(matches!(listed, Err(StoreError::QueryTooSlow { .. })), "{listed:?}");
    let counted = schedule_search::count(&machine.engine, &wanted, &over);
    assert!(matches!(counted, Err(StoreError::QueryTooSlow { .. })), "{counted:?}");
}

#[test]
fn what_schedules_that_fired_left_behind_is_read_once() {
    let mut machine = Machine::new(1_000_000);
    let now = Timestamp::from_millis(1_800_000_000_000);
    let mut history = History::new(1);
    let write = |machine: &Machine, writes: Vec<ScheduleWrite>| {
        let commands = writes.into_iter().map(Command::Schedule).collect();
        let outcomes = machine.engine.commit(commands).expect("it is written").outcomes.schedules;
        outcomes.into_iter().map(|version| version.expect("nobody else writes")).collect::<Vec<_>>()
    };
    let moved_to = |schedule: &Schedule, millis: u64| {
        let next_due_at = Some(now.plus(Duration::from_millis(millis)));
        let course = Course { next_due_at, ..schedule.course.clone() };
        Arc::new(Schedule { course, paused: None, ..schedule.clone() })
    };
    let schedules: Vec<Arc<Schedule>> = (0..500)
        .map(|number| {
            let id = ScheduleId::new(format!("{number:03}")).expect("an id");
            moved_to(&history.new_schedule(id), number)
        })
        .collect();
    let create = |schedule: &Arc<Schedule>| ScheduleWrite::Create { schedule: Arc::clone(schedule) };
    let versions = write(&machine, schedules.iter().map(create).collect());
    machine.flush = Some(machine.engine.begin_flush());
    machine.end_flush();

    let due = |millis| DueSchedules {
        partitions: Partition::all().collect(),
        until: now.plus(Duration::from_millis(millis)),
        limit: 1_000,
    };
    let found = |machine: &Machine, until| lists::read(&machine.engine, Wanted::from(&due(until))).expect("readable");
    assert_eq!(found(&machine, 1_000).len(), 500);
    let from = |machine: &Machine| machine.engine.published.read().due_from.lock().clone();
    let key = |millis: u64| time_key(now.plus(Duration::from_millis(millis)));
    assert!(from(&machine).starts_with(&key(0)));

    // The first 300 fire.
    let fired = schedules.iter().zip(&versions).zip(0..300);
    let fired = fired.map(|((schedule, &expected), number)| {
        let schedule = moved_to(schedule, 10_000 + number);
        ScheduleWrite::Replace { schedule, expected }
    });
    let versions = write(&machine, fired.collect());
    assert_eq!(found(&machine, 1_000).len(), 200);
    assert!(from(&machine).starts_with(&key(300)), "the first that has not fired");

    // One of them gets an earlier time, which the database has after a flush.
    let earlier = ScheduleWrite::Replace { schedule: moved_to(&schedules[7], 5), expected: versions[7] };
    write(&machine, vec![earlier]);
    assert_eq!(found(&machine, 100).len(), 1);
    machine.flush = Some(machine.engine.begin_flush());
    assert_eq!(found(&machine, 100).len(), 1);
    machine.end_flush();
    assert!(from(&machine).starts_with(&key(5)));
    assert_eq!((found(&machine, 100).len(), found(&machine, 1_000).len()), (1, 201));

    // Before what is due there is nothing, and after a restart it is not known how much.
    assert_eq!(found(&machine, 4).len(), 0);
    let machine = machine.restarted();
    assert!(from(&machine).is_empty());
    assert_eq!((found(&machine, 100).len(), found(&machine, 20_000).len()), (1, 500));
}

#[test]
fn a_snapshot_of_before_a_flush_is_not_put_together_with_what_is_in_memory_after_it() {
    let mut machine = Machine::new(1_000_000);
    let mut history = History::new(1);
    let schedule = history.new_schedule(ScheduleId::new("a").expect("an id"));
    let create = ScheduleWrite::Create { schedule: Arc::new(schedule) };
    machine.engine.commit(vec![Command::Schedule(create)]).expect("it is written");
    let wanted = Wanted::by_id(None, None, 10);
    let found = |machine: &Machine, snapshot| {
        let found = wanted.find(&machine.engine, snapshot).expect("readable");
        found.map(|found| found.len())
    };
    let before = Arc::clone(&machine.engine.published.read().view.snapshot);
    machine.flush = Some(machine.engine.begin_flush());
    assert_eq!(found(&machine, &before), Some(1), "it is being written");
    machine.end_flush();
    assert_eq!(found(&machine, &before), None, "it is neither there nor in memory");
    let after = Arc::clone(&machine.engine.published.read().view.snapshot);
    assert_eq!(found(&machine, &after), Some(1));
}

#[test]
fn a_list_has_each_schedule_once_at_every_moment_while_they_are_written_and_flushed() {
    const SCHEDULES: usize = 200;
    const WRITES: usize = 1_000;
    let machine = Machine::new(60);
    let mut history = History::new(5);
    let write = |engine: &Engine, writes: Vec<ScheduleWrite>| {
        let schedules: Vec<_> = writes.iter().filter_map(|write| write.schedule().cloned()).collect();
        let commands = writes.into_iter().map(Command::Schedule).collect();
        let versions = engine.commit(commands).expect("it is written").outcomes.schedules;
        let versions = versions.into_iter().map(|version| version.expect("nobody else writes"));
        schedules.into_iter().zip(versions).map(|(schedule, version)| StoredSchedule { schedule, version }).collect()
    };
    let due_at = |history: &mut History, schedule: &Schedule| {
        let wait = Duration::from_millis(history.random.random_range(0..10_000));
        let course = Course { next_due_at: Some(history.now.plus(wait)), ..Course::default() };
        Arc::new(Schedule { course, paused: None, ..schedule.clone() })
    };
    let new = (0..SCHEDULES).map(|number| {
        let schedule = history.new_schedule(ScheduleId::new(format!("{number:03}")).expect("an id"));
        ScheduleWrite::Create { schedule: due_at(&mut history, &schedule) }
    });
    let new = new.collect();
    let mut stored: Vec<StoredSchedule> = write(&machine.engine, new);

    std::thread::scope(|scope| {
        let engine = &machine.engine;
        let writer = scope.spawn(move || {
            for _ in 0..WRITES {
                let place = history.random.random_range(0..SCHEDULES);
                let StoredSchedule { schedule, version } = &stored[place];
                let schedule = due_at(&mut history, schedule);
                let next: Vec<_> = write(engine, vec![ScheduleWrite::Replace { schedule, expected: *version }]);
                stored[place] = next.into_iter().next().expect("it was written");
                if engine.is_flush_due() {
                    let flush = engine.begin_flush();
                    engine.write_flush(&flush).expect("the database takes it");
                }
            }
        });
        while !writer.is_finished() {
            for list in [0, 3].map(|list| listed(engine).swap_remove(list)) {
                let mut ids: Vec<_> = list.iter().map(|stored| stored.schedule.id.clone()).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!((list.len(), ids.len()), (SCHEDULES, SCHEDULES));
            }
        }
    });
}

#[test]
fn a_directory_of_a_version_without_schedules_is_opened() {
    let mut machine = Machine::new(20);
    let mut history = History::new(3);
    let commands: Vec<Command> = (0..100).map(|_| Command::Job(history.creation())).collect();
    machine.engine.commit(commands).expect("it is written");
    let hash = machine.hash();
    let Machine { engine, directory, options, .. } = machine;
    engine.close().expect("closable");

    // As such a version leaves it: the keyspaces are not there, and the seal does not name them.
    let database = directory.path().join("store");
    let db = fjall::Database::builder(&database).open().expect("a database");
    for name in ["schedules", "schedules_due", "schedules_owners"] {
        let keyspace = db.keyspace(name, fjall::KeyspaceCreateOptions::default).expect("a keyspace");
        db.delete_keyspace(keyspace).expect("removable");
    }
    db.persist(fjall::PersistMode::SyncAll).expect("durable");
    drop(db);
    let seal = Seal::read(directory.path()).expect("a seal");
    let mut keyspaces = seal.keyspaces.clone();
    keyspaces.retain(|_, KeyspaceSeal { name, .. }| !name.starts_with("schedules"));
    let seal = Seal { stage: Stage::Open, keyspaces, journals: BTreeMap::new(), active: None, ..seal };
    let hold = Directory::hold(directory.path(), 0).expect("a directory");
    hold.write_seal(&seal).expect("writable");
    drop(hold);

    for _ in 0..2 {
        let engine = open(&directory, &options);
        assert_eq!(super::hash(&engine), hash);
        engine.close().expect("closable");
    }
    assert!(crate::store::embedded::verify(directory.path()).expect("it can be read").damages.is_empty());
}
