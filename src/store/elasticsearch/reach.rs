//! Which months of the archive can be read, and which cannot: closed ones, and those of which a part is not there.
//!
//! What lies in a month that cannot be read is not known. A look-up that does not need it goes on; one that does is
//! refused, and names it. A month of which a part has just gone may be back at once, as when it is made or its node
//! starts again: until [`PATIENCE`] is over a write waits for it, and from then on is refused as for a closed one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::archive::Month;
use super::documents::RawDocument;
use super::fault::{Cause, Fault};
use super::indices::Indices;
use super::nodes::{Nodes, Request};
use super::search::{Shards, unreadable};
use crate::job::JobId;
use crate::store::StoreError;

/// The time between two looks at the months.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a month of which a part is not there is waited for, from the first look that has found it so.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a look asks for.
const WANTED: &str = "metadata.indices.*.state,routing_table.indices.*.shards.*.state";

/// The months in which the archive has copies of jobs, as far as they can be read.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) months: BTreeMap<JobId, Vec<Month>>,
    /// The months that cannot be read, each with the reason.
    pub(super) unread: BTreeMap<Month, StoreError>,
}

impl Copies {
    /// Adds what a search has found.
    pub(super) fn add(&mut self, indices: &Indices, hits: &[RawDocument<'_>]) {
        for hit in hits {
            let (Some(month), Ok(id)) = (indices.month_of(&hit.index), JobId::new(&hit.id)) else { continue };
            self.months.entry(id).or_default().push(month);
        }
    }

    /// Returns the month of the latest copy of a job, of which none is in a month before `from`.
    ///
    /// # Errors
    /// Why a month cannot be read in which a later copy may be.
    pub(super) fn latest(&self, id: &JobId, from: Option<Month>) -> Result<Option<Month>, StoreError> {
        let found = self.months.get(id).and_then(|months| months.iter().max().copied());
        let after = match (found, from) {
            (Some(found), _) => Bound::Excluded(found),
            (None, Some(from)) => Bound::Included(from),
            (None, None) => Bound::Unbounded,
        };
        match self.unread.range((after, Bound::Unbounded)).next() {
            Some((_, why)) => Err(why.clone()),
            None => Ok(found),
        }
    }
}

/// What is known of the months that cannot be read, each with the time of the first look that has found it so.
#[derive(Debug, Default)]
pub(super) struct Reach {
    unread: Mutex<BTreeMap<Month, (Fault, Instant)>>,
}

impl Reach {
    /// Takes note of the months that cannot be read; all others can.
    fn note(&self, found: BTreeMap<Month, Fault>) {
        let mut unread = self.unread.lock();
        for (month, fault) in &found {
            if unread.get(month).is_none_or(|(known, _)| known != fault) && matches!(fault, Fault::Closed(_)) {
                tracing::warn!("a month of the archive cannot be read: {fault}");
            }
        }
        for month in unread.keys().filter(|month| !found.contains_key(month)) {
            tracing::info!(%month, "a month of the archive can be read again");
        }
        let now = Instant::now();
        let since = |month: &Month| unread.get(month).map_or(now, |(_, since)| *since);
        let found = found.into_iter().map(|(month, fault)| (month, (fault, since(&month)))).collect();
        *unread = found;
        metrics::gauge!("leasehold_archive_months_unread").set(unread.len() as f64);
    }

    /// Returns whether a month is known that cannot be read.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.lock().is_empty()
    }

    /// Takes note that all months were read.
    fn all_are_read(&self) {
        if self.has_unread() {
            self.note(BTreeMap::new());
        }
    }

    /// Returns why a look-up that needs a month is refused: for good, or until the month had time to come back.
    fn refusal(&self, month: Month, fault: Fault) -> StoreError {
        let is_new = || self.unread.lock().get(&month).is_none_or(|(_, since)| since.elapsed() < PATIENCE);
        match fault {
            Fault::Away(_) if is_new() => StoreError::Unavailable(fault.to_string()),
            fault => fault.into(),
        }
    }

    /// Returns what is known of the months that cannot be read, each as a sentence.
    pub(super) fn sentences(&self) -> Vec<String> {
        let unread = self.unread.lock();
        let lasting = |(fault, since): &&(Fault, Instant)| match fault {
            Fault::Away(_) => since.elapsed() >= PATIENCE,
            _ => true,
        };
        unread.values().filter(lasting).map(|(fault, _)| fault.to_string()).collect()
    }

