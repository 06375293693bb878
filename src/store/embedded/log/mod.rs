//! An append-only log of frames, each of which is opaque and has a number and a checksum, in a folder of segments.
//!
//! Frames are numbered consecutively over all segments, from 1 on. A segment is named after the number of its first
//! frame and refers to the one before by its checksum; all but the one that is being written end with a footer. In a
//! segment of [`Format::Single`] each frame is synced before the next one is written; in one of [`Format::Batched`]
//! several are written and then synced together.
//!
//! - [`record`]: the bytes of a header, a frame and a footer;
//! - [`torn`]: what of the end of a segment a crash can have cut short;
//! - [`segment`]: what is in a segment;
//! - [`read`](mod@read): which segments there are, and whether all is there that must be;
//! - here: [`Log`], which appends, rotates, forgets, and closes.
//!
//! # Rotation
//! All frames are synced, the next segment is made durable, then the old one gets its footer, and only once that is
//! durable a frame is written to the next. So a footer says that another segment must be there, but for that of a log
//! that was closed; opening removes that one before it rotates. These are the ends of a log that is not closed which a
//! crash can leave; any other is damage:
//!
//! | Last segment but one | Last segment                | What happened               | What opening does           |
//! |----------------------|-----------------------------|-----------------------------|-----------------------------|
//! | footer, or none      | frames                      | nothing was being written   | rotates                     |
//! | footer, or none      | frames, the last ones cut short | writes were cut short   | cuts, rotates               |
//! | footer, or none      | frames, a footer cut short  | closing was cut short       | cuts, rotates               |
//! | footer, or none      | frames, a footer of closing | closing ended, but its seal | cuts off the footer, rotates |
//! | footer, or none      | only a header               | a rotation ended            | syncs the footer, goes on   |
//! | footer, or none      | a header, then as above     | as above                    | cuts, goes on in it         |
//! | frames, no footer    | empty, or a header cut short | a rotation was cut short   | removes the last, rotates   |
//! | frames, no footer    | only a header               | a rotation was cut short    | removes the last, rotates   |
//! | frames, a footer cut short | only a header      | a rotation was cut short    | cuts, removes, rotates      |
//!
//! "Footer, or none" is a segment with a footer of rotation, or that there is no such segment. What a crash cuts short
//! may also have parts that are zero, and zeros may follow anything, since frames are written over them. So these in
//! particular are damage: a footer of rotation in the last segment; no footer in an earlier one when the last has
//! anything behind its header; a footer of closing in an earlier one; a last segment without a whole header behind one
//! with a footer, or alone; and in a log that is closed, anything but footers of rotation and, in the end, one of
//! closing.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::directory::{create_durably, own_file, sync_directory};
use super::error::is_full;
use read::segment_path;
use record::{HEADER_BYTES, Header, append_frame};
use segment::{Ending, Segment, beginning, encode_footer};

mod read;
mod record;
mod segment;
mod torn;

pub(super) use read::{Expected, Found, frames, look_at, look_at_new, read};
pub(super) use record::Format;

/// The end of a segment is filled with zeros up to a multiple of this many bytes, for frames to be written over: to
/// sync a file whose length has changed takes half as long again, since the file system has to write that too.
const ROOM_BYTES: u64 = 64 << 10;

/// A frame of so many bytes or more makes no room for others: they come seldom enough behind it.
const LARGE_FRAME_BYTES: usize = 16 << 10;

/// How much of the buffer for a frame is kept for the next one, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// How to write a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// The length in bytes from which on no more frames are appended to a segment.
    pub(super) segment_bytes: u64,
    /// The format of the segments that are begun.
    pub(super) format: Format,
}

/// Why a frame was not appended.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppendError {
    /// The disk is full, and nothing was written: the frame can be appended when there is room.
    #[error("there is no room for the log: {0}")]
    Full(io::Error),
    /// The frame may have been written or not. The log refuses everything from now on, since what a failed sync did not
    /// write may be lost though a later one succeeds (Rebello et al., USENIX ATC 2020).
    #[error("the log cannot be written: {0}")]
    Failed(io::Error),
}

impl AppendError {
    /// Returns the error of a write that was not synced yet.
    fn of_write(error: io::Error) -> Self {
        if is_full(&error) { Self::Full(error) } else { Self::Failed(error) }
    }
}

impl From<AppendError> for io::Error {
    fn from((AppendError::Full(error) | AppendError::Failed(error)): AppendError) -> Self {
        error
    }
}

