//! Every call of the API.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Response;
use serde::Serialize;

use super::error::ClientError;
use super::transport::{Call, Client, Repeat};
use crate::job::JobId;
use crate::wire::{
    AdminRelease, BulkAnswer, CancelJob, ChangeMany, ChangeQueue, ClaimAnswer, ClaimJobs, CompleteJob, CompletionItem,
    CountAnswer, Explanation, FailJob, FieldDescription, FieldList, FinishJobs, Health, HeartbeatAnswer, HeartbeatItem,
    HeartbeatJob, HeartbeatJobs, Job, JobList, JobState, ManyChanged, OrphanList, PartList, PauseQueue, Queue,
    QueueList, ReleaseJob, ReleaseMany, RetryJob, ServerHealth, StatsAnswer, SubmitItem, SubmitJob, Subscribe,
    Subscription, SubscriptionList, WorkerJobs, WorkerList,
};

/// How long a server changes many jobs before it answers where to go on, and then some for the page it is at.
const MANY_TAKE: Duration = Duration::from_secs(30);

/// After how much silence an export is given up.
const EXPORT_SILENCE: Duration = Duration::from_secs(120);

/// Which jobs are listed or counted: all that satisfy every part. An empty part is satisfied by any job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// In one of these states.
    pub states: Vec<JobState>,
    /// In one of these queues.
    pub queues: Vec<String>,
    /// Of one of these kinds.
    pub kinds: Vec<String>,
    /// Belonging to one of these owners.
    pub owners: Vec<String>,
    /// As this query in Kibana's language says.
    pub kql: Option<String>,
    /// Where the query's times without a zone are meant, such as `Europe/Berlin`; UTC when not said.
    pub time_zone: Option<String>,
    /// The order: a field's name, with a leading `-` for the largest first. `-created_at` when not said. Not used by
    /// a count.
    pub sort: Option<String>,
    /// How many on a page, at most 1,000. 100 when not said. Not used by a count.
    pub limit: Option<u64>,
    /// Where the page begins: the page before's `next_cursor`. Not used by a count.
    pub cursor: Option<String>,
}

/// Which jobs are counted, and by what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountQuery {
    /// Which jobs.
    pub jobs: JobQuery,
    /// Grouped by these fields.
    pub by: Vec<String>,
}

/// Which figures are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsQuery {
    /// About which jobs.
    pub jobs: JobQuery,
    /// Grouped by these fields.
    pub by: Vec<String>,
    /// With a row for each interval of this length, such as `1h`.
    pub interval: Option<String>,
    /// In which a job belongs by this time; `created_at` when not said.
    pub time: Option<String>,
    /// Which percentiles; 50, 95 and 99 when none is named.
    pub percentiles: Vec<f64>,
}

/// Which jobs that look abandoned are listed: all that satisfy every part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanQuery {
    /// In one of these queues.
    pub queues: Vec<String>,
    /// Of one of these kinds.
    pub kinds: Vec<String>,
    /// Belonging to one of these owners.
    pub owners: Vec<String>,
    /// Held by this worker.
    pub worker: Option<String>,
    /// How many on a page, at most 1,000. 100 when not said.
    pub limit: Option<u64>,
    /// Where the page begins: the page before's `next_cursor`.
    pub cursor: Option<String>,
}

impl OrphanQuery {
    fn parameters(&self) -> impl Iterator<Item = (&'static str, String)> {
        let lists = [("queue", &self.queues), ("kind", &self.kinds), ("owner", &self.owners)];
        let lists = lists.into_iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value.clone())));
        let limit = self.limit.map(|limit| limit.to_string());
        let single = [("worker", self.worker.clone()), ("limit", limit), ("cursor", self.cursor.clone())];
        lists.chain(single.into_iter().filter_map(|(name, value)| Some((name, value?))))
    }
}

impl Client {
    /// Submits a job and gives it as the server has it. One without an id or an idempotency key is given an id first,
    /// so that a lost answer does not make two.
    ///
    /// # Errors
    /// See [`ClientError`]; `submission_differs` when another job has the id or key.
    pub async fn submit(&self, job: &SubmitJob) -> Result<Job, ClientError> {
        let call = self.call(Method::POST, &["v1", "jobs"], Repeat::Safe);
        self.send(call.json(&repeatable(job))?).await
    }

