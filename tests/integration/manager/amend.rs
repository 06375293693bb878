//! What people do to jobs beside their course: holding, editing, deleting and running again.

use leasehold::job::{Conditions, Edit, EventName, Ordered, OrderingKey, UniqueKey};
use leasehold::manager::{BulkAction, BulkSelection};
use leasehold::query::Filter;

use super::admin::{counts, everything};
use super::*;

fn id_of(view: &JobView) -> JobId {
    view.versioned.job.id.clone()
}

fn keyed() -> NewJob {
    let conditions = Conditions {
        unique: Some(UniqueKey::new("report-7").expect("a key")),
        ordering: Some(Ordered::without_place(OrderingKey::new("account-7").expect("a key"))),
        ..Conditions::default()
    };
    NewJob::of(JobSpec { conditions: conditions.stored(), ..spec() })
}

pub(super) async fn a_held_job_is_not_claimed_and_goes_on_at_once_when_it_is_let_go(site: Site) {
    let id = id_of(&site.submit(new_job()).await);
    let held = site.manager.hold(&caller(), &id, Some("wrong month".to_owned())).await.expect("held");
    assert_eq!(held.job.hold.as_ref().map(|hold| &hold.by), Some(&caller().name));
    assert!(site.claim(claim(1)).await.is_empty());
    site.engine.settle().await;
    let elsewhere = site.another_manager().claim(claim(1)).await.expect("an answer");
    assert!(taken(elsewhere).is_empty(), "a search does not find it either");

    let explained = site.manager.explain(&id).await.expect("an explanation");
    let first = &explained.reasons[0];
    assert_eq!((first.code.as_str(), explained.runnable), ("held", false));
    assert!(first.message.contains("held by tester since") && first.message.contains("wrong month"), "{first:?}");
    assert_eq!(site.manager.queue(&queue()).await.expect("a queue").oldest_waiting_since, None);

    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    site.manager.unhold(&caller(), &id, None).await.expect("let go");
    let claimed = taken(waiting.await.expect("no panic").expect("the claim is answered"));
    assert_eq!(claimed.iter().map(|found| &found.job.id).collect::<Vec<_>>(), [&id]);
}

pub(super) async fn a_running_job_is_held_when_it_is_available_again(site: Site) {
    let id = id_of(&site.submit(new_job()).await);
    let running = site.claim_one().await;
    site.manager.hold(&caller(), &id, None).await.expect("held");
    assert_eq!(site.state(&id).await, JobState::Running);
    site.beat(&running).await.expect("it runs on");
    let release = Outcome::Released { reason: "shutdown".to_owned(), delay: Duration::ZERO };
    site.finish(&running, release).await.expect("released");
    assert!(site.claim(claim(1)).await.is_empty());
    site.manager.unhold(&caller(), &id, None).await.expect("let go");
    let again = site.claim_one().await;
    site.finish(&again, completed("1")).await.expect("completed");
    let refused = site.manager.hold(&caller(), &id, None).await;
    assert!(matches!(refused, Err(ManagerError::Refused(Refusal::AlreadyFinal(JobState::Completed)))), "{refused:?}");
}

pub(super) async fn many_jobs_are_held_and_let_go(site: Site) {
    site.submit_many((0..3).map(|_| new_job())).await;
    assert_eq!(counts(&site.change(BulkAction::Hold, &everything()).await), (3, 3, 0, 0));
    assert_eq!(counts(&site.change(BulkAction::Hold, &everything()).await), (0, 0, 0, 0), "they are held already");
    assert!(site.claim(claim(3)).await.is_empty());
    assert_eq!(counts(&site.change(BulkAction::Unhold, &everything()).await), (3, 3, 0, 0));
    assert_eq!(site.claim(ClaimRequest { wait: PATIENCE, ..claim(3) }).await.len(), 3);
}

pub(super) async fn an_edited_job_goes_by_its_new_values_and_its_submission_is_still_recognised(site: Site) {
    let named = || NewJob { id: Some(JobId::new("named").expect("an id")), ..new_job() };
    let ids = site.submit_many([new_job(), named()]).await;
    let edit = Edit {
        priority: Priority::new(5),
        labels: [("month".to_owned(), Some("2030-02".to_owned()))].into(),
        ..Edit::default()
    };
    let edited = site.manager.edit(&caller(), &ids[1], &edit, Some("urgent")).await.expect("edited");
    let entry = edited.job.history.entries().last().expect("an entry");
    assert_eq!((entry.event, entry.reason.as_deref()), (EventName::Edited, Some("priority, labels: urgent")));
    let again = site.try_submit(named()).await.expect("the same submission");
    assert!(!again.created && again.job.versioned.job.spec.priority.get() == 5);
    assert_eq!(site.claim_one().await.job.id, ids[1], "it goes first by its new priority");

    let later = Edit { run_at: Some(site.clock.now().plus(LEASE)), ..Edit::default() };
    site.manager.edit(&caller(), &ids[0], &later, None).await.expect("edited");
    assert!(site.claim(claim(1)).await.is_empty(), "it is not due");
    site.manager.run_now(&caller(), &ids[0], None).await.expect("due");
    assert_eq!(site.claim_one().await.job.id, ids[0]);
    let refused = site.manager.edit(&caller(), &ids[0], &later, None).await;
    assert!(matches!(refused, Err(ManagerError::Refused(Refusal::NotAvailable(_)))), "{refused:?}");
}