/// A log that is being written.
pub(super) struct Log {
    folder: PathBuf,
    options: Options,
    /// The first frame's number and the length of each segment that has a footer.
    finished: VecDeque<(u64, u64)>,
    active: Active,
    last: u64,
    /// The number of the last frame that is durable.
    synced: u64,
    /// The number of the first frame that is needed, whatever is to be forgotten.
    held: Option<u64>,
    has_failed: bool,
    buffer: Vec<u8>,
    /// How often frames were synced.
    #[cfg(test)]
    pub(super) syncs: u64,
}

impl Log {
    /// Creates a log whose first frame will be `first`, which is at least 1, in a folder without one. A log whose
    /// creation a crash has cut short cannot be read, and is to be removed.
    pub(super) fn create(folder: &Path, first: u64, options: Options) -> io::Result<Self> {
        let last = first.checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?;
        create_durably(folder)?;
        let active = Active::create(folder, Header { format: options.format, first, previous: 0 })?;
        Ok(Self::new(folder, options, VecDeque::new(), active, last))
    }

    /// Opens a log that was read and not changed since, and begins a segment in it. Cuts off what a crash has cut
    /// short, and removes the file that one left.
    ///
    /// From now on the log is not closed, and cannot be read as such: a caller that recorded that it was closed must
    /// durably record otherwise before. When this fails, the log is to be read again.
    pub(super) fn open(folder: &Path, found: Found, options: Options) -> io::Result<Self> {
        let Found { last, torn, leftover, segments, tail } = found;
        if let Some(leftover) = leftover {
            tracing::warn!(file = %leftover.display(), "removing the segment that a crash left before its first frame");
            fs::remove_file(leftover)?;
            sync_directory(folder)?;
        }
        if let Some(torn) = torn {
            tracing::warn!("{torn}");
        }
        let has_frames = tail.has_frames();
        let file = own_file().write(true).open(segment_path(folder, tail.first))?;
        let Segment { format, first, length, hasher, .. } = tail;
        let mut active = Active { file, format, first, length, room: length, hasher };
        active.cut()?;
        let finished = segments.into_iter().filter(|(first, _)| *first != active.first).collect();
        let mut log = Self::new(folder, options, finished, active, last);
        if has_frames {
            log.rotate()?;
        } else if let Some((before, _)) = log.finished.back() {
            // A process that was killed may not have synced its footer.
            sync_file(&own_file().write(true).open(segment_path(folder, *before))?)?;
        }
        Ok(log)
    }

