//! What every store must do, whichever engine is behind it.
//!
//! A case is a function of an engine; `conformance!` makes a test of each case for one engine. Nothing here assumes
//! how an engine counts its versions or when its searches catch up: that is what [`Engine::settle`] is for.

pub(crate) mod archive;
mod audit_indices;
mod bodies;
mod catching_up;
mod changing;
mod counts;
mod crowded;
pub(crate) mod elasticsearch;
mod embedded;
mod lost_answers;
mod members;
mod model;
mod outputs;
mod records;
mod resize;
mod roundtrip;
pub(crate) mod sample;
mod schedule_queries;
mod schedules;
mod searches;
mod sizes;
mod slow;
mod stats;
mod writes;

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::job::{Job, JobId};
use leasehold::store::{Store, Version, Versioned, Write, WriteError};

/// A store to be tested.
#[async_trait]
pub(crate) trait Engine: Sized + Send + Sync + 'static {
    /// Whether its statistics can be grouped by a label.
    const GROUPS_BY_LABELS: bool = true;

    /// Opens a store with nothing in it.
    async fn fresh() -> Self;

    /// The store.
    fn store(&self) -> &Arc<dyn Store>;

    /// Waits until searches see everything that was acknowledged.
    async fn settle(&self);
}

/// Makes tests of cases on Elasticsearch and on OpenSearch. Each case gets what `$open` makes of the server. A case that
/// takes long is marked: `[every_night]`, or `[every_night_on_opensearch]` where one server is enough for every change.
macro_rules! on_servers {
    ($open:path; $($([$when:ident])? $case:ident),* $(,)?) => {
        mod on_elasticsearch {
            $($crate::store::on_servers!(@elasticsearch $([$when])? $case, $open);)*
        }
        mod on_opensearch {
            $($crate::store::on_servers!(@opensearch $([$when])? $case, $open);)*
        }
    };
    (@opensearch [every_night_on_opensearch] $case:ident, $open:path) => {
        $crate::store::on_servers!(@opensearch [every_night] $case, $open);
    };
    (@$server:ident [every_night] $case:ident, $open:path) => {
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "every night"]
        async fn $case() {
            super::$case($open(crate::servers::$server().await).await).await;
        }
    };
    (@$server:ident $([every_night_on_opensearch])? $case:ident, $open:path) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            super::$case($open(crate::servers::$server().await).await).await;
        }
    };
}
pub(crate) use on_servers;

