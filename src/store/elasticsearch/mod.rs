//! The store on Elasticsearch, or OpenSearch: for many machines.
//!
//! A job is one document of the index `{prefix}jobs` or, once it has ended some time ago, of its month's
//! `{prefix}archive-2026.11`; a long payload or result is one of `{prefix}bodies`, a record one of `{prefix}records`, a
//! schedule one of `{prefix}schedules`. A write is conditional on `if_seq_no` and `if_primary_term` (`op_type=create`
//! for a new job); a search finds candidates and may lag.
//!
//! In reading order:
//!
//! - the server: [`connect`] (the start and its checks), [`indices`], [`definition`] and [`migrate`] (what the
//!   indices are, and how older ones become that), `shards` and `resize` (how one gets another number of shards),
//!   [`flavour`] (which server it is), [`nodes`] and [`health`] (requests, deadlines, second tries), `fault` and
//!   `standing` (indices that are not as they should be);
//! - a document: [`document`] and [`documents`] (a job as JSON), [`write_id`], [`resolution`] and [`conditional`] (what
//!   a lost answer means, and what is done then), `unreadable` (documents of other versions), [`encryption`] and
//!   [`keys_in_use`] (what is secret in a document, and with which keys it is encrypted);
//! - the way of a write: `writer`, `caller`, `intake`, `batch`, `task`, `bulk`, `bodies` and `cleaning`, which share a
//!   `context`;
//! - reads: `reader`, `search`, `heads` (who is first in the line of an ordering key), `query_time`, `stats` and
//!   [`kql`] (Kibana's query language as the server's);
//! - the archive: [`archive`] (where jobs lie, and what decides it), [`tombstone`], [`locate`], `reach` (which months
//!   can be read), [`copies`], [`months`] and [`mover`];
//! - beside the jobs: `collection` (documents that are compared and swapped as jobs are, without an archive), of which
//!   there are [`records`] and [`schedules`]; `audit`, `output` and `time` (what time it is by the nodes' clocks).
//!
//! The store's promises: a write is acknowledged only on the server's own acknowledgement of that write or of one more
//! with the same content; an outcome that cannot be determined is *unknown*, never *failed*; nothing is sent that would
//! do harm when it is sent twice.

mod archive;
mod audit;
mod batch;
mod bodies;
mod bulk;
mod caller;
mod cleaning;
mod collection;
mod conditional;
mod connect;
mod context;
mod copies;
mod definition;
mod document;
mod documents;
mod encryption;
mod error;
mod fault;
mod flavour;
#[cfg(test)]
mod golden;
mod heads;
mod health;
mod indices;
mod intake;
mod keys_in_use;
pub mod kql;
mod left_bodies;
mod locate;
mod migrate;
mod months;
mod mover;
mod nodes;
mod options;
mod output;
mod query_time;
mod reach;
mod reader;
mod records;
mod resize;
mod resolution;
mod schedules;
mod search;
mod shards;
mod standing;
mod stats;
mod task;
mod time;
mod tombstone;
mod unreadable;
mod write_id;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use encryption::{EncryptionKeys, InvalidEncryptionKeys};
pub use error::ConnectError;
pub use migrate::Migration;
pub use options::ElasticsearchOptions;

use self::audit::Audit;
use self::context::Context;
use self::definition::Definitions;
use self::flavour::Flavour;
use self::mover::Mover;
use self::nodes::Request;
use self::output::Outputs;
use self::query_time::QueryTime;
use self::reach::Reach;
use self::reader::Reader;
use self::records::Records;
use self::schedules::Schedules;
use self::search::Scope;
use self::unreadable::Unreadable;
use self::write_id::{RecentWrites, WriteIdSource};
use self::writer::Writer;
use super::{
    Archived, AuditEntry, AuditPage, AuditSearch, DueSchedules, Head, ListSchedules, OutputStore, Record, RecordKey,
    RecordKind, RecordWrite, Refresh, ScheduleResult, ScheduleWrite, Sought, Store, StoreError, StoredSchedule,
    Versioned, Write, WriteResult,
};
use crate::clock::{SystemClock, Timestamp};
use crate::job::{BodyRef, Job, JobId, Json, OrderingKey, RecordName, ScheduleId};
use crate::query::stats::{GroupBy, MAX_ROWS, Stats, StatsRequest};
use crate::query::{Filter, Group, GroupField, Query, ScheduleFilter, Search};

