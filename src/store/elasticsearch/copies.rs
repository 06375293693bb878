//! Copies in the archive: how stale ones are recognized and removed.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::bulk::{ItemOutcome, Lines, Target};
use super::context::Context;
use super::documents::{Stored, mget, mget_of, parse_mget};
use super::nodes::Request;
use super::search;
use super::tombstone::Destination;
use super::write_id::WriteId;
use crate::job::JobId;
use crate::store::{Place, StoreError, Version};

/// A copy of a job in the archive, in one version.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) id: JobId,
    pub(super) version: Version,
}

/// The result of removing copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// How many copies were removed.
    pub(super) removed: usize,
    /// How many copies may still exist.
    pub(super) left: usize,
}

/// Removes the copies in exactly the given versions.
pub(super) async fn remove(shared: &Context, copies: &[Copy], deadline: Instant) -> Result<Swept, StoreError> {
    let mut lines = Lines::with_capacity(copies.len() * 120);
    for Copy { id, version } in copies {
        let index = shared.indices.of_place(version.place);
        lines.delete(Target::at(id.as_str(), *version).in_index(&index))?;
    }
    let outcomes = shared.send(&shared.indices.jobs, lines, deadline).await?;
    let is_gone = |outcome: &&ItemOutcome| matches!(outcome, ItemOutcome::Done(_));
    let removed = outcomes.iter().filter(is_gone).count();
    // A conflict means that the copy has another version, or is gone already.
    let conflicts = outcomes.iter().filter(|outcome| matches!(outcome, ItemOutcome::Conflict)).count();
    Ok(Swept { removed, left: copies.len() - removed - conflicts })
}

/// Makes all that was written to `index` visible to searches.
pub(super) async fn refresh(shared: &Context, index: &str, deadline: Instant) -> Result<(), StoreError> {
    let request = Request::command(format!("{index}/_refresh"));
    search::refreshed(&shared.nodes.body(&request, deadline).await?)
}

/// Removes those copies of `ids` that a search finds and that are not the job, nor on the way to be.
///
/// A copy is read first and the live index after it. If that has the job in another writing, or a tombstone to nowhere
/// or to another month, then the copy read will never be the job: a tombstone to it is only written over the very
/// writing that was copied. It is removed in the version read, so that a copy made since stays.
pub(super) async fn sweep(shared: &Context, ids: &[&JobId], deadline: Instant) -> Result<Swept, StoreError> {
    if ids.is_empty() {
        return Ok(Swept::default());
    }
    let locator = shared.locator(deadline);
    let found = locator.copies(ids).await?;
    if found.is_empty() {
        return Ok(Swept::default());
    }
    let address = |(id, month)| (shared.indices.of_month(month), id);
    let addresses: Vec<(String, &JobId)> =
        found.iter().flat_map(|(id, months)| months.iter().map(move |month| (id, *month))).map(address).collect();
    let reply = mget_of(&shared.nodes, &addresses, deadline).await?;
    let mut copies: Vec<(Copy, Option<WriteId>)> = Vec::with_capacity(addresses.len());
    for ((_, id), document) in addresses.iter().zip(parse_mget(&reply, addresses.len())?) {
        if let Some(present) = document.job(&shared.indices)? {
            copies.push((Copy { id: (*id).clone(), version: present.document.version }, present.document.write_id));
        }
    }
    let live = live(shared, &copies, deadline).await?;
    let stale = copies.into_iter().filter(|(copy, write_id)| match live.get(&copy.id) {
        Some(Standing::Job(live)) => live != write_id,
        Some(Standing::Tombstone(Destination::Nowhere)) => true,
        Some(Standing::Tombstone(Destination::Month(month))) => Place::from(*month) != copy.version.place,
        None => false,
    });
    let stale: Vec<Copy> = stale.map(|(copy, _)| copy).collect();
    remove(shared, &stale, deadline).await
}

/// The state of a job's id in the live index.
enum Standing {
    Job(Option<WriteId>),
    Tombstone(Destination),
}

async fn live(
    shared: &Context,
    copies: &[(Copy, Option<WriteId>)],
    deadline: Instant,
) -> Result<HashMap<JobId, Standing>, StoreError> {
    let ids: BTreeSet<&JobId> = copies.iter().map(|(copy, _)| &copy.id).collect();
    let ids: Vec<&JobId> = ids.into_iter().collect();
    let mut live = HashMap::with_capacity(ids.len());
    if ids.is_empty() {
        return Ok(live);
    }
    let reply = mget(&shared.nodes, &shared.indices.jobs, &ids, deadline).await?;
    for (id, document) in ids.iter().zip(parse_mget(&reply, ids.len())?) {
        let standing = match document.stored(&shared.indices)? {
            Some(Stored::Job(present)) => Standing::Job(present.document.write_id),
            Some(Stored::Tombstone(tombstone)) => Standing::Tombstone(tombstone.destination),
            None => continue,
        };
        live.insert((*id).clone(), standing);
    }
    Ok(live)
}
