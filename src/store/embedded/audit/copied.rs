//! How the files of the audit come to all members of a group.
//!
//! A member that leads writes the audit into files of its own, and all others get copies of them, piece by piece, as
//! those who wrote have more than they. A member also passes on what it has of those who are not there. So each member
//! has the whole audit soon, and one that was away, or begins with an empty directory, gets it from the others.
//!
//! A member names its files to each other one, which answers with how much of each it has, and sends the next piece of
//! what is lacking, one message after the other. Where no answer comes, it begins with the names again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::FOLDER;
use super::copies::{AuditFile, Writer, add, read};
use super::listing::Listing;
use crate::store::embedded::exchange::Exchange;
use crate::store::embedded::words::{AuditWord, Word};

/// How often it is looked whether somebody lacks something that nobody has said.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// After how long without an answer a member is asked again what it has.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How many bytes go in a message, and how many files are named in one.
const PIECE_BYTES: u64 = 1 << 20;
const NAMED_FILES: usize = 1_000;

/// How long those who add to the audit wait until another member has it, too.
const PATIENCE: Duration = Duration::from_secs(5);

/// The audit of a store that is one of several members.
pub(crate) struct CopiedAudit {
    listing: Arc<Listing>,
    exchange: Arc<Exchange>,
    others: Mutex<HashMap<u64, Other>>,
    copied: Notify,
}

/// What is known of another member.
#[derive(Default)]
struct Other {
    /// How many bytes it has of files, as it has said.
    has: BTreeMap<AuditFile, u64>,
    /// Since when its answer is waited for.
    waits_since: Option<Instant>,
}

impl CopiedAudit {
    /// Creates the audit of a member with this data directory.
    pub(crate) fn new(directory: &Path, exchange: Arc<Exchange>) -> Arc<Self> {
        let listing = Arc::new(Listing::of(directory.join(FOLDER)));
        Arc::new(Self { listing, exchange, others: Mutex::default(), copied: Notify::new() })
    }

    /// Copies the files to other members, and theirs, until the exchange is closed. A panic costs what was under way.
    pub(crate) fn run(&self) {
        let turn = |heard| {
            if let Some((from, word)) = heard {
                self.hear(from, word);
            }
            self.pass_on();
        };
        let recover = || {
            tracing::error!("the audit that was being copied to other members, or from them, is left for now");
            self.others.lock().clear();
            self.copied.notify_waiters();
        };
        let due = || {
            let waits = self.others.lock().values().any(|other| other.waits_since.is_some());
            Instant::now() + if waits { AGAIN_AFTER } else { LOOK_EVERY }
        };
        self.exchange.audits.work(turn, recover, due);
    }

    /// Returns whose files are this member's own, once the store is open.
    pub(crate) fn own(&self) -> Option<Writer> {
        self.exchange.directory().map(Writer)
    }

    /// Takes what another member says.
    fn hear(&self, from: u64, word: AuditWord) {
        let Some(own) = self.own() else { return };
        match word {
            AuditWord::Has { files: named } => match self.listing.files(own) {
                Ok(there) => {
                    let has = named.into_iter().take(NAMED_FILES);
                    let has = has.map(|(file, _)| (there.get(&file).copied().unwrap_or(0), file));
                    self.say(from, AuditWord::Lacks { files: has.map(|(length, file)| (file, length)).collect() });
                }
                Err(error) => tracing::debug!(%error, "the files of the audit cannot be looked at"),
            },
            AuditWord::Lacks { files } => {
                let mut others = self.others.lock();
                let Some(other) = others.get_mut(&from) else { return };
                other.has.extend(files);
                other.waits_since = None;
                drop(others);
                self.copied.notify_waiters();
            }
            AuditWord::Piece { file, offset, bytes } => match add(self.listing.folder(), own, &file, offset, &bytes) {
                Ok(length) => {
                    self.listing.has(&file, length);
                    self.say(from, AuditWord::Lacks { files: vec![(file, length)] });
                }
                Err(error) => tracing::debug!(%error, ?file, "a part of the audit of another member cannot be kept"),
            },
        }
    }

    fn say(&self, to: u64, word: AuditWord) {
        self.exchange.say(to, &Word::Audit(word));
    }

    /// Says to each other member that is there what it may lack, or the next piece of that. One that has yet to answer
    /// waits.
    fn pass_on(&self) {
        let there = self.exchange.that_keep_copies();
        let Some(own) = self.own() else { return };
        let there_files = match self.listing.files(own) {
            Ok(files) => files,
            Err(error) => {
                tracing::debug!(%error, "the files of the audit cannot be looked at");
                return;
            }
        };
        // Those who are there pass on their own.
        let directories = self.exchange.other_directories();
        let writers: BTreeSet<Writer> =
            there.iter().filter_map(|member| directories.get(member)).copied().map(Writer).collect();
        let files: Vec<(AuditFile, u64)> = there_files
            .iter()
            .filter(|(file, _)| !writers.contains(&file.writer))
            .map(|(file, length)| (file.clone(), *length))
            .collect();
        let mut others = self.others.lock();
        others.retain(|member, _| there.contains(member));
        let mut said = Vec::new();
        for member in there {
            let other = others.entry(member).or_default();
            match other.waits_since {
                Some(since) if since.elapsed() < AGAIN_AFTER => continue,
                // It may have begun again with an empty directory.
                Some(_) => *other = Other::default(),
                None => {}
            }
            if let Some(word) = self.next_for(other, &files, own) {
                other.waits_since = Some(Instant::now());
                said.push((member, word));
            }
        }
        drop(others);
        said.into_iter().for_each(|(member, word)| self.say(member, word));
    }

    fn next_for(&self, other: &Other, files: &[(AuditFile, u64)], own: Writer) -> Option<AuditWord> {
        let unknown = files.iter().filter(|(file, _)| !other.has.contains_key(file));
        let unknown: Vec<(AuditFile, u64)> = unknown.take(NAMED_FILES).cloned().collect();
        if !unknown.is_empty() {
            return Some(AuditWord::Has { files: unknown });
        }
        let has = |file: &AuditFile| other.has.get(file).copied().unwrap_or(0);
        let (file, _) = files.iter().find(|(file, length)| has(file) < *length)?;
        let offset = has(file);
        match read(&file.path(self.listing.folder(), own), offset, PIECE_BYTES) {
            Ok(bytes) => Some(AuditWord::Piece { file: file.clone(), offset, bytes: ByteBuf::from(bytes) }),
            Err(error) => {
                tracing::debug!(%error, ?file, "a part of the audit cannot be read");
                None
            }
        }
    }

    /// Waits until another member has what is in this one's own files, as long as there is one and for some seconds.
    pub(crate) async fn until_copied(&self) {
        let Some(own) = self.own() else { return };
        let listing = Arc::clone(&self.listing);
        let Ok(Ok(all)) = spawn_blocking(move || listing.look(own)).await else { return };
        let own: Vec<_> = all.iter().filter(|(file, _)| file.writer == own).collect();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        self.exchange.audits.wake();
        loop {
            let mut copied = Box::pin(self.copied.notified());
            // Before the look, so that no answer comes between the two.
            copied.as_mut().enable();
            let there = self.exchange.that_keep_copies();
            let is_copied = {
                let others = self.others.lock();
                let has_all = |other: &Other| own.iter().all(|(file, length)| other.has.get(file) >= Some(*length));
                there.iter().any(|member| others.get(member).is_some_and(has_all))
            };
            if is_copied || there.is_empty() || tokio::time::timeout_at(deadline, copied).await.is_err() {
                return;
            }
        }
    }
}
