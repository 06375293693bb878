//! The call that stores many schedules: a body with any number of lines, and an answer with an item for each, both as
//! streams.
//!
//! Lines are stored in batches, a few of which are under way at once. A batch that has a schedule in common with one
//! under way waits for it: of two lines with one id the later one counts. Nothing waits for a batch to fill: while none
//! is under way, what has arrived is stored as it is.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use http::HeaderMap;
use http::header::ACCEPT;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::access::Guard;
use super::audited::why_not;
use super::call::{Answer, Call, Submit};
use super::denied::{DeniedCaller, DeniedItems};
use super::error::{ApiError, Code};
use super::extract::{CallerAddress, parse};
use super::items::{in_order, sort_out};
use super::jobs::refused_item;
use super::json::to_bytes;
use super::line_stream::{Line, LineStream, MAX_LINE_BYTES};
use super::pieces::{self, NDJSON, Source};
use super::schedules::{new_schedule, schedules, status};
use crate::job::ScheduleId;
use crate::manager::{AuditChange, Caller, ChangeName, Manager, ManagerError};
use crate::scheduler::{Foreseen, NewSchedule, ScheduleError, Schedules, Stored};
use crate::wire::schedules::PutScheduleLines;
use crate::wire::{BulkAnswer, SubmitItem};

/// How many lines are stored together.
const BATCH: usize = 1_000;
/// The bytes of lines after which no further line is added to a batch.
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// How many batches are stored at once.
const IN_FLIGHT: usize = 4;
/// How many batches are answered ahead of a client that does not read yet.
const AHEAD: usize = 64;
/// The route, as the log names it.
const ROUTE: &str = "/v1/schedules/bulk";
const JSON: &str = "application/json";

/// Stores many schedules, one per line.
///
/// Each line is a schedule of its own: a refused one does not affect the others. One that is there is written over, so
/// that the call can be repeated; of several lines with one id the last counts. There may be any number of lines, of at
/// most 4 MiB each: they are stored as they arrive, and the items of the answer come meanwhile, in order. What is
/// answered is stored. A call that breaks off has stored what it has answered, and perhaps some lines more; it goes on
/// with the line after the last item. With more than some 50,000 lines a client has to read the answer while it sends.
#[utoipa::path(post, path = "/v1/schedules/bulk", operation_id = "put_schedules", tag = "schedules",
    params(("Accept" = Option<String>, Header,
        description = "With `application/x-ndjson` the answer has an item per line")),
    request_body(content = PutScheduleLines, content_type = "application/x-ndjson",
        description = "One schedule per line"),
    responses((status = 200, description = "An item for each line, in order", content(
        (BulkAnswer<SubmitItem> = "application/json"),
        (Vec<SubmitItem> = "application/x-ndjson"),
    ))))]
pub(crate) async fn put_many(
    call: Call<Submit>,
    CallerAddress(address): CallerAddress,
    headers: HeaderMap,
    lines: LineStream,
) -> Answer {
    let schedules = schedules(&call.app)?.clone();
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_ndjson =
        accepted.any(|types| types.split(',').any(|one| one.split(';').next().map(str::trim) == Some(NDJSON)));
    let (in_flight, end) = (FuturesOrdered::new(), None);
    let (arrived, prepared, stored) = (Vec::new(), None, VecDeque::new());
    let stopping = call.app.shutdown.clone();
    let manager = call.app.manager.clone();
    let by = DeniedCaller { token: call.bearer.map(|bearer| bearer.name), address };
    let (guard, caller) = (Arc::clone(&call.app.guard), call.caller);
    let mut upload =
        Upload { schedules, manager, caller, guard, by, stopping, lines, arrived, prepared, in_flight, stored, end };
    // The first lines are stored before the answer begins, so that a refusal still has a status.
    let first = upload.next().await?;
    let answer = Items { upload, first, is_ndjson, has_begun: false, has_ended: false };
    Ok(pieces::answer(answer, if is_ndjson { NDJSON } else { JSON }, AHEAD, ()))
}

/// The answer: the items of each batch.
struct Items {
    upload: Upload,
    /// The items of the first batch, if they are not written yet.
    first: Option<Vec<SubmitItem>>,
    is_ndjson: bool,
    has_begun: bool,
    has_ended: bool,
}

