//! Copies in the archive: how stale ones are recognized and removed.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::bulk::{Action, ItemOutcome, Lines, Target};
use super::conditional::CurrentDocument;
use super::context::Context;
use super::documents::{Present, Stored, mget, mget_of, parse_mget};
use super::nodes::Request;
use super::reach::Copies;
use super::search;
use super::write_id::WriteId;
use crate::job::JobId;
use crate::store::{StoreError, Version};

/// A copy of a job in the archive, in one version.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) id: JobId,
    pub(super) version: Version,
}

/// The result of removing copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// How many copies were removed.
    pub(super) removed: usize,
    /// The jobs of which a stale copy may still exist.
    pub(super) left: BTreeSet<JobId>,
}

/// Removes the copies in exactly the given versions.
pub(super) async fn remove(shared: &Context, copies: &[Copy], deadline: Instant) -> Result<Swept, StoreError> {
    let mut lines = Lines::with_capacity(copies.len() * 120);
    for Copy { id, version } in copies {
        let index = shared.indices.of_place(version.place);
        lines.delete(Target::at(id.as_str(), *version).in_index(&index))?;
    }
    let mut swept = Swept::default();
    for (copy, sent) in copies.iter().zip(shared.send(&shared.indices.jobs, lines, deadline).await) {
        match sent.outcome {
            ItemOutcome::Done(_) => swept.removed += 1,
            // The copy has another version, or is gone already.
            ItemOutcome::Conflict => {}
            ItemOutcome::NotDone(_)
            | ItemOutcome::Invalid(_)
            | ItemOutcome::Denied(_)
            | ItemOutcome::OutOfOrder(_)
            | ItemOutcome::Withheld(_)
            | ItemOutcome::Unsure(_) => {
                swept.left.insert(copy.id.clone());
            }
        }
    }
    Ok(swept)
}

/// Makes all that was written to `index` visible to searches.
pub(super) async fn refresh(shared: &Context, index: &str, deadline: Instant) -> Result<(), StoreError> {
    let request = Request::command(format!("{index}/_refresh"));
    search::refreshed(&shared.nodes.body(&request, deadline).await?)
}

/// Removes those copies of `ids` that a search finds and that are not the job, nor on the way to be. Copies in a month
/// that is not within reach are left.
///
/// A copy is read first and the live index after it. If that has the job in another writing, or a tombstone to nowhere
/// or to another month, then the copy read will never be the job: a tombstone to it is only written over the very
/// writing that was copied. What the live index showed may be on no other replica yet, so it is confirmed by writing it
/// once more before the copy goes. The copy is removed in the version read, so that one made since stays.
pub(super) async fn sweep(shared: &Context, ids: &[&JobId], deadline: Instant) -> Result<Swept, StoreError> {
    let mut left: BTreeSet<JobId> = BTreeSet::new();
    if ids.is_empty() {
        return Ok(Swept::default());
    }
    let found = shared.locator(deadline).copies(ids).await?;
    if !found.unread.is_empty() {
        left.extend(ids.iter().map(|id| (*id).clone()));
    }
    let copies = read(shared, &found, &mut left, deadline).await?;
    let stale = stale(shared, copies, &mut left, deadline).await?;
    let mut swept = remove(shared, &stale, deadline).await?;
    swept.left.append(&mut left);
    Ok(swept)
}

/// Reads the copies found, each with the write that made it. Adds to `left` the jobs whose copy cannot be read.
async fn read(
    shared: &Context,
    found: &Copies,
    left: &mut BTreeSet<JobId>,
    deadline: Instant,
) -> Result<Vec<(Copy, Option<WriteId>)>, StoreError> {
    let address = |(id, month)| (shared.indices.of_month(month), id);
    let addresses: Vec<(String, &JobId)> = found
        .months
        .iter()
        .flat_map(|(id, months)| months.iter().map(move |month| (id, *month)))
        .map(address)
        .collect();
    let mut copies = Vec::with_capacity(addresses.len());
    if addresses.is_empty() {
        return Ok(copies);
    }
    let reply = mget_of(&shared.nodes, &addresses, deadline).await?;
    for ((_, id), document) in addresses.iter().zip(parse_mget(&reply, addresses.len())?) {
        match document.job(&shared.indices) {
            Ok(Some(Present { document, .. })) => {
                copies.push((Copy { id: (*id).clone(), version: document.version }, document.write_id));
            }
            Ok(None) => {}
            Err(_) => {
                left.insert((*id).clone());
            }
        }
    }
    Ok(copies)
}

/// Returns those of `copies` that the live index contradicts for certain. Adds to `left` the jobs of which it does so
/// and that could not be confirmed.
async fn stale(
    shared: &Context,
    copies: Vec<(Copy, Option<WriteId>)>,
    left: &mut BTreeSet<JobId>,
    deadline: Instant,
) -> Result<Vec<Copy>, StoreError> {
    let ids: BTreeSet<&JobId> = copies.iter().map(|(copy, _)| &copy.id).collect();
    let ids: Vec<&JobId> = ids.into_iter().collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let reply = mget(&shared.nodes, &shared.indices.jobs, &ids, deadline).await?;
    let mut live: HashMap<&JobId, Stored<'_>> = HashMap::with_capacity(ids.len());
    for (id, document) in ids.iter().zip(parse_mget(&reply, ids.len())?) {
        match document.stored(&shared.indices) {
            Ok(Some(stored)) => drop(live.insert(id, stored)),
            Ok(None) => {}
            Err(_) => drop(left.insert((*id).clone())),
        }
    }
    let is_stale = |(copy, write_id): &&(Copy, Option<WriteId>)| match live.get(&copy.id) {
        Some(Stored::Job(present)) => present.document.write_id != *write_id,
        Some(Stored::Tombstone(tombstone)) => tombstone.destination.place() != Some(copy.version.place),
        None => false,
    };
    let stale: Vec<Copy> = copies.iter().filter(is_stale).map(|(copy, _)| copy.clone()).collect();
    let contradicted: Vec<&JobId> = stale.iter().map(|copy| &copy.id).collect::<BTreeSet<_>>().into_iter().collect();
    let mut lines = Lines::default();
    for id in &contradicted {
        if let Some(stored) = live.get(id) {
            let CurrentDocument { version, source, .. } = *stored.document();
            lines.add(&Action::Index(Target::at(id.as_str(), version)), Some(source))?;
        }
    }
    let sent = shared.send(&shared.indices.jobs, lines, deadline).await;
    let unsure = contradicted.iter().zip(sent).filter(|(_, sent)| !matches!(sent.outcome, ItemOutcome::Done(_)));
    let unsure: BTreeSet<JobId> = unsure.map(|(id, _)| (*id).clone()).collect();
    let confirmed = stale.into_iter().filter(|copy| !unsure.contains(&copy.id)).collect();
    left.extend(unsure);
    Ok(confirmed)
}
