//! Of several monitors one acts: the one that holds a lease, which is a record claimed and renewed with a conditional
//! write.
//!
//! No machine compares its clock with another's. A standby takes over when it has seen the same version of the record
//! for the whole term by its own monotonic clock; a leader counts its term from before it sent the renewal that was
//! acknowledged, and stops acting when that is over. What the standby waits for began later, so that the one has
//! stopped before the other starts (the idea is that of Gray and Cheriton, "Leases", 1989; watching a version instead
//! of a time is how Amazon's DynamoDB lock client and the leader election of Kubernetes' client-go do it).
//!
//! A write that is already on its way when a term ends may still land after it. That does no harm: every change of a
//! job is conditional on its version, so that even two leaders at once only make each other decide anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::trouble::Trouble;
use super::vigil::Vigil;
use crate::clock::{Clock, Mark, Timestamp, millis};
use crate::job::{Json, RecordName};
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, RecordWrite, Store, StoreError, Version, WriteError};

/// The name of the record that holds the lease.
const NAME: &str = "monitor";
/// The number of renewals in one term.
const RENEWALS: u32 = 3;
/// How often the lease is renewed by a process that has just begun, and for how long: one that is killed again and
/// again passes on how long it was awake.
const FIRST_RENEWALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// For how many terms a monitor whose clock is off leaves the lease to others, once it has given it up for that.
const GIVES_WAY_TERMS: u32 = 2;
/// How long such a monitor keeps the lease that nobody else has taken, before it gives it up again.
const GIVES_WAY_EVERY: Duration = Duration::from_secs(60);

/// The content of the record. Who leads is decided without its times; of leases, the awake time is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    /// The monitor that leads; `None` after the lease was released.
    holder: Option<String>,
    /// The fencing number, which grows by one with every new leader.
    fence: u64,
    /// How long the holder may act without a renewal, in milliseconds.
    term_ms: u64,
    acquired_at: Timestamp,
    renewed_at: Timestamp,
    /// The awake time of the leaders until now. A former version of the program does not write it.
    #[serde(default, deserialize_with = "marks_in_order")]
    awake: Vec<Mark>,
}

impl Claim {
    /// Returns the awake time of the leaders until the claim was written.
    fn awake(&self) -> Vec<Mark> {
        match self.awake.is_empty() {
            true => vec![Mark { at: self.renewed_at, awake_ms: 0 }],
            false => self.awake.clone(),
        }
    }
}

/// Reads marks. Without those that cannot be read, or that are not in order, a monitor leads as well.
fn marks_in_order<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Mark>, D::Error> {
    let marks = serde_json::Value::deserialize(deserializer)?;
    Ok(Mark::in_order(serde_json::from_value(marks).unwrap_or_default()))
}

/// Whether this process leads, and until when at the latest.
#[derive(Debug, Default)]
pub struct Leadership {
    until: Mutex<Option<Instant>>,
}

impl Leadership {
    /// Returns whether this process leads at `now`.
    #[must_use]
    pub fn holds_at(&self, now: Instant) -> bool {
        self.until.lock().is_some_and(|until| now < until)
    }

    fn last_until(&self, until: Instant) {
        *self.until.lock() = Some(until);
    }

    fn end(&self) {
        *self.until.lock() = None;
    }
}

/// The lease as this process holds it.
struct Held {
    version: Version,
    fence: u64,
    acquired_at: Timestamp,
}

/// A version of another monitor's lease, and when this process first saw it.
struct ForeignLease {
    version: Version,
    since: Instant,
}

/// A monitor's part in the election: it leads or stands by.
pub struct Leader {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// A monotonic clock.
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    name: String,
    term: Duration,
    held: Option<Held>,
    foreign: Option<ForeignLease>,
    /// When this monitor last gave up the lease for its clock.
    gave_way: Option<Instant>,
    leadership: Arc<Leadership>,
    vigil: Arc<Vigil>,
}

