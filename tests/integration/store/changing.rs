//! Members that lag too far behind, that are added, removed, and that have lost their directories.

use std::ffi::OsString;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::store::embedded::{EmbeddedOptions, GroupOptions};
use leasehold::store::{ChangeError, MemberChange, Role, Store};

use super::members::{Group, all, create, creates, has_all, named, options, until};

/// Longer than a member counts on one that says nothing: 30 ticks.
const SILENT: Duration = Duration::from_secs(4);

/// Options with which the log is soon too short for a member that was away.
fn forgetful(member: u64) -> EmbeddedOptions {
    let given = options(member);
    let group = given.group.clone().expect("a group");
    let group = GroupOptions { keeps_log_bytes: 0, ..group };
    EmbeddedOptions { flush_changes: 100, segment_bytes: 4 << 10, group: Some(group), ..given }
}

/// Options of a member that joins.
fn joining(member: u64) -> EmbeddedOptions {
    let given = forgetful(member);
    let group = given.group.clone().expect("a group");
    let members = vec![1, 2, 3, member];
    EmbeddedOptions { group: Some(GroupOptions { joins: true, members, ..group }), ..given }
}

fn add(member: u64) -> MemberChange {
    MemberChange::Add { member, address: format!("http://m{member}:7400") }
}

impl Group {
    async fn change(&self, change: MemberChange) -> Result<(), ChangeError> {
        let leader = self.leader().await;
        self.store(leader).member().expect("a member").change(change).await
    }

