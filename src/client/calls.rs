//! Every call of the API.

use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::error::ClientError;
use super::queries::{AuditQuery, CountQuery, JobQuery, OrphanQuery, StatsQuery};
use super::transport::{Call, Client, OpenAnswer, Repeat};
use crate::job::{JobId, Json, LimitName};
use crate::manager::LimitState;
use crate::wire::{
    AdminRelease, AuditAnswer, BulkAnswer, ChangeCluster, ChangeQueue, ChangeReason, ClaimAnswer, ClaimJobs, ClaimNext,
    ClusterStatus, CompleteJob, CompletionItem, CountAnswer, EndsAnswer, Explanation, FailJob, FieldDescription,
    FieldList, FinishJobs, Health, HeartbeatAnswer, HeartbeatItem, HeartbeatJob, HeartbeatJobs, Job, JobAndNext,
    OrphanedJob, Page, Queue, ReleaseJob, ServerHealth, SetLimit, StatsAnswer, SubmitItem, SubmitJob, Subscribe,
    Subscription, WorkerJobs, WorkerList,
};

/// How long a server works on a query before it refuses it, and how long the query may wait for its turn before, unless
/// the server's settings say otherwise.
pub(super) const QUERIES_TAKE: Duration = Duration::from_secs(60);

/// The silence after which an export counts as failed.
const EXPORT_SILENCE: Duration = Duration::from_secs(120);

impl Client {
    /// Submits a job and returns it as the server has it. A job without an id or an idempotency key is given an id
    /// first, so that a repetition after a lost answer does not make a second job.
    ///
    /// # Errors
    /// See [`ClientError`]; `submission_differs` when another job has the id or key.
    pub async fn submit(&self, job: &SubmitJob) -> Result<Job, ClientError> {
        self.post(&["v1", "jobs"], Repeat::Safe, &repeatable(job)).await
    }

    /// Submits up to 10,000 jobs; the answers come in order. As for [`Client::submit`], each job has an id or a key
    /// when it is sent.
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

