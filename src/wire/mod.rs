//! The requests and answers of the HTTP API, as JSON.
//!
//! Durations are integers in milliseconds and their names end in `_ms`; times are RFC 3339 in UTC with milliseconds.
//! A request with a field that is not listed here is refused. A request becomes a domain type only through its
//! `into_…` function, which checks every field and names each one that is wrong ([`check`]). A domain type is an
//! answer itself where both have the same fields, and becomes one through `From` where they differ. The answers of hot
//! paths are written straight from the domain type, without copies ([`job::JobAnswer`]). What the API's description
//! says beyond these types is in [`described`] and [`selected`].

pub mod admin;
pub mod audit;
pub mod backfill;
pub mod bulk;
pub mod check;
pub mod claims;
pub mod cluster;
pub(crate) mod cookie;
pub(crate) mod described;
pub mod edit;
pub mod event;
pub mod fields;
pub mod health;
pub mod health_check;
pub mod hidden;
pub mod job;
pub mod limits;
pub mod lists;
pub mod output;
pub mod problem;
pub mod queues;
pub mod schedule_bulk;
pub mod schedules;
pub(crate) mod selected;
mod selection;
pub mod stats;
pub mod submit;
pub mod subscriptions;
pub mod work;
pub mod workers;

pub use crate::job::Then;
pub use crate::manager::{
    Explanation, Fairness, HeartbeatAnswer, JobOrder, OrphanAction, OrphanEvidence, OrphanNext, OrphanedJob, Pause,
    Queue, QueueOrder, Reason, Survey, Throughput, Worker,
};
pub use admin::{BulkChange, BulkFilter};
pub use audit::{AuditAnswer, AuditChange, AuditEvent};
pub use backfill::{BackfillSchedule, StartedBackfill};
pub use bulk::{
    BulkAnswer, BulkReport, ChangeFailure, CompletionItem, HeartbeatItem, ItemError, OutputItem, SubmitItem,
};
pub use check::{FieldError, Invalid, MAX_LABEL_BYTES};
pub(crate) use claims::EndAnswer;
pub use claims::{ClaimAnswer, ClaimJobs, ClaimNext, EndsAnswer, JobAndNext, NextJobs};
pub use cluster::{
    CLUSTER, ChangeCluster, ClusterHindrance, ClusterMember, ClusterRole, ClusterStatus, HindranceReason,
    MemberClockState, clock_trouble, went_back,
};
pub use edit::EditJob;
pub use event::{EventJob, JobEvent};
pub use fields::{FieldDescription, FieldList};
pub use health::{Capacity, Distribution, KindLoad, Performance, ServerHealth};
pub(crate) use health_check::StoreHealth;
pub use health_check::{HealthCheck, HealthCheckName, HealthStatus};
pub use hidden::Sight;
pub(crate) use job::JOB_FIELDS;
pub use job::{
    HistoryEntry, Job, JobAnswer, JobBody, JobError, JobState, Lease, NotifyTarget, Orphan, Progress, RetryPolicy,
    Version,
};
pub use limits::{SetLimit, SetRate, SetUrgent};
pub use lists::{CountAnswer, CountGroup, Health, Me, Page};
pub use output::{AttemptOutput, OutputPart, OutputStream, PieceOfOutput, PutOutput, PutOutputs};
pub use problem::Problem;
pub use queues::ChangeQueue;
pub use schedule_bulk::{BulkScheduleChange, BulkScheduleFilter};
pub use schedules::{ExcludedDates, FireTimes, MadeTrigger, Period, PreviewSchedule, PutSchedule, Schedule};
pub use stats::{Durations, StatsAnswer, StatsFigures, StatsRow};
pub use submit::{RetryOptions, SubmitJob};
pub use subscriptions::{SigningKey, Subscribe, Subscription};
pub use work::{
    AdminRelease, AwaitRecalls, CancelJob, ChangeReason, CompleteJob, Completion, FailJob, FinishJobs, HeartbeatJob,
    HeartbeatJobs, HeldLease, LeaseBeat, RecallList, ReleaseJob,
};
pub use workers::{WorkerJobs, WorkerList};
