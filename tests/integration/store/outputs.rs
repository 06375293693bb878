//! The output of attempts.

use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::Fence;
use leasehold::store::{CellKey, OutputCell, OutputOf, Stream};

use super::Engine;
use super::sample::id;

fn attempt(job: &str, fence: u64) -> OutputOf {
    OutputOf { job: id(job), fence: Fence::new(fence) }
}

fn created_at() -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000)
}

fn cell(offset: u64, bytes: &[u8], is_end: bool) -> OutputCell {
    OutputCell::whole(offset, bytes.to_vec(), is_end)
}

async fn write(engine: &impl Engine, of: &OutputOf, stream: Stream, cell: &OutputCell) {
    let place = CellKey::of_cell(of, created_at(), stream, cell);
    engine.store().outputs().write(vec![(place, cell.clone())]).await.expect("written");
}

async fn read(engine: &impl Engine, of: &OutputOf) -> Vec<OutputCell> {
    let keys: Vec<CellKey> = CellKey::all(of, created_at()).collect();
    let cells = engine.store().outputs().read(&keys).await.expect("read");
    assert_eq!(cells.len(), keys.len(), "an answer for each place");
    cells.into_iter().flatten().collect()
}

pub(crate) async fn output_is_read_as_it_was_written_each_attempt_on_its_own(engine: &impl Engine) {
    let (first, second) = (attempt("job/1 \u{e9}", 1), attempt("job/1 \u{e9}", 2));
    assert_eq!(read(engine, &first).await, [], "before anything was written");
    let (out, err) = (cell(0, &[0, 255, b'\n'], false), cell(0, b"", true));
    write(engine, &first, Stream::Stdout, &out).await;
    write(engine, &first, Stream::Stderr, &err).await;
    write(engine, &second, Stream::Stdout, &err).await;
    assert_eq!(read(engine, &first).await, [out, err.clone()]);
    assert_eq!(read(engine, &second).await, [err]);
}

pub(crate) async fn a_cell_that_ends_earlier_changes_nothing(engine: &impl Engine) {
    let of = attempt("a", 1);
    let (short, long, ended) = (cell(0, b"ab", false), cell(0, b"abc", false), cell(0, b"abc", true));
    for (written, expected) in [(&short, &short), (&long, &long), (&short, &long), (&ended, &ended), (&long, &ended)] {
        write(engine, &of, Stream::Stdout, written).await;
        assert_eq!(read(engine, &of).await.as_slice(), std::slice::from_ref(expected), "after {written:?}");
    }
}

pub(crate) async fn the_output_of_attempts_is_removed_and_that_of_others_stays(engine: &impl Engine) {
    let written = cell(0, b"abc", true);
    let attempts = [attempt("a", 1), attempt("a", 2), attempt("a", 3), attempt("a b", 2), attempt("a", 256)];
    for of in &attempts {
        for stream in Stream::ALL {
            write(engine, of, stream, &written).await;
        }
    }
    // A later cell as well.
    write(engine, &attempts[0], Stream::Stdout, &cell(8 * 1024, b"more", true)).await;
    let outputs = engine.store().outputs();
    outputs.remove(&[(id("a"), Fence::new(1)..=Fence::new(2))]).await.expect("removed");
    outputs.remove(&[(id("never there"), Fence::new(1)..=Fence::new(2))]).await.expect("nothing to remove");
    for (of, left) in attempts.iter().zip([0, 0, 2, 2, 2]) {
        assert_eq!(read(engine, of).await.len(), left, "{of:?}");
    }
}

pub(crate) async fn output_is_not_read_as_that_of_a_later_job_of_the_same_id(engine: &impl Engine) {
    let of = attempt("a", 1);
    write(engine, &of, Stream::Stdout, &cell(0, b"abc", true)).await;
    let later: Vec<CellKey> = CellKey::all(&of, created_at().plus(Duration::from_secs(1))).collect();
    let read = engine.store().outputs().read(&later).await.expect("read");
    assert!(read.iter().all(Option::is_none), "{read:?}");
}

pub(crate) async fn what_is_missing_in_a_cell_is_kept_as_a_gap(engine: &impl Engine) {
    let (of, torn) = (attempt("a", 1), cell(2, b"abc", false).united(cell(7, b"d", true)));
    write(engine, &of, Stream::Stdout, &torn).await;
    assert_eq!(read(engine, &of).await, [torn]);
}