impl Source for Items {
    const NAME: &'static str = "a bulk call of schedules";

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.has_ended {
            return Ok(None);
        }
        let items = match self.first.take() {
            Some(items) => Some(items),
            None => self.upload.next().await?,
        };
        self.has_ended = items.is_none();
        let mut text = Vec::new();
        if !self.has_begun && !self.is_ndjson {
            text.extend_from_slice(b"{\"items\":[");
        }
        for item in items.into_iter().flatten() {
            if self.has_begun && !self.is_ndjson {
                text.push(b',');
            }
            self.has_begun = true;
            text.extend_from_slice(&to_bytes(&item)?);
            if self.is_ndjson {
                text.push(b'\n');
            }
        }
        if self.has_ended && !self.is_ndjson {
            text.extend_from_slice(b"]}");
        }
        Ok(Some(text.into()).filter(|text: &Bytes| !text.is_empty()))
    }
}

/// Lines on their way into the store.
struct Upload {
    schedules: Schedules,
    manager: Manager,
    caller: Caller,
    /// What notes the lines that are denied.
    guard: Arc<Guard>,
    /// Whose lines they are.
    by: DeniedCaller,
    /// Cancelled when the server stops, which ends the call.
    stopping: CancellationToken,
    lines: LineStream,
    /// Lines that have arrived.
    arrived: Vec<Line>,
    /// The next batch, if it waits for others.
    prepared: Option<Batch>,
    /// The batches that are being stored, in order.
    in_flight: FuturesOrdered<JoinHandle<Vec<SubmitItem>>>,
    /// What each of them has.
    stored: VecDeque<Stores>,
    /// Whether all lines have arrived, or why no more do.
    end: Option<Result<(), ApiError>>,
}

/// Lines that were read.
struct Batch {
    new: Vec<NewSchedule>,
    refused: Vec<Option<ApiError>>,
    has: Stores,
}

/// What a batch has.
struct Stores {
    /// The number of its lines.
    lines: usize,
    /// What these are charged with until they are written.
    charge: usize,
    /// The ids of the schedules in these lines.
    ids: HashSet<ScheduleId>,
}

impl Upload {
    /// Returns the items of the next batch; `None` when all lines are answered.
    ///
    /// # Errors
    /// Why no more lines arrive, once all that have arrived are answered.
    async fn next(&mut self) -> Result<Option<Vec<SubmitItem>>, ApiError> {
        // Ends: each turn takes in some bytes, stores a batch or returns.
        loop {
            self.store(false);
            let (_, is_full) = self.next_lines();
            let Self { stopping, lines, arrived, in_flight, stored, .. } = self;
            if !in_flight.is_empty() {
                let may_read = self.end.is_none() && self.prepared.is_none() && !is_full;
                tokio::select! {
                    biased;
                    Some(items) = in_flight.next() => {
                        let (count, charge) = stored.pop_front().map_or((0, 0), |has| (has.lines, has.charge));
                        lines.written(charge);
                        return Ok(Some(items.unwrap_or_else(|_| (0..count).map(|_| not_known()).collect())));
                    }
                    end = arrive(stopping, lines, arrived, false), if may_read => self.end = end,
                }
                continue;
            }
            match self.end.take() {
                Some(Ok(())) => {
                    self.end = Some(Ok(()));
                    return Ok(None);
                }
                Some(Err(error)) => return Err(error),
                None if arrived.is_empty() => self.end = arrive(stopping, lines, arrived, true).await,
                // Nothing is under way: what is there is stored, unless there is more at once.
                None => match arrive(stopping, lines, arrived, false).now_or_never() {
                    Some(end) => self.end = end,
                    None => self.store(true),
                },
            }
        }
    }

    /// Begins to store the batches that can be: those that are full, or also the last lines that have arrived.
    fn store(&mut self, also_last: bool) {
        while self.in_flight.len() < IN_FLIGHT {
            let Some(batch) = self.prepared.take().or_else(|| self.batch(also_last)) else { return };
            if self.stored.iter().any(|has| !has.ids.is_disjoint(&batch.has.ids)) {
                self.prepared = Some(batch);
                return;
            }
            let Batch { new, refused, has } = batch;
            self.stored.push_back(has);
            let (schedules, manager, caller) = (self.schedules.clone(), self.manager.clone(), self.caller.clone());
            let (guard, by) = (Arc::clone(&self.guard), self.by.clone());
            // In a task of its own: a client who goes away leaves no batch half done.
            self.in_flight.push_back(tokio::spawn(async move {
                let answers = put_audited(&schedules, &manager, &caller, new).await;
                let item = |(id, stored): (ScheduleId, Stored)| SubmitItem {
                    status: status(stored).as_u16(),
                    id: Some(id.into()),
                    error: None,
                };
                let mut items = DeniedItems::default();
                let answers = in_order(refused, answers).inspect(|answer| items.look_at(answer));
                let answers = answers.map(|answer| answer.map_or_else(refused_item, item)).collect();
                guard.denied.note_items(&items, &by, ("POST", ROUTE));
                answers
            }));
        }
    }

