//! How pieces become cells: a cell is written whole, with what of it came before.

use super::piece::OutputPiece;
use crate::store::OutputCell;
use crate::store::output::CELL_BYTES;

/// Returns the cells to write for a piece that comes after `last`, the last known cell of its stream; none when it
/// brings nothing new. Where bytes before the piece are missing, its first cell begins with it.
pub(super) fn assemble(last: Option<&OutputCell>, piece: &OutputPiece) -> Vec<OutputCell> {
    let is_known = last.is_some_and(|last| last.end() >= piece.end() && (last.is_end || !piece.is_end));
    if is_known || (piece.bytes.is_empty() && !piece.is_end) {
        return Vec::new();
    }
    let mut cells = Vec::new();
    let mut from = piece.offset;
    // Ends: each turn goes on to the next cell, and a piece has few.
    loop {
        // The end of a stream belongs to its last byte's cell.
        let begins = cell_start(if piece.bytes.is_empty() { from.saturating_sub(1) } else { from });
        let to = piece.end().min(begins + CELL_BYTES);
        let new = &piece.bytes[(from - piece.offset) as usize..(to - piece.offset) as usize];
        let before =
            last.filter(|last| cell_start(last.offset) == begins && (last.offset..=last.end()).contains(&from));
        let mut bytes = before.map_or_else(Vec::new, |last| last.bytes[..(from - last.offset) as usize].to_vec());
        bytes.extend_from_slice(new);
        let offset = before.map_or(from, |last| last.offset);
        cells.push(OutputCell { offset, bytes, is_end: piece.is_end && to == piece.end() });
        if to == piece.end() {
            return cells;
        }
        from = to;
    }
}

fn cell_start(offset: u64) -> u64 {
    offset - offset % CELL_BYTES
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
        let last = OutputCell { offset: 0, bytes: b"abc".to_vec(), is_end: false };
        let cells = assemble(Some(&last), &piece(3, b"de", true));
        assert_eq!(cells, [OutputCell { offset: 0, bytes: b"abcde".to_vec(), is_end: true }]);
        assert_eq!(assemble(Some(&cells[0]), &piece(3, b"de", true)), [], "again");
        assert_eq!(assemble(Some(&cells[0]), &piece(0, b"abc", false)), [], "late");
    }

    #[test]
    fn after_a_gap_a_cell_begins_with_the_piece() {
        let last = OutputCell { offset: 0, bytes: b"abc".to_vec(), is_end: false };
        let cells = assemble(Some(&last), &piece(10, b"de", false));
        assert_eq!(cells, [OutputCell { offset: 10, bytes: b"de".to_vec(), is_end: false }]);
    }

    #[test]
    fn an_end_that_comes_alone_makes_no_cell_of_its_own() {
        let full = OutputCell { offset: 0, bytes: vec![b'a'; CELL_BYTES as usize], is_end: false };
        let cells = assemble(Some(&full), &piece(CELL_BYTES, b"", true));
        assert_eq!(cells, [OutputCell { is_end: true, ..full }]);
        assert_eq!(assemble(None, &piece(0, b"", true)), [OutputCell { offset: 0, bytes: vec![], is_end: true }]);
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