    /// Asks for a change until it is made.
    async fn make(&self, change: MemberChange) {
        let begun = tokio::time::Instant::now();
        while let Err(error) = self.change(change.clone()).await {
            assert!(begun.elapsed() < Duration::from_secs(60), "{change:?}: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the names of the files of a member's log, which are in the order of what is in them.
    fn segments(&self, member: u64) -> Vec<OsString> {
        let files = std::fs::read_dir(self.directory(member).join("log")).expect("a log");
        let mut names: Vec<_> = files.map(|file| file.expect("readable").file_name()).collect();
        names.sort();
        names
    }

    async fn role(&self, member: u64, role: Role) {
        until(&format!("member {member} to be {role:?}"), || (self.standing(member).role == role).then_some(())).await;
    }

    /// Returns whether a member votes, as another one knows.
    fn votes(&self, as_known_by: u64, member: u64) -> bool {
        let members = self.store(as_known_by).member().expect("a member").members();
        let members = members.borrow().clone();
        members.that_vote(true).any(|number| number == member)
    }

    /// Writes so much that the log forgets what came before.
    async fn fill(&self, what: &str) -> Vec<leasehold::job::JobId> {
        let mut acknowledged = Vec::new();
        for round in 0..10 {
            acknowledged.extend(create(self, &named(&format!("{what}-{round}"), 100)).await);
        }
        acknowledged
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lacks_what_no_log_has_any_more_receives_the_state() {
    let mut group = Group::with(forgetful);
    let mut acknowledged = create(&group, &named("before", 300)).await;
    let leader = group.leader().await;
    let away = (1..=3).find(|number| *number != leader).expect("another");
    group.stop(away).await;
    let had = group.segments(away);
    acknowledged.extend(group.fill("meanwhile").await);
    group.network.lossy.store(10, Ordering::Relaxed);
    group.network.is_doubling.store(true, Ordering::Relaxed);
    group.start_with(away, &forgetful(away));
    acknowledged.extend(group.fill("as-it-receives").await);
    group.network.lossy.store(0, Ordering::Relaxed);
    let found = group.settled().await;
    has_all(&found, &acknowledged);
    assert!(group.segments(away).first() > had.last(), "its log goes on behind the state that it received");
    until("it to receive nothing more", || group.standing(away).receives.is_none().then_some(())).await;
    // It is a member as any other since, and keeps what it has received.
    group.stop(away).await;
    group.start_with(away, &forgetful(away));
    let leader = group.leader().await;
    let other = (1..=3).find(|number| *number != leader && *number != away).expect("a third");
    group.stop(other).await;
    acknowledged.extend(create(&group, &named("with-it", 50)).await);
    let found = group.settled().await;
    has_all(&found, &acknowledged);
    let submitted = ["before-", "meanwhile-", "as-it-receives-", "with-it-"];
    assert!(found.iter().all(|found| submitted.iter().any(|name| found.job.id.as_str().starts_with(name))));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_are_asked_for_at_once_are_made_one_after_the_other() {
    let group = Group::with(forgetful);
    group.fill("before").await;
    group.role(3, Role::Voter).await;
    let moved = |member| MemberChange::Add { member, address: format!("http://elsewhere:740{member}") };
    let (first, second, third) = tokio::join!(group.change(moved(1)), group.change(moved(2)), group.change(moved(3)));
    for made in [first, second, third] {
        made.expect("it waits for the others");
    }
    let leader = group.leader().await;
    let members = group.store(leader).member().expect("a member").members().borrow().clone();
    for (number, seat) in &members.seats {
        assert_eq!(seat.address, Some(format!("http://elsewhere:740{number}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_added_while_the_others_go_on_and_another_one_leaves() {
    let mut group = Group::with(forgetful);
    let mut acknowledged = group.fill("before").await;
    assert!(matches!(group.change(add(4)).await, Err(ChangeError::Refused(why)) if why.contains("start it first")));
    group.start_with(4, &joining(4));
    group.role(4, Role::Joining).await;
    group.make(add(4)).await;
    acknowledged.extend(group.fill("as-it-comes").await);
    group.role(4, Role::Voter).await;
    group.change(add(4)).await.expect("it was made already");
    let leader = group.leader().await;
    let leaves = (1..=3).find(|number| *number != leader).expect("another");
    let gone = MemberChange::Remove { member: leaves, is_gone: true };
    assert!(matches!(group.change(gone.clone()).await, Err(ChangeError::Refused(why)) if why.contains("runs")));
    group.make(MemberChange::Remove { member: leaves, is_gone: false }).await;
    group.stop(leaves).await;
    group.change(gone).await.expect("it was made already");
    acknowledged.extend(group.fill("after").await);
    // Two of the three that are left are most of them.
    let other = (1..=3).find(|number| *number != leader && *number != leaves).expect("a third");
    group.stop(other).await;
    acknowledged.extend(create(&group, &named("with-the-new-one", 50)).await);
    group.start_with(other, &forgetful(other));
    let found = group.settled().await;
    has_all(&found, &acknowledged);
    // What the members have agreed on is there when all are started again, whatever they are started with.
    let left: Vec<u64> = group.stores.keys().copied().collect();
    for member in &left {
        group.stop(*member).await;
    }
    for member in &left {
        let options = if *member == 4 { joining(4) } else { forgetful(*member) };
        group.start_with(*member, &options);
    }
    let leader = group.leader().await;
    let members = group.store(leader).member().expect("a member").members();
    let now: Vec<u64> = members.borrow().that_vote(true).collect();
    assert_eq!(now, left);
    assert_eq!(group.settled().await, found);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_lost_its_directory_has_no_say_until_it_is_replaced() {
    let mut group = Group::with(forgetful);
    let mut acknowledged = group.fill("before").await;
    group.settled().await;
    let leader = group.leader().await;
    let (lost, other) = ([1, 2, 3].into_iter().find(|number| *number != leader).expect("another"), leader);
    group.stop(lost).await;
    group.lose_directory(lost);
    group.start_with(lost, &forgetful(lost));
    group.role(lost, Role::Disowned).await;
    // With the leader gone, it does not make a majority with the one that is left.
    let third = (1..=3).find(|number| *number != lost && *number != other).expect("a third");
    group.stop(other).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!group.standing(third).leads && !group.standing(lost).leads, "a member that has forgotten all has voted");
    group.start_with(other, &forgetful(other));
    group.make(MemberChange::Replace { member: lost }).await;
    acknowledged.extend(group.fill("meanwhile").await);
    group.role(lost, Role::Voter).await;
    has_all(&group.settled().await, &acknowledged);
    until("it has its vote again", || group.votes(third, lost).then_some(())).await;
    let why = group.change(MemberChange::Replace { member: lost }).await;
    assert!(matches!(&why, Err(ChangeError::Refused(why)) if why.contains("nothing to replace")), "{why:?}");
    // Now it does.
    group.stop(third).await;
    acknowledged.extend(create(&group, &named("with-it", 50)).await);
    has_all(&all(group.store(group.leader().await)).await, &acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_gone_is_forgotten_and_the_lead_is_not_lost_with_a_refused_change() {
    // Where the machine stands still, the two that are left may hold an election all the same; hardly twice.
    assert!(forget_one_of_three().await || forget_one_of_three().await, "the lead was lost twice");
}

/// Forgets a member that is gone. Returns `false` when there was an election meanwhile.
async fn forget_one_of_three() -> bool {
    let mut group = Group::with(forgetful);
    create(&group, &named("before", 10)).await;
    let leader = group.leader().await;
    let term = group.standing(leader).term;
    let own = MemberChange::Remove { member: leader, is_gone: false };
    assert!(matches!(group.change(own).await, Err(ChangeError::Refused(why)) if why.contains("transfer")));
    let gone = (1..=3).find(|number| *number != leader).expect("another");
    group.stop(gone).await;
    // While it was heard of a moment ago, it would be removed as one that runs.
    tokio::time::sleep(SILENT).await;
    let leaves = MemberChange::Remove { member: gone, is_gone: false };
    let refused = group.change(leaves).await;
    group.make(MemberChange::Remove { member: gone, is_gone: true }).await;
    let leads = group.leader().await;
    let answers = group.store(leader).write(creates(&named("after", 5))).await;
    let ended = group.standing(group.leader().await).term;
    if ended != term {
        println!("member {leader} led in term {term}; the term is {ended}");
        return false;
    }
    assert!(matches!(&refused, Err(ChangeError::Refused(why)) if why.contains("forget")), "{refused:?}");
    assert_eq!(leads, leader);
    assert!(answers.iter().all(Result::is_ok));
    true
}
