//! The output of attempts in a cluster: it is whole whichever member leads, and whichever is lost.

use leasehold::client::Client;
use leasehold::wire::{ClaimJobs, CompleteJob, SubmitJob};
use reqwest::StatusCode;
use serde_json::json;

use super::site::{ONE_CLOCK, Site};
use crate::machine;
use crate::program::eventually;

/// What a job has written so far, as its worker knows.
struct Written {
    job: String,
    fence: u64,
    text: String,
}

impl Written {
    /// Has a server take so many lines more, each as a piece.
    async fn goes_on(&mut self, url: &str, lines: usize) {
        let http = reqwest::Client::new();
        for line in 0..lines {
            let text = format!("line {line} at {url}\n");
            let piece = json!({"worker_id": "w", "fence": self.fence, "stream": "stdout", "offset": self.text.len(),
                "text": text});
            let put = http.post(format!("{url}/v1/jobs/{}/output", self.job)).json(&piece).send().await;
            assert_eq!(put.expect("an answer").status(), StatusCode::NO_CONTENT);
            self.text += &text;
        }
    }

    /// Checks that a server has all of it.
    async fn is_whole_at(&self, url: &str) {
        let path = format!("{url}/v1/jobs/{}/output?as_text=stdout", self.job);
        let kept = reqwest::get(path).await.expect("an answer").text().await.expect("text");
        assert_eq!(kept, self.text, "at {url}");
    }
}

/// Waits until another member has all of the output that a leader was given.
async fn is_copied(site: &Site, leader: usize) {
    let uncopied = async || site.servers[leader].counter("leasehold_member_output_uncopied_cells").await;
    eventually("the output to be copied", async || uncopied().await == 0.0).await;
}

/// Submits a job and claims it.
async fn begin(client: &Client, id: &str) -> Written {
    client.submit(&SubmitJob { id: Some(id.to_owned()), ..SubmitJob::new("q", "k") }).await.expect("taken");
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() };
    let claimed = client.claim(&claim).await.expect("claimed").jobs.remove(0);
    Written { job: claimed.id.to_string(), fence: claimed.fence, text: String::new() }
}

/// Sends a server a piece of each attempt, in one call, as a worker does.
async fn all_go_on(all: &mut [Written], url: &str) {
    let piece = |written: &mut Written| {
        let text = format!("{}{url}\n", "more of it ".repeat(100));
        let piece = json!({"id": written.job, "fence": written.fence, "stream": "stdout",
            "offset": written.text.len(), "text": text});
        written.text += &text;
        piece
    };
    let pieces: Vec<_> = all.iter_mut().map(piece).collect();
    let call = json!({"worker_id": "w", "pieces": pieces});
    let put = reqwest::Client::new().post(format!("{url}/v1/outputs")).json(&call).send().await.expect("an answer");
    let (status, answer) = (put.status(), put.text().await.expect("text"));
    assert!(status.is_success() && !answer.contains("error"), "{status}: {answer}");
}

/// More than a member asks another one for at once, and more than waits for one.
#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_many_attempts_is_whole_after_a_change_of_the_leader_amid_their_cells() {
    let _share = machine::with_others();
    let mut site = Site::members(&ONE_CLOCK).await;
    let leader = site.a_leader().await;
    let urls = site.urls();
    let client = Client::new(&urls[leader], None).expect("a client");
    let mut all = Vec::new();
    for number in 0..150 {
        all.push(begin(&client, &format!("job-{number}")).await);
    }
    for _ in 0..3 {
        all_go_on(&mut all, &urls[leader]).await;
    }
    is_copied(&site, leader).await;
    site.servers[leader].kill();
    site.another_leads(leader).await;
    let next = site.a_leader().await;
    for _ in 0..3 {
        all_go_on(&mut all, &urls[next]).await;
    }
    for written in &all {
        written.is_whole_at(&urls[next]).await;
    }
    site.servers[leader].start_again();
    site.servers[leader].ready().await;
    site.has_caught_up(leader).await;
    site.have_lead(leader).await;
    all_go_on(&mut all, &urls[leader]).await;
    for written in &all {
        written.is_whole_at(&urls[leader]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_job_of_the_same_id_has_no_output_of_the_earlier_one_at_any_leader() {
    let _share = machine::with_others();
    let site = Site::members(&ONE_CLOCK).await;
    let leader = site.a_leader().await;
    let urls = site.urls();
    let client = Client::new(&urls[leader], None).expect("a client");
    let mut earlier = begin(&client, "job").await;
    earlier.goes_on(&urls[leader], 400).await;
    is_copied(&site, leader).await;
    client
        .complete("job", &CompleteJob { worker_id: "w".to_owned(), fence: earlier.fence, result: None, next: None })
        .await
        .expect("completed");
    client.delete("job", None).await.expect("deleted");
    let mut later = begin(&client, "job").await;
    assert_eq!(later.fence, earlier.fence);
    for at in [leader, (leader + 1) % 3, (leader + 2) % 3] {
        site.have_lead(at).await;
        later.is_whole_at(&urls[at]).await;
        later.goes_on(&urls[at], 3).await;
        later.is_whole_at(&urls[at]).await;
        is_copied(&site, at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_whole_at_the_next_leader_and_at_the_former_one_when_it_leads_again() {
    let _share = machine::with_others();
    let mut site = Site::members(&ONE_CLOCK).await;
    let leader = site.a_leader().await;
    let urls = site.urls();
    let client = Client::new(&urls[leader], None).expect("a client");
    let mut written = begin(&client, "job").await;
    // Over several cells.
    written.goes_on(&urls[leader], 600).await;
    is_copied(&site, leader).await;

    site.servers[leader].kill();
    site.another_leads(leader).await;
    let next = site.a_leader().await;
    written.goes_on(&urls[next], 100).await;
    written.is_whole_at(&urls[next]).await;
    is_copied(&site, next).await;

    site.servers[leader].start_again();
    site.servers[leader].ready().await;
    site.has_caught_up(leader).await;
    site.have_lead(leader).await;
    written.is_whole_at(&urls[leader]).await;
}
