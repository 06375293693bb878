//! Every field of a job, and whether queries, orders and groups can use it. One table serves the query language, the
//! API's list of fields, and the documentation. A test compares it with the mapping of the job index. Schedules have a
//! table of their own ([`super::schedule_fields`]), of fields of the same form.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{
    Body, EventName, HistoryEntry, Hold, Job, JobState, Lease, Orphan, OrphanPolicy, Owner, Phase, Running, State,
};
use crate::schedule::{Action, ActionType, Overlap, Schedule};

/// The list of a job's transitions. A query tests its entries one by one: `history: { to: running and fence: 2 }`.
pub const HISTORY: &str = "history";
/// The map of labels; `labels.team` is one label.
pub const LABELS: &str = "labels";
/// The map of what a job needs; `resources.gpus` is one amount.
pub const RESOURCES: &str = "resources";
/// The longest error code, reason or label that a query can find, in UTF-16 units. Longer ones are stored only.
pub const LONGEST_KEYWORD: usize = 1024;

/// The type of a field, which decides how queries compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A text that is compared as a whole; upper and lower case differ.
    Keyword {
        /// The longest text that a query can find, in UTF-16 units; `None` if all can be found.
        longest: Option<usize>,
    },
    /// A text that is found by its words.
    Text,
    /// A time.
    Date,
    /// A whole number within bounds.
    Integer {
        /// The smallest number.
        least: i64,
        /// The largest number.
        most: i64,
    },
    /// A floating-point number.
    Number,
    /// A boolean, `true` or `false`.
    Flag,
    /// A map of keywords.
    Labels,
    /// A map of whole numbers.
    Amounts,
    /// A value that is stored and that queries cannot use.
    Kept,
}

impl FieldType {
    /// Returns the name of the type in the API and in the documentation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Keyword { .. } => "keyword",
            Self::Text => "text",
            Self::Date => "date",
            Self::Integer { .. } => "integer",
            Self::Number => "number",
            Self::Flag => "boolean",
            Self::Labels => "labels",
            Self::Amounts => "amounts",
            Self::Kept => "kept",
        }
    }
}

/// The value of a field in one job or schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// The value of a keyword or a text.
    Text(&'a str),
    /// The value of a date.
    Time(Timestamp),
    /// The value of an integer.
    Integer(i64),
    /// The value of a number.
    Number(f64),
    /// The value of a boolean.
    Flag(bool),
}

/// Where the value of a field is found.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// The job has at most one value of the field.
    Job(for<'a> fn(&'a Job) -> Option<FieldValue<'a>>),
    /// Each entry of the history has at most one value of the field.
    History(for<'a> fn(&'a HistoryEntry) -> Option<FieldValue<'a>>),
    /// The schedule has at most one value of the field.
    Schedule(for<'a> fn(&'a Schedule) -> Option<FieldValue<'a>>),
    /// The action of the schedule has at most one text of the field, which may have to be made of what it has.
    Action(for<'a> fn(&'a Action) -> Option<Cow<'a, str>>),
    /// The values of the field are the labels of the job or schedule.
    Labels,
    /// The values of the field are the amounts of the resources that the job needs.
    Resources,
    /// The values of the field are the requirements of the job, each in its normal form.
    Requires,
    /// Queries cannot use the field.
    None,
}

/// A field of a job or a schedule. Two fields are equal when their names are.
#[derive(Clone, Copy)]
pub struct Field {
    /// The name of the field, which is the same in the API, in the index and in queries.
    pub name: &'static str,
    /// The type of the field.
    pub kind: FieldType,
    /// The meaning of the field, as users read it.
    pub meaning: &'static str,
    /// An example of a query that uses the field; an example of a value if the field is stored only.
    pub example: &'static str,
    /// Whether lists can be ordered by the field.
    pub sortable: bool,
    /// Whether counts and statistics can be grouped by the field.
    pub groupable: bool,
    /// Whether a value without a field name is searched for in this field.
    pub default: bool,
    /// The place where the value is found.
    pub access: Access,
}

