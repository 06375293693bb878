//! Sessions of the web page as a process has read them of late.
//!
//! Each call goes by what the store had a moment ago: before a call with a session is looked at, the session is read
//! unless it was read less than [`FRESH`] ago. So a session that ended elsewhere counts for no longer than that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::RwLock;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::shown::session_key;
use crate::manager::{Session, SessionKey, Sessions};
use crate::store::{Standing, StoreError};

/// For how long a session counts as it was read.
const FRESH: Duration = Duration::from_secs(3);
/// How many keys are read at once that are not known to be those of sessions: one that somebody made up costs a read as
/// well.
const AT_ONCE: usize = 16;
/// How many sessions are read at once that are known, and are read again.
const AGAIN_AT_ONCE: usize = 16;
/// How many sessions are known at the most before those that are not fresh are left out.
const MOST: usize = 1_000;
/// How many times a member that follows looks for a session, and the pause in between: it may have begun a moment ago
/// at another one.
const LOOKS: u32 = 10;
const NEXT_LOOK_AFTER: Duration = Duration::from_millis(50);

/// The sessions that were read of late, by the hashes of their keys.
#[derive(Debug, Default)]
pub(super) struct KnownSessions(RwLock<HashMap<[u8; 32], Known>>);

#[derive(Clone, Debug)]
struct Known {
    /// The session; `None` when it has ended.
    session: Option<Arc<Session>>,
    read_at: Instant,
}

impl KnownSessions {
    /// Returns a session as it was last read, if there was one.
    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.0.read().get(&key.hash()).and_then(|known| known.session.clone())
    }

    fn is_fresh(&self, key: &SessionKey) -> bool {
        self.0.read().get(&key.hash()).is_some_and(|known| known.read_at.elapsed() < FRESH)
    }

    /// Notes what was read of a session at this time, unless it was read since. Nothing is kept of keys that were never
    /// those of a session.
    pub(super) fn note(&self, key: &SessionKey, session: Option<Session>, read_at: Instant) {
        let mut known = self.0.write();
        let hash = key.hash();
        match known.get(&hash) {
            Some(before) if before.read_at > read_at => return,
            None if session.is_none() => return,
            _ => {}
        }
        if known.len() >= MOST {
            known.retain(|_, known| known.read_at.elapsed() < FRESH);
        }
        known.insert(hash, Known { session: session.map(Arc::new), read_at });
    }
}

/// Reads sessions from the store of a process.
#[derive(Debug)]
pub(crate) struct SessionReader {
    sessions: Sessions,
    /// Where the process stands in its group; `None` where it is of none.
    standing: Option<watch::Receiver<Standing>>,
    /// For keys that may be made up, which keep nobody waiting who has signed in.
    turns: Semaphore,
    /// For sessions that are known.
    turns_again: Semaphore,
}

impl SessionReader {
    /// Reads from a store that this process writes itself.
    pub(crate) fn new(sessions: Sessions) -> Self {
        let [turns, turns_again] = [AT_ONCE, AGAIN_AT_ONCE].map(Semaphore::new);
        Self { sessions, standing: None, turns, turns_again }
    }

    /// Reads from the store of a member of a group, which has what the leader has written a moment later.
    pub(crate) fn of_member(sessions: Sessions, standing: watch::Receiver<Standing>) -> Self {
        Self { standing: Some(standing), ..Self::new(sessions) }
    }

    fn leads(&self) -> bool {
        self.standing.as_ref().is_none_or(|standing| standing.borrow().leads)
    }

    /// Reads a session into what is known of them, and has its use noted where this process writes.
    pub(super) async fn read(&self, key: &SessionKey, known: &KnownSessions) -> Result<(), StoreError> {
        if let Some(session) = self.look(key, known).await?
            && self.leads()
            && let Err(error) = self.sessions.note_use(key, &session).await
        {
            tracing::debug!(%error, "the use of a session is not noted");
        }
        Ok(())
    }

    /// Reads a session into what is known of them, and returns it; `None` where there is none, or another one has read
    /// it meanwhile.
    pub(super) async fn look(&self, key: &SessionKey, known: &KnownSessions) -> Result<Option<Session>, StoreError> {
        let turns = if known.get(key).is_some() { &self.turns_again } else { &self.turns };
        let mut looks = 0;
        let (session, read_at) = loop {
            let turn = turns.acquire().await;
            // While this one waited for its turn, another one of the same page may have read it.
            if known.is_fresh(key) {
                return Ok(None);
            }
            let read_at = Instant::now();
            let session = self.sessions.find(key).await?;
            drop(turn);
            looks += 1;
            if session.is_some() || self.leads() || looks >= LOOKS {
                break (session, read_at);
            }
            sleep(NEXT_LOOK_AFTER).await;
        };
        known.note(key, session.clone(), read_at);
        Ok(session)
    }
}

/// Returns the key of the session that a call shows and that is not known as it was a moment ago.
pub(super) fn unread(headers: &HeaderMap, known: &KnownSessions) -> Option<SessionKey> {
    session_key(headers).filter(|key| !known.is_fresh(key))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::timeout;

    use super::*;
    use crate::clock::{SystemClock, Timestamp};
    use crate::job::Actor;
    use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

    fn session() -> Session {
        let at = Timestamp::from_millis(0);
        let token = Actor::new("ops").expect("a name");
        Session { token, fingerprint: String::new(), created_at: at, used_at: at, idle_ms: 1, ends_at: at }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_ended_does_not_come_back_by_what_was_read_before() {
        let (known, key, before) = (KnownSessions::default(), SessionKey::generate(), Instant::now());
        known.note(&key, Some(session()), before);
        assert!(known.get(&key).is_some() && known.is_fresh(&key));
        tokio::time::advance(FRESH / 2).await;
        known.note(&key, None, Instant::now());
        known.note(&key, Some(session()), before);
        assert!(known.get(&key).is_none() && known.is_fresh(&key), "it is not read again to be refused");
        tokio::time::advance(FRESH).await;
        assert!(!known.is_fresh(&key));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_is_known_waits_for_no_key_that_is_made_up() {
        let place = tempfile::tempdir().expect("a directory");
        let store = EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens");
        let sessions = Sessions::new(Arc::new(store), Arc::new(SystemClock::default()));
        let begun = sessions.begin(&Actor::system("ops"), "print".to_owned(), Duration::from_secs(3_600)).await;
        let (key, session) = begun.expect("begun");
        let (reader, known) = (SessionReader::new(sessions), KnownSessions::default());
        let all = reader.turns.acquire_many(AT_ONCE as u32).await.expect("as many as there are");
        assert!(reader.look(&SessionKey::generate(), &known).now_or_never().is_none(), "it waits for its turn");
        known.note(&key, Some(session.clone()), Instant::now() - FRESH);
        let looked = timeout(Duration::from_secs(20), reader.look(&key, &known)).await.expect("it does not wait");
        assert_eq!(looked.expect("read"), Some(session));
        drop(all);
        assert_eq!(reader.look(&SessionKey::generate(), &known).await.expect("read"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_bounded_and_has_nothing_of_keys_that_were_made_up() {
        let known = KnownSessions::default();
        for _ in 0..2 * MOST {
            known.note(&SessionKey::generate(), None, Instant::now());
        }
        assert_eq!(known.0.read().len(), 0);
        for _ in 0..4 {
            for _ in 0..MOST / 2 {
                known.note(&SessionKey::generate(), Some(session()), Instant::now());
            }
            tokio::time::advance(FRESH).await;
        }
        assert!(known.0.read().len() <= MOST);
    }
}
