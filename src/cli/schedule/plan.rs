//! What an import does with the schedules that the same crontab has made before: a line that was changed replaces its
//! schedule, and one that is gone leaves a schedule behind, which is named.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::cli::failure::Failure;
use crate::client::{Client, ScheduleQuery};
use crate::schedule::Action;
use crate::wire::{Period, PutSchedule, Schedule};

/// The label that names the crontab of a schedule.
pub(super) const CRONTAB: &str = "crontab";
/// The label that has the number of its line.
pub(super) const LINE: &str = "crontab_line";
/// How many schedules are read at once.
const PAGE: u64 = 1_000;

/// What makes a schedule the one of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    pub(super) id: String,
    pub(super) line: String,
    pub(super) cron: String,
    zone: String,
    /// The command, as the payload of its job has it.
    command: Value,
}

impl Sketch {
    fn of(id: String, labels: &BTreeMap<String, String>, action: &Action, period: &Period) -> Self {
        let job: Option<Value> = action.job.as_ref().and_then(|job| serde_json::from_str(job.as_str()).ok());
        Self {
            id,
            line: labels.get(LINE).cloned().unwrap_or_default(),
            cron: period.cron.clone().unwrap_or_default(),
            zone: period.time_zone.clone().unwrap_or_default(),
            command: job.map(|mut job| job["payload"]["command"].take()).unwrap_or_default(),
        }
    }

    fn of_stored(schedule: &Schedule) -> Self {
        Self::of(schedule.id.clone(), &schedule.labels, &schedule.action, &schedule.period)
    }

    fn of_new(schedule: &PutSchedule) -> Self {
        let id = schedule.id.clone().unwrap_or_default();
        Self::of(id, &schedule.labels, &schedule.action, &schedule.period)
    }

    /// Returns the command as a crontab has it.
    pub(super) fn command(&self) -> String {
        match &self.command {
            Value::Array(words) => words.last().and_then(Value::as_str).unwrap_or_default().to_owned(),
            command => command.as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// What becomes of the schedules of a crontab.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The schedules that lines of the crontab replace, as they were, by the places of these lines.
    pub(super) changed: Vec<(usize, Sketch)>,
    /// The schedules of lines that are gone.
    pub(super) lost: Vec<Sketch>,
}

/// Reads the schedules that a crontab of this name has made.
async fn stored(client: &Client, name: &str) -> Result<Vec<Sketch>, Failure> {
    let text = name.replace('\\', "\\\\").replace('"', "\\\"");
    let mut query =
        ScheduleQuery { kql: Some(format!("labels.{CRONTAB}: \"{text}\"")), limit: Some(PAGE), ..Default::default() };
    let mut stored = Vec::new();
    loop {
        let page = client.schedules(&query).await?;
        stored.extend(page.items.iter().map(Sketch::of_stored));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(stored);
        }
    }
}

/// Has schedules replace those that the crontab of this name has made before, by giving them their ids.
pub(super) async fn replace(client: &Client, name: &str, new: &mut [PutSchedule]) -> Result<Plan, Failure> {
    Ok(assign(new, stored(client, name).await?))
}

fn assign(new: &mut [PutSchedule], stored: Vec<Sketch>) -> Plan {
    let sketches: Vec<Sketch> = new.iter().map(Sketch::of_new).collect();
    let mut open: Vec<Option<&Sketch>> = sketches.iter().map(Some).collect();
    let mut left: Vec<Option<Sketch>> = stored.into_iter().map(Some).collect();
    let mut plan = Plan::default();
    // In this order: the same line, the same command at other times, another command at the same times of the same
    // line, and another command at the same times.
    let rules: [fn(&Sketch) -> String; 4] = [
        |sketch| sketch.id.clone(),
        |sketch| sketch.command.to_string(),
        |sketch| [&*sketch.line, &*sketch.cron, &*sketch.zone].join("\0"),
        |sketch| [&*sketch.cron, &*sketch.zone].join("\0"),
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
            if (&was.cron, &was.zone, &was.command) != (&is.cron, &is.zone, &is.command) {
                plan.changed.push((place, was));
            }
        }
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
        let plan = assign(&mut new, stored.iter().map(Sketch::of_new).collect());
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
            // Other times; another command; a new line above, so that all lines moved.
            (
                vec![put("z", 1, "0 9 * * *", "new"), put("d", 2, "0 8 * * *", "one"), put("e", 3, "0 2 * * *", "2")],
                (&["z", "a", "b"], &["a", "b"], &["c"]),
            ),
            // Both of them changed: the command at the times of its line is the one.
            (vec![put("f", 3, "0 3 * * *", "y")], (&["c"], &["c"], &["a", "b"])),
            (Vec::new(), (&[], &[], &["a", "b", "c"])),
        ] {
            let (ids, changed, lost) = expected;
            assert_eq!(assigned(&stored, &new), (texts(ids), texts(changed), texts(lost)), "{new:?}");
        }
    }
}
