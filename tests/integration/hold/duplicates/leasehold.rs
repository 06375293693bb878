//! A worker of Leasehold: it repeats a claim under its `request_id`, and ends an execution under its fence.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::journal::{micros, now};
use super::worker::{Caller, End, Heard, Held, LEASE, Patience, Protocol};

/// The queue of all jobs.
pub(super) const QUEUE: &str = "duplicates";
/// How long a claim waits for jobs, in milliseconds.
const WAIT_MS: u64 = 300;

pub(super) struct Leasehold {
    caller: Caller,
    name: String,
    claims: u64,
}

impl Leasehold {
    pub(super) fn new(caller: Caller, name: &str) -> Self {
        Self { caller, name: name.to_owned(), claims: 0 }
    }

    fn items(answer: Option<Value>) -> Option<Vec<Value>> {
        Some(answer?["items"].as_array().expect("items").clone())
    }

    /// A refusal, which is the only one that an honest worker can get.
    fn is_lost(item: &Value) -> bool {
        item["status"] == 409 && item["error"]["code"] == "lease_lost"
    }
}

#[async_trait]
impl Protocol for Leasehold {
    async fn claim(&mut self, most: usize) -> Vec<Held> {
        self.claims += 1;
        let mut call = json!({
            "worker_id": self.name, "queues": [QUEUE], "max_jobs": most, "wait_ms": WAIT_MS,
            "lease_ms": LEASE.as_millis() as u64, "request_id": format!("{}-{}", self.name, self.claims),
        });
        let patience = Patience::default();
        loop {
            let until = now() + micros(LEASE);
            if let Some(answer) = self.caller.post("/v1/claims", call.to_string()).await {
                let jobs = answer["jobs"].as_array().expect("jobs");
                let held = |job: &Value| Held {
                    id: job["id"].as_str().expect("an id").to_owned(),
                    token: job["fence"].as_u64().expect("a fence"),
                    until,
                };
                return jobs.iter().map(held).collect();
            }
            call["repeated"] = json!(true);
            patience.pause().await;
        }
    }

    async fn beat(&mut self, held: &[Held]) -> Vec<Heard> {
        let leases: Vec<Value> = held.iter().map(|lease| json!({"id": lease.id, "fence": lease.token})).collect();
        let call = json!({"worker_id": self.name, "leases": leases});
        let until = now() + micros(LEASE);
        let Some(items) = Self::items(self.caller.post("/v1/heartbeats", call.to_string()).await) else {
            return held.iter().map(|_| Heard::Nothing).collect();
        };
        let heard = |item: &Value| match item["status"].as_u64() {
            Some(200) => Heard::Renewed { until },
            _ if Self::is_lost(item) => Heard::Lost,
            _ => Heard::Nothing,
        };
        items.iter().map(heard).collect()
    }

    async fn complete(&mut self, held: &[Held]) -> Vec<End> {
        let items: Vec<Value> = held.iter().map(|lease| json!({"id": lease.id, "fence": lease.token})).collect();
        let call = json!({"worker_id": self.name, "items": items});
        let Some(items) = Self::items(self.caller.post("/v1/completions", call.to_string()).await) else {
            return held.iter().map(|_| End::Unanswered).collect();
        };
        let ended = |item: &Value| match item["status"].as_u64() {
            Some(200) => End::Acknowledged,
            _ if Self::is_lost(item) => End::Refused,
            Some(429 | 500..) => End::Unanswered,
            _ => panic!("a completion: {item}"),
        };
        items.iter().map(ended).collect()
    }
}
