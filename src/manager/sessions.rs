//! Sessions of the web page: who has signed in there, and until when.
//!
//! A session is a record of the store, so that every server over the store accepts it and none does once it is ended.
//! The record's name has the SHA-256 hash of what the browser keeps, which itself is stored nowhere. It is a setting by
//! its kind, since members of earlier versions apply what the leader writes, and know no further kinds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::debug;

use super::Manager;
use crate::clock::{Clock, Timestamp, millis};
use crate::job::{Actor, RecordName};
use crate::store::record::{RecordError, change_record};
use crate::store::{Record, RecordKey, RecordKind, Refresh, Store, StoreError};

/// How long a session lasts at most, however much it is used: a night shift and the day after it.
pub const SESSION_LASTS: Duration = Duration::from_secs(24 * 3600);

/// The most sessions of one token, and not of all tokens of one name. The oldest ends when there is a further one.
pub const MAX_SESSIONS: usize = 100;

/// How often the use of a session is written at most.
const USE_NOTED_EVERY: Duration = Duration::from_secs(60);

/// The time between two sweeps of sessions that are over.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// The name before those of the sessions' records, in the order of names.
const BEFORE: &str = "session";
/// What the name of a session's record begins with.
const PREFIX: &str = "session.";
/// The random bytes that a browser keeps: as many as a token has.
const KEY_BYTES: usize = 32;

/// What the browser of somebody keeps who has signed in: 32 random bytes, written as 64 hexadecimal digits. `Debug`
/// never prints them.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey([u8; KEY_BYTES]);

impl SessionKey {
    /// Makes a random key.
    #[must_use]
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Reads a key as [`Self::to_text`] writes it; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; KEY_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Returns the key as a browser keeps it.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.0)
    }

    /// Returns the SHA-256 hash of the key, which says nothing of the key itself.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0).into()
    }

    fn record(&self) -> Option<RecordKey> {
        let name = RecordName::new(format!("{PREFIX}{}", hex(&self.hash()))).ok()?;
        Some(RecordKey::new(RecordKind::Setting, name))
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(…)")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A session as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The name of the token that was shown.
    pub token: Actor,
    /// What stands for the token itself: when no token of the name has the fingerprint, the session counts no more.
    pub fingerprint: String,
    /// When somebody signed in.
    pub created_at: Timestamp,
    /// When the session was last used, to the minute.
    pub used_at: Timestamp,
    /// How long the session lasts without use, in milliseconds.
    pub idle_ms: u64,
    /// When the session ends however much it is used.
    pub ends_at: Timestamp,
}

impl Session {
    /// Returns whether the session has ended by now.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.ends_at || now >= self.used_at.plus(Duration::from_millis(self.idle_ms))
    }
}

/// The sessions of a store.
#[derive(Clone)]
pub struct Sessions {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Sessions {
    /// Returns the sessions of this store, by this clock.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Begins a session for the holder of a token, which lasts for `idle` without use. When the token has
    /// [`MAX_SESSIONS`] already, the oldest end.
    ///
    /// # Errors
    /// [`RecordError`] when the session could not be written, or may not have been.
    pub async fn begin(
        &self,
        token: &Actor,
        fingerprint: String,
        idle: Duration,
    ) -> Result<(SessionKey, Session), RecordError> {
        // A search may lag behind the sessions that have just begun.
        self.store.refresh(Refresh::Records).await?;
        self.make_room(&fingerprint).await?;
        let now = self.clock.now();
        let session = Session {
            token: token.clone(),
            fingerprint,
            created_at: now,
            used_at: now,
            idle_ms: millis(idle),
            ends_at: now.plus(SESSION_LASTS),
        };
        let key = SessionKey::generate();
        self.change(&key, |_| Some(session.clone())).await?;
        Ok((key, session))
    }

