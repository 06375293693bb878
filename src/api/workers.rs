//! The calls about workers.

use super::call::{Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::{Query, WorkerPath};
use super::json::ok;
use super::lists::page;
use crate::job::{JobState, WorkerId};
use crate::manager::WorkerStatuses;
use crate::query::{Direction, Filter, Sort, SortField};
use crate::wire::{JobAnswer, Page, WorkerJobs, WorkerList};

/// Lists the workers that called this server recently, and those that run jobs, whichever server they call.
#[utoipa::path(get, path = "/v1/workers", tag = "queues",
    responses((status = 200, description = "The workers, by name", body = WorkerList)))]
pub(crate) async fn workers(call: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    let WorkerStatuses { workers: items, truncated } = call.app.manager.workers().await?;
    ok(&WorkerList { items, next_cursor: None, truncated })
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
        (status = 404, description = "`no_such_worker`: it runs no job and has not called this server recently"),
    ))]
pub(crate) async fn worker(call: Call<Read>, WorkerPath(id): WorkerPath, query: Query) -> Answer {
    query.only(&["limit", "cursor"])?;
    let filter = Filter { states: vec![JobState::Running], worker_id: Some(id.clone()), ..Filter::default() };
    let Page { items: jobs, next_cursor } =
        page(&call.app, &query, filter, Sort::By(SortField::CreatedAt, Direction::Ascending)).await?;
    let worker = call.app.manager.worker(&id).await?;
    let unknown = || ApiError::new(Code::NoSuchWorker, format!("nothing is known of a worker {id}"));
    let worker = worker.ok_or_else(unknown)?;
    ok(&WorkerJobs { worker, items: jobs.iter().map(JobAnswer::from).collect(), next_cursor })
}
