//! Three `leasehold serve` that are one, of which some leave, others come, and one is left in the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::client::Client;
use leasehold::wire::{ClaimJobs, ClusterRole, ClusterStatus, CompleteJob, HindranceReason, SubmitJob};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::program::{DEADLINE, Ended, Started, leasehold, run};
use crate::servers::ports;

const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// Servers of one cluster in a directory, by their numbers.
pub(super) struct Cluster {
    pub(super) place: tempfile::TempDir,
    ports: BTreeMap<u64, u16>,
    running: BTreeMap<u64, Started>,
}

impl Cluster {
    pub(super) fn of_three() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let ports = (1..=5).map(|number| (number, ports::free())).collect();
        let mut cluster = Self { place, ports, running: BTreeMap::new() };
        (1..=3).for_each(|number| cluster.start(number, &[]));
        cluster
    }

    pub(super) fn url(&self, number: u64) -> String {
        format!("http://127.0.0.1:{}", self.ports[&number])
    }

    pub(super) fn data(&self, number: u64) -> PathBuf {
        self.place.path().join(format!("data-{number}"))
    }

    pub(super) fn start(&mut self, number: u64, more: &[&str]) {
        let log = self.log(number);
        let log = File::options().create(true).append(true).open(log).expect("the log can be written");
        let started = Started::of(self.command(number, more).stdout(Stdio::null()).stderr(log));
        self.running.insert(number, started);
    }

    /// Starts a member that refuses to run, and returns what it says.
    pub(super) fn start_in_vain(&self, number: u64) -> String {
        let mut command = self.command(number, &[]);
        tokio::task::block_in_place(|| Started::of(&mut command).end()).expect(1).said()
    }

    fn log(&self, number: u64) -> PathBuf {
        self.place.path().join(format!("{number}.log"))
    }

    fn command(&self, number: u64, more: &[&str]) -> Command {
        // Those that found the cluster, and the member itself.
        let peers: Vec<String> =
            (1..=3).chain((number > 3).then_some(number)).map(|peer| format!("{peer}={}", self.url(peer))).collect();
        let (member, listen, peers) =
            (number.to_string(), format!("127.0.0.1:{}", self.ports[&number]), peers.join(","));
        let data = self.data(number);
        let arguments =
            ["serve", "--cluster-name", "night", "--member", &member, "--peers", &peers, "--listen", &listen];
        let arguments = arguments.into_iter().chain(["--cluster-secret", SECRET]).chain(more.iter().copied());
        let data = data.to_str().expect("a name that is text");
        leasehold(self.place.path(), arguments.chain(["--data-dir", data]))
    }

    pub(super) fn signal(&mut self, number: u64, signal: Signal) {
        self.running.get_mut(&number).expect("it runs").signal(signal);
    }

    /// Has a job claimed and write something, and returns its id once another member has a copy.
    async fn write_output(&self, leader: u64) -> String {
        let claimed = self.client(leader).claim(&claim_as("writes", 1)).await.expect("claimed").jobs.remove(0);
        let piece = json!({"worker_id": "writes", "fence": claimed.fence, "stream": "stdout", "offset": 0,
            "text": "what it has written\n", "end": true});
        let put = format!("{}/v1/jobs/{}/output", self.url(leader), claimed.id);
        let put = reqwest::Client::new().post(put).json(&piece).send().await.expect("an answer");
        assert!(put.status().is_success(), "{}", put.text().await.expect("text"));
        let done = CompleteJob { worker_id: "writes".to_owned(), fence: claimed.fence, result: None, next: None };
        self.client(leader).complete(claimed.id.as_ref(), &done).await.expect("completed");
        self.output_is_copied().await;
        claimed.id.to_string()
    }

    /// Waits until no member has output that is to be copied.
    async fn output_is_copied(&self) {
        let deadline = Instant::now() + DEADLINE;
        for member in self.running.keys() {
            loop {
                let metrics = reqwest::get(format!("{}/metrics", self.url(*member))).await.expect("an answer");
                let metrics = metrics.text().await.expect("text");
                let uncopied =
                    metrics.lines().find_map(|line| line.strip_prefix("leasehold_member_output_uncopied_cells "));
                if uncopied.is_none_or(|uncopied| uncopied == "0") {
                    break;
                }
                assert!(Instant::now() < deadline, "member {member} does not copy its output: {uncopied:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn output_of(&self, member: u64, job: &str) -> String {
        let path = format!("{}/v1/jobs/{job}/output?as_text=stdout", self.url(member));
        reqwest::get(path).await.expect("an answer").text().await.expect("text")
    }

    pub(super) fn end(&mut self, number: u64, signal: Signal) {
        let mut ended = self.running.remove(&number).expect("it runs");
        ended.signal(signal);
        tokio::task::block_in_place(|| ended.end());
    }

    pub(super) fn client(&self, number: u64) -> Client {
        Client::new(&self.url(number), None).expect("a client")
    }

    /// Waits until a member says this of where it stands.
    pub(super) async fn says(&self, number: u64, what: &str, is_so: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let said = self.client(number).with_max_retries(0).cluster().await;
            match said {
                Ok(status) if is_so(&status) => return status,
                said => assert!(Instant::now() < deadline, "member {number}: {what}: {said:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn leader(&self, asked: u64) -> u64 {
        let runs = |status: &ClusterStatus| status.leader.is_some_and(|leader| self.running.contains_key(&leader));
        self.says(asked, "who leads", runs).await.leader.expect("it was looked at")
    }

    /// Hands the lead over, as often as it takes.
    pub(super) async fn have_lead(&self, to: u64, asked: u64) {
        let deadline = Instant::now() + DEADLINE;
        while self.leader(asked).await != to {
            self.cluster(&["transfer", &to.to_string()], asked);
            assert!(Instant::now() < deadline, "member {to} does not lead");
        }
    }

    pub(super) fn cluster(&self, arguments: &[&str], asked: u64) -> Ended {
        let url = self.url(asked);
        let arguments = ["cluster"].into_iter().chain(arguments.iter().copied()).chain(["--server", &url]);
        tokio::task::block_in_place(|| run(self.place.path(), arguments))
    }

    /// Changes the members, as often as it takes: another change may be under way, or a member not be heard yet.
    async fn change(&self, arguments: &[&str], asked: u64) -> Ended {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let changed = self.cluster(arguments, asked);
            if changed.code() == Some(0) {
                return changed;
            }
            assert!(Instant::now() < deadline, "{arguments:?}: {}", changed.stderr());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn submit(&self, through: u64, count: usize) -> Vec<String> {
        let client = self.client(through);
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(client.submit(&SubmitJob::new("q", "k")).await.expect("submitted").id.to_string());
        }
        ids
    }

    pub(super) async fn has(&self, number: u64, ids: &[String]) {
        for id in ids {
            assert_eq!(self.client(number).job(id).await.expect("the job is there").id, *id);
        }
    }
}

/// Says that a member is hindered by these others, for this reason.
fn is_hindered(status: &ClusterStatus, by: &[u64], reason: HindranceReason) -> bool {
    status
        .hindrances
        .iter()
        .filter(|hindrance| hindrance.reason == reason)
        .map(|hindrance| hindrance.member)
        .eq(by.iter().copied())
}

fn claim_as(worker: &str, most: u64) -> ClaimJobs {
    let queues = vec!["q".to_owned()];
    ClaimJobs { worker_id: worker.to_owned(), queues, max_jobs: Some(most), ..ClaimJobs::default() }
}

fn rows(status: &Ended) -> Vec<Value> {
    status.stdout().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_while_the_cluster_works() {
    let mut cluster = Cluster::of_three();
    let leader = cluster.leader(1).await;
    let mut ids = cluster.submit(1, 20).await;
    let written = cluster.write_output(leader).await;
    let refused = cluster.cluster(&["add", "4", &cluster.url(4)], 1).expect(1).stderr();
    assert!(refused.contains("start it first"), "{refused}");
    cluster.start(4, &["--join"]);
    cluster.says(4, "it waits", |status| status.role == ClusterRole::Joining).await;
    cluster.says(leader, "it hears", |_| true).await;
    cluster.change(&["add", "4", &cluster.url(4)], 1).await;
    ids.extend(cluster.submit(2, 20).await);
    cluster.says(4, "it votes", |status| status.members.iter().any(|member| member.member == 4 && member.votes)).await;
    // The one that leads leaves: another leads then.
    let listed = rows(&cluster.change(&["remove", &leader.to_string(), "--json"], 4).await);
    assert!(listed.iter().all(|row| row["member"] != leader) && listed.len() == 3, "{listed:?}");
    cluster.end(leader, Signal::SIGTERM);
    cluster.output_is_copied().await;
    ids.extend(cluster.submit(4, 20).await);
    // The new one leads, whose address the others know from the group only.
    let other = cluster.running.keys().copied().find(|number| *number != 4).expect("another");
    cluster.have_lead(4, other).await;
    let claimed = cluster.client(other).claim(&claim_as("through another", 1)).await.expect("claimed").jobs.remove(0);
    let done = CompleteJob { worker_id: "through another".to_owned(), fence: claimed.fence, result: None, next: None };
    cluster.client(other).complete(claimed.id.as_ref(), &done).await.expect("the claim holds");
    // One dies with its disk, and begins again with an empty one.
    cluster.have_lead(other, 4).await;
    let lost = cluster.running.keys().copied().find(|number| ![other, 4].contains(number)).expect("a third");
    cluster.end(lost, Signal::SIGKILL);
    std::fs::remove_dir_all(cluster.data(lost)).expect("it is there");
    cluster.start(lost, &[]);
    cluster.says(lost, "it knows", |status| status.role == ClusterRole::Disowned).await;
    let listed = cluster.cluster(&["status"], 4).expect(0).stdout();
    assert!(listed.contains("disowned"), "{listed}");
    cluster.cluster(&["replace", &lost.to_string()], 4).expect(0);
    // As another one says: itself it begins with those that founded the cluster.
    let votes = |status: &ClusterStatus| status.members.iter().any(|member| member.member == lost && member.votes);
    cluster.says(other, "it votes again", votes).await;
    ids.extend(cluster.submit(lost, 20).await);
    cluster.output_is_copied().await;
    cluster.end(4, Signal::SIGKILL);
    cluster.leader(lost).await;
    cluster.has(lost, &ids).await;
    assert_eq!(cluster.output_of(lost, &written).await, "what it has written\n");
    cluster.change(&["forget", "4"], lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_forgotten_comes_back_with_a_new_directory_and_not_with_its_old_one() {
    let mut cluster = Cluster::of_three();
    let leader = cluster.leader(1).await;
    let ids = cluster.submit(leader, 5).await;
    let gone = if leader == 3 { 2 } else { 3 };
    cluster.end(gone, Signal::SIGKILL);
    cluster.change(&["forget", &gone.to_string()], leader).await;
    let [old, new] = ["old", "new"].map(|name| cluster.place.path().join(name));
    std::fs::rename(cluster.data(gone), &old).expect("moved away");
    cluster.start(gone, &["--join"]);
    cluster.says(gone, "it waits", |status| status.role == ClusterRole::Joining).await;
    cluster.change(&["add", &gone.to_string(), &cluster.url(gone)], leader).await;
    let votes = |status: &ClusterStatus| status.members.iter().any(|member| member.member == gone && member.votes);
    cluster.says(leader, "it votes again", votes).await;
    cluster.has(gone, &ids).await;
    cluster.end(gone, Signal::SIGTERM);
    std::fs::rename(cluster.data(gone), &new).expect("moved away");
    std::fs::rename(&old, cluster.data(gone)).expect("put back");
    cluster.start(gone, &[]);
    cluster.says(gone, "it is refused", |status| status.role == ClusterRole::Disowned).await;
    let log = std::fs::read_to_string(cluster.log(gone)).expect("the log");
    assert!(log.contains("the group knows this member by another data directory"), "{log}");
    cluster.end(gone, Signal::SIGTERM);
    std::fs::remove_dir_all(cluster.data(gone)).expect("it is there");
    std::fs::rename(&new, cluster.data(gone)).expect("put back");
    cluster.start(gone, &[]);
    cluster.says(gone, "it follows", |status| status.role == ClusterRole::Voter && status.leader.is_some()).await;
    cluster.has(gone, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_is_left_goes_on_alone_and_no_former_fence_is_taken() {
    let mut cluster = Cluster::of_three();
    cluster.leader(1).await;
    let ids = cluster.submit(1, 5).await;
    let claim = claim_as("before", 1);
    let claimed = cluster.client(1).claim(&claim).await.expect("claimed").jobs.remove(0);
    // A follower may hear of the last ones after their answers.
    let leader = cluster.leader(1).await;
    let last = cluster.client(leader).cluster().await.expect("it runs").committed;
    cluster.says(2, "it has all", |status| status.applied >= last).await;
    for gone in [1, 3] {
        cluster.end(gone, Signal::SIGKILL);
    }
    cluster.end(2, Signal::SIGTERM);
    let data = cluster.data(2);
    let force = |yes: &[&str]| {
        let arguments = ["cluster", "force-alone", "--data-dir", data.to_str().expect("text")];
        tokio::task::block_in_place(|| run(cluster.place.path(), arguments.into_iter().chain(yes.iter().copied())))
    };
    assert!(force(&[]).expect(2).stderr().contains("--yes"));
    let said = force(&["--yes"]).expect(0).stdout();
    assert!(said.contains("1 running jobs were given back") && said.contains("5 jobs raised"), "{said}");
    // Again and again, since nothing else happens there that could wake up who waits for the change.
    for _ in 0..5 {
        force(&["--yes"]).expect(0);
    }
    cluster.start(2, &[]);
    assert_eq!(cluster.leader(2).await, 2);
    cluster.has(2, &ids).await;
    let done = CompleteJob { worker_id: "before".to_owned(), fence: claimed.fence, result: None, next: None };
    let refused = cluster.client(2).complete(claimed.id.as_ref(), &done).await.expect_err("its fence is over");
    assert_eq!(refused.code(), Some("lease_lost"));
    let claim = claim_as("after", 5);
    let mut found = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while found.len() < 5 {
        found.extend(cluster.client(2).claim(&claim).await.expect("claimed").jobs);
        assert!(Instant::now() < deadline, "the job that was given back is not there");
    }
    assert!(found.iter().all(|job| job.fence > 1_000_000));
    // And others come.
    cluster.start(4, &["--join"]);
    cluster.change(&["add", "4", &cluster.url(4)], 2).await;
    cluster
        .says(4, "it votes", |status| status.members.iter().all(|member| member.votes) && status.leader.is_some())
        .await;
    cluster.has(4, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_founder_that_is_gone_is_added_again_with_a_new_disk_at_another_address() {
    let mut cluster = Cluster::of_three();
    cluster.leader(2).await;
    let ids = cluster.submit(2, 5).await;
    cluster.end(1, Signal::SIGKILL);
    std::fs::rename(cluster.data(1), cluster.place.path().join("former-1")).expect("it is there");
    cluster.change(&["forget", "1"], 2).await;
    // The others were started with its former address, and run on.
    cluster.ports.insert(1, ports::free());
    cluster.start(1, &["--join"]);
    cluster.change(&["add", "1", &cluster.url(1)], 2).await;
    cluster
        .says(1, "it votes", |status| status.members.iter().all(|member| member.votes) && status.leader.is_some())
        .await;
    cluster.has(1, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_has_everything_is_taken_over_neither_by_new_founders_nor_by_those_of_former_times() {
    let mut cluster = Cluster::of_three();
    cluster.leader(2).await;
    let identity = cluster.says(2, "it knows the identity", |status| status.identity.is_some()).await.identity;
    for other in [1, 3] {
        cluster.says(other, "it knows the same", |status| status.identity == identity && status.version > 0).await;
    }
    let ids = cluster.submit(2, 20).await;
    let leader = cluster.leader(2).await;
    let last = cluster.client(leader).cluster().await.expect("it runs").committed;
    cluster.says(2, "it has all", |status| status.applied >= last).await;
    let before = cluster.client(2).with_max_retries(0);
    before.job(&ids[0]).await.expect("the job is there");
    // Two of three lose their directories, and are started as they were started at first, before and after the third.
    for lost in [1, 3] {
        cluster.end(lost, Signal::SIGKILL);
        std::fs::rename(cluster.data(lost), cluster.place.path().join(format!("former-{lost}"))).expect("it is there");
    }
    cluster.end(2, Signal::SIGKILL);
    for lost in [1, 3] {
        cluster.start(lost, &[]);
    }
    cluster.says(1, "it waits", |status| is_hindered(status, &[2], HindranceReason::Silent)).await;
    let refused = cluster.client(1).with_max_retries(0).submit(&SubmitJob::new("q", "k")).await;
    let refused = refused.expect_err("nobody leads").to_string();
    assert!(refused.contains("member 2 is silent: the cluster is founded once"), "{refused}");
    cluster.start(2, &[]);
    for lost in [1, 3] {
        cluster.says(lost, "it knows", |status| status.role == ClusterRole::Disowned).await;
    }
    cluster
        .says(2, "it is what it was, and alone", |status| status.leader.is_none() && status.identity == identity)
        .await;
    // It goes on alone, and is another cluster from then on.
    for number in [1, 2, 3] {
        cluster.end(number, Signal::SIGKILL);
    }
    let data = cluster.data(2);
    let force = ["cluster", "force-alone", "--data-dir", data.to_str().expect("text"), "--yes"];
    tokio::task::block_in_place(|| run(cluster.place.path(), force)).expect(0);
    cluster.start(2, &[]);
    assert_eq!(cluster.leader(2).await, 2);
    let alone = cluster.says(2, "it is another one", |status| status.identity.is_some()).await.identity;
    assert_ne!(alone, identity);
    // Who was answered by the former cluster has its claims and fences.
    let refused = before.submit(&SubmitJob::new("q", "k")).await.expect_err("it is for the former cluster");
    assert_eq!(refused.code(), Some("other_cluster"), "{refused}");
    cluster.submit(2, 1).await;
    // The others come back with the directories that they had, and are the former cluster.
    for former in [1, 3] {
        std::fs::remove_dir_all(cluster.data(former)).expect("it is there");
        std::fs::rename(cluster.place.path().join(format!("former-{former}")), cluster.data(former)).expect("it is");
        cluster.start(former, &[]);
    }
    for former in [1, 3] {
        let leads = |status: &ClusterStatus| status.leader.is_some_and(|leader| leader != 2);
        let status = cluster.says(former, "the former ones go on", leads).await;
        assert_eq!(status.identity, identity);
    }
    let by_others = |status: &ClusterStatus| is_hindered(status, &[1, 3], HindranceReason::OtherCluster);
    let status = cluster.says(2, "it takes nothing from them", by_others).await;
    assert!(status.leads && status.hindrances.iter().all(|hindrance| hindrance.identity == identity));
    let by_it = |status: &ClusterStatus| is_hindered(status, &[2], HindranceReason::OtherCluster);
    cluster.says(1, "they take nothing from it", by_it).await;
    cluster.has(2, &ids).await;
    let shown = cluster.cluster(&["status"], 2).expect(0).stdout();
    assert!(shown.contains("member 1 is of another cluster"), "{shown}");
}
