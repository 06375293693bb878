//! The output of attempts, call by call.

use std::time::Duration;

use leasehold::client::OutputQuery;
use leasehold::manager::Manager;
use leasehold::store::Stream;
use leasehold::wire::{CompleteJob, Job, OutputPart, PieceOfOutput, PutOutput, PutOutputs, ReleaseJob, SubmitJob};
use reqwest::{Response, StatusCode};
use serde_json::Value;

use super::server::{Server, WORKER, claim, problem};

async fn running(server: &Server) -> Job {
    let client = server.client();
    client.submit(&SubmitJob::new("reports", "render")).await.expect("submitted");
    client.claim(&claim("reports")).await.expect("claimed").jobs.pop().expect("a job")
}

fn piece(job: &Job, offset: u64, text: &str) -> PutOutput {
    PutOutput {
        worker_id: WORKER.to_owned(),
        fence: job.fence,
        stream: Stream::Stdout,
        offset,
        text: Some(text.to_owned()),
        base64: None,
        end: false,
    }
}

async fn put(server: &Server, job: &Job, piece: &PutOutput) -> Response {
    let url = server.url(&format!("/v1/jobs/{}/output", job.id));
    reqwest::Client::new().post(url).json(piece).send().await.expect("an answer")
}

async fn read(server: &Server, path: &str) -> Value {
    let answer = reqwest::get(server.url(path)).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.json().await.expect("JSON")
}

/// The parts of standard output, each with the place where it begins.
fn stdout(answer: &Value) -> Vec<(u64, String)> {
    let parts = answer["streams"][0]["parts"].as_array().expect("parts");
    let part = |part: &Value| (part["offset"].as_u64().expect("a number"), part["text"].as_str().unwrap_or("").into());
    parts.iter().map(part).collect()
}

#[tokio::test]
async fn pieces_of_output_are_kept_and_the_same_piece_again_changes_nothing() {
    let server = Server::start().await;
    let job = running(&server).await;
    for (offset, text) in [(0, "one\n"), (4, "two\n"), (0, "one\n"), (4, "two\n"), (2, "e\ntwo\n")] {
        assert_eq!(put(&server, &job, &piece(&job, offset, text)).await.status(), StatusCode::NO_CONTENT, "{text}");
    }
    let path = format!("/v1/jobs/{}/output", job.id);
    let output = read(&server, &path).await;
    assert_eq!(stdout(&output), [(0, "one\ntwo\n".to_owned())]);
    assert_eq!((&output["attempt"], &output["fence"], &output["running"]), (&1.into(), &1.into(), &true.into()));
    assert_eq!(output["streams"][0]["ended"], false);

    let end = PutOutput { end: true, ..piece(&job, 8, "") };
    assert_eq!(put(&server, &job, &end).await.status(), StatusCode::NO_CONTENT);
    let output = read(&server, &format!("{path}?stdout_from=5")).await;
    assert_eq!((stdout(&output), &output["streams"][0]["ended"]), (vec![(5, "wo\n".to_owned())], &true.into()));
}

#[tokio::test]
async fn a_job_of_the_same_id_begins_with_an_output_of_its_own() {
    let server = Server::start().await;
    let client = server.client();
    let path = "/v1/jobs/nightly/output";
    for text in ["of the first one, which is longer\n", "of the second\n"] {
        client
            .submit(&SubmitJob { id: Some("nightly".to_owned()), ..SubmitJob::new("reports", "render") })
            .await
            .expect("submitted");
        let job = client.claim(&claim("reports")).await.expect("claimed").jobs.pop().expect("a job");
        assert_eq!(put(&server, &job, &piece(&job, 0, text)).await.status(), StatusCode::NO_CONTENT);
        assert_eq!(stdout(&read(&server, path).await), [(0, text.to_owned())]);
        let done = CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: None, next: None };
        client.complete(&job.id, &done).await.expect("completed");
        client.delete(&job.id, None).await.expect("deleted");
    }
}

#[tokio::test]
async fn of_a_long_stream_the_beginning_and_the_end_are_kept_and_the_middle_is_named() {
    let server = Server::start().await;
    let job = running(&server).await;
    let line = |number: u64| format!("{number:015}\n");
    // 4 MiB, in pieces that end anywhere.
    let text: String = (0..262_144).map(line).collect();
    let mut offset = 0;
    for bytes in text.as_bytes().chunks(100_000) {
        let text = std::str::from_utf8(bytes).expect("ASCII");
        assert_eq!(put(&server, &job, &piece(&job, offset, text)).await.status(), StatusCode::NO_CONTENT);
        offset += bytes.len() as u64;
    }
    let path = format!("/v1/jobs/{}/output", job.id);
    let parts = stdout(&read(&server, &path).await);
    let [(0, head), (tail_from, tail)] = &parts[..] else { panic!("{} parts", parts.len()) };
    assert_eq!(head, &text[..64 * 1024]);
    assert_eq!(tail, &text[*tail_from as usize..]);
    assert!((184 * 1024..=192 * 1024).contains(&tail.len()), "{} bytes of the end", tail.len());
    let shown = reqwest::get(server.url(&format!("{path}?as_text=stdout"))).await.expect("an answer").text().await;
    let left_out = format!("\n[{} bytes left out]\n", tail_from - head.len() as u64);
    assert_eq!(shown.expect("text"), format!("{head}{left_out}{tail}"));
}