    /// Looks at the months again and again.
    pub(super) async fn keep_watch(&self, nodes: &Nodes, indices: &Indices, request_timeout: Duration) {
        loop {
            sleep(PERIOD).await;
            if let Err(error) = self.look(nodes, indices, Instant::now() + request_timeout).await {
                tracing::debug!(%error, "cannot look at the months of the archive");
            }
        }
    }

    /// Looks at the months. Returns those that can be asked, and notes the others.
    async fn look(&self, nodes: &Nodes, indices: &Indices, deadline: Instant) -> Result<Look, StoreError> {
        let months = indices.months();
        let path = format!("_cluster/state/metadata,routing_table/{months}?expand_wildcards=all&filter_path={WANTED}");
        let reply = nodes.body(&Request::get(path), deadline).await?;
        let state: State = serde_json::from_slice(&reply)
            .map_err(|error| StoreError::Unavailable(format!("not an answer about indices: {error}")))?;
        let mut look = Look::default();
        for (index, IndexState { state: word }) in state.metadata.indices {
            let Some(month) = indices.month_of(&index) else { continue };
            let shards = state.routing_table.indices.get(&index).map(|index| &index.shards);
            let is_there = |copies: &Vec<Copy>| copies.iter().any(|copy| copy.state == "STARTED");
            if word == "close" {
                look.unread.insert(month, Fault::Closed(index));
            } else if shards.is_some_and(|shards| shards.values().all(is_there)) {
                look.open.insert(month);
            } else {
                look.unread.insert(month, Fault::Away(index));
            }
        }
        self.note(look.unread.clone());
        Ok(look)
    }

    /// Asks each month for the documents of a query by itself, in one request, so that one that cannot be read keeps
    /// nobody from the others. A month that is made meanwhile has none that a caller could miss: what is in it was in
    /// the live index when that was read.
    pub(super) async fn ask(
        &self,
        (nodes, indices): (&Nodes, &Indices),
        body: &Value,
        deadline: Instant,
    ) -> Result<Copies, StoreError> {
        let Look { mut open, mut unread } = self.look(nodes, indices, deadline).await?;
        let mut copies = Copies::default();
        // Ends: what the server had no time for is asked for again until the deadline only.
        while !open.is_empty() {
            let months: Vec<Month> = std::mem::take(&mut open).into_iter().collect();
            let lines = lines_of(months.iter().map(|month| indices.of_month(*month)), body);
            let reply = nodes.body(&Request::lines("_msearch".to_owned(), lines), deadline).await?;
            let answers: Answers<'_> = serde_json::from_slice(&reply).map_err(|error| unreadable(&error))?;
            if answers.responses.len() != months.len() {
                return Err(StoreError::Unavailable("a search of several was not answered as a whole".to_owned()));
            }
            for (month, answer) in months.into_iter().zip(answers.responses) {
                match answer.fault(indices.of_month(month)) {
                    Ok(()) => copies.add(indices, &answer.hits.map(|hits| hits.hits).unwrap_or_default()),
                    Err(Obstacle::NotNow) if Instant::now() < deadline => drop(open.insert(month)),
                    Err(Obstacle::NotNow) => drop(unread.insert(month, Fault::Away(indices.of_month(month)))),
                    Err(Obstacle::Gone) => {}
                    Err(Obstacle::Of(fault)) => drop(unread.insert(month, fault)),
                }
            }
            if !open.is_empty() {
                sleep(Duration::from_millis(50)).await;
            }
        }
        self.note(unread.clone());
        copies.unread = unread.into_iter().map(|(month, fault)| (month, self.refusal(month, fault))).collect();
        Ok(copies)
    }

    /// Takes what a search of all months has found, if it is whole.
    pub(super) fn whole(&self, copies: Copies) -> Copies {
        self.all_are_read();
        copies
    }
}

/// The months, as one look has found them.
#[derive(Default)]
struct Look {
    open: BTreeSet<Month>,
    unread: BTreeMap<Month, Fault>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    routing_table: RoutingTable,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    indices: BTreeMap<String, IndexState>,
}

