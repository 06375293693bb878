//! Members of a cluster one of which is started on an earlier copy of its data directory.

use std::fs;
use std::time::Duration;

use leasehold::wire::{ClusterRole, ClusterStatus};
use nix::sys::signal::Signal;

use super::changing::Cluster;
use crate::durability::damage::copy;
use crate::program::run;

/// So long a cluster without a majority is looked at, in which one that has it would have elected many times over.
const LOOKED_AT: Duration = Duration::from_secs(4);

fn is_disowned(status: &ClusterStatus) -> bool {
    status.role == ClusterRole::Disowned
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_started_on_an_earlier_copy_of_its_directory_loses_nothing() {
    let mut cluster = Cluster::of_three();
    let leader = cluster.leader(1).await;
    let [back, away] = [1, 2, 3].into_iter().filter(|number| *number != leader).collect::<Vec<_>>()[..] else {
        panic!("there are two others")
    };
    cluster.says(back, "its version", |status| status.version >= 4).await;
    cluster.submit(leader, 3).await;
    let kept = cluster.place.path().join("copy");
    cluster.signal(back, Signal::SIGSTOP);
    copy(&cluster.data(back), &kept);
    cluster.signal(back, Signal::SIGCONT);
    // Only the leader and the member whose directory is put back have what comes now.
    cluster.end(away, Signal::SIGKILL);
    let ids = cluster.submit(leader, 50).await;
    let last = cluster.client(leader).cluster().await.expect("it runs").committed;
    cluster.says(back, "it has all", |status| status.applied >= last).await;
    // Alone it would give the lead up within a second or two, and it asks the member for what it has as the leader.
    cluster.signal(leader, Signal::SIGSTOP);
    cluster.end(back, Signal::SIGKILL);
    fs::remove_dir_all(cluster.data(back)).expect("it is there");
    copy(&kept, &cluster.data(back));
    // The member itself notices that its files are others.
    let data = cluster.data(back);
    let data = data.to_str().expect("text");
    let refused = cluster.start_in_vain(back);
    assert!(refused.contains("is a copy") && refused.contains("leasehold cluster replace"), "{refused}");
    // What a snapshot of the disk does not show.
    let accept = ["cluster", "accept-copy", "--data-dir", data];
    tokio::task::block_in_place(|| {
        let asked = run(cluster.place.path(), accept);
        assert!(asked.expect(2).stderr().contains("may be lost"));
        run(cluster.place.path(), accept.into_iter().chain(["--yes"])).expect(0);
    });
    cluster.start(back, &[]);
    cluster.says(back, "it runs", |_| true).await;
    cluster.signal(leader, Signal::SIGCONT);
    cluster.says(back, "it was told", is_disowned).await;
    let names_it = |status: &ClusterStatus| status.went_back == [back];
    cluster.says(leader, "it names the member", names_it).await;
    let shown = cluster.cluster(&["status"], leader).stdout();
    assert!(shown.contains(&format!("the data directory of member {back} went back in time")), "{shown}");
    // Neither now nor when it is started again it helps one that lacks what was acknowledged to lead.
    cluster.end(leader, Signal::SIGKILL);
    cluster.end(back, Signal::SIGKILL);
    cluster.start(back, &[]);
    cluster.start(away, &[]);
    cluster.says(away, "it runs", |_| true).await;
    cluster.says(back, "it knows by itself", is_disowned).await;
    let until = tokio::time::Instant::now() + LOOKED_AT;
    while tokio::time::Instant::now() < until {
        let status = cluster.client(away).with_max_retries(0).cluster().await.expect("it runs");
        assert!(status.leader.is_none_or(|elected| elected == leader), "{status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.start(leader, &[]);
    cluster.leader(away).await;
    cluster.has(away, &ids).await;
    // It begins again with an empty directory.
    cluster.end(back, Signal::SIGTERM);
    fs::remove_dir_all(cluster.data(back)).expect("it is there");
    cluster.start(back, &["--join"]);
    cluster.says(back, "it waits to be let in", is_disowned).await;
    cluster.cluster(&["replace", &back.to_string()], away).expect(0);
    cluster.says(back, "it votes again", |status| status.role == ClusterRole::Voter && status.leader.is_some()).await;
    cluster.has(back, &ids).await;
}