    /// Returns the job with this id.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.get(&["v1", "jobs", id]).await
    }

    /// Returns the job with this id, with the values of `env` and the addresses that others do not see. The audit keeps
    /// who asked.
    ///
    /// # Errors
    /// See [`ClientError`]; `forbidden` without the role `admin`, `not_found` when there is none.
    pub async fn revealed_job(&self, id: &str) -> Result<Job, ClientError> {
        self.send(self.call(Method::GET, &["v1", "jobs", id], Repeat::Safe).query("reveal", "true")).await
    }

    /// Returns the job with this id, once it is in a final state or `wait` (at most a minute) is over.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn wait(&self, id: &str, wait: Duration) -> Result<Job, ClientError> {
        let call = self.call(Method::GET, &["v1", "jobs", id], Repeat::Safe);
        self.send(call.query("wait_ms", &wait.as_millis().to_string()).waiting(wait)).await
    }

    /// Makes a call that the server may take as long for as for a query.
    fn query_call(&self, segments: &[&str]) -> Call {
        self.call(Method::GET, segments, Repeat::Safe).waiting(QUERIES_TAKE)
    }

    /// Returns a page of the jobs that match.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn jobs(&self, query: &JobQuery) -> Result<Page<Job>, ClientError> {
        self.send(query.page(self.query_call(&["v1", "jobs"]))).await
    }

    /// Returns a page of the jobs that match, with these fields only.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn job_parts(&self, query: &JobQuery, fields: &[String]) -> Result<Page<Json>, ClientError> {
        self.send(query.page(self.query_call(&["v1", "jobs"])).each("fields", fields)).await
    }

    /// Streams all jobs that match, one per line of JSON, with these fields, or with all when none is named. The
    /// query's limit and cursor are not used.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn export(&self, query: &JobQuery, fields: &[String]) -> Result<Export, ClientError> {
        self.open(&self.export_call(query, fields)).await.map(Export)
    }

    /// Streams all jobs that match as [`Client::export`] does, with the values of `env` and the addresses that others
    /// do not see. The audit keeps who asked.
    ///
    /// # Errors
    /// See [`ClientError`]; `forbidden` without the role `admin`.
    pub async fn revealed_export(&self, query: &JobQuery, fields: &[String]) -> Result<Export, ClientError> {
        self.open(&self.export_call(query, fields).query("reveal", "true")).await.map(Export)
    }

    fn export_call(&self, query: &JobQuery, fields: &[String]) -> Call {
        let call = query.filter(self.call(Method::GET, &["v1", "jobs", "export"], Repeat::Safe));
        call.each("sort", &query.sort).each("fields", fields)
    }

    /// Lists the fields of a job, and what each can be used for in queries.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fields(&self) -> Result<Vec<FieldDescription>, ClientError> {
        Ok(self.get::<FieldList>(&["v1", "fields"]).await?.items)
    }

    /// Counts the jobs that match.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn count(&self, query: &CountQuery) -> Result<CountAnswer, ClientError> {
        let call = query.jobs.filter(self.query_call(&["v1", "jobs", "count"]));
        self.send(call.each("by", &query.by)).await
    }

    /// Returns statistics about the jobs that match: how many there are, how long they waited and how long they ran.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stats(&self, query: &StatsQuery) -> Result<StatsAnswer, ClientError> {
        self.send(query.parameters(self.query_call(&["v1", "jobs", "stats"]))).await
    }

    /// Returns a page of the audit. One with few events, or none, can have a next page.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn audit(&self, query: &AuditQuery) -> Result<AuditAnswer, ClientError> {
        self.send(query.parameters(self.query_call(&["v1", "audit"]))).await
    }

    /// Claims jobs. With a `request_id`, the call is repeated after a lost answer and gets the same jobs; without one,
    /// the jobs of a lost answer wait until their leases expire.
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

    /// Extends the lease of one job.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when another worker holds the lease.
    pub async fn heartbeat(&self, id: &str, beat: &HeartbeatJob) -> Result<HeartbeatAnswer, ClientError> {
        self.post(&["v1", "jobs", id, "heartbeat"], Repeat::Safe, beat).await
    }

    /// Extends the leases of many jobs; the answers come in order.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn heartbeats(&self, beats: &HeartbeatJobs) -> Result<Vec<HeartbeatItem>, ClientError> {
        let answer: BulkAnswer<_> = self.post(&["v1", "heartbeats"], Repeat::Safe, beats).await?;
        Ok(answer.items)
    }

    /// Completes a job and returns it as it then is.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when another worker holds the lease.
    pub async fn complete(&self, id: &str, done: &CompleteJob) -> Result<Job, ClientError> {
        self.post(&["v1", "jobs", id, "complete"], Repeat::Safe, done).await
    }

    /// Completes a job and claims the next ones, as `done.next` asks. The call is repeated after a lost answer.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when another worker holds the lease.
    pub async fn complete_and_claim(&self, id: &str, done: &CompleteJob) -> Result<JobAndNext, ClientError> {
        let again = CompleteJob { next: done.next.clone().map(repeated), ..done.clone() };
        let call = self.call(Method::POST, &["v1", "jobs", id, "complete"], Repeat::Safe);
        self.send(call.json(done)?.json_again(&again)?.waiting(wait_for(done.next.as_ref()))).await
    }

    /// Fails an attempt and returns the job as it then is.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when another worker holds the lease.
    pub async fn fail(&self, id: &str, failure: &FailJob) -> Result<Job, ClientError> {
        self.post(&["v1", "jobs", id, "fail"], Repeat::Safe, failure).await
    }

    /// Gives a job back without using up the attempt, and returns it as it then is.
    ///
    /// # Errors
    /// See [`ClientError`]; `lease_lost` when another worker holds the lease.
    pub async fn release(&self, id: &str, release: &ReleaseJob) -> Result<Job, ClientError> {
        self.post(&["v1", "jobs", id, "release"], Repeat::Safe, release).await
    }

    /// Completes or fails many jobs of one worker; the answers come in order.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn finish(&self, finishes: &FinishJobs) -> Result<Vec<CompletionItem>, ClientError> {
        let answer: BulkAnswer<_> = self.post(&["v1", "completions"], Repeat::Safe, finishes).await?;
        Ok(answer.items)
    }

    /// Completes or fails many jobs of one worker and claims the next ones, as `finishes.next` asks. The call is
    /// repeated after a lost answer.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn finish_and_claim(&self, finishes: &FinishJobs) -> Result<EndsAnswer, ClientError> {
        let mut call = self.call(Method::POST, &["v1", "completions"], Repeat::Safe).json(finishes)?;
        if let Some(next) = &finishes.next {
            let again = FinishJobs { next: Some(repeated(next.clone())), ..finishes.clone() };
            call = call.json_again(&again)?.waiting(wait_for(Some(next)));
        }
        self.send(call).await
    }

    /// Cancels a job; a running one is asked to stop.
    ///
    /// # Errors
    /// See [`ClientError`]; `already_final` when it has ended in another way.
    pub async fn cancel(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let cancel = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "jobs", id, "cancel"], Repeat::Safe, &cancel).await
    }

    /// Starts a failed, cancelled or expired job again.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_retryable` when it is in another state.
    pub async fn retry(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let retry = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "jobs", id, "retry"], Repeat::Unsafe, &retry).await
    }

    /// Ends a running job's lease without its worker.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_running`, or `fence_moved` when the job was claimed again.
    pub async fn admin_release(&self, id: &str, order: &AdminRelease) -> Result<Job, ClientError> {
        self.post(&["v1", "admin", "jobs", id, "release"], Repeat::Unsafe, order).await
    }

    /// Subscribes a receiver to events. Only this answer and that of [`Client::change_secret`] hold the secret.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn subscribe(&self, new: &Subscribe) -> Result<Subscription, ClientError> {
        self.post(&["v1", "subscriptions"], Repeat::Unsafe, new).await
    }

    /// Lists all subscriptions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, ClientError> {
        Ok(self.get::<Page<Subscription>>(&["v1", "subscriptions"]).await?.items)
    }

    /// Removes a subscription.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn unsubscribe(&self, id: &str) -> Result<(), ClientError> {
        self.send_raw(self.call(Method::DELETE, &["v1", "subscriptions", id], Repeat::Unsafe)).await.map(drop)
    }

    /// Enables a subscription that was switched off.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn enable_subscription(&self, id: &str) -> Result<Subscription, ClientError> {
        self.send(self.call(Method::POST, &["v1", "subscriptions", id, "enable"], Repeat::Safe)).await
    }

    /// Changes a subscription's secret and returns the new one.
    ///
    /// # Errors
    /// See [`ClientError`]; `subscription_not_found` when there is none.
    pub async fn change_secret(&self, id: &str) -> Result<Subscription, ClientError> {
        self.send(self.call(Method::POST, &["v1", "subscriptions", id, "secret"], Repeat::Unsafe)).await
    }

    /// Returns a page of the running jobs that look orphaned.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn orphans(&self, query: &OrphanQuery) -> Result<Page<OrphanedJob>, ClientError> {
        self.send(query.parameters(self.call(Method::GET, &["v1", "admin", "orphans"], Repeat::Safe))).await
    }

    /// Lists all queues with their settings and statistics.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn queues(&self) -> Result<Page<Queue>, ClientError> {
        self.get(&["v1", "queues"]).await
    }

    /// Returns one queue with its settings and statistics.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn queue(&self, name: &str) -> Result<Queue, ClientError> {
        self.get(&["v1", "queues", name]).await
    }

    /// Lists the limits that are set, each with the jobs that run under it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn limits(&self) -> Result<Page<LimitState>, ClientError> {
        self.get(&["v1", "limits"]).await
    }

    /// Returns a limit with the jobs that run under it, whether it is set or only named by jobs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn limit(&self, limit: &LimitName) -> Result<LimitState, ClientError> {
        self.get(&["v1", "limits", limit.scope.as_str(), limit.of.as_str()]).await
    }

    /// Sets how many jobs of a queue, kind, owner or key run at once, or begin in a time.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_limit(&self, limit: &LimitName, set: &SetLimit) -> Result<LimitState, ClientError> {
        let segments = ["v1", "limits", limit.scope.as_str(), limit.of.as_str()];
        self.send(self.call(Method::PUT, &segments, Repeat::Safe).json(set)?).await
    }

    /// Takes a limit away.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_limit(&self, limit: &LimitName) -> Result<(), ClientError> {
        let segments = ["v1", "limits", limit.scope.as_str(), limit.of.as_str()];
        self.send_raw(self.call(Method::DELETE, &segments, Repeat::Safe)).await.map(drop)
    }

    /// Pauses a queue and returns it as it then is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause_queue(&self, name: &str, reason: Option<&str>) -> Result<Queue, ClientError> {
        let pause = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "queues", name, "pause"], Repeat::Safe, &pause).await
    }

    /// Resumes a queue and returns it as it then is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_queue(&self, name: &str) -> Result<Queue, ClientError> {
        self.send(self.call(Method::POST, &["v1", "queues", name, "resume"], Repeat::Safe)).await
    }

    /// Changes a queue's settings and returns it as it then is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn change_queue(&self, name: &str, change: &ChangeQueue) -> Result<Queue, ClientError> {
        self.send(self.call(Method::PATCH, &["v1", "queues", name], Repeat::Safe).json(change)?).await
    }

    /// Lists the workers that the server has heard of lately, and those that run jobs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn workers(&self) -> Result<WorkerList, ClientError> {
        self.get(&["v1", "workers"]).await
    }

    /// Returns a worker with the first page of the jobs that it runs.
    ///
    /// # Errors
    /// See [`ClientError`]; `no_such_worker` when the server does not know the worker.
    pub async fn worker(&self, id: &str) -> Result<WorkerJobs<'static>, ClientError> {
        self.get(&["v1", "workers", id]).await
    }

    /// Explains why a job does not run, or how it is doing.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is none.
    pub async fn explain(&self, id: &str) -> Result<Explanation, ClientError> {
        self.get(&["v1", "jobs", id, "explain"]).await
    }

    /// Returns whether the server is ready to serve.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ready(&self) -> Result<Health, ClientError> {
        self.get(&["readyz"]).await
    }

    /// Returns the server's health.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn health(&self) -> Result<ServerHealth, ClientError> {
        self.get(&["v1", "health"]).await
    }

    /// Returns where the member that is called stands in its cluster.
    ///
    /// # Errors
    /// See [`ClientError`]; `no_such_route` when the server is not a member of a cluster.
    pub async fn cluster(&self) -> Result<ClusterStatus, ClientError> {
        self.get(&["v1", "cluster"]).await
    }

    /// Changes the members of the cluster, or who leads it. The call is repeated after a lost answer.
    ///
    /// # Errors
    /// See [`ClientError`]; `members_unchanged` when it cannot be done now.
    pub async fn change_cluster(&self, change: &ChangeCluster) -> Result<ClusterStatus, ClientError> {
        self.post(&["v1", "admin", "cluster"], Repeat::Safe, change).await
    }

    /// Returns the server's metrics in Prometheus' text format.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let text = self.send_raw(self.call(Method::GET, &["metrics"], Repeat::Safe)).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The jobs of an export as they arrive, one per line of JSON.
#[derive(Debug)]
pub struct Export(OpenAnswer);

impl Export {
    /// Returns the next bytes; `None` when the export is complete. After an error, the export is incomplete.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let silent = || ClientError::Timeout(format!("nothing came for {} s", EXPORT_SILENCE.as_secs()));
        let part = tokio::time::timeout(EXPORT_SILENCE, self.0.chunk()).await;
        part.unwrap_or_else(|_| Err(self.0.broke_off(silent())))
    }
}

/// Returns the job, with a new id if it has neither an id nor a key, so that it can be sent twice.
fn repeatable(job: &SubmitJob) -> SubmitJob {
    let mut job = job.clone();
    if job.id.is_none() && job.idempotency_key.is_none() {
        job.id = Some(JobId::generate().into());
    }
    job
}

fn repeated(next: ClaimNext) -> ClaimNext {
    ClaimNext { repeated: true, ..next }
}

fn wait_for(next: Option<&ClaimNext>) -> Duration {
    Duration::from_millis(next.and_then(|next| next.wait_ms).unwrap_or_default())
}