#[derive(Deserialize)]
struct IndexState {
    state: String,
}

#[derive(Default, Deserialize)]
struct RoutingTable {
    #[serde(default)]
    indices: BTreeMap<String, Routing>,
}

#[derive(Deserialize)]
struct Routing {
    #[serde(default)]
    shards: BTreeMap<String, Vec<Copy>>,
}

/// A copy of a shard.
#[derive(Deserialize)]
struct Copy {
    state: String,
}

#[derive(Deserialize)]
struct Answers<'a> {
    #[serde(borrow)]
    responses: Vec<Answer<'a>>,
}

/// The answer to one search of several.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    status: u16,
    #[serde(default)]
    timed_out: bool,
    #[serde(rename = "_shards", default)]
    shards: Shards,
    #[serde(borrow, default)]
    hits: Option<Hits<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Hits<'a> {
    #[serde(borrow)]
    hits: Vec<RawDocument<'a>>,
}

/// Why a month has not answered.
enum Obstacle {
    /// The server had no time for it.
    NotNow,
    /// The month was removed, which only happens to one without jobs.
    Gone,
    /// The month cannot be read.
    Of(Fault),
}

impl Answer<'_> {
    fn fault(&self, index: String) -> Result<(), Obstacle> {
        let cause = self.error.and_then(|error| serde_json::from_str::<Cause>(error.get()).ok());
        match cause.and_then(|cause| cause.fault()) {
            Some(Fault::Missing(_)) => return Err(Obstacle::Gone),
            Some(Fault::Closed(_)) => return Err(Obstacle::Of(Fault::Closed(index))),
            Some(fault) => return Err(Obstacle::Of(fault)),
            None => {}
        }
        match self.status {
            429 => Err(Obstacle::NotNow),
            200..=299 if self.error.is_none() && self.shards.is_whole() && !self.timed_out => Ok(()),
            _ => Err(Obstacle::Of(Fault::Away(index))),
        }
    }
}

/// Returns the lines of one request that asks each of these indices the same.
fn lines_of(indices: impl Iterator<Item = String>, body: &Value) -> Bytes {
    let body = body.to_string();
    let lines = indices.map(|index| {
        let head = json!({ "index": index, "allow_partial_search_results": false });
        format!("{head}\n{body}\n")
    });
    lines.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn month(text: &str) -> Month {
        Month::parse(text).expect("a month")
    }

    #[test]
    fn a_month_that_cannot_be_read_is_missed_only_by_who_may_have_a_later_copy_in_it() {
        let id = |text: &str| JobId::new(text).expect("an id");
        let why = || StoreError::OutOfOrder("closed".to_owned());
        let copies = Copies {
            months: [(id("a"), vec![month("2025.03"), month("2024.12")])].into(),
            unread: [(month("2025.01"), why())].into(),
        };
        let latest = |copies: &Copies, name: &str, from: Option<&str>| copies.latest(&id(name), from.map(month)).ok();
        assert_eq!(latest(&copies, "a", None), Some(Some(month("2025.03"))));
        assert_eq!(latest(&copies, "b", None), None);
        assert_eq!(latest(&copies, "b", Some("2025.01")), None);
        assert_eq!(latest(&copies, "b", Some("2025.02")), Some(None));
        let older = Copies { months: [(id("a"), vec![month("2024.12")])].into(), ..copies };
        assert_eq!(latest(&older, "a", None), None, "a later copy may be there");
    }

    #[test]
    fn a_part_that_is_away_is_waited_for_and_a_closed_month_is_not() {
        let reach = Reach::default();
        let now = Month::of(Timestamp::from_millis(0));
        let refused = |fault: Fault| matches!(reach.refusal(now, fault), StoreError::OutOfOrder(_));
        assert!(!refused(Fault::Away("m".to_owned())) && refused(Fault::Closed("m".to_owned())));
        reach.note([(now, Fault::Away("m".to_owned()))].into());
        assert!(reach.sentences().is_empty(), "it may be back at once");
        reach.note([(now, Fault::Closed("m".to_owned()))].into());
        assert_eq!(reach.sentences().len(), 1);
        reach.all_are_read();
        assert!(reach.sentences().is_empty());
    }
}