impl Field {
    /// Finds the field of a job with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.name == name)
    }

    /// Finds the field of a job with this name among those that `fits` accepts. `what` completes the error's "`name`
    /// cannot {what}".
    ///
    /// # Errors
    /// Returns a message that suggests the accepted field with the closest name; if none is close, it lists them all
    /// and adds `more`.
    pub fn find(name: &str, fits: impl Fn(&Self) -> bool, what: &str, more: &str) -> Result<&'static Self, String> {
        let names = || FIELDS.iter().filter(|field| fits(field)).map(|field| field.name);
        Self::named(name).filter(|field| fits(field)).ok_or_else(|| match closest(name, names()) {
            Some(close) => format!("`{name}` cannot {what}; is `{close}` meant?"),
            None => format!("`{name}` cannot {what}; {}{more} can", names().collect::<Vec<_>>().join(", ")),
        })
    }

    /// Returns whether queries can use the field.
    #[must_use]
    pub fn is_searchable(&self) -> bool {
        self.kind != FieldType::Kept
    }

    /// Returns the field's value in `job` as far as it is indexed: what queries find, and what orders and groups use. A
    /// field of the history's entries has many values, so this returns `None` for it.
    #[must_use]
    pub fn value<'a>(&self, job: &'a Job) -> Option<FieldValue<'a>> {
        let Access::Job(get) = self.access else { return None };
        get(job).filter(|value| match (value, self.kind) {
            (FieldValue::Text(text), FieldType::Keyword { longest: Some(longest) }) => fits(text, longest),
            _ => true,
        })
    }

    /// Returns all values that the field can have if they are few, otherwise an empty list.
    #[must_use]
    pub fn values(&self) -> Vec<&'static str> {
        match self.name {
            "state" | "history.from" | "history.to" => JobState::ALL.map(JobState::as_str).to_vec(),
            "phase" => Phase::ALL.map(Phase::as_str).to_vec(),
            "orphan_policy" => OrphanPolicy::ALL.map(OrphanPolicy::as_str).to_vec(),
            "action_type" => ActionType::ALL.map(ActionType::as_str).to_vec(),
            "overlap" => Overlap::ALL.map(Overlap::as_str).to_vec(),
            "history.event" => EventName::ALL.map(EventName::as_str).to_vec(),
            _ if self.kind == FieldType::Flag => vec!["true", "false"],
            _ => Vec::new(),
        }
    }

    /// Returns the list whose entries have this field, if any.
    #[must_use]
    pub fn nested_in(&self) -> Option<&'static str> {
        matches!(self.access, Access::History(_)).then_some(HISTORY)
    }

    pub(super) const fn new(
        name: &'static str,
        kind: FieldType,
        access: Access,
        meaning: &'static str,
        example: &'static str,
    ) -> Self {
        Self { name, kind, meaning, example, sortable: false, groupable: false, default: false, access }
    }

    const fn sortable(self) -> Self {
        Self { sortable: true, ..self }
    }

    const fn groupable(self) -> Self {
        Self { groupable: true, ..self }
    }

    pub(super) const fn by_default(self) -> Self {
        Self { default: true, ..self }
    }

    pub(super) const fn kept(name: &'static str, meaning: &'static str, example: &'static str) -> Self {
        Self::new(name, FieldType::Kept, Access::None, meaning, example)
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Field {}

impl Hash for Field {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

pub(super) const KEYWORD: FieldType = FieldType::Keyword { longest: None };
pub(super) const BOUNDED: FieldType = FieldType::Keyword { longest: Some(LONGEST_KEYWORD) };
/// The type of a whole number, as one amount of a resource is.
pub(super) const LONG: FieldType = FieldType::Integer { least: i64::MIN, most: i64::MAX };
pub(super) const SHORT: FieldType = FieldType::Integer { least: i16::MIN as i64, most: i16::MAX as i64 };

use Access::{History, Job as Of};
use FieldType::{Date, Number, Text};

/// Every field of a job.
#[rustfmt::skip]
pub static FIELDS: &[Field] = &[
    Field::new("id", KEYWORD, Of(|job| text(job.id.as_str())),
        "The job's id, unique in the store.", "id: nightly-7").sortable().by_default(),
    Field::new("queue", KEYWORD, Of(|job| text(job.spec.queue.as_str())),
        "The queue that the job waits in.", "queue: reports").sortable().groupable().by_default(),
    Field::new("kind", KEYWORD, Of(|job| text(job.spec.kind.as_str())),
        "The sort of work, which names the handler.", "kind: (render or encode)").sortable().groupable().by_default(),
    Field::new("state", KEYWORD, Of(|job| text(job.state.name().as_str())),
        "Available, running, completed, failed, cancelled or expired.", "state: running")
        .sortable().groupable().by_default(),
    Field::new("owner", KEYWORD, Of(|job| job.spec.owner.as_ref().map(Owner::as_str).and_then(text)),
        "The person or team that the job belongs to.", "owner: team-*").sortable().groupable().by_default(),
    Field::new(LABELS, FieldType::Labels, Access::Labels,
        "The submitter's labels; one label is `labels.` and its name.", "labels.team: blue").groupable().by_default(),
    Field::new("priority", SHORT, Of(|job| integer(job.spec.priority.get())),
        "The priority, from -100 to 100; the highest is claimed first.", "priority >= 50").sortable().groupable(),
    Field::new("run_at", Date, Of(|job| time(job.run_at)),
        "The earliest time at which the job is claimed.", "run_at < now-1h").sortable(),
    Field::new("expires_at", Date, Of(|job| job.expires_at.and_then(time)),
        "The time at which the job expires if no attempt has begun.", "expires_at <= now+10m").sortable(),
    Field::new("held", FieldType::Flag, Of(|job| job.hold.is_some().then_some(FieldValue::Flag(true))),
        "True for a job that is held; other jobs have no value.", "held: true"),
    Field::new("hold.at", Date, Of(|job| time(hold(job)?.at)),
        "When the job was held.", "hold.at < now-1d").sortable(),
    Field::new("hold.by", KEYWORD, Of(|job| text(hold(job)?.by.as_str())),
        "Who holds the job.", "hold.by: ann").sortable().groupable(),
    Field::new("hold.reason", BOUNDED, Of(|job| hold(job)?.reason.as_deref().and_then(text)),
        "Why the job is held.", "hold.reason: *month*"),
    Field::new("schedule_id", KEYWORD, Of(|job| text(job.spec.due.as_ref()?.schedule_id.as_str())),
        "The schedule that the job was made for.", "schedule_id: nightly").sortable().groupable().by_default(),
    Field::new("due_at", Date, Of(|job| time(job.spec.due.as_ref()?.due_at)),
        "When that schedule was due.", "due_at >= now-1d").sortable(),
    Field::new("rerun_of", KEYWORD, Of(|job| text(job.spec.rerun_of.as_ref()?.as_str())),
        "The ended job that this one runs again.", "rerun_of: nightly-7").sortable().groupable(),
    Field::new("created_at", Date, Of(|job| time(job.created_at)),
        "When the job was submitted.", "created_at >= now-7d/d").sortable(),
    Field::new("updated_at", Date, Of(|job| time(job.updated_at)),
        "When the job was last written.", "updated_at > now-5m").sortable(),
    Field::new("started_at", Date, Of(|job| job.started_at.and_then(time)),
        "When the latest attempt began.", "started_at < now-1d").sortable(),
    Field::new("finished_at", Date, Of(|job| job.finished_at().and_then(time)),
        "When the job ended.", "finished_at: \"2030-01-31\"").sortable(),
    Field::new("wait_ms", LONG, Of(|job| duration(job.wait()?)),
        "The time from due to the start of the latest attempt, in milliseconds.", "wait_ms > 60000").sortable(),
    Field::new("run_time_ms", LONG, Of(|job| duration(job.run_time()?)),
        "The duration of the attempt that ended the job, in milliseconds.", "run_time_ms >= 3600000").sortable(),
    Field::new("cancel_requested_at", Date, Of(|job| running(job)?.cancel_requested_at.and_then(time)),
        "When cancellation of the running job was requested.", "cancel_requested_at: *").sortable(),
    Field::new("overdue_at", Date, Of(|job| running(job)?.overdue_at.and_then(time)),
        "When the attempt was found to take longer than expected.", "overdue_at: *").sortable(),
    Field::new("watch_at", Date, Of(|job| job.watch_at().and_then(time)),
        "When the monitor checks the job next.", "watch_at <= now").sortable(),
    Field::new("expected_runtime_ms", LONG, Of(|job| duration(job.spec.expected_runtime?)),
        "The expected duration of an attempt, in milliseconds.", "expected_runtime_ms < 60000").sortable(),
    Field::new("timeout_ms", LONG, Of(|job| duration(job.spec.timeout?)),
        "The time limit of an attempt, in milliseconds.", "not timeout_ms: *").sortable(),
    Field::new("max_attempts", LONG, Of(|job| integer(job.spec.max_attempts)),
        "The number of attempts that the job may have.", "max_attempts: 1").sortable().groupable(),
    Field::new("attempt", LONG, Of(|job| integer(job.attempt.get())),
        "The number of claims that count as attempts.", "attempt > 1").sortable().groupable(),
    Field::new("fence", LONG, Of(|job| unsigned(job.fence.get())),
        "The number of times the job was ever claimed.", "fence: 0").sortable(),
    Field::new("partition", SHORT, Of(|job| integer(job.partition().get())),
        "The part of all jobs, from 0 to 255, that one manager hands out first.", "partition: 17"),
    Field::kept("retry", "How long the job waits between attempts.", "{\"base_ms\": 1000}"),
    Field::new(RESOURCES, FieldType::Amounts, Access::Resources,
        "What the job needs of a machine; one amount is `resources.` and its name.", "resources.gpus >= 2"),
    Field::new("requires", KEYWORD, Access::Requires,
        "What the job requires of a worker's labels, each in its normal form.", "requires: \"hw = fpga\""),
    Field::new("concurrency_key", KEYWORD, Of(|job| text(job.spec.concurrency()?.key.as_str())),
        "The key of which only so many jobs run at once.", "concurrency_key: db-7").sortable().groupable(),
    Field::new("max_concurrent", LONG, Of(|job| integer(job.spec.concurrency()?.max)),
        "The most jobs of the key that run at once.", "max_concurrent: 1").sortable().groupable(),
    Field::new("unique_key", KEYWORD, Of(|job| text(job.spec.unique()?.as_str())),
        "The key of which at most one job waits or runs.", "unique_key: report-7").sortable().groupable(),
    Field::new("ordering_key", KEYWORD, Of(|job| text(job.spec.ordering_key()?.as_str())),
        "The key whose jobs run one after another.", "ordering_key: account-7").sortable().groupable(),
    Field::new("order_seq", LONG, Of(|job| unsigned(job.spec.ordering()?.seq)),
        "The job's place in the line of its ordering key: those with smaller ones come first.",
        "order_seq < 100").sortable(),
    Field::kept("order_first",
        "The first of the places in the line that were allotted together with the job's own.", "7"),
    Field::new("orphan_policy", KEYWORD, Of(|job| text(job.spec.oversight.orphan_policy?.as_str())),
        "What happens when the lease expires: requeue, fail or flag.", "orphan_policy: flag").sortable().groupable(),
    Field::kept("notify", "The receivers of the job's notifications.", "[{\"url\": \"https://example.org/hook\"}]"),
    Field::kept("outbox", "The events whose notifications are not submitted yet.", "[{\"number\": 3}]"),
    Field::new("pending_notices", LONG, Of(|job| pending_notices(job)),
        "The number of events whose notifications are not submitted yet.", "pending_notices > 0").sortable(),
    Field::new("lease.worker_id", KEYWORD, Of(|job| text(lease(job)?.worker_id.as_str())),
        "The worker that holds the lease.", "lease.worker_id: worker-7").sortable().groupable().by_default(),
    Field::new("lease.holder", KEYWORD, Of(|job| text(lease(job)?.holder.as_ref()?.as_str())),
        "The name of the token that the lease was taken with.", "lease.holder: ci").sortable().groupable(),
    Field::new("lease.request_id", KEYWORD, Of(|job| text(lease(job)?.request_id.as_ref()?.as_str())),
        "The id of the claim request that acquired the lease.", "lease.request_id: c-19"),
    Field::new("lease.acquired_at", Date, Of(|job| time(lease(job)?.acquired_at)),
        "When the lease was acquired.", "lease.acquired_at < now-1h").sortable(),
    Field::new("lease.heartbeat_at", Date, Of(|job| time(lease(job)?.heartbeat_at)),
        "When the worker last sent a heartbeat.", "lease.heartbeat_at < now-2m").sortable(),
    Field::new("lease.expires_at", Date, Of(|job| time(lease(job)?.expires_at)),
        "When the lease expires.", "lease.expires_at <= now").sortable(),
    Field::new("lease.term_ms", LONG, Of(|job| duration(lease(job)?.term)),
        "The term of the lease, which each heartbeat renews, in milliseconds.", "lease.term_ms > 60000").sortable(),
    Field::new("progress.percent", Number, Of(|job| running(job)?.progress.as_ref()?.percent.map(FieldValue::Number)),
        "The progress of the attempt, from 0 to 100.", "progress.percent >= 99.5").sortable(),
    Field::kept("progress.message", "The progress of the attempt, in words.", "\"page 7 of 12\""),
    Field::new("orphan.flagged_at", Date, Of(|job| time(orphan(job)?.flagged_at)),
        "When the job was flagged as an orphan.", "orphan.flagged_at: *").sortable(),
    Field::new("orphan.reason", BOUNDED, Of(|job| text(&orphan(job)?.reason)),
        "Why the job was flagged as an orphan.", "orphan.reason: *heartbeat*").by_default(),
    Field::new("orphan.held", FieldType::Flag, Of(|job| Some(FieldValue::Flag(orphan(job)?.held))),
        "Whether the orphan is left to a person to decide on.", "orphan.held: true"),
    Field::new("error.code", BOUNDED, Of(|job| text(&job.error.as_ref()?.code)),
        "The latest error's code.", "error.code: timeout").sortable().groupable().by_default(),
    Field::new("error.message", Text, Of(|job| text(&job.error.as_ref()?.message)),
        "The latest error's message, found by its words.", "error.message: \"out of memory\"").by_default(),
    Field::new("error.message.keyword", BOUNDED, Of(|job| text(&job.error.as_ref()?.message)),
        "The same message, compared as a whole.", "error.message.keyword: \"exit status 1\""),
    Field::kept("payload", "The job's input.", "{\"page\": 7}"),
    Field::kept("payload_text", "The same as text, where the index cannot take the JSON.", "\"[1e999]\""),
    Field::kept("payload_ref.id", "The id of an input that is stored apart from the job.", "\"0b6c…\""),
    Field::new("payload_ref.bytes", LONG, Of(|job| stored(&job.payload)),
        "The size of an input that is stored apart from the job, in bytes.", "payload_ref.bytes > 100000").sortable(),
    Field::kept("result", "The job's result.", "{\"pages\": 12}"),
    Field::kept("result_text", "The same as text, where the index cannot take the JSON.", "\"[1e999]\""),
    Field::kept("result_ref.id", "The id of a result that is stored apart from the job.", "\"9f21…\""),
    Field::new("result_ref.bytes", LONG, Of(|job| stored(job.result())),
        "The size of a result that is stored apart from the job, in bytes.", "result_ref.bytes > 100000").sortable(),
    Field::new("history.at", Date, History(|entry| time(entry.at)),
        "The time of a transition.", "history: { to: failed and at > now-1d }"),
    Field::new("history.event", KEYWORD, History(|entry| text(entry.event.as_str())),
        "The event: submitted, claimed, retried, released and so on.", "history: { event: released }"),
    Field::new("history.from", KEYWORD, History(|entry| entry.from.map(JobState::as_str).and_then(text)),
        "The state before the transition; none for the submission.", "history: { from: running and to: available }"),
    Field::new("history.to", KEYWORD, History(|entry| text(entry.to.as_str())),
        "The state after the transition.", "history: { to: running }"),
    Field::new("history.fence", LONG, History(|entry| unsigned(entry.fence.get())),
        "The fence after the transition.", "history: { to: running and fence > 3 }"),
    Field::new("history.attempt", LONG, History(|entry| integer(entry.attempt.get())),
        "The number of attempts after the transition.", "history: { to: failed and attempt: 1 }"),
    Field::new("history.actor", KEYWORD, History(|entry| text(entry.actor.as_str())),
        "Who made the transition: the name of a token, or a part of the system.",
        "history: { to: running and actor: ci }"),
    Field::new("history.worker_id", KEYWORD, History(|entry| text(entry.worker_id.as_ref()?.as_str())),
        "The worker that made the transition, where its token is the actor.",
        "history: { to: failed and worker_id: w-1 }"),
    Field::new("history.reason", BOUNDED, History(|entry| entry.reason.as_deref().and_then(text)),
        "The reason of the transition, if one was given.", "history: { reason: *lease* }"),
    Field::new("history_folded", LONG, Of(|job| folded(job)),
        "The number of entries that were left out of the middle of the history.", "history_folded > 0"),
    Field::kept("fingerprint", "The hash that tells a repeated submission from a different one.", "\"5f3a…\""),
    Field::kept("write_id", "The id of the write that made this version of the document.", "\"1c77…\""),
    Field::kept("previous_write_id", "The id of the write that made the version before.", "\"1c76…\""),
];

/// Returns whether a text has at most `longest` UTF-16 units, so that a query can find it.
#[must_use]
pub fn fits(text: &str, longest: usize) -> bool {
    text.len() <= longest || text.encode_utf16().count() <= longest
}

/// Returns the one of `names` that is spelled most like `name`, if one is similar enough.
#[must_use]
pub fn closest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let name = name.to_lowercase();
    let bound = match name.chars().count() {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    };
    let near = names.into_iter().map(|other| (strsim::osa_distance(&name, other), other));
    near.filter(|(distance, _)| *distance <= bound).min().map(|(_, name)| name)
}

pub(super) fn text(text: &str) -> Option<FieldValue<'_>> {
    Some(FieldValue::Text(text))
}

