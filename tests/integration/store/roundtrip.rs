//! Jobs come back as they were written.

use std::sync::Arc;

use leasehold::job::{Job, JobId, State};
use leasehold::query::{Filter, Search, Sort};

use super::sample::{at, bare_states, full, full_states, id, in_state, plain_spec, submit, submitted};
use super::{Engine, create, create_all, get, replace};

pub(crate) async fn get_keeps_order_duplicates_and_gaps(engine: &impl Engine) {
    let live = submitted("live");
    let done = in_state(&submitted("done"), State::Failed { finished_at: at(1) });
    create_all(engine, &[Arc::clone(&live), Arc::clone(&done)]).await;

    let asked = ["done", "missing", "live", "done", "live", "gone"].map(id);
    let found = engine.store().get(&asked).await.expect("readable");

    let found: Vec<Option<Arc<Job>>> = found.into_iter().map(|found| found.map(|found| found.job)).collect();
    let [live, done] = [Some(live), Some(done)];
    assert_eq!(found, [done.clone(), None, live.clone(), done, live, None]);
}

pub(crate) async fn a_job_with_everything_comes_back_as_it_was_in_every_state(engine: &impl Engine) {
    let make = |(number, state): (usize, State)| Arc::new(full(&format!("full-{number}"), state));
    all_come_back(engine, full_states().into_iter().enumerate().map(make).collect()).await;
}

pub(crate) async fn a_job_with_nothing_comes_back_as_it_was_in_every_state(engine: &impl Engine) {
    let make = |(number, state): (usize, State)| in_state(&submitted(&format!("bare-{number}")), state);
    all_come_back(engine, bare_states().into_iter().enumerate().map(make).collect()).await;
}

/// Each job as created, and then as written over each of the others' states.
async fn all_come_back(engine: &impl Engine, jobs: Vec<Arc<Job>>) {
    let versions = create_all(engine, &jobs).await;
    for (job, version) in jobs.iter().zip(&versions) {
        let found = get(engine, &job.id).await.expect("the job exists");
        assert_eq!((&found.job, found.version), (job, *version));
    }
    for (job, version) in jobs.iter().zip(versions) {
        let mut version = version;
        for other in &jobs {
            let changed = in_state(job, other.state.clone());
            version = replace(engine, &changed, version).await.expect("the version is current");
            assert_eq!(get(engine, &job.id).await.map(|found| found.job), Some(changed));
        }
    }
}

pub(crate) async fn an_id_may_have_any_printable_character(engine: &impl Engine) {
    let longest = "ü".repeat(128);
    let ids = ["a/b?c=d#e f%20g", "_under", "-x+y", "\"quoted\" \\ {json}", "🦀", "团队:7", "a,b*", longest.as_str()];
    for text in ids {
        let job = Arc::new(submit(text, plain_spec(), at(0), at(0)));
        let version = create(engine, &job).await;
        assert_eq!(get(engine, &job.id).await.map(|found| (found.job, found.version)), Some((job, version)));
    }
    engine.settle().await;
    let all = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 100 };
    let found = engine.store().search(&all).await.expect("searchable");
    let mut found: Vec<JobId> = found.into_iter().map(|found| found.job.id.clone()).collect();
    let mut wanted = ids.map(id).to_vec();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

pub(crate) async fn a_search_gives_jobs_as_get_does(engine: &impl Engine) {
    let make = |(number, state): (usize, State)| Arc::new(full(&format!("full-{number}"), state));
    let jobs: Vec<Arc<Job>> = full_states().into_iter().enumerate().map(make).collect();
    let versions = create_all(engine, &jobs).await;
    engine.settle().await;

    let all = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 100 };
    let found = engine.store().search(&all).await.expect("searchable");

    // All were created at one time, so they come by id.
    let found: Vec<_> = found.into_iter().map(|found| (found.job, found.version)).collect();
    assert_eq!(found, jobs.into_iter().zip(versions).collect::<Vec<_>>());
}
