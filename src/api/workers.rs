//! The calls about workers.

use super::App;
use super::call::{Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::{Query, WorkerPath};
use super::json::ok;
use super::lists::page;
use crate::job::{JobState, WorkerId};
use crate::manager::{ManagerError, SeenElsewhere, WorkerStatuses};
use crate::query::{Direction, Filter, Sort, SortField};
use crate::wire::{JobAnswer, Page, WorkerJobs, WorkerList};

/// Lists the workers that called a server of the store recently, and those that run jobs. The servers that know each
/// other's addresses ask each other.
#[utoipa::path(get, path = "/v1/workers", tag = "queues",
    responses((status = 200, description = "The workers, by name", body = WorkerList)))]
pub(crate) async fn workers(call: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    let WorkerStatuses { workers: items, truncated, unasked } = known(&call.app, None).await?;
    ok(&WorkerList { items, next_cursor: None, truncated, servers_unasked: unasked as u64 })
}

/// Returns a worker with the jobs that it runs.
#[utoipa::path(get, path = "/v1/workers/{worker_id}", tag = "queues",
    params(
        ("worker_id" = WorkerId, Path, description = "The worker's name"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The size of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "The worker and a page of its jobs", body = WorkerJobs),
        (status = 404, description = "`no_such_worker`: it runs no job and has called no server recently"),
    ))]
pub(crate) async fn worker(call: Call<Read>, WorkerPath(id): WorkerPath, query: Query) -> Answer {
    query.only(&["limit", "cursor"])?;
    let filter = Filter { states: vec![JobState::Running], worker_id: Some(id.clone()), ..Filter::default() };
    let Page { items: jobs, next_cursor } =
        page(&call.app, &query, filter, Sort::By(SortField::CreatedAt, Direction::Ascending)).await?;
    let worker = known(&call.app, Some(&id)).await?.workers.pop();
    let unknown = || ApiError::new(Code::NoSuchWorker, format!("nothing is known of a worker {id}"));
    let worker = worker.ok_or_else(unknown)?;
    ok(&WorkerJobs { worker, items: jobs.iter().map(|job| JobAnswer::of(job, call.sight)).collect(), next_cursor })
}

/// Returns what this server and the others know of the workers, or of the one of this name.
async fn known(app: &App, id: Option<&WorkerId>) -> Result<WorkerStatuses, ManagerError> {
    let elsewhere = match &app.peers {
        Some(peers) => peers.workers(&app.manager, id).await,
        None => {
            let (addresses, without) = app.manager.others();
            SeenElsewhere { workers: Vec::new(), unasked: addresses.len() + without }
        }
    };
    app.manager.workers(id, elsewhere).await
}