    fn new(folder: &Path, options: Options, finished: VecDeque<(u64, u64)>, active: Active, last: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            options,
            finished,
            active,
            last,
            synced: last,
            held: None,
            has_failed: false,
            buffer: Vec::new(),
            #[cfg(test)]
            syncs: 0,
        }
    }

    /// Sets the format of the segments that are begun from now on. One of another format that has frames is ended with
    /// the next write.
    pub(super) fn write_as(&mut self, format: Format) {
        self.options.format = format;
    }

    /// Begins another segment where this one is full, or of another format than those that are begun, and makes frames
    /// durable where the next one must not be written before: what the next write would do otherwise.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(super) fn prepare(&mut self) -> Result<(), AppendError> {
        let prepared = match self.is_rotation_due() {
            true => self.rotate(),
            false if self.active.format == Format::Single => self.sync().map_err(AppendError::Failed),
            false => Ok(()),
        };
        prepared.or_else(|error| self.take_back(error))
    }

    /// Writes a frame, which is durable after the next [`sync`](Self::sync) only. Returns its number.
    ///
    /// In a segment of [`Format::Single`] at most one frame is not durable, or a crash could leave more than one that
    /// is cut short. So one that was written before is synced first.
    pub(super) fn write(&mut self, payload: &[u8]) -> Result<u64, AppendError> {
        self.check()?;
        let written = self.try_write(payload);
        written.map(|()| self.last).or_else(|error| self.take_back(error))
    }

    /// Takes back what a write for which there was no room has left, and returns why nothing was written.
    fn take_back<T>(&mut self, error: AppendError) -> Result<T, AppendError> {
        match error {
            AppendError::Full(error) if !self.has_failed && self.rewind().is_ok() => Err(AppendError::Full(error)),
            AppendError::Full(error) | AppendError::Failed(error) => {
                self.has_failed = true;
                Err(AppendError::Failed(error))
            }
        }
    }

    /// Lets the log refuse everything from now on: it lacks what was to be in it.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
    }

    fn check(&self) -> Result<(), AppendError> {
        let failed = || io::Error::other("the log could not be written before, and must be opened again");
        if self.has_failed { Err(AppendError::Failed(failed())) } else { Ok(()) }
    }

    /// Makes all frames durable that are not.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        if self.synced < self.last {
            self.active.sync().inspect_err(|_| self.has_failed = true)?;
            self.synced = self.last;
            #[cfg(test)]
            {
                self.syncs += 1;
            }
        }
        Ok(())
    }

    /// Returns the files of the segments all of whose frames are before this one, but not of the last segment nor of
    /// the last of the others that have so many bytes, and forgets them. They are to be removed, the oldest first; one
    /// that cannot be, or is there again after a power failure, does no harm.
    pub(super) fn forget_before(&mut self, before: u64, kept: u64) -> Vec<PathBuf> {
        let before = self.held.map_or(before, |held| before.min(held));
        let mut bytes: u64 = self.finished.iter().map(|(_, length)| length).sum();
        let mut forgotten = Vec::new();
        while let Some((first, length)) = self.finished.front().copied() {
            let next = self.finished.get(1).map_or(self.active.first, |(first, _)| *first);
            bytes -= length;
            if next > before || bytes < kept {
                break;
            }
            forgotten.push(segment_path(&self.folder, first));
            self.finished.pop_front();
        }
        forgotten
    }

    /// Keeps the frames from this one on until another call. Returns whether the log has them.
    pub(super) fn hold(&mut self, from: Option<u64>) -> bool {
        self.held = from;
        from.is_none_or(|from| self.first() <= from && from <= self.last + 1)
    }

    /// Returns how many bytes the segments have whose frames are all behind this one.
    pub(super) fn bytes_behind(&self, number: u64) -> u64 {
        self.finished.iter().filter(|(first, _)| *first > number).map(|(_, length)| length).sum()
    }

    /// Returns the number of the first frame that the log has, or will have.
    pub(super) fn first(&self) -> u64 {
        self.finished.front().map_or(self.active.first, |(first, _)| *first)
    }

    /// Ends the log with a footer, durably. Returns the number of the last frame, with which the caller can record that
    /// the log was closed.
    pub(super) fn close(mut self) -> io::Result<u64> {
        self.sync()?;
        self.finish(Ending::Closed)?;
        Ok(self.last)
    }

    /// Returns the number of the first frame of the segment that has this frame, or will have it.
    pub(super) fn segment_of(&self, number: u64) -> u64 {
        let firsts = self.finished.iter().map(|(first, _)| *first).chain([self.active.first]);
        firsts.take_while(|first| *first <= number).last().unwrap_or(self.active.first)
    }

    /// Returns the number of the last frame; the one before the first when there is none.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Removes all frames behind this one, durably. A crash meanwhile leaves a log that ends with any of these.
    ///
    /// # Errors
    /// An error after which the log refuses everything.
    pub(super) fn cut_back(&mut self, number: u64) -> io::Result<()> {
        self.sync()?;
        let cut = self.try_cut_back(number);
        self.synced = self.last;
        self.has_failed |= cut.is_err();
        cut
    }

    fn try_cut_back(&mut self, number: u64) -> io::Result<()> {
        // A segment that keeps none of its frames goes, and the one before is written again: see the module for what
        // a crash may leave of that.
        while self.active.first > number + 1 {
            let before = self.finished.pop_back().map(|(first, _)| first);
            let first = before.ok_or_else(|| io::Error::other(format!("frame {number} is not in the log")))?;
            self.active.cut_to(HEADER_BYTES as u64)?;
            let ended = Active::reopen(&self.folder, first, u64::MAX)?;
            #[cfg(test)]
            tests::faults::note_removal(&self.active.file);
            fs::remove_file(segment_path(&self.folder, self.active.first))?;
            sync_directory(&self.folder)?;
            self.last = self.active.first - 1;
            self.active = ended;
        }
        if number < self.last {
            self.active = Active::reopen(&self.folder, self.active.first, number)?;
            self.last = number;
        }
        Ok(())
    }

    fn try_write(&mut self, payload: &[u8]) -> Result<(), AppendError> {
        if self.is_rotation_due() {
            self.rotate()?;
        }
        let durable = match self.active.format {
            Format::Single => {
                self.sync().map_err(AppendError::Failed)?;
                None
            }
            Format::Batched => Some(self.synced),
        };
        append_frame(&mut self.buffer, self.last + 1, durable, payload).map_err(AppendError::Failed)?;
        let written = self.active.write(&self.buffer);
        if written.is_ok() && self.buffer.len() < LARGE_FRAME_BYTES {
            self.active.make_room();
        }
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES);
        written?;
        self.last += 1;
        Ok(())
    }

    fn is_rotation_due(&self) -> bool {
        let is_full = self.active.length >= self.options.segment_bytes;
        self.has_frames() && (is_full || self.active.format != self.options.format)
    }

    /// Returns whether the segment that is being written has frames.
    fn has_frames(&self) -> bool {
        self.active.first <= self.last
    }

    /// Begins another segment, and only then ends this one: see the module.
    fn rotate(&mut self) -> Result<(), AppendError> {
        self.sync().map_err(AppendError::Failed)?;
        let (format, previous) = (self.options.format, self.active.hasher.digest());
        let next = Active::create(&self.folder, Header { format, first: self.last + 1, previous })?;
        self.finish(Ending::Rotated)?;
        self.finished.push_back((self.active.first, self.active.length));
        self.active = next;
        Ok(())
    }

    fn finish(&mut self, ending: Ending) -> Result<(), AppendError> {
        encode_footer(&mut self.buffer, self.last, self.active.hasher.digest(), ending).map_err(AppendError::Failed)?;
        self.active.end_room().map_err(AppendError::Failed)?;
        let written = self.active.write(&self.buffer);
        self.buffer.clear();
        written?;
        self.active.sync().map_err(AppendError::Failed)
    }

    /// Takes back what a write for which there was no room has left, also of a rotation.
    fn rewind(&mut self) -> io::Result<()> {
        self.active.cut()?;
        self.synced = self.last;
        // Without frames, the segment that is being written would have the name of the next one itself.
        let next = segment_path(&self.folder, self.last + 1);
        if self.has_frames() && next.try_exists()? {
            fs::remove_file(next)?;
            sync_directory(&self.folder)?;
        }
        Ok(())
    }
}