impl Leader {
    /// Creates a standby.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, term: Duration) -> Self {
        Self::timed_by(store, clock, term, Arc::new(Instant::now))
    }

    /// Creates a standby with the given monotonic clock, for tests of its timing.
    #[must_use]
    pub fn timed_by(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        term: Duration,
        monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    ) -> Self {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.as_deref().unwrap_or("host");
        let name = format!("{host}:{}:{}", std::process::id(), Uuid::new_v4().simple());
        let (leadership, vigil) = (Arc::default(), Arc::default());
        Self { store, clock, monotonic, name, term, held: None, foreign: None, gave_way: None, leadership, vigil }
    }

    /// Returns the leader as one that notes in `vigil` what the leaders before it have written.
    #[must_use]
    pub fn following(mut self, vigil: Arc<Vigil>) -> Self {
        self.vigil = vigil;
        self
    }

    /// Returns the handle that tells whether this process leads.
    #[must_use]
    pub fn leadership(&self) -> Arc<Leadership> {
        Arc::clone(&self.leadership)
    }

    /// Competes for the lease and leads while it holds it, until `stopping` is cancelled; then releases the lease.
    pub(super) async fn stand(mut self, stopping: CancellationToken) {
        let (begun, usual) = (Instant::now(), self.term / RENEWALS);
        let mut trouble = Trouble::of("the monitor's lease");
        let mut next = begun;
        while stopping.run_until_cancelled(sleep_until(next.into())).await.is_some() {
            let pause = if begun.elapsed() < FIRST_RENEWALS.1 { usual.min(FIRST_RENEWALS.0) } else { usual };
            next = Instant::now() + pause;
            match self.step().await {
                Ok(()) => trouble.end(),
                Err(error) => trouble.begin(&error.to_string()),
            }
            self.show();
        }
        self.give_back().await;
        self.show();
    }

    fn show(&self) {
        let leads = self.leadership.holds_at((self.monotonic)());
        metrics::gauge!("leasehold_monitor_leader").set(if leads { 1.0 } else { 0.0 });
    }

    /// Renews the lease, or takes it when it is free or its holder has been silent for its term.
    ///
    /// # Errors
    /// Returns the store's error. A leader goes on until its term is over.
    pub async fn step(&mut self) -> Result<(), WriteError<Record>> {
        if self.held.is_some() && self.is_off() && self.has_not_given_way_for(GIVES_WAY_EVERY) {
            tracing::warn!("this machine's clock is off: another monitor may take the lease");
            self.gave_way = Some((self.monotonic)());
            self.give_back().await;
            return Ok(());
        }
        match self.held.take() {
            Some(held) => self.renew(held).await,
            None => self.campaign().await,
        }
    }

    /// Returns whether this machine's clock is certainly further from the store's than clocks may differ: then nothing
    /// is taken away here, and another monitor that shares the store is to lead.
    fn is_off(&self) -> bool {
        !self.store.is_exclusive() && self.clock.offset().is_some_and(|offset| offset.is_off)
    }

    fn has_not_given_way_for(&self, time: Duration) -> bool {
        self.gave_way.is_none_or(|gave_way| (self.monotonic)().duration_since(gave_way) >= time)
    }

    async fn renew(&mut self, held: Held) -> Result<(), WriteError<Record>> {
        let (fence, acquired_at) = (held.fence, held.acquired_at);
        let sent = (self.monotonic)();
        let write = RecordWrite::put(key(), self.claim(Some(&self.name), fence, acquired_at)?, Some(held.version));
        match self.store.write_record(write).await {
            Ok(version) => {
                self.held = Some(Held { version, fence, acquired_at });
                self.leadership.last_until(sent + self.term);
                Ok(())
            }
            Err(WriteError::Conflict(current)) => {
                self.take_note_of(current)?;
                if self.held.is_none() {
                    self.leadership.end();
                    tracing::warn!(fence, "another monitor leads");
                }
                Ok(())
            }
            Err(error) => {
                self.held = Some(held);
                Err(error)
            }
        }
    }

    async fn campaign(&mut self) -> Result<(), WriteError<Record>> {
        let began = (self.monotonic)();
        let Some(record) = self.store.record(&key()).await? else {
            // Jobs may run all the same: nobody can say since when they have not been heard.
            self.vigil.go_on_from(&[Mark::UNKNOWN]);
            return self.take(1, None).await;
        };
        let claim: Claim = record.read()?;
        self.vigil.go_on_from(&claim.awake());
        // In an exclusive store, any earlier holder is a process that has ended.
        let is_free = claim.holder.is_none() || self.store.is_exclusive();
        let term = Duration::from_millis(claim.term_ms);
        let is_over = self
            .foreign
            .as_ref()
            .is_some_and(|lease| lease.version == record.version && began.duration_since(lease.since) >= term);
        if is_free && self.is_off() {
            // Another monitor takes it, if there is one whose clock is not off.
            if self.has_not_given_way_for(GIVES_WAY_EVERY) {
                self.gave_way = Some(began);
            }
            if !self.has_not_given_way_for(GIVES_WAY_TERMS * self.term) {
                return Ok(());
            }
        }
        if is_free || is_over {
            return self.take(claim.fence.saturating_add(1), Some(record.version)).await;
        }
        self.take_note_of(Some(record)).map_err(WriteError::from)
    }

    async fn take(&mut self, fence: u64, over: Option<Version>) -> Result<(), WriteError<Record>> {
        let acquired_at = self.clock.now();
        let sent = (self.monotonic)();
        let write = RecordWrite::put(key(), self.claim(Some(&self.name), fence, acquired_at)?, over);
        match self.store.write_record(write).await {
            Ok(version) => {
                self.held = Some(Held { version, fence, acquired_at });
                self.foreign = None;
                self.leadership.last_until(sent + self.term);
                tracing::info!(fence, name = self.name, "this monitor leads");
                Ok(())
            }
            Err(WriteError::Conflict(current)) => self.take_note_of(current).map_err(WriteError::from),
            Err(error) => Err(error),
        }
    }

    /// Takes note of the current lease. If it is this process's own, the answer to an earlier write was lost, and the
    /// next step renews it; until then this process leads only for the term that it knew of.
    fn take_note_of(&mut self, current: Option<Record>) -> Result<(), StoreError> {
        let Some(record) = current else {
            self.foreign = None;
            return Ok(());
        };
        let claim: Claim = record.read()?;
        if claim.holder.as_deref() == Some(&self.name) {
            self.held = Some(Held { version: record.version, fence: claim.fence, acquired_at: claim.acquired_at });
        } else if self.foreign.as_ref().is_none_or(|lease| lease.version != record.version) {
            self.foreign = Some(ForeignLease { version: record.version, since: (self.monotonic)() });
        }
        Ok(())
    }

    /// Stops leading, and lets another monitor take the lease at once.
    pub async fn give_back(&mut self) {
        self.leadership.end();
        let Some(held) = self.held.take() else { return };
        let given_back = match self.claim(None, held.fence, held.acquired_at) {
            Ok(body) => self.store.write_record(RecordWrite::put(key(), body, Some(held.version))).await.map(drop),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = given_back {
            tracing::debug!(%error, "the monitor's lease was not given back; others wait for its term to end");
        }
    }

    fn claim(&self, holder: Option<&str>, fence: u64, acquired_at: Timestamp) -> Result<Json, StoreError> {
        body(&Claim {
            holder: holder.map(str::to_owned),
            fence,
            term_ms: millis(self.term),
            acquired_at,
            renewed_at: self.clock.now(),
            awake: self.vigil.goes_on_with(self.clock.awake()).marks().to_vec(),
        })
    }
}

/// The lease as a process sees it that does not compete for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) version: Version,
    /// How long the holder may act without a renewal; `None` when nobody holds it.
    pub(super) held_for: Option<Duration>,
}

/// Reads the lease; `None` when no monitor ever had it.
pub(super) async fn seen(store: &dyn Store) -> Result<Option<Seen>, StoreError> {
    let Some(record) = store.record(&key()).await? else { return Ok(None) };
    let claim: Claim = record.read()?;
    let held_for = claim.holder.is_some().then(|| Duration::from_millis(claim.term_ms));
    Ok(Some(Seen { version: record.version, held_for }))
}

fn key() -> RecordKey {
    RecordKey::new(RecordKind::Lease, RecordName::system(NAME))
}
