//! Whether all is well, and what to do where it is not.

use askama::Template;
use axum::response::Response;
use http::Uri;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::wire::{ClusterStatus, Distribution, HealthCheck, HealthStatus, ServerHealth};

#[derive(Template)]
#[template(path = "health.html")]
struct HealthPage {
    frame: Frame,
    health: ServerHealth,
    configuration: String,
    cluster: Option<ClusterStatus>,
    /// Why the server or its store cannot serve now; `None` when they can.
    unready: Option<String>,
}

impl HealthPage {
    /// Returns the checks that found something, the worst first.
    fn bad(&self) -> Vec<&HealthCheck> {
        let mut bad: Vec<_> = self.health.checks.iter().filter(|check| check.status != HealthStatus::Ok).collect();
        bad.sort_by_key(|check| std::cmp::Reverse(check.status));
        bad
    }

    /// Returns the checks that found nothing.
    fn good(&self) -> Vec<&HealthCheck> {
        self.health.checks.iter().filter(|check| check.status == HealthStatus::Ok).collect()
    }

    /// Returns what is measured, each with what it is.
    fn times(&self) -> [(&'static str, Distribution); 3] {
        let performance = &self.health.performance;
        [
            ("a claim waited for a job", performance.claim_wait),
            ("a due job waited for a claim", performance.drift),
            ("an attempt ran", performance.run_time),
        ]
    }
}

pub(super) async fn page(asker: Asker, uri: Uri) -> Response {
    frame::answer(health(&asker).await, &uri)
}

async fn health(asker: &Asker) -> Result<HealthPage, Refused> {
    let frame = Frame::of(asker, "/health", "Health").await?;
    let health: ServerHealth = asker.get("/v1/health", &[]).await?;
    let cluster = asker.cluster().await?;
    let unready = asker.get::<crate::wire::Health>("/readyz", &[]).await.err().map(|refused| refused.detail);
    let configuration = serde_json::to_string_pretty(&health.configuration).unwrap_or_default();
    Ok(HealthPage { frame, health, configuration, cluster, unready })
}