    /// Returns how many of the lines that have arrived are in the next batch, and whether it is full with them.
    fn next_lines(&self) -> (usize, bool) {
        let mut bytes = 0;
        let fits = |line: &&Line| {
            let fits = bytes < BATCH_BYTES;
            bytes += line.bytes();
            fits
        };
        let count = self.arrived.iter().take(BATCH).take_while(fits).count();
        (count, count == BATCH || bytes >= BATCH_BYTES)
    }

    /// Takes the lines of the next batch, if there are enough.
    fn batch(&mut self, also_last: bool) -> Option<Batch> {
        let (count, is_full) = self.next_lines();
        if count == 0 || !(is_full || also_last || self.end.is_some()) {
            return None;
        }
        let schedule = |line: Line| match line {
            Line::Text(text) => new_schedule(parse(&text)?, None),
            Line::TooLong => {
                Err(ApiError::new(Code::BodyTooLarge, format!("a line must have at most {MAX_LINE_BYTES} bytes")))
            }
        };
        let charge = self.arrived[..count].iter().map(Line::charge).sum();
        let (new, refused) = sort_out(self.arrived.drain(..count).map(schedule));
        let ids = new.iter().map(|new| new.id.clone()).collect();
        Some(Batch { new, refused, has: Stores { lines: count, charge, ids } })
    }
}

fn none_of<T>(many: usize, error: ApiError) -> Vec<Result<T, ApiError>> {
    (0..many).map(|_| Err(error.clone())).collect()
}

/// Stores schedules, each of which that is changed has an entry in the audit before.
async fn put_audited(
    schedules: &Schedules,
    manager: &Manager,
    caller: &Caller,
    new: Vec<NewSchedule>,
) -> Vec<Result<(ScheduleId, Stored), ApiError>> {
    if !manager.keeps_audit() {
        return store_audited(schedules, manager, caller, new).await;
    }
    let foreseen = match schedules.foresee_put_many(caller, &new).await {
        Ok(foreseen) => foreseen,
        Err(error) => return none_of(new.len(), error.into()),
    };
    let mut changing = Vec::new();
    let answer = |(new, foreseen): (NewSchedule, Result<Foreseen, ScheduleError>)| match foreseen {
        Ok(Foreseen::Unchanged(_)) => Some(Ok((new.id, Stored::Unchanged))),
        Ok(Foreseen::Changed) => {
            changing.push(new);
            None
        }
        Err(error) => Some(Err(error.into())),
    };
    let answers: Vec<_> = new.into_iter().zip(foreseen).map(answer).collect();
    let mut changed = store_audited(schedules, manager, caller, changing).await.into_iter();
    let no_answer = || Err(ManagerError::Unknown("storing it failed".to_owned()).into());
    answers.into_iter().map(|answer| answer.or_else(|| changed.next()).unwrap_or_else(no_answer)).collect()
}

/// Stores schedules that are changed by that, as far as it is known.
async fn store_audited(
    schedules: &Schedules,
    manager: &Manager,
    caller: &Caller,
    new: Vec<NewSchedule>,
) -> Vec<Result<(ScheduleId, Stored), ApiError>> {
    let change = |new: &NewSchedule| AuditChange::new(ChangeName::ScheduleStored, &caller.name).of(&new.id);
    let changes: Vec<AuditChange> = new.iter().map(change).collect();
    if let Err(error) = manager.audit_changes(&changes).await {
        return none_of(new.len(), error.into());
    }
    let answers: Vec<Result<_, ApiError>> =
        schedules.put_many(caller, new).await.into_iter().map(|answer| answer.map_err(ApiError::from)).collect();
    let refused = |(change, answer): (AuditChange, &Result<_, ApiError>)| {
        answer.as_ref().err().and_then(why_not).map(|why| (change, why))
    };
    let refused: Vec<_> = changes.into_iter().zip(&answers).filter_map(refused).collect();
    if !refused.is_empty() {
        manager.audit_refusals(&refused).await;
    }
    answers
}

/// Waits for more lines; returns how it ended when no more come. `is_awaited` says whether nothing else is under way
/// that the client may wait for.
async fn arrive(
    stopping: &CancellationToken,
    lines: &mut LineStream,
    arrived: &mut Vec<Line>,
    is_awaited: bool,
) -> Option<Result<(), ApiError>> {
    match stopping.run_until_cancelled(lines.read(arrived, is_awaited)).await {
        Some(Ok(true)) => None,
        Some(Ok(false)) => Some(Ok(())),
        Some(Err(error)) => Some(Err(error)),
        None => Some(Err(ManagerError::ShuttingDown.into())),
    }
}

fn not_known() -> SubmitItem {
    refused_item(ManagerError::Unknown("storing it failed".to_owned()).into())
}
