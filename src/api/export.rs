//! Exports: any number of jobs, one a line, in constant memory.
//!
//! Page after page is read and handed over as the client takes it ([`super::pieces`]). Few of them read at once, and
//! one whose client takes nothing keeps no other from reading; for long, it loses its place.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::budget::Holder;
use super::call::{Answer, Call, Read};
use super::error::ApiError;
use super::extract::Query;
use super::lists::{FILTER, FilterParams, filter, parse};
use super::pieces::{self, NDJSON, Source};
use super::trim::Fields;
use crate::job::Body as JobBody;
use crate::manager::{ChangeName, Manager};
use crate::query::{Search, Sort};
use crate::store::Versioned;
use crate::wire::Sight;
use crate::wire::job::JobAnswer;
use crate::wire::selected::SelectedJob;

/// The number of jobs that are read together.
const PAGE: usize = 200;
/// The most bytes of separately stored bodies that are read together, unless one job has more.
const BODY_BYTES: u64 = 1 << 20;

/// Exports all matching jobs, one per line, each as `GET /v1/jobs/{id}` returns it.
///
/// The filter and the order are the same as for a list. Every job that exists when the export begins, is not removed
/// and matches the filter until it is read comes exactly once, as it is when its page is read; jobs submitted meanwhile
/// are left out. This holds for the default order and for any order by a field that does not change meanwhile. An
/// export that fails midway breaks its connection off: one that ends regularly is complete.
#[utoipa::path(get, path = "/v1/jobs/export", tag = "jobs",
    params(
        FilterParams,
        ("sort" = Option<String>, Query, example = "-created_at", description = "The order, as for a list"),
        ("fields" = Option<Vec<String>>, Query, max_items = 100, example = json!(["id", "labels.team"]),
            description = "Selects only these fields of each job, with dots for nested ones"),
        ("reveal" = Option<bool>, Query,
            description = "Whether to show the values of `env` and addresses too, which needs the role `admin`"),
    ),
    responses(
        (status = 200, description = "The jobs, one per line", body = Vec<SelectedJob>,
            content_type = "application/x-ndjson"),
        (status = 429, description = "`share_taken`: the caller has as many exports under way as it may"),
        (status = 503, description = "`overloaded`: the server runs as many exports as it can"),
    ))]
pub(crate) async fn export(call: Call<Read>, holder: Holder, query: Query) -> Answer {
    query.only(&[&FILTER[..], &["sort", "fields", "reveal"]].concat())?;
    let sort = query.one("sort")?.map(|text| parse::<Sort>("sort", text)).transpose()?.unwrap_or_default();
    let search = Search { filter: filter(&call.app, &query)?, sort, after: None, limit: PAGE };
    let (fields, sight) = (Fields::of(&query)?, call.revealing(&query)?);
    let place = call.app.guard.budgets.exports.take(&holder, 1)?;
    if sight == Sight::Everything {
        call.app.manager.audit_changes(&[call.change(ChangeName::JobsRevealed).to(&query)]).await?;
    }
    call.app.manager.refresh(&search.filter).await?;
    let (manager, readers) = (call.app.manager.clone(), Arc::clone(&call.app.export_readers));
    let mut export = Export { manager, readers, search, fields, sight, page: Vec::new().into_iter(), done: false };
    // The first page is read before the answer begins, so that a refusal still has a status.
    export.turn().await?;
    Ok(pieces::answer(export, NDJSON, 1, place))
}

/// An export that is running.
struct Export {
    manager: Manager,
    /// One permit for each export that may read from the store.
    readers: Arc<Semaphore>,
    search: Search,
    fields: Fields,
    sight: Sight,
    /// The jobs of the page that are not sent yet.
    page: std::vec::IntoIter<Versioned>,
    /// Whether the page is the last one.
    done: bool,
}

impl Source for Export {
    const NAME: &'static str = "an export";

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let readers = Arc::clone(&self.readers);
        // The semaphore is never closed.
        let _turn = readers.acquire().await;
        if self.page.as_slice().is_empty() && !self.done {
            self.turn().await?;
        }
        let some = self.some();
        if some.is_empty() {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for view in self.manager.view(some).await? {
            self.fields.write(&JobAnswer::with_bodies(&view, self.sight), &mut lines)?;
            lines.push(b'\n');
        }
        Ok(Some(Bytes::from(lines)))
    }
}

impl Export {
    /// Reads the next page.
    async fn turn(&mut self) -> Result<(), ApiError> {
        let page = self.manager.search(&self.search).await?;
        self.done = page.len() < self.search.limit;
        self.search.after = page.last().map(|last| self.search.sort.key(&last.job));
        self.page = page.into_iter();
        Ok(())
    }

    /// Takes the next jobs of the page whose bodies can be read together.
    fn some(&mut self) -> Vec<Versioned> {
        let mut bytes = 0;
        let fits = |found: &&Versioned| {
            let before = bytes;
            bytes += apart(found);
            before == 0 || bytes <= BODY_BYTES
        };
        let count = self.page.as_slice().iter().take_while(fits).count();
        self.page.by_ref().take(count).collect()
    }
}

/// Returns the length in bytes of the bodies that are stored apart from a job.
fn apart(found: &Versioned) -> u64 {
    let bodies = [&found.job.payload, found.job.result()];
    bodies
        .into_iter()
        .map(|body| if let JobBody::Stored(reference) = body { u64::from(reference.bytes) } else { 0 })
        .sum()
}