pub(super) async fn an_edit_of_another_version_is_refused(site: Site) {
    let known = site.submit(new_job()).await.versioned;
    let edit = |priority| Edit { priority: Priority::new(priority), ..Edit::default() };
    site.manager.edit_version(&caller(), known.clone(), &edit(1), None).await.expect("edited");
    let late = site.manager.edit_version(&caller(), known.clone(), &edit(2), None).await;
    assert!(matches!(late, Err(ManagerError::VersionDiffers(_))), "{late:?}");
    assert_eq!(site.job(&known.job.id).await.versioned.job.spec.priority.get(), 1);
}

pub(super) async fn a_deleted_job_is_gone_and_what_it_held_is_free(site: Site) {
    let id = id_of(&site.submit(keyed()).await);
    let running = site.claim_one().await;
    let refused = site.manager.delete(&caller(), &id, None).await;
    assert!(matches!(refused, Err(ManagerError::Refused(Refusal::StillRunning))), "{refused:?}");
    site.finish(&running, completed("1")).await.expect("completed");
    let waiting = id_of(&site.submit(keyed()).await);
    for id in [&id, &waiting] {
        site.manager.delete(&caller(), id, Some("a test")).await.expect("deleted");
        assert!(matches!(site.manager.get(id).await, Err(ManagerError::NotFound(_))));
        assert!(matches!(site.manager.delete(&caller(), id, None).await, Err(ManagerError::NotFound(_))));
    }
    let next = id_of(&site.submit(keyed()).await);
    assert_eq!(site.claim_one().await.job.id, next, "the unique key and the line are free");
    assert!(matches!(site.manager.get(&waiting).await, Err(ManagerError::NotFound(_))), "nothing stands for it");
}

pub(super) async fn many_jobs_are_deleted_but_for_those_that_run(site: Site) {
    site.submit_many((0..4).map(|_| new_job())).await;
    let running = site.claim(claim(2)).await;
    site.finish(&running[0], completed("1")).await.expect("completed");
    let report = site.change(BulkAction::Delete, &everything()).await;
    assert_eq!(counts(&report), (3, 3, 0, 0));
    assert_eq!(site.state(&running[1].job.id).await, JobState::Running);
    site.finish(&running[1], completed("1")).await.expect("completed");
}

pub(super) async fn a_rerun_is_a_new_job_that_names_its_origin_and_is_made_once(site: Site) {
    let origin = id_of(&site.submit(NewJob { payload: Some(json("{\"a\":1}")), ..keyed() }).await);
    let refused = site.manager.rerun(&caller(), &origin, None).await;
    assert!(matches!(refused, Err(ManagerError::Refused(Refusal::NotEnded(JobState::Available)))), "{refused:?}");
    let claimed = site.claim_one().await;
    site.finish(&claimed, completed("1")).await.expect("completed");
    let rerun = site.manager.rerun(&caller(), &origin, Some("key")).await.expect("submitted");
    let again = site.manager.rerun(&caller(), &origin, Some("key")).await.expect("the same");
    assert_eq!((rerun.created, again.created, id_of(&again.job)), (true, false, id_of(&rerun.job)));
    let job = &rerun.job.versioned.job;
    assert_eq!((job.spec.rerun_of.as_ref(), &rerun.job.payload), (Some(&origin), &Some(json("{\"a\":1}"))));
    let claimed = site.claim_one().await;
    assert_eq!(claimed.job.id, job.id);
    site.finish(&claimed, completed("2")).await.expect("completed");

    let selection = BulkSelection { filter: Filter::default(), ids: vec![origin] };
    assert_eq!(counts(&site.change(BulkAction::Rerun("order".to_owned()), &selection).await), (1, 1, 0, 0));
    assert_eq!(counts(&site.change(BulkAction::Rerun("order".to_owned()), &selection).await), (1, 0, 1, 0));
}
