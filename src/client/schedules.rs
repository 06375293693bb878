//! The calls about schedules.

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method};

use super::calls::QUERIES_TAKE;
use super::error::ClientError;
use super::transport::{Call, Client, OpenAnswer, Repeat};
use crate::job::strict;
use crate::scheduler::DueTime;
use crate::wire::{
    BackfillSchedule, BulkAnswer, BulkReport, BulkScheduleChange, ChangeReason, FireTimes, MadeTrigger, Page,
    PreviewSchedule, PutSchedule, Schedule, StartedBackfill, SubmitItem,
};

/// Selects the schedules that are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleQuery {
    /// Selects only schedules that this KQL query matches.
    pub kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone. Default: UTC.
    pub time_zone: Option<String>,
    /// Selects only schedules of this owner.
    pub owner: Option<String>,
    /// The size of a page, at most 1,000 schedules. Default: 100.
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Selects the due times that are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueTimeQuery {
    /// The first due time (RFC 3339). Without it, the last ones until `to` are returned.
    pub from: Option<String>,
    /// The last due time (RFC 3339). Default: now.
    pub to: Option<String>,
    /// The size of a page, at most 1,000 due times. Default: 100.
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Client {
    /// Returns the next fire times of a period, without a schedule.
    ///
    /// # Errors
    /// See [`ClientError`]; `invalid_request` when the period never fires.
    pub async fn preview_schedule(&self, preview: &PreviewSchedule) -> Result<FireTimes, ClientError> {
        self.send(self.call(Method::POST, &["v1", "schedules", "preview"], Repeat::Safe).json(preview)?).await
    }

    /// Creates a schedule, or finds the same one.
    ///
    /// # Errors
    /// See [`ClientError`]; `schedule_differs` when there is another one under its id.
    pub async fn create_schedule(&self, new: &PutSchedule) -> Result<Schedule, ClientError> {
        // Without an id, each repetition would make a schedule of its own.
        let repeat = if new.id.is_some() { Repeat::Safe } else { Repeat::Unsafe };
        self.send(self.call(Method::POST, &["v1", "schedules"], repeat).json(new)?).await
    }

    /// Stores a schedule, written over the one that there is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_schedule(&self, id: &str, new: &PutSchedule) -> Result<Schedule, ClientError> {
        self.send(self.schedule_call(Method::PUT, &[id]).json(new)?).await
    }

    /// Stores schedules, each written over the one that there is; the answers come in order. For as many that one body
    /// would be too long, there is [`Client::store_schedules`].
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn put_schedules(&self, lines: impl Into<Bytes>) -> Result<Vec<SubmitItem>, ClientError> {
        let call = self.schedule_call(Method::POST, &["bulk"]);
        let call = call.body(lines.into(), "application/x-ndjson");
        Ok(self.send::<BulkAnswer<SubmitItem>>(call).await?.items)
    }

    /// Stores any number of schedules, each written over the one that there is. `lines` is a body with one per line,
    /// which is sent while the answers are read; a line may be split between two of its parts. The call is not
    /// repeated, except at the next server when no connection was made: whoever makes it again goes on with the line
    /// after the last answer.
    ///
    /// # Errors
    /// See [`ClientError`], when the answer does not begin.
    pub async fn store_schedules(
        &self,
        lines: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<StoredSchedules, ClientError> {
        let ndjson = HeaderValue::from_static("application/x-ndjson");
        let call = self.call(Method::POST, &["v1", "schedules", "bulk"], Repeat::Unsent);
        let call = call.header(CONTENT_TYPE, ndjson.clone()).header(ACCEPT, ndjson);
        let answer = self.open_with(&call, lines).await?;
        Ok(StoredSchedules { answer, begun: BytesMut::new() })
    }

    /// Lists schedules, by id.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn schedules(&self, query: &ScheduleQuery) -> Result<Page<Schedule>, ClientError> {
        let call = self.schedule_call(Method::GET, &[]).each("kql", &query.kql).each("time_zone", &query.time_zone);
        let call = call.each("owner", &query.owner).each("limit", query.limit).each("cursor", &query.cursor);
        // A query may take half a minute, and wait as long for its turn.
        self.send(if query.kql.is_some() { call.waiting(QUERIES_TAKE) } else { call }).await
    }

    /// Returns a schedule.
    ///
    /// # Errors
    /// See [`ClientError`]; `schedule_not_found` when there is none.
    pub async fn schedule(&self, id: &str) -> Result<Schedule, ClientError> {
        self.send(self.schedule_call(Method::GET, &[id])).await
    }

    /// Returns a schedule with the values of `env` and the addresses that others do not see. The audit keeps who asked.
    ///
    /// # Errors
    /// See [`ClientError`]; `forbidden` without the role `admin`, `schedule_not_found` when there is none.
    pub async fn revealed_schedule(&self, id: &str) -> Result<Schedule, ClientError> {
        self.send(self.schedule_call(Method::GET, &[id]).query("reveal", "true")).await
    }

    /// Removes a schedule.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_schedule(&self, id: &str) -> Result<(), ClientError> {
        self.send_raw(self.call(Method::DELETE, &["v1", "schedules", id], Repeat::Unsafe)).await.map(drop)
    }

    /// Pauses a schedule.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause_schedule(&self, id: &str, reason: &str) -> Result<Schedule, ClientError> {
        let pause = ChangeReason { reason: Some(reason.to_owned()) };
        self.send(self.schedule_call(Method::POST, &[id, "pause"]).json(&pause)?).await
    }

    /// Ends the pause of a schedule.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_schedule(&self, id: &str) -> Result<Schedule, ClientError> {
        self.send(self.schedule_call(Method::POST, &[id, "resume"])).await
    }

    /// Pauses many schedules, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause_schedules(&self, order: &BulkScheduleChange) -> Result<BulkReport<Schedule>, ClientError> {
        self.change_schedules("pause", order).await
    }

    /// Ends the pauses of many schedules, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_schedules(&self, order: &BulkScheduleChange) -> Result<BulkReport<Schedule>, ClientError> {
        self.change_schedules("resume", order).await
    }

    /// Removes many schedules, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_schedules(&self, order: &BulkScheduleChange) -> Result<BulkReport<Schedule>, ClientError> {
        self.change_schedules("remove", order).await
    }

    /// A repetition of a call that was heard would report the schedules that it finds already changed as left alone.
    async fn change_schedules(
        &self,
        action: &str,
        order: &BulkScheduleChange,
    ) -> Result<BulkReport<Schedule>, ClientError> {
        let repeat = if order.dry_run { Repeat::Safe } else { Repeat::Unsafe };
        let call = self.call(Method::POST, &["v1", "schedules", action], repeat);
        self.send(call.json(order)?.waiting(QUERIES_TAKE)).await
    }

    /// Makes a trigger of a schedule that is due at once.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn run_schedule(&self, id: &str) -> Result<MadeTrigger, ClientError> {
        self.send(self.call(Method::POST, &["v1", "schedules", id, "run"], Repeat::Unsafe)).await
    }

    /// Runs the due times of a schedule that were not performed. The same call finds the backfill while it is under
    /// way.
    ///
    /// # Errors
    /// See [`ClientError`]; `invalid_request` when there are too many due times, or some that are still to come.
    pub async fn backfill_schedule(
        &self,
        id: &str,
        backfill: &BackfillSchedule,
    ) -> Result<StartedBackfill, ClientError> {
        self.send(self.schedule_call(Method::POST, &[id, "backfill"]).json(backfill)?).await
    }

    /// Returns the next `n` times at which a schedule is due.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next_of_schedule(&self, id: &str, n: u64) -> Result<FireTimes, ClientError> {
        self.send(self.schedule_call(Method::GET, &[id, "next"]).each("n", [n])).await
    }

    /// Lists the due times of a schedule, each with what has become of it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn triggers_of_schedule(&self, id: &str, query: &DueTimeQuery) -> Result<Page<DueTime>, ClientError> {
        let call = self.schedule_call(Method::GET, &[id, "triggers"]).each("from", &query.from).each("to", &query.to);
        self.send(call.each("limit", query.limit).each("cursor", &query.cursor)).await
    }

    /// Begins a call that may be repeated, below the schedules.
    fn schedule_call(&self, method: Method, below: &[&str]) -> Call {
        self.call(method, &[&["v1", "schedules"], below].concat(), Repeat::Safe)
    }
}

/// The answers to schedules that are stored as a stream.
#[derive(Debug)]
pub struct StoredSchedules {
    answer: OpenAnswer,
    /// The beginning of the next answers.
    begun: BytesMut,
}

impl StoredSchedules {
    /// Returns the next answers, in the order of the lines; `None` when all lines are answered. What was answered is
    /// stored or refused, also if there is an error then.
    ///
    /// # Errors
    /// See [`ClientError`]: the call broke off, and nothing is known of the other lines.
    pub async fn next(&mut self) -> Result<Option<Vec<SubmitItem>>, ClientError> {
        // Ends: each turn takes a part of the answer.
        loop {
            let end = self.begun.iter().rposition(|byte| *byte == b'\n');
            if let Some(end) = end {
                let lines = self.begun.split_to(end + 1);
                let lines = lines[..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                let items = lines.map(strict::from_slice).collect::<Result<_, serde_json::Error>>();
                let status = self.answer.status().as_u16();
                return items.map(Some).map_err(|error| ClientError::Decode { status, message: error.to_string() });
            }
            match self.answer.chunk().await? {
                Some(bytes) => self.begun.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}
