//! The data directory: the process that holds it, and its format.
//!
//! ```text
//! leasehold.lock     held by the process that has the store open; its pid is inside
//! leasehold.format   the format of everything below; written before the first job is accepted
//! leasehold.seal     what the database must have; written before the format, and anew at each checkpoint
//! leasehold.openings how the directory of one of several members was opened, and those of the others were
//! leasehold.rebuilds when this member was rebuilt by itself since it differed from all others, and in what
//! leasehold.room     kept for when the disk is full, and given up then
//! leasehold.try      written and removed to see that there is room
//! store/             the database: the state as of an entry of the log
//! log/               the log of what came after it
//! store.new/         a database whose creation has not ended: nothing was ever acknowledged from it
//! store.incoming/    a database that is received from another member
//! leasehold.incoming the seal of that database, written once it is whole: the store begins with it when it is opened
//! store.old/         the database in whose place that one came
//! audit/             the audit, if it is kept
//! output/            the output of attempts, which nothing else depends on
//! output.damaged/    such a folder that could not be opened
//! ```
//!
//! Jobs hold what their submitters would not show to everybody on the machine, and subscriptions hold secrets. So
//! folders are created for their user alone; a data directory that is open to others is used as it is, with a warning.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

use super::error::{Damage, OpenError};
use super::owners::{self, FOLDER_MODE};
use super::seal::{Received, SEAL_FILE, Seal, Stage};

/// The format that this version reads and writes. A number is never used for another layout.
const FORMAT: u32 = 8;

/// The mode of files that are created.
const FILE_MODE: u32 = 0o600;

const LOCK_FILE: &str = "leasehold.lock";
const FORMAT_FILE: &str = "leasehold.format";
const ROOM_FILE: &str = "leasehold.room";
const TRY_FILE: &str = "leasehold.try";
const DATABASE: &str = "store";
pub(super) const LOG: &str = "log";
const UNFINISHED_DATABASE: &str = "store.new";
const INCOMING_DATABASE: &str = "store.incoming";
const INCOMING_FILE: &str = "leasehold.incoming";
const OLD_DATABASE: &str = "store.old";

/// How the names begin of what may be in a directory before there is a store: parts of one, the marker of a run, the
/// folders of runs that `leasehold run` keeps in the same place, hidden files, and what a file system puts at its root.
const OWN_NAMES: [&str; 9] = ["leasehold.", "store", "log", "audit", "output", "run.json", "run-", ".", "lost+found"];

/// For how long want of room counts as the reason why the database has stopped.
const LATELY: Duration = Duration::from_secs(60);

/// How much room there must be for a store to be opened, in bytes.
const ROOM_BYTES: usize = 1 << 20;

/// A lock file that this process has locked. The file itself stays: if it were removed, a process that has it open
/// already and one that creates another could both hold "the" lock.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    /// To close the file would not be enough: a process that is being started has a copy of it until it runs its
    /// program.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "cannot unlock the data directory");
        }
    }
}

/// A data directory that this process holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: Lock,
    /// How many bytes are kept for when the disk is full.
    reserve: u64,
    /// When there was too little room last; `None` where there was enough since then.
    short_at: Mutex<Option<Instant>>,
}