/// Makes a module of tests, one for each case.
macro_rules! conformance {
    ($module:ident, $engine:ty) => {
        mod $module {
            crate::store::conformance!(@tests $engine,
                writes::create_refuses_an_existing_id_and_shows_its_job,
                writes::replace_under_the_current_version_gives_a_larger_one,
                writes::replace_under_a_stale_version_conflicts_and_changes_nothing,
                writes::replace_of_a_missing_job_conflicts_with_nothing,
                writes::remove_of_a_missing_job_conflicts_with_nothing,
                writes::remove_under_a_stale_version_conflicts_and_changes_nothing,
                writes::a_removal_gives_the_version_removed,
                writes::a_job_created_again_after_its_removal_has_a_version_never_seen,
                writes::versions_rise_with_every_write_of_a_job,
                writes::a_finished_job_can_be_started_again_and_removed,
                writes::each_write_of_a_batch_is_answered_in_order,
                writes::of_two_replaces_of_one_version_in_one_batch_one_wins,
                writes::of_two_creates_of_one_id_in_one_batch_one_wins,
                writes::of_many_creates_of_one_id_at_once_one_wins,
                writes::many_writers_at_once_lose_no_update,
                writes::an_empty_batch_has_no_answers,
                writes::a_closed_store_refuses,
                roundtrip::get_keeps_order_duplicates_and_gaps,
                roundtrip::a_job_with_everything_comes_back_as_it_was_in_every_state,
                roundtrip::a_job_with_nothing_comes_back_as_it_was_in_every_state,
                roundtrip::an_id_may_have_any_printable_character,
                roundtrip::a_search_gives_jobs_as_get_does,
                bodies::inline_json_comes_back_to_the_letter,
                bodies::json_kept_apart_comes_back_to_the_letter,
                bodies::bodies_come_in_the_order_asked_with_gaps,
                bodies::a_body_goes_with_its_job,
                bodies::a_body_stays_while_its_job_refers_to_it,
                bodies::a_body_no_longer_referred_to_goes,
                bodies::a_conflict_leaves_no_body,
                searches::each_part_of_a_filter_alone,
                searches::parts_of_a_filter_together,
                searches::every_order_in_both_directions,
                searches::pages_neither_skip_nor_repeat,
                searches::a_page_goes_on_after_jobs_that_have_changed_since,
                searches::the_limit_holds,
                searches::dispatch_order_is_priority_then_due_time_then_id,
                searches::a_search_sees_the_latest_version_only,
                searches::the_head_of_a_line_is_its_first_job_that_has_not_ended,
                counts::by_each_field_and_each_pair,
                counts::of_what_a_filter_matches,
                counts::without_a_field_are_one_group_even_of_none,
                counts::follow_jobs_from_state_to_state,
                stats::in_all_by_group_and_over_time,
                stats::of_the_jobs_that_are_asked_for_only,
                stats::with_the_percentiles_that_are_asked_for,
                stats::with_the_sums_that_are_asked_for,
                stats::of_no_jobs_are_none,
                stats::in_too_many_rows_are_not_told,
                stats::by_a_label,
                records::create_refuses_an_existing_key_and_shows_its_record,
                records::a_record_replaced_under_its_version_gets_a_larger_one,
                records::a_stale_version_conflicts_shows_the_record_and_changes_nothing,
                records::a_record_that_is_not_there_conflicts_with_nothing,
                records::removing_a_record_gives_the_version_removed,
                records::a_record_created_again_has_a_version_never_seen,
                records::the_records_of_a_kind_are_listed_by_name_and_no_others,
                records::more_records_than_a_page_are_listed_once_each,
                records::of_many_replaces_of_one_version_at_once_one_wins,
                records::of_many_creates_of_one_record_at_once_one_wins,
                records::a_records_body_comes_back_to_the_letter,
                records::jobs_and_records_written_at_once_do_not_mix,
                records::a_closed_store_refuses_records,
                schedules::create_refuses_an_existing_id_and_shows_its_schedule,
                schedules::a_stale_version_conflicts_shows_the_schedule_and_changes_nothing,
                schedules::a_schedule_that_is_not_there_conflicts_with_nothing,
                schedules::versions_of_a_schedule_rise_and_are_never_given_again,
                schedules::each_write_of_a_batch_of_schedules_is_answered_in_order,
                schedules::of_two_writes_of_one_schedule_in_one_batch_one_wins,
                schedules::a_schedule_with_everything_comes_back_as_it_was,
                schedules::due_schedules_come_by_time_and_then_by_id,
                schedules::due_schedules_are_of_the_partitions_asked_for,
                schedules::what_is_paused_or_has_no_next_due_time_is_not_due,
                schedules::a_schedule_that_comes_further_is_due_later,
                schedules::a_removed_schedule_is_in_no_list,
                schedules::schedules_are_listed_by_id_and_by_owner,
                schedules::many_schedules_are_listed_page_by_page_once_each,
                schedules::a_closed_store_refuses_schedules,
                schedule_queries::schedules_are_listed_and_counted_by_a_query,
                schedule_queries::a_query_finds_schedules_as_they_were_written_last,
                schedule_queries::a_closed_store_refuses_queries_for_schedules,
                outputs::output_is_read_as_it_was_written_each_attempt_on_its_own,
                outputs::a_cell_that_ends_earlier_changes_nothing,
                outputs::the_output_of_attempts_is_removed_and_that_of_others_stays,
                outputs::output_is_not_read_as_that_of_a_later_job_of_the_same_id,
                outputs::what_is_missing_in_a_cell_is_kept_as_a_gap,
                model::random_commands_agree_with_a_simple_model,
            );
        }
    };
    (@tests $engine:ty, $($group:ident::$case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let engine = <$engine as crate::store::Engine>::fresh().await;
                crate::store::$group::$case(&engine).await;
            }
        )*
    };
}
pub(crate) use conformance;

conformance!(on_embedded, crate::store::embedded::Embedded);
conformance!(on_members, crate::store::members::Members);
conformance!(on_elasticsearch, crate::store::elasticsearch::Elasticsearch);
conformance!(on_opensearch, crate::store::elasticsearch::OpenSearch);
conformance!(on_model, crate::model_engine::Alone);

/// One write, answered.
pub(crate) async fn write(engine: &impl Engine, write: Write) -> Result<Version, WriteError> {
    let mut answers = engine.store().write(vec![write]).await;
    assert_eq!(answers.len(), 1, "one write has one answer");
    answers.remove(0)
}

/// Creates a job that does not exist yet.
pub(crate) async fn create(engine: &impl Engine, job: &Arc<Job>) -> Version {
    write(engine, Write::Create { job: Arc::clone(job), bodies: vec![] }).await.expect("a new job is created")
}

/// Creates jobs that do not exist yet.
pub(crate) async fn create_all(engine: &impl Engine, jobs: &[Arc<Job>]) -> Vec<Version> {
    let writes = jobs.iter().map(|job| Write::Create { job: Arc::clone(job), bodies: vec![] }).collect();
    let answers = engine.store().write(writes).await;
    answers.into_iter().map(|answer| answer.expect("a new job is created")).collect()
}

/// Replaces the version `expected`.
pub(crate) async fn replace(engine: &impl Engine, job: &Arc<Job>, expected: Version) -> Result<Version, WriteError> {
    write(engine, Write::Replace { job: Arc::clone(job), expected, bodies: vec![] }).await
}

/// Removes the version `expected`.
pub(crate) async fn remove(engine: &impl Engine, job: &Arc<Job>, expected: Version) -> Result<Version, WriteError> {
    write(engine, Write::Remove { job: Arc::clone(job), expected }).await
}

/// Reads one job.
pub(crate) async fn get(engine: &impl Engine, id: &JobId) -> Option<Versioned> {
    let mut found = engine.store().get(std::slice::from_ref(id)).await.expect("the store can be read");
    assert_eq!(found.len(), 1, "one id has one answer");
    found.remove(0)
}

/// What a conflict shows; fails when there was none.
pub(crate) fn conflict(answer: Result<Version, WriteError>) -> Option<Versioned> {
    match answer {
        Err(WriteError::Conflict(current)) => current,
        other => panic!("expected a conflict, got {other:?}"),
    }
}