    /// Submits up to 10,000 jobs; answers in order. As for [`Client::submit`], each has an id or a key when it is sent.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn submit_bulk(&self, jobs: &[SubmitJob]) -> Result<Vec<SubmitItem>, ClientError> {
        let mut lines = Vec::new();
        for job in jobs {
            serde_json::to_writer(&mut lines, &repeatable(job)).map_err(|e| ClientError::Usage(e.to_string()))?;
            lines.push(b'\n');
        }
        let call = self.call(Method::POST, &["v1", "jobs", "bulk"], Repeat::Safe).body(lines, "application/x-ndjson");
        Ok(self.send::<BulkAnswer<SubmitItem>>(call).await?.items)
    }

    /// The job with this id.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.send(self.job_call(Method::GET, id, &[], Repeat::Safe)).await
    }

    /// The job with this id, once it is in a final state or `wait` (at most a minute) is over.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn wait(&self, id: &str, wait: Duration) -> Result<Job, ClientError> {
        let call = self.job_call(Method::GET, id, &[], Repeat::Safe);
        self.send(call.query("wait_ms", &wait.as_millis().to_string()).waiting(wait)).await
    }

    /// A page of the jobs asked for.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn jobs(&self, query: &JobQuery) -> Result<JobList, ClientError> {
        self.send(self.list_call(query)).await
    }

    /// A page of jobs with these fields only.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn job_parts(&self, query: &JobQuery, fields: &[String]) -> Result<PartList, ClientError> {
        let call = self.list_call(query);
        self.send(fields.iter().fold(call, |call, field| call.query("fields", field))).await
    }

    fn list_call(&self, query: &JobQuery) -> Call {
        let mut call = query.filter(self.call(Method::GET, &["v1", "jobs"], Repeat::Safe));
        if let Some(sort) = &query.sort {
            call = call.query("sort", sort);
        }
        if let Some(limit) = query.limit {
            call = call.query("limit", &limit.to_string());
        }
        if let Some(cursor) = &query.cursor {
            call = call.query("cursor", cursor);
        }
        call
    }

    /// Every job of those asked for, one a line of JSON, with these fields, or all when none is named. The query's limit
    /// and cursor are not used.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn export(&self, query: &JobQuery, fields: &[String]) -> Result<Export, ClientError> {
        let mut call = query.filter(self.call(Method::GET, &["v1", "jobs", "export"], Repeat::Safe));
        if let Some(sort) = &query.sort {
            call = call.query("sort", sort);
        }
        call = fields.iter().fold(call, |call, field| call.query("fields", field));
        self.open(&call).await.map(Export)
    }

    /// What can be asked of jobs, field by field.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fields(&self) -> Result<Vec<FieldDescription>, ClientError> {
        let call = self.call(Method::GET, &["v1", "fields"], Repeat::Safe);
        Ok(self.send::<FieldList>(call).await?.items)
    }

    /// How many jobs there are of those asked for.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn count(&self, query: &CountQuery) -> Result<CountAnswer, ClientError> {
        let call = query.jobs.filter(self.call(Method::GET, &["v1", "jobs", "count"], Repeat::Safe));
        self.send(query.by.iter().fold(call, |call, field| call.query("by", field.as_str()))).await
    }

    /// How many jobs there are of those asked for, how long they waited and how long they took.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stats(&self, query: &StatsQuery) -> Result<StatsAnswer, ClientError> {
        let mut call = query.jobs.filter(self.call(Method::GET, &["v1", "jobs", "stats"], Repeat::Safe));
        for (name, value) in [("interval", &query.interval), ("time", &query.time)] {
            call = value.iter().fold(call, |call, value| call.query(name, value));
        }
        call = query.by.iter().fold(call, |call, field| call.query("by", field));
        let percentiles = query.percentiles.iter();
        call = percentiles.fold(call, |call, percent| call.query("percentiles", &percent.to_string()));
        self.send(call).await
    }

    /// Claims jobs. With a `request_id`, a lost answer is asked for again and loses no time; without one, its jobs wait
    /// for their leases to end.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn claim(&self, claim: &ClaimJobs) -> Result<ClaimAnswer, ClientError> {
        let repeat = if claim.request_id.is_some() { Repeat::Safe } else { Repeat::Unsafe };
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or_default());
        let mut call = self.call(Method::POST, &["v1", "claims"], repeat).json(claim)?.waiting(wait);
        if claim.request_id.is_some() {
            call = call.json_again(&ClaimJobs { repeated: true, ..claim.clone() })?;
        }
        self.send(call).await
    }

    /// Keeps the lease of one job.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when it is another's.
    pub async fn heartbeat(&self, id: &str, beat: &HeartbeatJob) -> Result<HeartbeatAnswer, ClientError> {
        self.send(self.job_call(Method::POST, id, &["heartbeat"], Repeat::Safe).json(beat)?).await
    }

    /// Keeps the leases of many jobs; answers in order.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn heartbeats(&self, beats: &HeartbeatJobs) -> Result<Vec<HeartbeatItem>, ClientError> {
        let call = self.call(Method::POST, &["v1", "heartbeats"], Repeat::Safe).json(beats)?;
        Ok(self.send::<BulkAnswer<HeartbeatItem>>(call).await?.items)
    }

    /// Completes a job and gives it as it is then.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when it is another's.
    pub async fn complete(&self, id: &str, done: &CompleteJob) -> Result<Job, ClientError> {
        self.send(self.job_call(Method::POST, id, &["complete"], Repeat::Safe).json(done)?).await
    }

    /// Fails an attempt and gives the job as it is then.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when it is another's.
    pub async fn fail(&self, id: &str, failure: &FailJob) -> Result<Job, ClientError> {
        self.send(self.job_call(Method::POST, id, &["fail"], Repeat::Safe).json(failure)?).await
    }

    /// Gives a job back unharmed and gives it as it is then.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when it is another's.
    pub async fn release(&self, id: &str, release: &ReleaseJob) -> Result<Job, ClientError> {
        self.send(self.job_call(Method::POST, id, &["release"], Repeat::Safe).json(release)?).await
    }

    /// Completes or fails many jobs of one worker; answers in order.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn finish(&self, finishes: &FinishJobs) -> Result<Vec<CompletionItem>, ClientError> {
        let call = self.call(Method::POST, &["v1", "completions"], Repeat::Safe).json(finishes)?;
        Ok(self.send::<BulkAnswer<CompletionItem>>(call).await?.items)
    }

    /// Calls a job off; a running one is asked to stop.
    ///
    /// # Errors
    /// See [`ClientError`]; `already_final` when it has ended otherwise.
    pub async fn cancel(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let cancel = CancelJob { reason: reason.map(str::to_owned) };
        self.send(self.job_call(Method::POST, id, &["cancel"], Repeat::Safe).json(&cancel)?).await
    }

    /// Starts a failed, cancelled or expired job again.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_retryable` when it is in another state.
    pub async fn retry(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let retry = RetryJob { reason: reason.map(str::to_owned) };
        self.send(self.job_call(Method::POST, id, &["retry"], Repeat::Unsafe).json(&retry)?).await
    }

    /// Ends a running job's lease without its worker.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_running`, or `fence_moved` when it was claimed anew.
    pub async fn admin_release(&self, id: &str, order: &AdminRelease) -> Result<Job, ClientError> {
        let call = self.call(Method::POST, &["v1", "admin", "jobs", id, "release"], Repeat::Unsafe);
        self.send(call.json(order)?).await
    }

    /// Subscribes a receiver to events; the answer is the only one with its secret.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn subscribe(&self, new: &Subscribe) -> Result<Subscription, ClientError> {
        self.send(self.call(Method::POST, &["v1", "subscriptions"], Repeat::Unsafe).json(new)?).await
    }

    /// Every subscription.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, ClientError> {
        let call = self.call(Method::GET, &["v1", "subscriptions"], Repeat::Safe);
        Ok(self.send::<SubscriptionList>(call).await?.items)
    }

    /// Ends a subscription.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn unsubscribe(&self, id: &str) -> Result<(), ClientError> {
        self.send_raw(self.call(Method::DELETE, &["v1", "subscriptions", id], Repeat::Unsafe)).await.map(drop)
    }

    /// Tells a receiver again that was told nothing any more.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn enable_subscription(&self, id: &str) -> Result<Subscription, ClientError> {
        self.send(self.call(Method::POST, &["v1", "subscriptions", id, "enable"], Repeat::Safe)).await
    }

    /// Changes a subscription's secret, and gives the new one.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn change_secret(&self, id: &str) -> Result<Subscription, ClientError> {
        self.send(self.call(Method::POST, &["v1", "subscriptions", id, "secret"], Repeat::Unsafe)).await
    }

    /// A page of the running jobs that look abandoned.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanList, ClientError> {
        let call = self.call(Method::GET, &["v1", "admin", "orphans"], Repeat::Safe);
        self.send(query.parameters().fold(call, |call, (name, value)| call.query(name, &value))).await
    }

    /// Takes many jobs from their workers, or counts them. Sent again only when it was not heard: the second time could
    /// take jobs away that were claimed anew.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn release_many(&self, order: &ReleaseMany) -> Result<ManyChanged, ClientError> {
        self.change_many("release", order.dry_run, order).await
    }

    /// Calls many jobs off, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_many(&self, order: &ChangeMany) -> Result<ManyChanged, ClientError> {
        self.change_many("cancel", order.dry_run, order).await
    }

    /// Starts many jobs again, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn retry_many(&self, order: &ChangeMany) -> Result<ManyChanged, ClientError> {
        self.change_many("retry", order.dry_run, order).await
    }

    async fn change_many(
        &self,
        action: &str,
        dry_run: bool,
        order: &impl Serialize,
    ) -> Result<ManyChanged, ClientError> {
        let repeat = if dry_run { Repeat::Safe } else { Repeat::Unsafe };
        let call = self.call(Method::POST, &["v1", "admin", "jobs", action], repeat);
        self.send(call.json(order)?.waiting(MANY_TAKE)).await
    }

    /// How every queue stands.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn queues(&self) -> Result<QueueList, ClientError> {
        self.send(self.call(Method::GET, &["v1", "queues"], Repeat::Safe)).await
    }

    /// How one queue stands.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn queue(&self, name: &str) -> Result<Queue, ClientError> {
        self.send(self.call(Method::GET, &["v1", "queues", name], Repeat::Safe)).await
    }

    /// Holds a queue back and gives it as it is then.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause_queue(&self, name: &str, reason: Option<&str>) -> Result<Queue, ClientError> {
        let pause = PauseQueue { reason: reason.map(str::to_owned) };
        self.send(self.call(Method::POST, &["v1", "queues", name, "pause"], Repeat::Safe).json(&pause)?).await
    }

    /// Hands a queue's jobs out again and gives it as it is then.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_queue(&self, name: &str) -> Result<Queue, ClientError> {
        self.send(self.call(Method::POST, &["v1", "queues", name, "resume"], Repeat::Safe)).await
    }

    /// Changes what is set for a queue and gives it as it is then.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn change_queue(&self, name: &str, change: &ChangeQueue) -> Result<Queue, ClientError> {
        self.send(self.call(Method::PATCH, &["v1", "queues", name], Repeat::Safe).json(change)?).await
    }

    /// The workers that the server has heard of lately, and those that run jobs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn workers(&self) -> Result<WorkerList, ClientError> {
        self.send(self.call(Method::GET, &["v1", "workers"], Repeat::Safe)).await
    }

    /// A worker with the first page of the jobs that it runs.
    ///
    /// # Errors
    /// See [`ClientError`]; `no_such_worker` when nothing is known of it.
    pub async fn worker(&self, id: &str) -> Result<WorkerJobs, ClientError> {
        self.send(self.call(Method::GET, &["v1", "workers", id], Repeat::Safe)).await
    }

    /// Why a job does not run, or how it is doing.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn explain(&self, id: &str) -> Result<Explanation, ClientError> {
        self.send(self.job_call(Method::GET, id, &["explain"], Repeat::Safe)).await
    }

    /// Whether the server could serve now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ready(&self) -> Result<Health, ClientError> {
        self.send(self.call(Method::GET, &["readyz"], Repeat::Safe)).await
    }

    /// How the server is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn health(&self) -> Result<ServerHealth, ClientError> {
        self.send(self.call(Method::GET, &["v1", "health"], Repeat::Safe)).await
    }

    /// The server's metrics in Prometheus' text format.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let text = self.send_raw(self.call(Method::GET, &["metrics"], Repeat::Safe)).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn job_call(&self, method: Method, id: &str, verb: &[&str], repeat: Repeat) -> Call {
        let mut segments = vec!["v1", "jobs", id];
        segments.extend_from_slice(verb);
        self.call(method, &segments, repeat)
    }
}

