//! Three members that are one store, in the process of a test, which can get at what is inside of them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::engine::Engine;
use super::options::{EmbeddedOptions, GroupOptions};
use super::{EmbeddedStore, Exchange};
use crate::job::{Json, RecordName};
use crate::store::{Member, MemberMessage, RecordKey, RecordKind, RecordWrite, Store as _};

const MEMBERS: [u64; 3] = [1, 2, 3];

/// How long anything is waited for that comes in a few seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of a message on its way; `None` when it is lost.
type Way = Box<dyn FnMut(MemberMessage) -> Option<MemberMessage> + Send>;

/// The three members. Their messages go the way that is set.
pub(super) struct Three {
    pub(super) stores: BTreeMap<u64, Arc<EmbeddedStore>>,
    pub(super) way: Arc<Mutex<Way>>,
    _directories: Vec<TempDir>,
    _carriers: JoinSet<()>,
}

impl Three {
    pub(super) fn open(options: &EmbeddedOptions) -> Self {
        let directories: Vec<_> = MEMBERS.map(|_| tempfile::tempdir().expect("a directory")).into();
        let open = |(member, directory): (u64, &TempDir)| {
            let group = GroupOptions {
                cluster: "test".to_owned(),
                member,
                members: MEMBERS.into(),
                tick: Duration::from_millis(30),
                ..GroupOptions::default()
            };
            let options = EmbeddedOptions { group: Some(group), ..options.clone() };
            (member, Arc::new(EmbeddedStore::open(directory.path(), &options).expect("it can be opened")))
        };
        // Each waits for its disk for most of the time.
        let stores: BTreeMap<_, _> = thread::scope(|scope| {
            let opened: Vec<_> =
                MEMBERS.into_iter().zip(&directories).map(|of| scope.spawn(move || open(of))).collect();
            opened.into_iter().map(|of| of.join().expect("no panic")).collect()
        });
        let way: Arc<Mutex<Way>> = Arc::new(Mutex::new(Box::new(Some)));
        let mut carriers = JoinSet::new();
        let all: BTreeMap<u64, Arc<dyn Member>> =
            stores.iter().map(|(number, store)| (*number, store.member().expect("one of several"))).collect();
        for member in all.values() {
            let (member, all, way) = (Arc::clone(member), all.clone(), Arc::clone(&way));
            carriers.spawn(async move {
                loop {
                    let messages = member.outgoing().await;
                    if messages.is_empty() {
                        return;
                    }
                    for message in messages {
                        let arrived = (way.lock())(message);
                        if let Some(message) = arrived {
                            all[&message.to].receive(message);
                        }
                    }
                }
            });
        }
        Self { stores, way, _directories: directories, _carriers: carriers }
    }

    pub(super) fn exchange(&self, member: u64) -> &Exchange {
        self.stores[&member].inner.exchange.as_ref().expect("one of several")
    }

    /// Waits for a leader that is none of `but`.
    pub(super) async fn leader(&self, but: Option<u64>) -> u64 {
        let leads = |member: &u64| self.exchange(*member).standing().borrow().leads;
        until("a leader", || MEMBERS.into_iter().find(|member| Some(*member) != but && leads(member))).await
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for (_, store) in mem::take(&mut self.stores) {
                scope.spawn(move || drop(store));
            }
        });
    }
}

/// What the threads of a store wait for: each is held until what is called returns.
pub(super) type Hold = fn(&Engine, &dyn Fn());

/// A thread that holds what others wait for, until this is dropped.
pub(super) struct Held(Option<mpsc::Sender<()>>, Option<thread::JoinHandle<()>>);

impl Held {
    pub(super) fn hold(store: &EmbeddedStore, hold: Hold) -> Self {
        let engine = store.inner.engine.read().clone().expect("it is open");
        let ((release, released), (say, is_held)) = (mpsc::channel::<()>(), mpsc::channel());
        let thread = thread::spawn(move || {
            hold(&engine, &|| {
                say.send(()).expect("it is waited for");
                assert!(released.recv().is_err(), "nothing is sent");
            });
        });
        is_held.recv().expect("it is held");
        Self(Some(release), Some(thread))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.take();
        drop(self.1.take().map(thread::JoinHandle::join));
    }
}

/// Writes a record of this name.
pub(super) async fn write(store: &EmbeddedStore, name: &str) -> bool {
    write_of(store, name, 1).await
}

/// Writes a record of this name and of about so many bytes.
pub(super) async fn write_of(store: &EmbeddedStore, name: &str, bytes: usize) -> bool {
    let key = RecordKey::new(RecordKind::Setting, RecordName::new(name).expect("a name"));
    let body = Json::of(&"x".repeat(bytes)).expect("JSON");
    store.write_record(RecordWrite::Create { key, body }).await.is_ok()
}

/// Waits until there is something.
pub(super) async fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(there) = there() {
            return there;
        }
        assert!(Instant::now() < deadline, "there is not: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
