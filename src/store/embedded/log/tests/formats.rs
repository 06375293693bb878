//! What holds of one format holds of the other, and a log may have segments of both.

use super::*;

macro_rules! of_batched {
    ($($test:path as $name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                FORMAT.set(Format::Batched);
                $test();
            }
        )*
    };
}

of_batched! {
    super::no_bytes_make_it_panic as no_bytes_make_it_panic,
    super::what_was_appended_is_read as what_was_appended_is_read,
    super::a_cut_at_any_byte_loses_only_the_frame_it_is_in as a_cut_at_any_byte_loses_only_the_frame_it_is_in,
    super::small_frames_are_written_over_zeros_which_go_with_the_segment as small_frames_are_written_over_zeros,
    super::a_rotation_that_was_cut_short_at_any_byte_is_undone as a_rotation_that_was_cut_short_is_undone,
    super::a_failure_at_any_step_loses_nothing as a_failure_at_any_step_loses_nothing,
    super::a_full_disk_leaves_nothing_and_is_tried_again as a_full_disk_leaves_nothing_and_is_tried_again,
    super::a_write_that_cannot_be_taken_back_is_the_last as a_write_that_cannot_be_taken_back_is_the_last,
    super::trimming_keeps_what_is_needed_and_may_leave_holes as trimming_keeps_what_is_needed,
    super::a_log_without_frames_goes_on_in_its_segment as a_log_without_frames_goes_on_in_its_segment,
    super::a_log_that_is_cut_back_goes_on_from_there as a_log_that_is_cut_back_goes_on_from_there,
    super::a_log_whose_cutting_back_ends_early_has_all_frames_up_to_some as a_log_whose_cutting_back_ends_early,
    super::the_frames_of_a_segment_are_read_by_one_of_their_numbers as the_frames_of_a_segment_are_read,
    super::damage::a_flipped_bit_loses_no_frame_silently as a_flipped_bit_loses_no_frame_silently,
    super::damage::a_flipped_bit_in_the_room_for_frames_does_no_harm as a_flipped_bit_in_the_room_does_no_harm,
    super::damage::a_flipped_bit_in_a_frame_is_found_though_the_next_is_torn as a_flipped_bit_before_a_torn_frame,
    super::damage::a_flipped_length_or_marker_is_found_though_a_sector_is_zero as a_flipped_length_or_marker_is_found,
    super::damage::missing_empty_and_swapped_files_are_found as missing_empty_and_swapped_files_are_found,
    super::damage::a_segment_of_another_log_is_found as a_segment_of_another_log_is_found,
    super::damage::what_no_rotation_leaves_is_damage as what_no_rotation_leaves_is_damage,
    super::damage::a_hole_in_the_last_frame_is_torn_and_one_before_is_not as a_hole_in_the_last_frame_is_torn,
    super::damage::a_log_that_is_closed_has_exactly_its_frames as a_log_that_is_closed_has_exactly_its_frames,
}

#[test]
fn a_log_goes_on_in_the_other_format_and_back() {
    let (folder, mut log) = log_of(3);
    for (at, format) in [Format::Batched, Format::Batched, Format::Single, Format::Batched].into_iter().enumerate() {
        log.write_as(format);
        let last = log.last();
        append(&mut log, last + 1..last + 3);
        assert_eq!(log.active.format, format, "{at}");
        let last = log.last();
        let (found, read) = intact(folder.path(), &expected(1, last));
        assert_eq!(read, frames(1..last + 1));
        log = Log::open(folder.path(), found, Options { format, ..small() }).expect("it opens");
        log.cut_back(last - 1).expect("it is cut");
        append(&mut log, last..last + 1);
    }
    let last = log.last();
    drop(log);
    goes_on(folder.path(), last);
}

#[test]
fn many_frames_are_synced_once() {
    FORMAT.set(Format::Batched);
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(folder.path(), 1, large()).expect("a log");
    for number in 1..8_001 {
        assert_eq!(log.write(&payload(number)).expect("a frame is written"), number);
    }
    assert_eq!(log.syncs, 0);
    log.sync().expect("they are synced");
    log.sync().expect("there is nothing to sync");
    assert_eq!(log.syncs, 1);
    assert_eq!(intact(folder.path(), &expected(1, 8_000)).1, frames(1..8_001));
}

#[test]
fn a_flipped_bit_in_frames_that_were_synced_together_loses_none_silently() {
    FORMAT.set(Format::Batched);
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(folder.path(), 1, large()).expect("a log");
    // None has a zero where a sector ends.
    let text = |number: u64| format!("{number:050}").into_bytes();
    for batch in [1..4, 4..9] {
        batch.for_each(|number| assert_eq!(log.write(&text(number)).expect("a frame is written"), number));
        log.sync().expect("they are synced");
    }
    let all: Frames = (1..9).map(|number| (number, text(number))).collect();
    let path = segment_path(folder.path(), 1);
    let bytes = content(&path);
    assert!(bytes.len() > 512 && bytes[511] != 0);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        put(&path, &flipped);
        match visited(folder.path(), &expected(1, 0)) {
            (Ok(_), read) => assert_eq!(read, all, "bit {bit}"),
            (Err(damages), _) => assert_eq!(damages[0].path, path, "bit {bit}"),
        }
    }
}
