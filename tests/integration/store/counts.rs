//! Counts, held against counting.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold::job::{Job, JobState, State};
use leasehold::query::{Filter, Group, GroupField};

use super::sample::{at, claimed, in_state, queue, submitted};
use super::searches::{assorted, single_parts};
use super::{Engine, create, create_all, remove, replace};

fn expected(jobs: &[Arc<Job>], filter: &Filter, by: &[GroupField]) -> Vec<Group> {
    let mut counts: HashMap<Vec<Option<String>>, u64> = HashMap::new();
    if by.is_empty() {
        counts.insert(vec![], 0);
    }
    for job in jobs.iter().filter(|job| filter.matches(job)) {
        let values = by.iter().map(|field| field.value(job).map(str::to_owned)).collect();
        *counts.entry(values).or_default() += 1;
    }
    let mut groups: Vec<Group> = counts.into_iter().map(|(values, count)| Group { values, count }).collect();
    groups.sort_by(Group::most_first);
    groups
}

async fn agree(engine: &impl Engine, jobs: &[Arc<Job>], filter: &Filter, by: &[GroupField]) {
    let found = engine.store().count(filter, by).await.expect("countable");
    assert_eq!(found, expected(jobs, filter, by), "{filter:?} by {by:?}");
}

pub(crate) async fn by_each_field_and_each_pair(engine: &impl Engine) {
    let jobs = assorted();
    create_all(engine, &jobs).await;
    engine.settle().await;
    let running_in_two =
        Filter { states: vec![JobState::Running], queues: vec![queue("alpha"), queue("beta")], ..Filter::default() };
    for filter in [Filter::default(), running_in_two] {
        for first in GroupField::ALL {
            agree(engine, &jobs, &filter, &[first]).await;
            for second in GroupField::ALL.into_iter().filter(|second| *second != first) {
                agree(engine, &jobs, &filter, &[first, second]).await;
            }
        }
        agree(engine, &jobs, &filter, &GroupField::ALL).await;
    }
}

pub(crate) async fn of_what_a_filter_matches(engine: &impl Engine) {
    let jobs = assorted();
    create_all(engine, &jobs).await;
    engine.settle().await;
    for filter in single_parts() {
        for by in [&[][..], &[GroupField::State], &[GroupField::Owner, GroupField::Queue]] {
            agree(engine, &jobs, &filter, by).await;
        }
    }
}

pub(crate) async fn without_a_field_are_one_group_even_of_none(engine: &impl Engine) {
    engine.settle().await;
    let none = Group { values: vec![], count: 0 };
    assert_eq!(engine.store().count(&Filter::default(), &[]).await.expect("countable"), [none]);
    assert_eq!(engine.store().count(&Filter::default(), &[GroupField::State]).await.expect("countable"), []);
}

pub(crate) async fn follow_jobs_from_state_to_state(engine: &impl Engine) {
    let job = submitted("a");
    let mut version = create(engine, &job).await;
    let running = claimed(&job);
    let failed = in_state(&running, State::Failed { finished_at: at(1) });
    let cancelled = in_state(&running, State::Cancelled { finished_at: at(1) });
    for next in [&job, &running, &failed, &cancelled, &job, &cancelled, &cancelled] {
        version = replace(engine, next, version).await.expect("the version is current");
        engine.settle().await;
        let only = std::slice::from_ref(next);
        agree(engine, only, &Filter::default(), &[GroupField::State, GroupField::Queue]).await;
        agree(engine, only, &Filter::default(), &[GroupField::State, GroupField::Kind]).await;
    }
    remove(engine, &cancelled, version).await.expect("the version is current");
    engine.settle().await;
    agree(engine, &[], &Filter::default(), &[GroupField::State, GroupField::Queue]).await;
}
