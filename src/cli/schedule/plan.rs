//! What an import does with the schedules that the same crontab has made before: a line that was changed replaces its
//! schedule, and one that is gone leaves a schedule behind, which is named.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use crate::client::{Client, ClientError, ScheduleQuery};
use crate::schedule::Action;
use crate::wire::{Period, PutSchedule, Schedule};

/// The label that names the crontab of a schedule.
pub(super) const CRONTAB: &str = "crontab";
/// The label that has the number of its line.
pub(super) const LINE: &str = "crontab_line";
/// The label that has the user whom the line names.
pub(super) const USER: &str = "crontab_user";
/// How many schedules are read at once.
const PAGE: u64 = 1_000;

/// What makes a schedule the one of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    pub(super) id: String,
    line: String,
    user: String,
    pub(super) cron: String,
    zone: String,
    /// The command, as the payload of its job has it.
    command: Value,
    /// Whether the schedule stands still.
    pub(super) is_paused: bool,
}

impl Sketch {
    fn of(id: &str, labels: &BTreeMap<String, String>, action: &Action, period: &Period) -> Self {
        let job: Option<Value> = action.job.as_ref().and_then(|job| serde_json::from_str(job.as_str()).ok());
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        Self {
            id: id.to_owned(),
            line: label(LINE),
            user: label(USER),
            cron: period.cron.clone().unwrap_or_default(),
            zone: period.time_zone.clone().unwrap_or_default(),
            command: job.map(|mut job| job["payload"]["command"].take()).unwrap_or_default(),
            is_paused: false,
        }
    }

    fn of_stored(schedule: &Schedule) -> Self {
        let Schedule { id, labels, action, period, paused, .. } = schedule;
        Self { is_paused: paused.is_some(), ..Self::of(id, labels, action, period) }
    }

    fn of_new(schedule: &PutSchedule) -> Self {
        Self::of(schedule.id.as_deref().unwrap_or_default(), &schedule.labels, &schedule.action, &schedule.period)
    }

    fn does_the_same(&self, other: &Self) -> bool {
        (&self.cron, &self.zone, &self.user, &self.command) == (&other.cron, &other.zone, &other.user, &other.command)
    }

