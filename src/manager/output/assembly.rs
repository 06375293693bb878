//! How pieces become cells: a cell is written whole, with what of it came before.

use super::piece::OutputPiece;
use crate::store::OutputCell;
use crate::store::output::CELL_BYTES;

/// Returns the cells to write for a piece that comes after `last`, the last known cell of its stream; none when it
/// brings nothing new. Where bytes before the piece are missing, its first cell has a gap there.
pub(super) fn assemble(last: Option<&OutputCell>, piece: &OutputPiece) -> Vec<OutputCell> {
    let has_all = |last: &OutputCell| last.is_from_its_beginning() && last.end() >= piece.end();
    let is_known = last.is_some_and(|last| has_all(last) && (last.is_end || !piece.is_end));
    if is_known || (piece.bytes.is_empty() && !piece.is_end) {
        return Vec::new();
    }
    let mut cells = Vec::new();
    let mut from = piece.offset;
    // Ends: each turn goes on to the next cell, and a piece has few.
    loop {
        let to = piece.end().min(from - from % CELL_BYTES + CELL_BYTES);
        let new = &piece.bytes[(from - piece.offset) as usize..(to - piece.offset) as usize];
        let new = OutputCell::whole(from, new.to_vec(), piece.is_end && to == piece.end());
        let is_before = |last: &&OutputCell| last.number() == new.number();
        cells.push(match last.filter(is_before) {
            Some(before) => before.clone().united(new),
            None => new,
        });
        if to == piece.end() {
            return cells;
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::{Fence, JobId};
    use crate::store::{OutputOf, Stream};

    fn piece(offset: u64, bytes: &[u8], is_end: bool) -> OutputPiece {
        let of = OutputOf { job: JobId::first(), fence: Fence::new(1) };
        OutputPiece { of, stream: Stream::Stdout, offset, bytes: bytes.to_vec(), is_end }
    }

    #[test]
    fn a_piece_is_added_to_what_its_cell_has() {
        let last = OutputCell::whole(0, b"abc".to_vec(), false);
        let cells = assemble(Some(&last), &piece(3, b"de", true));
        assert_eq!(cells, [OutputCell::whole(0, b"abcde".to_vec(), true)]);
        assert_eq!(assemble(Some(&cells[0]), &piece(3, b"de", true)), [], "again");
        assert_eq!(assemble(Some(&cells[0]), &piece(0, b"abc", false)), [], "late");
    }

    #[test]
    fn a_cell_has_a_gap_where_bytes_are_missing() {
        let last = OutputCell::whole(0, b"abc".to_vec(), false);
        let cells = assemble(Some(&last), &piece(10, b"de", false));
        assert_eq!(
            cells.iter().map(|cell| (cell.end(), cell.pieces())).collect::<Vec<_>>(),
            [(12, vec![(0, &b"abc"[..]), (10, b"de")])]
        );
        assert_eq!(
            assemble(Some(&cells[0]), &piece(3, b"defghij", false)),
            [OutputCell::whole(0, b"abcdefghijde".to_vec(), false)],
            "what was missing comes late"
        );
    }

    #[test]
    fn a_piece_that_comes_late_is_taken_where_what_is_before_it_is_not_known() {
        let late = |last: &OutputCell, offset, bytes: &[u8]| assemble(Some(last), &piece(offset, bytes, false));
        let last = OutputCell::whole(10, b"de".to_vec(), false);
        assert_eq!(late(&last, 0, b"abc"), [OutputCell::whole(0, b"abc".to_vec(), false).united(last.clone())]);
        let cells = late(&OutputCell::whole(20_000, b"de".to_vec(), false), 0, &[b'a'; 20_000]);
        assert_eq!(cells.iter().map(OutputCell::end).collect::<Vec<_>>(), [8_192, 16_384, 20_002]);
        let last = OutputCell::whole(16_384, b"de".to_vec(), false);
        assert_eq!(late(&last, 0, &[b'a'; 16_384]), [], "what is before it came before");
    }

    #[test]
    fn an_end_that_comes_alone_makes_no_cell_of_its_own() {
        let full = OutputCell::whole(0, vec![b'a'; CELL_BYTES as usize], false);
        let cells = assemble(Some(&full), &piece(CELL_BYTES, b"", true));
        assert_eq!(cells, [OutputCell { is_end: true, ..full }]);
        assert_eq!(assemble(None, &piece(0, b"", true)), [OutputCell::whole(0, vec![], true)]);
    }

    proptest! {
        #[test]
        fn whatever_the_pieces_are_the_cells_are_the_stream(cuts in prop::collection::vec(1_usize..20_000, 1..8)) {
            let length: usize = cuts.iter().sum();
            let stream: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut cells: std::collections::BTreeMap<u64, OutputCell> = std::collections::BTreeMap::new();
            let mut from = 0;
            for cut in cuts {
                let piece = piece(from as u64, &stream[from..from + cut], from + cut == length);
                let last = cells.last_key_value().map(|(_, cell)| cell.clone());
                for cell in assemble(last.as_ref(), &piece) {
                    cells.insert(cell.offset, cell);
                }
                from += cut;
            }
            prop_assert!(cells.keys().all(|offset| offset % CELL_BYTES == 0));
            prop_assert_eq!(cells.values().filter(|cell| cell.is_end).count(), 1);
            let read: Vec<u8> = cells.into_values().flat_map(|cell| cell.bytes).collect();
            prop_assert_eq!(read, stream);
        }
    }
}
