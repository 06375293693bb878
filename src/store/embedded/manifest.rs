//! The manifest of a keyspace: which files it consists of, read without being changed.
//!
//! `current` has the number of the manifest that counts, and its checksum; that one, `v<number>`, lists the tables and
//! the files of separate values, each with its checksum. The database trusts `current` as it is: where that is gone, it
//! deletes the keyspace, and a table that is not listed is deleted too.
//!
//! ```text
//! current  = number:u64 checksum:u128 0                           the checksum is XXH3
//! manifest = section* contents "SFA!" 1 0 checksum:u128 contents_at:u64 contents_length:u64
//! contents = "TOC!" count:u32 (at:u64 length:u64 name_length:u16 name)*
//! tables   = levels:u8 (runs:u8 (count:u32 (table:u64 0 checksum:u128 number:u64)*)*)*
//! blob_files = count:u32 (file:u64 0 checksum:u128)*
//! ```

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::error::Damage;
use super::journal::Cursor;

const CURRENT: &str = "current";

/// The bytes behind the contents of a manifest: magic, version, type of checksum, checksum, place, length.
const TRAILER_BYTES: usize = 4 + 1 + 1 + 16 + 8 + 8;

/// What a keyspace consists of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The number of the manifest.
    pub(super) number: u64,
    /// The manifest's own file and `current`.
    pub(super) own: [PathBuf; 2],
    /// The files with what was written, each with its checksum.
    pub(super) tables: Vec<(PathBuf, u128)>,
}

impl Manifest {
    /// Reads the manifest of the keyspace in a folder.
    ///
    /// # Errors
    /// What is damaged, also when a file that it lists is missing.
    pub(super) fn read(folder: &Path) -> Result<Self, Damage> {
        if !folder.is_dir() {
            return Err(Damage::missing(folder));
        }
        let current = folder.join(CURRENT);
        let (number, checksum) = parse_current(&read(&current)?)
            .ok_or_else(|| Damage::of(&current, "it does not say which manifest counts".to_owned()))?;
        let path = folder.join(format!("v{number}"));
        let bytes = fs::read(&path).map_err(|error| Damage {
            what: format!("{}, and {} names it", Damage::unreadable(&path, &error).what, current.display()),
            path: path.clone(),
        })?;
        if xxh3_128(&bytes) != checksum {
            return Err(Damage::of(&path, format!("its checksum is not the one in {}", current.display())));
        }
        let Some((tables, blobs)) = parse(&bytes) else {
            return Err(Damage::of(&path, "it cannot be understood".to_owned()));
        };
        let within = |place: &str, files: Vec<(u64, u128)>| {
            let place = folder.join(place);
            files.into_iter().map(move |(file, checksum)| (place.join(file.to_string()), checksum))
        };
        let tables: Vec<_> = within("tables", tables).chain(within("blobs", blobs)).collect();
        match tables.iter().find(|(table, _)| !table.is_file()) {
            Some((missing, _)) => Err(Damage::missing(missing)),
            None => Ok(Self { number, own: [current, path], tables }),
        }
    }

    /// Reads the tables, and compares them with their checksums.
    pub(super) fn damaged_tables(&self) -> Vec<Damage> {
        let damage = |(path, checksum): &(PathBuf, u128)| match checksum_of(path) {
            Ok(found) if found == *checksum => None,
            Ok(_) => Some(Damage::of(path, "its checksum is not the one in the manifest".to_owned())),
            Err(error) => Some(Damage::unreadable(path, &error)),
        };
        self.tables.iter().filter_map(damage).collect()
    }
}

/// Returns the number of the manifest that counts for the keyspace in a folder.
pub(super) fn number(folder: &Path) -> io::Result<u64> {
    let bytes = fs::read(folder.join(CURRENT))?;
    parse_current(&bytes).map(|(number, _)| number).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read(path: &Path) -> Result<Vec<u8>, Damage> {
    fs::read(path).map_err(|error| Damage::unreadable(path, &error))
}

fn checksum_of(path: &Path) -> io::Result<u128> {
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut checksum = Xxh3::new();
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(checksum.digest128()),
            read => checksum.update(&buffer[..read]),
        }
    }
}

fn parse_current(bytes: &[u8]) -> Option<(u64, u128)> {
    let mut rest = Cursor { bytes, at: 0 };
    let found = (rest.u64()?, rest.u128()?);
    (rest.byte()? == 0 && rest.at == bytes.len()).then_some(found)
}

/// The numbers and checksums of files.
type Files = Vec<(u64, u128)>;

fn parse(bytes: &[u8]) -> Option<(Files, Files)> {
    let trailer = bytes.len().checked_sub(TRAILER_BYTES)?;
    let mut rest = Cursor { bytes, at: trailer };
    if rest.take(6)? != b"SFA!\x01\x00" {
        return None;
    }
    rest.u128()?;
    let contents = usize::try_from(rest.u64()?).ok()?;
    Some((tables(section(bytes, contents, b"tables")?)?, blob_files(section(bytes, contents, b"blob_files")?)?))
}

fn section<'a>(bytes: &'a [u8], contents: usize, wanted: &[u8]) -> Option<&'a [u8]> {
    let mut rest = Cursor { bytes, at: contents };
    if rest.take(4)? != b"TOC!" {
        return None;
    }
    for _ in 0..rest.u32()? {
        let (at, length, name) = (rest.u64()?, rest.u64()?, rest.u16()?);
        if rest.take(usize::from(name))? == wanted {
            return Cursor { bytes, at: usize::try_from(at).ok()? }.take(usize::try_from(length).ok()?);
        }
    }
    None
}

fn tables(bytes: &[u8]) -> Option<Files> {
    let mut rest = Cursor { bytes, at: 0 };
    let mut found = Vec::new();
    for _level in 0..rest.byte()? {
        for _run in 0..rest.byte()? {
            for _table in 0..rest.u32()? {
                found.push(file(&mut rest)?);
                rest.u64()?;
            }
        }
    }
    Some(found)
}

fn blob_files(bytes: &[u8]) -> Option<Files> {
    let mut rest = Cursor { bytes, at: 0 };
    (0..rest.u32()?).map(|_| file(&mut rest)).collect()
}

fn file(rest: &mut Cursor<'_>) -> Option<(u64, u128)> {
    let number = rest.u64()?;
    (rest.byte()? == 0).then_some(())?;
    Some((number, rest.u128()?))
}
