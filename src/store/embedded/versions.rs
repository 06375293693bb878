//! What a member of one version may say and write so that a member of another one understands it.
//!
//! Each member says which version of the exchange it knows. The lowest of them is the version of the group: its leader
//! writes it into the log, among the members, once all members have said that they know it. What is new in a version
//! waits for that, wherever all members meet with it: in entries of the log, and in what lies on their disks. What goes
//! to one member only waits for that one.
//!
//! | Version | What is new in it                                                                        |
//! |---------|------------------------------------------------------------------------------------------|
//! | 1       | messages of the library                                                                  |
//! | 2       | words, numbers of directories, changes of members                                        |
//! | 3       | the identity of the group and its version, among the members and before every message    |
//! | 4       | the openings of directories, and what of the log their members have acknowledged         |
//! |         | signed heads of the calls that bring messages                                            |
//! | 5       | segments of the log whose frames are synced together                                     |
//!
//! A member with version 2 reads the members of version 3, and leaves out what it does not know: a group all of whose
//! members went back to version 2 may have forgotten its version and, but for their seals, its identity. Once all know
//! version 3 again, they are agreed on again. What members have acknowledged stands beside them in the same entries,
//! and versions before 4 leave it out as well.

/// The version that this one knows.
pub(super) const OWN: u32 = 5;

/// The version from which on members can be changed.
pub(super) const CHANGES: u32 = 2;

/// The version from which on a group has an identity.
pub(super) const IDENTITY: u32 = 3;

/// The version from which on members say how their directories were opened.
pub(super) const OPENINGS: u32 = 4;

/// The version from which on entries that come together are synced together in the log.
pub(super) const BATCHES: u32 = 5;