    /// Returns the command as a crontab has it.
    pub(super) fn command(&self) -> String {
        match &self.command {
            Value::Array(words) => words.last().and_then(Value::as_str).unwrap_or_default().to_owned(),
            command => command.as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// How the schedules of a crontab change.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The schedules that lines of the crontab replace, as they were, by the places of these lines.
    pub(super) changed: Vec<(usize, Sketch)>,
    /// The schedules of lines that are gone.
    pub(super) lost: Vec<Sketch>,
}

/// A line of the crontab with its schedule.
pub(super) struct New {
    pub(super) schedule: PutSchedule,
    /// The ids that earlier versions gave the schedule of this line, without the name of the crontab.
    pub(super) former_ids: Vec<String>,
}

/// Reads the schedules that this query finds.
async fn find_stored(client: &Client, kql: String) -> Result<Vec<Sketch>, ClientError> {
    let mut query = ScheduleQuery { kql: Some(kql), limit: Some(PAGE), ..ScheduleQuery::default() };
    let mut stored = Vec::new();
    // Bounded by the schedules that there are.
    loop {
        let page = client.schedules(&query).await?;
        stored.extend(page.items.iter().map(Sketch::of_stored));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(stored);
        }
    }
}

/// Has schedules replace those that the crontab of this name has made before, by giving them their ids; and those that
/// earlier versions have made of the same lines.
pub(super) async fn replace(client: &Client, name: &str, new: &mut [New]) -> Result<Plan, ClientError> {
    let text = name.replace('\\', "\\\\").replace('"', "\\\"");
    let own = find_stored(client, format!("labels.{CRONTAB}: \"{text}\"")).await?;
    let of_former_versions = find_stored(client, format!("labels.{LINE}: * and not labels.{CRONTAB}: *")).await?;
    let mut former: HashSet<String> = of_former_versions.into_iter().map(|sketch| sketch.id).collect();
    let mut open: Vec<&mut PutSchedule> = Vec::new();
    for New { schedule, former_ids } in new {
        match former_ids.iter().find_map(|id| former.take(id)) {
            Some(id) => schedule.id = Some(id),
            None => open.push(schedule),
        }
    }
    Ok(assign(&mut open, own))
}

fn assign(new: &mut [&mut PutSchedule], stored: Vec<Sketch>) -> Plan {
    let sketches: Vec<Sketch> = new.iter().map(|schedule| Sketch::of_new(schedule)).collect();
    let mut open: Vec<Option<&Sketch>> = sketches.iter().map(Some).collect();
    let mut taken: HashSet<String> = stored.iter().map(|sketch| sketch.id.clone()).collect();
    let mut left: Vec<Option<Sketch>> = stored.into_iter().map(Some).collect();
    let mut plan = Plan::default();
    // In this order: what does the same in the same line, and in another one; the same command at other times; and
    // another command at the same times of the same line.
    let rules: [fn(&Sketch) -> String; 4] = [
        |sketch| [&*sketch.line, &*sketch.cron, &*sketch.zone, &*sketch.user, &sketch.command.to_string()].join("\0"),
        |sketch| [&*sketch.cron, &*sketch.zone, &*sketch.user, &sketch.command.to_string()].join("\0"),
        |sketch| [&*sketch.user, &sketch.command.to_string()].join("\0"),
        |sketch| [&*sketch.line, &*sketch.cron, &*sketch.zone, &*sketch.user].join("\0"),
    ];
    for rule in rules {
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (place, sketch) in left.iter().enumerate().rev() {
            if let Some(sketch) = sketch {
                places.entry(rule(sketch)).or_default().push(place);
            }
        }
        for (place, sketch) in open.iter_mut().enumerate() {
            let Some(found) = sketch.and_then(|sketch| places.get_mut(&rule(sketch))?.pop()) else { continue };
            let (Some(was), Some(is)) = (left[found].take(), sketch.take()) else { continue };
            new[place].id = Some(was.id.clone());
            if !was.does_the_same(is) {
                plan.changed.push((place, was));
            }
        }
    }
    // A line that is new has not the id of another one, which may be that of this line from before an edit.
    for place in (0..new.len()).filter(|place| open[*place].is_some()) {
        let id = new[place].id.clone().unwrap_or_default();
        let mut further = (2..).map(|number| format!("{id}-{number}"));
        let free = if taken.contains(&id) { further.find(|id| !taken.contains(id)) } else { Some(id) };
        taken.extend(free.clone());
        new[place].id = free;
    }
    plan.changed.sort_by_key(|(place, _)| *place);
    plan.lost = left.into_iter().flatten().collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Json;
    use crate::schedule::ActionType;

    fn put(id: &str, line: usize, cron: &str, command: &str) -> PutSchedule {
        let job = serde_json::json!({"queue": "default", "kind": "shell", "payload": {"command": command}});
        let action = Action { job: Some(Json::of(&job).expect("JSON")), ..Action::of(ActionType::Job) };
        let period = Period { cron: Some(cron.to_owned()), ..Period::default() };
        let labels = [(LINE.to_owned(), line.to_string())].into();
        PutSchedule { id: Some(id.to_owned()), labels, ..PutSchedule::new(action, period) }
    }

    fn assigned(stored: &[PutSchedule], new: &[PutSchedule]) -> (Vec<String>, Vec<String>, Vec<String>) {
        let mut new = new.to_vec();
        let mut lines: Vec<&mut PutSchedule> = new.iter_mut().collect();
        let plan = assign(&mut lines, stored.iter().map(Sketch::of_new).collect());
        let ids = new.into_iter().filter_map(|put| put.id).collect();
        let changed = plan.changed.iter().map(|(_, was)| was.id.clone()).collect();
        (ids, changed, plan.lost.into_iter().map(|lost| lost.id).collect())
    }

    #[test]
    fn what_was_changed_keeps_its_schedule_and_what_is_gone_is_named() {
        let stored = [put("a", 1, "0 1 * * *", "one"), put("b", 2, "0 2 * * *", "two"), put("c", 3, "0 3 * * *", "x")];
        let texts = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<String>>();
        for (new, expected) in [
            (stored.to_vec(), (&["a", "b", "c"][..], &[][..], &[][..])),
            // A new line above, other times, and another command.
            (
                vec![put("z", 1, "0 9 * * *", "new"), put("d", 2, "0 8 * * *", "one"), put("e", 3, "0 3 * * *", "2")],
                (&["z", "a", "c"], &["a", "c"], &["b"]),
            ),
            // Another command at the times of another line is another one, whatever was paused there.
            (vec![put("f", 4, "0 3 * * *", "y")], (&["f"], &[], &["a", "b", "c"])),
            (Vec::new(), (&[], &[], &["a", "b", "c"])),
        ] {
            let (ids, changed, lost) = expected;
            assert_eq!(assigned(&stored, &new), (texts(ids), texts(changed), texts(lost)), "{new:?}");
        }
    }

    #[test]
    fn lines_of_one_command_are_told_apart_by_their_times_and_an_id_from_before_an_edit_is_nobody_elses() {
        // Their ids follow from other times.
        let stored = [put("h2", 1, "0 9 * * *", "one"), put("h1", 2, "0 10 * * *", "one")];
        let same = [put("h9", 1, "0 9 * * *", "one"), put("h10", 2, "0 10 * * *", "one")];
        assert_eq!(assigned(&stored, &same).0, ["h2", "h1"]);
        let moved = [put("h10", 1, "0 10 * * *", "one"), put("h9", 2, "0 9 * * *", "one")];
        assert_eq!(assigned(&stored, &moved).0, ["h1", "h2"]);
        let more = [&same[..], &[put("h1", 3, "0 1 * * *", "one")]].concat();
        assert_eq!(assigned(&stored, &more), (vec!["h2".into(), "h1".into(), "h1-2".into()], vec![], vec![]));
    }
}
