//! What the database of outputs keeps, gives and removes.

use tempfile::TempDir;

use super::super::options::EmbeddedOptions;
use super::super::three::{Three, until, write};
use super::*;
use crate::store::Stream;

/// The attempt with this fence of a job, which was created `later` seconds after the first one of its id.
fn attempt(fence: u64, later: i64) -> (OutputOf, Timestamp) {
    let of = OutputOf { job: JobId::new("job").expect("an id"), fence: Fence::new(fence) };
    (of, Timestamp::from_millis(1_700_000_000_000 + 1_000 * later))
}

fn key((of, created_at): &(OutputOf, Timestamp), offset: u64) -> CellKey {
    CellKey::at(of, *created_at, Stream::Stdout, offset)
}

fn pair(of: &(OutputOf, Timestamp), cell: &OutputCell) -> StoredPair {
    let stored = encoded(&(cell.clone(), Some(of.1))).expect("a cell");
    (ByteBuf::from(key_of(&key(of, cell.offset))), ByteBuf::from(stored))
}

fn new() -> (TempDir, Arc<Outputs>) {
    let directory = tempfile::tempdir().expect("a directory");
    let outputs = Outputs::in_directory(directory.path());
    (directory, outputs)
}

async fn read(outputs: &Outputs, of: &(OutputOf, Timestamp)) -> Option<OutputCell> {
    outputs.read(&[key(of, 0)]).await.expect("read").remove(0)
}

#[tokio::test]
async fn cells_are_united_whichever_member_had_them_and_in_which_order_they_come() {
    let of = attempt(1, 0);
    let whole = OutputCell::whole(0, b"abcdef".to_vec(), true);
    let before = OutputCell::whole(0, b"abcd".to_vec(), false);
    let after = OutputCell::whole(5, b"f".to_vec(), true);
    let (_directory, outputs) = new();
    outputs.write(vec![(key(&of, 5), after.clone())]).await.expect("written");
    outputs.keep(&[pair(&of, &before)], None).expect("kept");
    assert_eq!(read(&outputs, &of).await, Some(before.clone().united(after.clone())));
    outputs.keep(&[pair(&of, &OutputCell::whole(2, b"cde".to_vec(), false))], None).expect("kept");
    assert_eq!(read(&outputs, &of).await, Some(whole.clone()));
    outputs.write(vec![(key(&of, 0), before)]).await.expect("written");
    assert_eq!(read(&outputs, &of).await, Some(whole));
}

#[tokio::test]
async fn the_output_of_an_earlier_job_of_the_same_id_is_not_given_and_makes_room() {
    let (earlier, later) = (attempt(1, 0), attempt(1, 1));
    let (_directory, outputs) = new();
    outputs.write(vec![(key(&earlier, 0), OutputCell::whole(0, b"earlier".to_vec(), true))]).await.expect("written");
    assert_eq!(outputs.cells_of(std::slice::from_ref(&later), 1).expect("read"), (1, Vec::new()));
    assert_eq!(read(&outputs, &later).await, None);
    let cell = OutputCell::whole(0, b"new".to_vec(), false);
    outputs.write(vec![(key(&later, 0), cell.clone())]).await.expect("written");
    assert_eq!((read(&outputs, &later).await, read(&outputs, &earlier).await), (Some(cell.clone()), None));
    // A copy that comes late.
    outputs.keep(&[pair(&earlier, &OutputCell::whole(0, b"earlier and more".to_vec(), true))], None).expect("kept");
    assert_eq!(read(&outputs, &later).await, Some(cell));
}

/// Several threads write at once, and copies come meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn no_part_of_a_cell_is_lost_to_another_one_that_is_written_at_the_same_time() {
    let of = attempt(1, 0);
    let (_directory, outputs) = new();
    let part = |from: u64| OutputCell::whole(from, vec![b'a'; 10], false);
    let mut writes = tokio::task::JoinSet::new();
    for from in (0..8_000).step_by(10) {
        let (outputs, key, cell) = (Arc::clone(&outputs), key(&of, from), part(from));
        let copy = pair(&of, &cell);
        writes.spawn(async move {
            match from % 20 {
                0 => outputs.write(vec![(key, cell)]).await,
                _ => spawn_blocking(move || outputs.keep(&[copy], None)).await.expect("no panic"),
            }
        });
    }
    while let Some(written) = writes.join_next().await {
        written.expect("no panic").expect("written");
    }
    assert_eq!(read(&outputs, &of).await, Some(OutputCell::whole(0, vec![b'a'; 8_000], false)));
}

#[tokio::test]
async fn an_answer_has_so_many_attempts_as_go_into_it_and_one_at_least() {
    let attempts: Vec<_> = (1..=5).map(|fence| attempt(fence, 0)).collect();
    let (_directory, outputs) = new();
    assert_eq!(outputs.cells_of(&attempts, 1).expect("nothing"), (5, Vec::new()));
    for of in &attempts[..4] {
        outputs.keep(&[pair(of, &OutputCell::whole(0, vec![b'a'; 1_000], false))], None).expect("kept");
    }
    let answered = |most| outputs.cells_of(&attempts, most).map(|(count, cells)| (count, cells.len()));
    assert_eq!(answered(1).expect("read"), (1, 1));
    assert_eq!(answered(1_500).expect("read"), (2, 2));
    assert_eq!(answered(1 << 20).expect("read"), (5, 4));
}

/// Output of a job may come before the entry that creates it.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_removes_no_output_of_a_job_before_it_has_applied_what_would_create_it() {
    let three = Three::open(&EmbeddedOptions::default());
    let leader = three.leader(None).await;
    let cut_off = (1..=3).find(|member| *member != leader).expect("another one");
    *three.way.lock() = Box::new(move |message| (message.to != cut_off && message.from != cut_off).then_some(message));
    let inner = &three.stores[&cut_off].inner;
    let engine = inner.engine.read().clone().expect("it is open");
    let outputs = &inner.beside.outputs;
    let sweep = || outputs.sweep(&engine, None).expect("swept");
    let of = attempt(1, 0);
    let cell = OutputCell::whole(0, b"abc".to_vec(), true);
    let last_of_leader = || three.exchange(cut_off).last_of_leader();
    until("the silence of the leader", || last_of_leader().is_none().then_some(())).await;
    outputs.keep(&[pair(&of, &cell)], None).expect("kept");
    *outputs.sweeps_from.lock() = None;
    sweep();
    assert_eq!(read(outputs, &of).await, Some(cell.clone()), "it has heard of no leader");
    let mut leader = leader;
    while !write(&three.stores[&leader], "a record").await {
        leader = three.leader(None).await;
    }
    let at_leader = three.stores[&leader].inner.engine.read().clone().expect("it is open").applied().0;
    assert!(engine.applied().0 < at_leader);
    outputs.keep(&[pair(&of, &cell)], Some(at_leader)).expect("kept");
    sweep();
    assert_eq!(read(outputs, &of).await, Some(cell), "it may be of a job that the entry creates");
    *three.way.lock() = Box::new(Some);
    until("what the leader has", || (engine.applied().0 >= at_leader).then_some(())).await;
    sweep();
    assert_eq!(read(outputs, &of).await, None, "it is of no job");
}