impl Directory {
    /// Creates the directory if it is missing, and locks it for this process. So many bytes are to be kept in it for
    /// when the disk is full.
    pub(super) fn hold(path: &Path, reserve: u64) -> Result<Self, OpenError> {
        let failed = |doing| move |source| OpenError::Io { doing, directory: path.to_owned(), source };
        create_durably(path).map_err(failed("create"))?;
        owners::check(path)?;
        if let Some(entry) = foreign_entry(path).map_err(failed("look into"))? {
            return Err(OpenError::Foreign { directory: path.to_owned(), entry });
        }
        owners::warn_if_open_to_others(path).map_err(failed("look at"))?;
        let lock = own_file()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK_FILE))
            .map_err(failed("open the lock file of"))?;
        let mut lock = take(lock, path)?;
        write_pid(&mut lock.0).map_err(failed("write the lock file of"))?;
        Ok(Self { path: path.to_owned(), _lock: lock, reserve, short_at: Mutex::default() })
    }

    /// Looks at a directory that is there, without changing anything in it. Returns its lock, which nobody else can
    /// take while it is held, and the path of the database.
    pub(super) fn look_at(path: &Path) -> Result<(Option<Lock>, PathBuf), OpenError> {
        let failed = |doing| move |source| OpenError::Io { doing, directory: path.to_owned(), source };
        fs::read_dir(path).map_err(failed("open"))?;
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => Some(take(lock, path)?),
            // A copy may do without.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(failed("open the lock file of")(source)),
        };
        match format_of(path)? {
            Some(FORMAT) => Ok((lock, path.join(DATABASE))),
            Some(found) => Err(OpenError::UnknownFormat { directory: path.to_owned(), found, known: FORMAT }),
            None => Err(OpenError::NoFormat { directory: path.to_owned() }),
        }
    }

    /// Returns the path of the database, and its seal. If there is no database yet, `create` makes one in the directory
    /// passed to it, which takes its place once it is whole.
    pub(super) fn database(
        &self,
        create: impl FnOnce(&Path) -> Result<(), fjall::Error>,
    ) -> Result<(PathBuf, Seal), OpenError> {
        let failed = |doing| move |source| OpenError::Io { doing, directory: self.path.clone(), source };
        let damaged = |damage| OpenError::Damaged { directory: self.path.clone(), damages: vec![damage] };
        let database = self.path.join(DATABASE);
        let exists = database.try_exists().map_err(failed("look into"))?;
        match format_of(&self.path)? {
            Some(FORMAT) => {}
            Some(found) => {
                return Err(OpenError::UnknownFormat { directory: self.path.clone(), found, known: FORMAT });
            }
            None if exists || self.was_in_use() => {
                return Err(OpenError::NoFormat { directory: self.path.clone() });
            }
            // The seal first: where there is a format, one that is missing is noticed.
            None => {
                self.write_seal(&Seal::creating()).map_err(failed("write the seal of"))?;
                self.write_format().map_err(failed("write the format file of"))?;
            }
        }
        let seal = Seal::read(&self.path).map_err(damaged)?;
        if exists {
            return Ok((database, seal));
        }
        if seal.stage != Stage::Creating {
            return Err(damaged(Damage::missing(&database)));
        }
        let unfinished = self.path.join(UNFINISHED_DATABASE);
        remove_folder(&unfinished).map_err(failed("clear"))?;
        create_folders(&unfinished).map_err(failed("create a database in"))?;
        create(&unfinished).map_err(|source| OpenError::Database { directory: self.path.clone(), source })?;
        fs::rename(&unfinished, &database).map_err(failed("create the database in"))?;
        sync_directory(&self.path).map_err(failed("sync"))?;
        Ok((database, seal))
    }

    /// Returns whether a seal says that there was a database, or cannot be read.
    fn was_in_use(&self) -> bool {
        let path = Seal::path(&self.path);
        path.exists() && Seal::read(&self.path).map_or(true, |seal| seal.stage != Stage::Creating)
    }

    /// Writes a file durably and removes it, to learn that there is room for the next writes.
    pub(super) fn try_room(&self) -> io::Result<()> {
        let path = self.path.join(TRY_FILE);
        let written = own_file().write(true).create(true).truncate(true).open(&path).and_then(|mut file| {
            file.write_all(&vec![b'.'; ROOM_BYTES])?;
            file.sync_all()
        });
        written.and(fs::remove_file(&path))
    }

    /// Takes the room that is kept for when the disk is full, where it is not taken.
    pub(super) fn take_room(&self) -> io::Result<()> {
        let path = self.path.join(ROOM_FILE);
        if self.reserve == 0 || fs::metadata(&path).is_ok_and(|found| found.len() >= self.reserve) {
            return Ok(());
        }
        let mut file = own_file().write(true).create(true).truncate(false).open(&path)?;
        set_aside(&mut file, self.reserve)?;
        file.sync_all()
    }

    /// Gives the room that is kept. Returns whether there was any.
    pub(super) fn give_room(&self) -> bool {
        *self.short_at.lock() = Some(Instant::now());
        match fs::remove_file(self.path.join(ROOM_FILE)) {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, "the room that is kept for when the disk is full cannot be given");
                }
                false
            }
        }
    }

    /// Returns how many bytes are left when they are too few: when the room that is kept was given and cannot be taken
    /// again, or there is hardly more.
    pub(super) fn short_of_room(&self) -> Option<u64> {
        if self.reserve == 0 {
            return None;
        }
        let left = bytes_left(&self.path)?;
        let is_taken = self.path.join(ROOM_FILE).exists();
        let enough = if is_taken { self.reserve } else { 3 * self.reserve };
        let is_short = left < enough || self.take_room().is_err();
        if is_short {
            *self.short_at.lock() = Some(Instant::now());
        }
        is_short.then_some(left)
    }

    /// Returns whether there was too little room lately.
    pub(super) fn was_short_of_room(&self) -> bool {
        self.short_at.lock().is_some_and(|at| at.elapsed() < LATELY)
    }

    /// Returns whether there is room for so many bytes, beside what is kept for when the disk is full.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        bytes_left(&self.path).is_none_or(|left| left >= bytes.saturating_add(self.reserve))
    }

    /// Writes the seal durably, and whole or not at all.
    pub(super) fn write_seal(&self, seal: &Seal) -> io::Result<()> {
        self.write_whole(SEAL_FILE, |_| seal.encode())
    }

    /// Writes what is to be in a file of this name durably, and whole or not at all, as a rename is. `bytes` returns it
    /// for the file that it is written to.
    pub(super) fn write_whole(&self, name: &str, bytes: impl FnOnce(&File) -> io::Result<Vec<u8>>) -> io::Result<()> {
        let path = self.path.join(name);
        let unfinished = path.with_added_extension("new");
        let mut file = own_file().write(true).create(true).truncate(true).open(&unfinished)?;
        let bytes = bytes(&file)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        sync_directory(&self.path)
    }

    /// Returns the path of a database that is received from another member.
    pub(super) fn incoming(&self) -> PathBuf {
        self.path.join(INCOMING_DATABASE)
    }

    /// Removes what was received of a database that is not whole.
    pub(super) fn clear_incoming(&self) -> io::Result<()> {
        remove_folder(&self.incoming())
    }

    /// Writes durably that the database which was received is whole, with its seal.
    pub(super) fn write_incoming(&self, received: &Received) -> io::Result<()> {
        self.write_whole(INCOMING_FILE, |_| received.encode())
    }

    /// Returns the seal of a database that was received whole and has not taken the place of the former one; `None`
    /// when there is none.
    ///
    /// # Errors
    /// A damage when the seal is not as it was written.
    pub(super) fn received(&self) -> Result<Option<Received>, Damage> {
        let path = self.path.join(INCOMING_FILE);
        match path.exists() {
            true => Received::read_file(&path).map(Some),
            false => Ok(None),
        }
    }

    /// Puts the database that was received in the place of the former one, where it is not there yet.
    pub(super) fn put_received(&self) -> io::Result<()> {
        let (incoming, database) = (self.incoming(), self.path.join(DATABASE));
        if !incoming.try_exists()? {
            return Ok(());
        }
        let old = self.path.join(OLD_DATABASE);
        remove_folder(&old)?;
        if database.try_exists()? {
            fs::rename(&database, &old)?;
        }
        fs::rename(&incoming, &database)?;
        sync_directory(&self.path)
    }

    /// Removes what says that a database was received, and the former one.
    pub(super) fn end_received(&self) -> io::Result<()> {
        fs::remove_file(self.path.join(INCOMING_FILE))?;
        sync_directory(&self.path)?;
        remove_folder(&self.path.join(OLD_DATABASE))
    }

    /// Returns the path of the log.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// Returns the path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the format file whole or not at all.
    fn write_format(&self) -> io::Result<()> {
        self.write_whole(FORMAT_FILE, |_| Ok(format!("{FORMAT}\n").into_bytes()))
    }
}

