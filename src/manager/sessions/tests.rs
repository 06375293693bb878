use super::*;
use crate::clock::ManualClock;
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

const IDLE: Duration = Duration::from_secs(3600);

struct Bed {
    _place: tempfile::TempDir,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    sessions: Sessions,
}

fn bed() -> Bed {
    let place = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens"));
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let sessions = Sessions::new(Arc::clone(&store), Arc::clone(&clock) as Arc<dyn Clock>);
    Bed { _place: place, store, clock, sessions }
}

fn name(name: &str) -> Actor {
    Actor::new(name).expect("a name")
}

impl Bed {
    async fn begin(&self, token: &str) -> SessionKey {
        self.begin_with(token, "print").await
    }

    /// Begins a session for the token of this name and fingerprint.
    async fn begin_with(&self, token: &str, fingerprint: &str) -> SessionKey {
        self.sessions.begin(&name(token), fingerprint.to_owned(), IDLE).await.expect("begun").0
    }

    async fn is_there(&self, key: &SessionKey) -> bool {
        self.sessions.find(key).await.expect("read").is_some()
    }

    /// Uses a session as a server does that reads it.
    async fn uses(&self, key: &SessionKey) {
        let session = self.sessions.find(key).await.expect("read").expect("it is there");
        self.sessions.note_use(key, &session).await.expect("written");
    }

    async fn records(&self) -> Vec<Record> {
        self.store.records(RecordKind::Setting).await.expect("listed")
    }
}

#[test]
fn a_key_is_read_as_it_is_written_and_is_shown_nowhere() {
    let key = SessionKey::generate();
    assert_eq!(SessionKey::parse(&key.to_text()), Some(key.clone()));
    assert_ne!(SessionKey::generate(), key);
    assert!(!format!("{key:?}").contains(&key.to_text()[..8]));
    for wrong in ["", "00", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
        assert_eq!(SessionKey::parse(wrong), None, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_the_store_is_what_the_browser_keeps() {
    let bed = bed();
    let key = bed.begin("ops").await;
    let (digits, bytes) = (key.to_text(), String::from_utf8_lossy(&key.0).into_owned());
    for record in bed.records().await {
        let said = format!("{} {}", record.key, record.body.as_str());
        assert!(!said.contains(&digits) && !said.contains(&bytes), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_without_use_after_a_day_and_when_it_is_ended() {
    let bed = bed();
    let [unused, ended, used] = [bed.begin("ops").await, bed.begin("ops").await, bed.begin("ops").await];
    assert!(bed.is_there(&unused).await && !bed.is_there(&SessionKey::generate()).await);
    bed.sessions.end(&ended).await.expect("ended");
    bed.sessions.end(&ended).await.expect("there is none any more");
    assert!(!bed.is_there(&ended).await);
    for half in 1..48 {
        bed.clock.advance(IDLE / 2);
        assert_eq!(bed.is_there(&unused).await, half < 2, "after {half} half hours");
        bed.uses(&used).await;
    }
    bed.clock.advance(IDLE / 2);
    assert!(!bed.is_there(&used).await, "however much it was used");
}

#[tokio::test(flavor = "multi_thread")]
async fn use_is_written_once_a_minute_and_never_by_one_that_has_ended() {
    let bed = bed();
    let key = bed.begin("ops").await;
    let version = async || bed.records().await.first().map(|record| record.version);
    let begun = version().await;
    bed.clock.advance(USE_NOTED_EVERY - Duration::from_millis(1));
    bed.uses(&key).await;
    assert_eq!(version().await, begun);
    bed.clock.advance(Duration::from_millis(1));
    let read = bed.sessions.find(&key).await.expect("read").expect("it is there");
    bed.uses(&key).await;
    assert_ne!(version().await, begun);
    bed.sessions.end(&key).await.expect("ended");
    bed.sessions.note_use(&key, &read).await.expect("it is gone");
    assert_eq!(version().await, None, "use does not bring it back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_so_many_sessions_and_the_oldest_goes() {
    let bed = bed();
    let other = bed.begin_with("ops", "other print").await;
    let mut own = Vec::new();
    for _ in 0..MAX_SESSIONS + 2 {
        bed.clock.advance(Duration::from_millis(1));
        own.push(bed.begin("ops").await);
    }
    for (nth, key) in own.iter().enumerate() {
        assert_eq!(bed.is_there(key).await, nth >= 2, "session {nth}");
    }
    assert!(bed.is_there(&other).await, "it is of another token of the same name");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_over_are_swept_and_nothing_else_is() {
    let bed = bed();
    let names = ["a", "session", "sessions", "z"].map(RecordName::system);
    for name in &names {
        let body = crate::job::Json::parse("{}".to_owned()).expect("JSON");
        let key = RecordKey::new(RecordKind::Setting, name.clone());
        bed.store.write_record(crate::store::RecordWrite::put(key, body, None)).await.expect("written");
    }
    bed.begin("ops").await;
    bed.clock.advance(IDLE);
    let lasting = bed.begin("ops").await;
    assert_eq!(bed.records().await.len(), names.len() + 2);
    bed.sessions.sweep().await.expect("swept");
    assert_eq!(bed.records().await.len(), names.len() + 1);
    assert!(bed.is_there(&lasting).await);
}