pub(super) fn time(time: Timestamp) -> Option<FieldValue<'static>> {
    Some(FieldValue::Time(time))
}

pub(super) fn integer(number: impl Into<i64>) -> Option<FieldValue<'static>> {
    Some(FieldValue::Integer(number.into()))
}

/// Returns the key that a field's name has in the map `map`, such as `env` of `labels.env` in `labels`; `None` for a
/// field that is not in it.
#[must_use]
pub fn key_in<'a>(map: &str, field: &'a str) -> Option<&'a str> {
    field.strip_prefix(map)?.strip_prefix('.').filter(|key| !key.is_empty())
}

/// Returns an amount of a resource, or another number, as the index has it; `None` for one that is too large for it.
pub(super) fn unsigned(number: u64) -> Option<FieldValue<'static>> {
    i64::try_from(number).ok().and_then(integer)
}

/// Returns the duration in whole milliseconds, as the document has it.
fn duration(duration: Duration) -> Option<FieldValue<'static>> {
    integer(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

fn running(job: &Job) -> Option<&Running> {
    match &job.state {
        State::Running(running) => Some(running),
        _ => None,
    }
}

fn lease(job: &Job) -> Option<&Lease> {
    job.lease()
}

fn hold(job: &Job) -> Option<&Hold> {
    job.hold.as_deref()
}

fn orphan(job: &Job) -> Option<&Orphan> {
    job.orphan()
}

fn stored(body: &Body) -> Option<FieldValue<'static>> {
    match body {
        Body::Stored(reference) => integer(reference.bytes),
        Body::Empty | Body::Inline(_) => None,
    }
}

/// Returns the number of pending notices, which the document omits while it is zero.
fn pending_notices(job: &Job) -> Option<FieldValue<'static>> {
    i64::try_from(job.outbox.len()).ok().filter(|count| *count > 0).and_then(integer)
}

/// Returns the number of folded history entries, which the document omits while it is zero.
fn folded(job: &Job) -> Option<FieldValue<'static>> {
    (job.history.folded() > 0).then(|| FieldValue::Integer(job.history.folded().into()))
}

#[cfg(test)]
mod tests;
