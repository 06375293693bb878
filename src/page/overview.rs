//! The first page: how much happens, what waits, and what is the matter.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};

use super::ask::{Asker, Refused};
use super::charts::{Chart, Charts};
use super::frame::{self, Frame};
use super::kept::Kept;
use super::shown;
use super::written::{Readers, Written};
use crate::clock::Timestamp;
use crate::job::JobState;
use crate::wire::{ClusterStatus, CountAnswer, HealthStatus, Job, Me, Page, Queue, ServerHealth, WorkerList};

/// How many orphans and how many overdue jobs are named.
const NAMED: &str = "10";

/// The held jobs. Only live ones are, and to say so saves looking at the others.
const HELD: [(&str, &str); 3] = [("kql", "hold.at: *"), ("state", "available"), ("state", "running")];
/// How long what is shown is kept for others who look.
const KEPT: Duration = Duration::from_millis(1_000);

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    charts: [Option<Arc<Chart>>; 2],
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
    State(readers): State<Arc<Readers>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    // Refuses whoever may not read before anything is shown that was found for others.
    let me = match asker.me().await {
        Ok(me) => me,
        Err(refused) => return frame::answer::<Overview>(Err(refused), &uri),
    };
    let place = readers.of(&me.name);
    let write = async {
        let page = overview(&asker, me, &charts, &seen).await?;
        Written::of(&page).map_err(|why| Refused::unreadable(&why))
    };
    match place.get(KEPT, write).await {
        Ok(written) => written.answer(&headers),
        Err(refused) => frame::answer::<Overview>(Err(refused), &uri),
    }
}

async fn overview(asker: &Asker, me: Me, charts: &Charts, seen: &Kept<Seen>) -> Result<Overview, Refused> {
    let frame = Frame::around(me, "/", "Overview");
    let seen = seen.get(KEPT, look(asker)).await?;
    let charts = charts.get(asker, frame.now).await;
    Ok(Overview { frame, charts, seen })
}

async fn look(asker: &Asker) -> Result<Seen, Refused> {
    let running = |kql| async move {
        let parameters = [("kql", kql), ("state", "running"), ("sort", "started_at"), ("limit", NAMED)];
        asker.get::<Page<Job>>("/v1/jobs", &parameters).await
    };
    let (health, queues, workers, orphans, overdue, held, cluster) = tokio::try_join!(
        async { asker.get::<ServerHealth>("/v1/health", &[]).await },
        async { asker.get::<Page<Queue>>("/v1/queues", &[]).await },
        async { asker.get::<WorkerList>("/v1/workers", &[]).await },
        running("orphan.flagged_at: *"),
        running("overdue_at: *"),
        async { asker.get::<CountAnswer>("/v1/jobs/count", &HELD).await },
        asker.cluster(),
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