/// The longest body kept in the job's document: one that is not written again with every heartbeat pays for its own
/// document from about here on.
const INLINE_LIMIT: usize = 4 * 1024;
/// The longest time that a readiness check may take.
const READY_TIMEOUT: Duration = Duration::from_secs(3);

/// A store of jobs on Elasticsearch or OpenSearch.
pub struct ElasticsearchStore {
    context: Arc<Context>,
    flavour: Flavour,
    writer: Writer,
    reader: Reader,
    records: Records,
    schedules: Schedules,
    audit: Audit,
    outputs: Arc<Outputs>,
    mover: Mover,
    read_timeout: Duration,
    query_time: Duration,
    closed: AtomicBool,
    _watch: AbortOnDropHandle<()>,
}

impl ElasticsearchStore {
    /// Tries once to open the store: reaches a node, makes the indices if they are missing, and checks them.
    ///
    /// # Errors
    /// [`ConnectError`] says what is wrong, and whether trying again can help.
    pub async fn connect(options: ElasticsearchOptions) -> Result<Self, ConnectError> {
        options.check()?;
        let indices = options.indices()?;
        let nodes = options.nodes()?;
        let (server, standing) = connect::prepare(&nodes, &indices, &options).await?;
        tracing::info!(server = %server.flavour, version = server.version, "connected to the store");
        let definitions = Definitions { flavour: server.flavour, indices: &indices, options: &options };
        let mover = Mover::new(&definitions)?;
        let context = Arc::new(Context {
            nodes,
            indices,
            standing,
            ids: WriteIdSource::new(),
            clock: SystemClock::default(),
            recent: RecentWrites::default(),
            unreadable: Unreadable::default(),
            reach: Reach::default(),
            request_timeout: options.request_timeout,
            write_timeout: options.write_timeout,
        });
        let records = Records::new(Arc::clone(&context));
        keys_in_use::check(&records, &context.indices.encryption, Instant::now() + options.write_timeout).await?;
        let deadline = Instant::now() + options.write_timeout;
        if let Err(error) = records.encrypt_by_first(&context.indices.encryption, deadline).await {
            tracing::warn!(%error, "settings and subscriptions of before wait for the next start to be encrypted");
        }
        let watched = Arc::clone(&context);
        let watch = async move {
            let Context { nodes, indices, standing, reach, request_timeout, .. } = &*watched;
            let standing = standing.keep_watch(nodes, *request_timeout);
            tokio::join!(standing, reach.keep_watch(nodes, indices, *request_timeout));
        };
        Ok(Self {
            _watch: AbortOnDropHandle::new(tokio::spawn(watch)),
            writer: Writer::start(Arc::clone(&context), options.write_queue, options.bulks_in_flight),
            reader: Reader::start(Arc::clone(&context), options.read_queue, options.read_timeout),
            records,
            schedules: Schedules::new(Arc::clone(&context)),
            audit: Audit::new(&options.index_prefix, server.flavour, options.replicas),
            outputs: Arc::new(Outputs::new(
                Arc::clone(&context),
                &options.index_prefix,
                options.replicas,
                options.read_timeout,
            )),
            mover,
            context,
            flavour: server.flavour,
            read_timeout: options.read_timeout,
            query_time: options.query_time,
            closed: AtomicBool::new(false),
        })
    }

