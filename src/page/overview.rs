//! The first page: how much happens, what waits, and what is the matter.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};

use super::ask::{Asker, Refused};
use super::charts::{Chart, Charts};
use super::frame::{self, Frame};
use super::kept::Kept;
use super::shown;
use crate::clock::Timestamp;
use crate::job::JobState;
use crate::wire::{ClusterStatus, CountAnswer, HealthStatus, Job, Page, Queue, ServerHealth, WorkerList};

/// How many orphans and how many overdue jobs are named.
const NAMED: &str = "10";

/// How long what is shown is kept for others who look.
const KEPT: Duration = Duration::from_millis(1_500);

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    charts: [Arc<Chart>; 2],
    seen: Arc<Seen>,
}

/// What the page shows beside the charts, which is the same for all who may read.
pub(super) struct Seen {
    health: ServerHealth,
    queues: Vec<Queue>,
    workers: WorkerList,
    orphans: Vec<Job>,
    overdue: Vec<Job>,
    held: u64,
    cluster: Option<ClusterStatus>,
}

impl Seen {
    /// Returns how many jobs are in a state.
    fn count(&self, state: JobState) -> u64 {
        self.queues.iter().filter_map(|queue| queue.jobs.get(&state)).sum()
    }

    fn oldest_waiting_since(&self) -> Option<Timestamp> {
        self.queues.iter().filter_map(|queue| queue.oldest_waiting_since).min()
    }

    fn waiting_workers(&self) -> usize {
        self.workers.items.iter().filter(|worker| worker.waiting).count()
    }

    fn paused_queues(&self) -> usize {
        self.queues.iter().filter(|queue| queue.paused).count()
    }
}

pub(super) async fn page(
    asker: Asker,
    State(charts): State<Arc<Charts>>,
    State(seen): State<Arc<Kept<Seen>>>,
    uri: Uri,
) -> Response {
    frame::answer(overview(&asker, &charts, &seen).await, &uri)
}

async fn overview(asker: &Asker, charts: &Charts, seen: &Kept<Seen>) -> Result<Overview, Refused> {
    // Refuses whoever may not read before anything is shown that was found for others.
    let frame = Frame::of(asker, "/", "Overview").await?;
    let seen = seen.get(KEPT, look(asker)).await?;
    let charts = charts.get(asker, frame.now).await?;
    Ok(Overview { frame, charts, seen })
}

async fn look(asker: &Asker) -> Result<Seen, Refused> {
    let running = |kql| async move {
        let parameters = [("kql", kql), ("state", "running"), ("sort", "started_at"), ("limit", NAMED)];
        asker.get::<Page<Job>>("/v1/jobs", &parameters).await
    };
    let cluster = async {
        match asker.get::<ClusterStatus>("/v1/cluster", &[]).await {
            Err(refused) if refused.status == StatusCode::NOT_FOUND => Ok(None),
            answer => answer.map(Some),
        }
    };
    let (health, queues, workers, orphans, overdue, held, cluster) = tokio::try_join!(
        async { asker.get::<ServerHealth>("/v1/health", &[]).await },
        async { asker.get::<Page<Queue>>("/v1/queues", &[]).await },
        async { asker.get::<WorkerList>("/v1/workers", &[]).await },
        running("orphan.flagged_at: *"),
        running("overdue_at: *"),
        async { asker.get::<CountAnswer>("/v1/jobs/count", &[("kql", "hold.at: *")]).await },
        cluster,
    )?;
    Ok(Seen {
        health,
        queues: queues.items,
        workers,
        orphans: orphans.items,
        overdue: overdue.items,
        held: held.total,
        cluster,
    })
}
