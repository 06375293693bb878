//! Jobs of somebody else under the ids of deliveries.

use super::*;
use crate::engines;

/// Ends a job that names a receiver, at the start of a site's time, and returns its delivery once that was made.
async fn delivery_of(site: &Site, receiver: &Receiver) -> Versioned {
    let target = NoticeTarget { url: receiver.url(), events: Vec::new(), format: NoticeFormat::CloudEvents };
    let oversight = Oversight { notify: vec![target], ..Oversight::default() };
    let id = Some(JobId::new("theirs").expect("an id"));
    site.end_one(NewJob { id, ..NewJob::of(JobSpec { oversight, ..spec("a") }) }, COMPLETED).await;
    let notifier = site.notifier().await;
    let made = site.until_deliveries(JobState::Completed, 1).await;
    notifier.shutdown().await;
    made.into_iter().next().expect("a delivery")
}

/// The same event at the same time has a delivery of the same id in every installation.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_the_id_of_a_delivery_keeps_nobody_from_being_notified() {
    let receiver = Receiver::listening().await;
    let id = delivery_of(&Site::on(engines::embedded().await), &receiver).await.job.id.clone();
    let site = Site::on(engines::embedded().await);
    let foreign = NewJob { id: Some(id.clone()), ..job("b") };
    site.manager.submit(&Caller::system("somebody"), vec![foreign]).await.remove(0).expect("the id is free");
    let made = delivery_of(&site, &receiver).await;
    assert_ne!(made.job.id, id);
    assert_eq!(made.job.id.as_str()[..13], id.as_str()[..13], "it has the time of its event");
    assert_eq!(receiver.came().len(), 2);
    let ids: BTreeSet<String> =
        receiver.came().iter().map(|came| came.headers["webhook-id"].to_str().expect("text").to_owned()).collect();
    assert_eq!(ids.len(), 1, "it is the same event");
}