    fn is_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("it is closed".to_owned()));
        }
        Ok(())
    }

    /// Returns the scope of reads of the index behind `alias`.
    fn scope<'a>(&'a self, alias: &'a str) -> Result<Scope<'a>, StoreError> {
        self.is_open()?;
        self.context.standing.is_there(alias)?;
        let deadline = Instant::now() + self.read_timeout;
        Ok(Scope::new(&self.context.nodes, alias, deadline))
    }

    fn jobs(&self) -> Result<Scope<'_>, StoreError> {
        self.scope(&self.context.indices.jobs)
    }

    /// Returns the scope of a read of jobs, which takes as long as a query may if `is_query`.
    fn jobs_for(&self, is_query: bool) -> Result<Scope<'_>, StoreError> {
        let time = is_query.then(|| QueryTime::of(self.query_time, self.context.request_timeout));
        Ok(Scope { time, ..self.jobs()? })
    }

    /// Returns the scope of a search for schedules, which takes as long as a query may if there is one.
    fn schedules_for(&self, query: Option<&Query>) -> Result<Scope<'_>, StoreError> {
        let time = query.map(|_| QueryTime::of(self.query_time, self.context.request_timeout));
        Ok(Scope { time, ..self.scope(&self.context.indices.schedules)? })
    }

    /// Passes the result of a read on, and sounds the alarm when it tells of an index that is out of order.
    fn heard<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(result, Err(StoreError::OutOfOrder(_))) {
            self.context.standing.sound_alarm();
        }
        result
    }
}