/// Returns how many bytes are left on the disk of a folder; `None` when that is unknown, which is no reason to refuse
/// anything.
fn bytes_left(path: &Path) -> Option<u64> {
    let left = statvfs(path).ok()?;
    Some(left.blocks_available() * left.fragment_size())
}

/// Returns whether there is room to open a store in a directory, and to keep so many bytes for when the disk is full,
/// with which new jobs are taken.
pub(super) fn has_room(path: &Path, reserve: u64) -> bool {
    bytes_left(path).is_none_or(|left| left >= ROOM_BYTES as u64 + 3 * reserve)
}

/// Has the next read of each file of a folder with a name of this end come from the disk, where the system can: of what
/// a failed sync has not written, memory may have what the disk does not. A folder that is missing has none.
pub(super) fn read_from_disk(folder: &Path, end: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    for entry in fs::read_dir(folder).into_iter().flatten() {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

        let path = entry?.path();
        if path.to_string_lossy().ends_with(end) && path.is_file() {
            posix_fadvise(File::open(&path)?, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

/// Makes room on the disk for so many bytes of a file: at once where the system can set it aside, else by writing.
fn set_aside(file: &mut File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use nix::errno::Errno;

        let length = i64::try_from(bytes).map_err(io::Error::other)?;
        match nix::fcntl::posix_fallocate(&*file, 0, length) {
            // The file system cannot.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => {}
            made => return Ok(made?),
        }
    }
    io::copy(&mut io::repeat(0).take(bytes), file).map(drop)
}

/// Returns the name of a file of something else in a directory that no store was ever in.
fn foreign_entry(directory: &Path) -> io::Result<Option<String>> {
    if directory.join(FORMAT_FILE).try_exists()? {
        return Ok(None);
    }
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !OWN_NAMES.iter().any(|own| name.starts_with(own)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Takes a lock, or says who has it.
fn take(mut lock: File, path: &Path) -> Result<Lock, OpenError> {
    match lock.try_lock() {
        Ok(()) => Ok(Lock(lock)),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let read = lock.read_to_string(&mut pid);
            let holder = read.ok().and_then(|_| pid.trim().parse().ok());
            Err(OpenError::InUse { directory: path.to_owned(), holder })
        }
        Err(TryLockError::Error(source)) => Err(OpenError::Io { doing: "lock", directory: path.to_owned(), source }),
    }
}

/// Returns the format of a directory, if it says one.
fn format_of(directory: &Path) -> Result<Option<u32>, OpenError> {
    match fs::read(directory.join(FORMAT_FILE)) {
        Ok(bytes) => match String::from_utf8_lossy(&bytes).trim().parse() {
            Ok(format) => Ok(Some(format)),
            Err(_) => Err(OpenError::NoFormat { directory: directory.to_owned() }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Io { doing: "read the format of", directory: directory.to_owned(), source }),
    }
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// Returns the options to open a file that, if it is created, is its user's alone.
pub(super) fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Removes a folder with all that is in it, if it is there.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates those of a directory and its ancestors that are missing, each its user's alone.
pub(super) fn create_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Creates a directory with its ancestors, and makes their entries durable: a file that is synced is still lost when
/// the directory it is in is not in its own parent.
pub(super) fn create_durably(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    create_folders(&path)?;
    for created in missing {
        if let Some(parent) = created.parent() {
            sync_directory(parent)?;
        }
    }
    Ok(())
}

/// Makes what was created in a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_directory_that_was_let_go_can_be_held_again_while_processes_are_started() {
        let place = tempfile::tempdir().expect("a directory");
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        Command::new("true").status().expect("true runs");
                    }
                });
            }
            let in_use = (0..300).filter_map(|_| Directory::hold(place.path(), 0).err()).count();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(in_use, 0);
        });
    }
}