    /// Returns the session of a key, read in real time; `None` when there is none, or when it is over.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub async fn find(&self, key: &SessionKey) -> Result<Option<Session>, StoreError> {
        let Some(record) = key.record() else { return Ok(None) };
        let Some(record) = self.store.record(&record).await? else { return Ok(None) };
        let session: Session = record.read()?;
        Ok(Some(session).filter(|session| !session.is_over(self.clock.now())))
    }

    /// Writes that a session is used, unless that was written a moment ago, or it is over.
    ///
    /// # Errors
    /// [`RecordError`].
    pub async fn note_use(&self, key: &SessionKey, session: &Session) -> Result<(), RecordError> {
        let now = self.clock.now();
        if now.since(session.used_at) < USE_NOTED_EVERY {
            return Ok(());
        }
        let used = |session: &Session| Session { used_at: session.used_at.max(now), ..session.clone() };
        self.change(key, |session| {
            session.map(|session| if session.is_over(now) { session.clone() } else { used(session) })
        })
        .await
    }

    /// Ends a session, if there is one.
    ///
    /// # Errors
    /// [`RecordError`] when the session could not be removed, or may not have been.
    pub async fn end(&self, key: &SessionKey) -> Result<(), RecordError> {
        self.change(key, |_| None).await
    }

    async fn change(
        &self,
        key: &SessionKey,
        mut to: impl FnMut(Option<&Session>) -> Option<Session> + Send,
    ) -> Result<(), RecordError> {
        let Some(record) = key.record() else { return Ok(()) };
        change_record(&*self.store, &record, |session| Ok::<_, RecordError>(to(session))).await.map(drop)
    }

    /// Removes the oldest sessions of the token of this fingerprint, so that there is room for one more.
    async fn make_room(&self, fingerprint: &str) -> Result<(), RecordError> {
        let mut own = Vec::new();
        let mut after = None;
        while let Some(page) = self.page(after).await? {
            own.extend(page.found.into_iter().filter(|(_, session)| session.fingerprint == fingerprint));
            after = Some(page.last);
        }
        own.sort_by_key(|(_, session)| session.created_at);
        let many = (own.len() + 1).saturating_sub(MAX_SESSIONS);
        for (record, _) in own.into_iter().take(many) {
            change_record(&*self.store, &record.key, |_: Option<&Session>| Ok::<_, RecordError>(None)).await?;
        }
        Ok(())
    }

    /// Returns a page of the sessions behind this name, as a search finds them; `None` behind the last.
    async fn page(&self, after: Option<RecordName>) -> Result<Option<Page>, StoreError> {
        let after = after.unwrap_or_else(|| RecordName::system(BEFORE));
        let records = self.store.records_after(RecordKind::Setting, Some(&after)).await?;
        let records = records.into_iter().take_while(|record| record.key.name.as_str().starts_with(PREFIX));
        let records: Vec<Record> = records.collect();
        let Some(last) = records.last().map(|record| record.key.name.clone()) else { return Ok(None) };
        let found = records.into_iter().filter_map(|record| record.read().ok().map(|session| (record, session)));
        Ok(Some(Page { found: found.collect(), last }))
    }

    /// Removes the sessions that are over.
    async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut after = None;
        while let Some(page) = self.page(after).await? {
            for (record, _) in page.found.iter().filter(|(_, session)| session.is_over(now)) {
                if let Err(error) = self.store.write_record(record.removal()).await {
                    debug!(%error, "a session that is over is left");
                }
            }
            after = Some(page.last);
        }
        Ok(())
    }
}

/// Some sessions, each with its record.
struct Page {
    found: Vec<(Record, Session)>,
    last: RecordName,
}

impl Manager {
    /// Returns the sessions of the web page that the manager's store has.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::new(Arc::clone(&self.shared.store), Arc::clone(&self.shared.clock))
    }

    /// Removes the sessions that are over from time to time, until the manager stops.
    pub(in crate::manager) async fn sweep_sessions(self) {
        let sessions = self.sessions();
        let mut ticks = interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if let Err(error) = sessions.sweep().await {
                debug!(%error, "sessions that are over are left");
            }
        }
    }
}

#[cfg(test)]
mod tests;