impl fmt::Debug for ElasticsearchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElasticsearchStore").field("indices", &self.context.indices).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for ElasticsearchStore {
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        self.writer.write(writes).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let sought: Vec<Sought<'_>> = ids.iter().map(Sought::from).collect();
        self.look_up(&sought).await.into_iter().collect()
    }

    async fn look_up(&self, sought: &[Sought<'_>]) -> Vec<Result<Option<Versioned>, StoreError>> {
        if let Err(error) = self.jobs() {
            return sought.iter().map(|_| Err(error.clone())).collect();
        }
        self.reader.look_up(sought).await.into_iter().map(|found| self.heard(found)).collect()
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        let scope = self.scope(&self.context.indices.bodies)?;
        let keys = &self.context.indices.encryption;
        self.heard(bodies::read(scope.nodes, scope.index, references, keys, scope.deadline).await)
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        let Context { indices, recent, unreadable, .. } = &*self.context;
        let scope = self.jobs_for(search.filter.query.is_some())?;
        self.heard(search::search(scope, indices, search, recent, unreadable).await)
    }

    async fn search_each(&self, searches: &[Search]) -> Result<Vec<Vec<Versioned>>, StoreError> {
        let Context { indices, recent, unreadable, .. } = &*self.context;
        self.heard(search::search_each(self.jobs()?, indices, searches, recent, unreadable).await)
    }

    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
        self.heard(heads::find(self.jobs()?, keys).await)
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        self.heard(stats::count(self.jobs_for(filter.query.is_some())?, &self.context.indices, filter, by).await)
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        if self.flavour == Flavour::OpenSearch && request.by.iter().any(|by| matches!(by, GroupBy::Label(_))) {
            return Err(StoreError::Unsupported("on OpenSearch, jobs cannot be grouped by a label"));
        }
        self.heard(stats::stats(self.jobs_for(true)?, &self.context.indices, request, MAX_ROWS).await)
    }

    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        self.records.write(writes).await
    }

    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError> {
        let scope = self.scope(&self.context.indices.records)?;
        self.heard(self.records.get(keys, scope.deadline).await)
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        let scope = self.scope(&self.context.indices.records)?;
        self.heard(self.records.list(kind, scope.deadline).await)
    }

    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError> {
        let scope = self.scope(&self.context.indices.records)?;
        self.heard(self.records.list_after(kind, after, scope.deadline).await)
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        self.schedules.write(writes).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        let scope = self.scope(&self.context.indices.schedules)?;
        self.heard(self.schedules.get(ids, scope.deadline).await)
    }

    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        self.heard(self.schedules.due(due, self.schedules_for(None)?).await)
    }

    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        let scope = self.schedules_for(list.filter.query.as_ref())?;
        self.heard(self.schedules.list(list, scope).await)
    }

    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError> {
        self.heard(Schedules::count(filter, self.schedules_for(filter.query.as_ref())?).await)
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        self.is_open()?;
        self.audit.append(&self.context, entries, self.read_timeout).await
    }

    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        self.is_open()?;
        let Context { nodes, request_timeout, .. } = &*self.context;
        let time = Some(QueryTime::of(self.query_time, *request_timeout));
        let scope = Scope::new(nodes, self.audit.name(), Instant::now() + self.read_timeout);
        self.audit.read(Scope { may_be_missing: true, time, ..scope }, search).await
    }

    fn outputs(&self) -> Arc<dyn OutputStore> {
        Arc::clone(&self.outputs) as Arc<dyn OutputStore>
    }

    async fn refresh(&self, what: Refresh<'_>) -> Result<(), StoreError> {
        let (scope, indices) = (self.jobs()?, &self.context.indices);
        let target = match what {
            Refresh::Records => indices.records.clone(),
            Refresh::Schedules => indices.schedules.clone(),
            Refresh::Jobs(filter) => search::index_for(filter, indices),
        };
        if matches!(what, Refresh::Jobs(_)) && target != scope.index {
            // A search must not find the copy in the archive of a job that has left it.
            self.writer.cleared(self.read_timeout).await;
        }
        let request = Request::command(format!("{target}/_refresh"));
        let body = scope.nodes.body(&request, scope.deadline).await?;
        search::refreshed(&body)
    }

    async fn archive(&self, now: Timestamp, limit: usize) -> Result<Archived, StoreError> {
        self.jobs()?;
        self.mover.step(&self.context, now, limit).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        self.is_open()?;
        time::read(&self.context.nodes, Instant::now() + self.read_timeout).await.map(Some)
    }

    fn has_realtime_search(&self) -> bool {
        false
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    fn pack(&self, job: &Job) -> Option<Json> {
        document::pack(job).ok()
    }

    fn unpack(&self, packed: &Json) -> Result<Job, StoreError> {
        let unreadable = |why: serde_json::Error| StoreError::Unreadable {
            what: "a job that another process told of".to_owned(),
            why: why.to_string(),
        };
        document::unpack(packed).map_err(unreadable)
    }

    fn unreadable(&self) -> usize {
        self.context.unreadable.lately()
    }

    fn out_of_order(&self) -> Option<String> {
        self.context.standing.faults()
    }

    fn unread_months(&self) -> Vec<String> {
        self.context.reach.sentences()
    }

    async fn has_lately_held_writes_back(&self) -> Result<bool, StoreError> {
        let Context { nodes, standing, request_timeout, .. } = &*self.context;
        standing.look(nodes, Instant::now() + *request_timeout).await?;
        Ok(standing.has_lately_held_writes_back())
    }

    fn inline_limit(&self) -> usize {
        INLINE_LIMIT
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.is_open()?;
        let Context { nodes, indices, standing, .. } = &*self.context;
        let deadline = Instant::now() + READY_TIMEOUT.min(self.read_timeout);
        // What the nodes say is in the log, by their names.
        let unanswered = |error| match error {
            StoreError::Unavailable(_) => StoreError::Unavailable("its nodes do not answer as they should".to_owned()),
            error => error,
        };
        standing.check(nodes, deadline).await.map_err(unanswered)?;
        let aliases = indices.aliases();
        let request = Request::get(format!("_cluster/health/{aliases}?timeout=1s&filter_path=status"));
        let reply = nodes.try_call(&request, deadline).await.map_err(|error| unanswered(error.into()))?;
        let health: Value = serde_json::from_slice(&reply.body().map_err(unanswered)?)
            .map_err(|_| StoreError::Unavailable("its nodes answer with something else than health".to_owned()))?;
        if health["status"] == "red" {
            return Err(StoreError::Unavailable("a part of the index is missing (its health is red)".to_owned()));
        }
        Ok(())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.writer.close().await;
        self.reader.close().await;
        self.records.close().await;
        self.schedules.close().await;
    }
}