/// The segment that is being written.
struct Active {
    file: File,
    format: Format,
    first: u64,
    /// The length and the checksum of what was written to it.
    length: u64,
    hasher: Xxh3,
    /// Where the zeros behind that end, as far as it is known that there are some.
    room: u64,
}

impl Active {
    /// Creates a segment durably.
    fn create(folder: &Path, header: Header) -> Result<Self, AppendError> {
        let Header { format, first, .. } = header;
        let created = own_file().write(true).create_new(true).open(segment_path(folder, first));
        let file = created.map_err(AppendError::of_write)?;
        let mut active = Self { file, format, first, length: 0, hasher: Xxh3::new(), room: 0 };
        active.write(&header.encode())?;
        active.sync().and_then(|()| sync_directory(folder)).map_err(AppendError::Failed)?;
        Ok(active)
    }

    /// Opens a segment to write it again behind the frame `last`, or behind all of its frames when these are fewer.
    /// What is behind that is cut off, durably.
    fn reopen(folder: &Path, first: u64, last: u64) -> io::Result<Self> {
        let path = segment_path(folder, first);
        let (format, length, hasher) = beginning(&fs::read(&path)?, first, last).map_err(io::Error::other)?;
        let file = own_file().write(true).open(path)?;
        let mut active = Self { file, format, first, length, room: length, hasher };
        active.cut()?;
        Ok(active)
    }

    /// Durably cuts off what is behind so many bytes. The checksum is not that of what is left then.
    fn cut_to(&mut self, length: u64) -> io::Result<()> {
        self.length = length;
        self.cut()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        #[cfg(test)]
        tests::faults::before_write(&self.file, bytes, self.length).map_err(AppendError::of_write)?;
        self.file.write_all_at(bytes, self.length).map_err(AppendError::of_write)?;
        self.length += bytes.len() as u64;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Makes room for more, where there is none left.
    fn make_room(&mut self) {
        if self.length <= self.room {
            return;
        }
        let room = self.length.next_multiple_of(ROOM_BYTES);
        // What cannot be written is not needed: frames are then written behind the end, as far as the disk goes.
        let zeros = vec![0; (room - self.length) as usize];
        self.room = if self.file.write_all_at(&zeros, self.length).is_ok() { room } else { self.length };
    }

    fn sync(&self) -> io::Result<()> {
        sync_file(&self.file)
    }

    /// Ends the file behind that which was written.
    fn end_room(&mut self) -> io::Result<()> {
        self.room = self.length;
        #[cfg(test)]
        tests::faults::note_length(&self.file, self.length);
        self.file.set_len(self.length)
    }

    /// Durably cuts off what is behind that which was written.
    fn cut(&mut self) -> io::Result<()> {
        self.end_room()?;
        #[cfg(test)]
        tests::faults::before_sync(&self.file)?;
        self.file.sync_all()
    }
}

fn sync_file(file: &File) -> io::Result<()> {
    #[cfg(test)]
    tests::faults::before_sync(file)?;
    file.sync_data()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use tests::faults;