/// Jobs on their way in, one a line.
#[derive(Debug)]
pub struct Export(Response);

impl Export {
    /// The next bytes; none when all have come. After an error what has come is not all there is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let silent = |_| ClientError::Timeout(format!("nothing came for {} s", EXPORT_SILENCE.as_secs()));
        Ok(tokio::time::timeout(EXPORT_SILENCE, self.0.chunk()).await.map_err(silent)??)
    }
}

impl JobQuery {
    /// Adds the filter's parameters: repeated ones, so that a name may hold a comma.
    fn filter(&self, call: Call) -> Call {
        let states = self.states.iter().map(|state| ("state", state.as_str()));
        let names = [("queue", &self.queues), ("kind", &self.kinds), ("owner", &self.owners)];
        let names = names.iter().flat_map(|(name, values)| values.iter().map(|value| (*name, value.as_str())));
        let kql = self.kql.iter().map(|kql| ("kql", kql.as_str()));
        let zone = self.time_zone.iter().map(|zone| ("time_zone", zone.as_str()));
        states.chain(names).chain(kql).chain(zone).fold(call, |call, (name, value)| call.query(name, value))
    }
}

/// The job with an id or a key, so that it can be sent twice.
fn repeatable(job: &SubmitJob) -> SubmitJob {
    let mut job = job.clone();
    if job.id.is_none() && job.idempotency_key.is_none() {
        job.id = Some(JobId::generate().into());
    }
    job
}