#[tokio::test]
async fn output_of_a_lease_that_was_lost_is_refused_and_what_it_wrote_before_stays() {
    let server = Server::start().await;
    let client = server.client();
    let first = running(&server).await;
    put(&server, &first, &piece(&first, 0, "first")).await;
    let release = ReleaseJob { worker_id: WORKER.to_owned(), fence: first.fence, reason: None, delay_ms: None };
    client.release(&first.id, &release).await.expect("released");
    // The worker itself gave it up: the last of its output may still come.
    assert_eq!(put(&server, &first, &piece(&first, 5, ", last")).await.status(), StatusCode::NO_CONTENT);

    let second = client.claim(&claim("reports")).await.expect("claimed").jobs.pop().expect("the job again");
    let refused = problem(put(&server, &first, &piece(&first, 11, ", late")).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "lease_lost"));
    let foreign = PutOutput { worker_id: "somebody-else".to_owned(), ..piece(&second, 0, "x") };
    assert_eq!(put(&server, &second, &foreign).await.status(), StatusCode::CONFLICT);

    put(&server, &second, &piece(&second, 0, "second")).await;
    assert_eq!((first.attempt, second.attempt), (1, 1), "a released attempt does not count");
    let path = format!("/v1/jobs/{}", first.id);
    let of = async |query: &str| stdout(&read(&server, &format!("{path}{query}")).await)[0].1.clone();
    assert_eq!(of("/attempts/1/output").await, "second");
    assert_eq!(of("/output?fence=1").await, "first, last");
    for wrong in ["/attempts/2/output", "/attempts/0/output", "/output?fence=3", "/output?as_text=both"] {
        let answer = reqwest::get(server.url(&format!("{path}{wrong}"))).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
    }
}

#[tokio::test]
async fn many_pieces_are_answered_each_on_its_own() {
    let server = Server::start().await;
    let job = running(&server).await;
    let piece = |id: &str, fence, text: Option<&str>, base64: Option<&str>| PieceOfOutput {
        id: id.to_owned(),
        fence,
        stream: Stream::Stderr,
        offset: 0,
        text: text.map(str::to_owned),
        base64: base64.map(str::to_owned),
        end: false,
    };
    let pieces = vec![
        piece(&job.id, job.fence, None, Some("/wA=")),
        piece(&job.id, 7, Some("x"), None),
        piece("no-such-job", 1, Some("x"), None),
        piece(&job.id, job.fence, Some("x"), Some("eA==")),
        piece(&job.id, job.fence, None, Some("not base 64")),
    ];
    let outputs = PutOutputs { worker_id: WORKER.to_owned(), pieces };
    let items = server.client().put_outputs(&outputs).await.expect("answered");
    assert_eq!(items.iter().map(|item| item.status).collect::<Vec<_>>(), [204, 409, 404, 422, 422]);
    let output = server.client().output(&job.id, &OutputQuery::default()).await.expect("read");
    let bytes: Vec<u8> = output.streams[1].parts.iter().flat_map(OutputPart::bytes).collect();
    assert_eq!(bytes, [0xff, 0], "bytes that are no text come back as they are");
}

#[tokio::test]
async fn a_call_that_waits_for_output_is_answered_by_output_and_by_the_attempts_end() {
    let server = Server::start().await;
    let job = running(&server).await;
    put(&server, &job, &piece(&job, 0, "one")).await;
    let query = OutputQuery { stdout_from: 3, wait: Duration::from_secs(60), ..OutputQuery::default() };
    let client = server.client();
    let (followed, _) = tokio::join!(client.output(&job.id, &query), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        put(&server, &job, &piece(&job, 3, " two")).await
    });
    assert_eq!(followed.expect("followed").streams[0].parts[0].text.as_deref(), Some(" two"));

    let query = OutputQuery { stdout_from: 7, ..query };
    let done =
        leasehold::wire::CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: None, next: None };
    let (followed, completed) = tokio::join!(client.output(&job.id, &query), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.client().complete(&job.id, &done).await
    });
    completed.expect("completed");
    assert!(!followed.expect("followed").running);
}

#[tokio::test]
async fn the_output_goes_with_its_job() {
    let server = Server::start().await;
    let job = running(&server).await;
    put(&server, &job, &piece(&job, 0, "one")).await;
    let manager: &Manager = &server.manager;
    let found = manager.get(&job.id.parse().expect("an id")).await.expect("the job").versioned;
    assert_eq!(manager.remove(&[found]).await.len(), 1);
    let answer = reqwest::get(server.url(&format!("/v1/jobs/{}/output", job.id))).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    // A job of the same name has nothing of it.
    let again = SubmitJob { id: Some(job.id.to_string()), ..SubmitJob::new("reports", "render") };
    server.client().submit(&again).await.expect("submitted");
    let job = server.client().claim(&claim("reports")).await.expect("claimed").jobs.pop().expect("a job");
    let output = server.client().output(&job.id, &OutputQuery::default()).await.expect("read");
    assert!(output.streams.iter().all(|stream| stream.parts.is_empty()), "{output:?}");
}
