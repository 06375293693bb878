//! Which change of the members makes sense: a pure function of who they are and what was heard of them.

use super::others::Others;
use super::versions;
use crate::job::shell::leasehold;
use crate::store::{ChangeError, Identity, MemberChange, Membership, Seat};

/// Returns the members after a change, of which at most one is not as it was; `None` when it was made already. `own` is
/// the number of the member that leads.
///
/// # Errors
/// [`ChangeError::Refused`] says what to do instead.
pub(super) fn after(
    change: &MemberChange,
    members: &Membership,
    others: &Others,
    own: u64,
) -> Result<Option<Membership>, ChangeError> {
    let mut next = members.clone();
    match change {
        MemberChange::Add { member, address } => {
            if let Some(seat) = next.seats.get_mut(member) {
                if seat.address.as_ref() == Some(address) {
                    return Ok(None);
                }
                seat.address = Some(address.clone());
            } else {
                let Some(hello) = others.lately(*member) else {
                    return refused(format!(
                        "member {member} was not heard of: start it first, with `--join` and the members in `--peers`"
                    ));
                };
                if others.is_stranger(*member) {
                    return refused(format!("member {member} is of another cluster: it cannot be one of this"));
                }
                let (address, directory) = (Some(address.clone()), hello.directory);
                next.seats.insert(*member, Seat { votes: false, address, directory });
            }
        }
        MemberChange::Remove { member, is_gone } => {
            if next.seats.remove(member).is_none() {
                return Ok(None);
            }
            let is_heard = *member == own || others.lately(*member).is_some();
            match (is_gone, is_heard) {
                (true, true) => {
                    let remove = leasehold("cluster remove").operand(&member.to_string());
                    return refused(format!("member {member} runs: `{remove}` removes it"));
                }
                (false, false) => {
                    let forget = leasehold("cluster forget").operand(&member.to_string());
                    return refused(format!(
                        "member {member} is not heard of: if it is gone for good, `{forget}` removes it"
                    ));
                }
                (true, false) | (false, true) => {}
            }
        }
        MemberChange::Alone => return refused("this member was not started to go on alone".to_owned()),
        MemberChange::Replace { member } => {
            let Some(seat) = next.seats.get_mut(member) else {
                return refused(format!("there is no member {member}"));
            };
            let directory = others.lately(*member).map(|hello| hello.directory);
            let Some(directory) = directory else {
                return refused(format!(
                    "member {member} was not heard of: start it first, with an empty data directory"
                ));
            };
            if Some(directory) == others.directory_of(*member) || directory == seat.directory {
                return match seat.votes {
                    true => refused(format!("member {member} has its data directory: there is nothing to replace")),
                    false => Ok(None),
                };
            }
            *seat = Seat { votes: false, directory, ..seat.clone() };
        }
    }
    check(members, &next, others, own)?;
    Ok(Some(next))
}

/// Returns the members with a vote for one that was added and has everything by now; `None` when there is none.
pub(super) fn with_vote(
    members: &Membership,
    others: &Others,
    is_caught_up: impl Fn(u64) -> bool,
) -> Option<Membership> {
    // What is known of how far it has come is of the directory that was added. It may have lost that since.
    let is_there = |number: &u64| {
        let seat = members.seats.get(number);
        let directory = others.lately(*number).map(|hello| hello.directory);
        seat.is_some_and(|seat| directory.is_some_and(|heard| seat.directory == heard))
    };
    let ready = |number: &u64| is_there(number) && is_caught_up(*number);
    let ready = members.that_vote(false).find(ready)?;
    let mut next = members.clone();
    next.seats.get_mut(&ready)?.votes = true;
    Some(next)
}

/// Returns the members with the version and the identity of the group, where all know these by now and it has not got
/// them yet; `None` when there is nothing to agree on. `own` is the member that leads in `term`, and `fresh` an
/// identity for a group without one.
pub(super) fn with_version(
    members: &Membership,
    others: &mut Others,
    (own, term, fresh): (u64, u64, Identity),
    is_caught_up: impl Fn(u64) -> bool,
) -> Option<Membership> {
    let (version, identity) = others.may_agree_on(members, (own, term), fresh)?;
    // One that takes nothing from this member, as one of another group does, does not come that far.
    if !members.seats.keys().all(|number| *number == own || is_caught_up(*number)) {
        return None;
    }
    Some(Membership { version, identity, ..members.clone() })
}

/// Returns the members with the directories that the group was founded with, which no change of the members has said,
/// once all members are there with what they are known by; `None` when the group has agreed on all. `own` is the member
/// that leads.
pub(super) fn with_directories(
    members: &Membership,
    others: &Others,
    own: u64,
    is_caught_up: impl Fn(u64) -> bool,
) -> Option<Membership> {
    let is_founder = |seat: &Seat| seat.votes && seat.directory == 0;
    let is_missing = members.seats.values().any(is_founder);
    // Earlier versions take a seat with another directory for another member: they have it leave, and come again.
    if !is_missing || members.version < versions::OPENINGS || members.that_vote(true).count() < 2 {
        return None;
    }
    let mut next = members.clone();
    for (number, seat) in &mut next.seats {
        let is_there = |known: &u64| {
            let heard = others.lately(*number).map(|hello| hello.directory);
            heard == Some(*known) && is_caught_up(*number)
        };
        let known = if *number == own { Some(others.directory) } else { others.directory_of(*number) };
        let known = known.filter(|known| *known != 0 && (*number == own || is_there(known)))?;
        if is_founder(seat) {
            seat.directory = known;
        }
    }
    Some(next)
}

/// Checks that the members go on with it: each knows what a change is, and those that vote and are heard of are most.
fn check(members: &Membership, next: &Membership, others: &Others, own: u64) -> Result<(), ChangeError> {
    let is_there = |number: &u64| *number == own || others.lately(*number).is_some() && !others.has_gone_back(*number);
    let voters: Vec<u64> = next.that_vote(true).collect();
    let there = voters.iter().filter(|number| is_there(number)).count();
    if there * 2 <= voters.len() {
        return refused(format!(
            "{there} of the {} members that would be left are heard of, and more than half must be",
            voters.len()
        ));
    }
    for (number, seat) in next.seats.iter().filter(|(number, _)| **number != own) {
        let is_new = members.seats.get(number).is_none_or(|before| before.directory != seat.directory);
        // One that has gone back to an earlier version keeps nobody else from being changed.
        let needed = if is_new { next.version.max(versions::CHANGES) } else { versions::CHANGES };
        // Of one that is silent it is not known; it says so when it is started.
        if others.lately(*number).is_some_and(|hello| hello.knows < needed) || others.is_of_old(*number) {
            return refused(format!(
                "member {number} has an earlier version than the cluster, whose messages are of version {needed}: \
                 upgrade it first"
            ));
        }
    }
    Ok(())
}

fn refused<T>(what: String) -> Result<T, ChangeError> {
    Err(ChangeError::Refused(what))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::seal::SealedGroup;
    use super::super::words::Hello;
    use super::*;

    #[test]
    fn no_vote_is_given_to_one_that_has_lost_its_directory_since_it_was_added() {
        let mut others = Others::of(&SealedGroup::default(), Duration::from_secs(1));
        let mut members = Membership::founded(&[1]);
        members.seats.insert(2, Seat { votes: false, address: None, directory: 20 });
        assert_eq!(with_vote(&members, &others, |_| true), None, "it was not heard of");
        for (directory, is_given) in [(20, true), (21, false)] {
            others.hear(2, None, Hello { knows: versions::OWN, directory, ..Hello::default() });
            let next = with_vote(&members, &others, |_| true);
            assert_eq!(next.map(|next| next.that_vote(true).count()), is_given.then_some(2));
            assert_eq!(with_vote(&members, &others, |_| false), None, "it lags behind");
        }
    }

    #[test]
    fn the_directories_of_founders_are_agreed_on_once_all_are_there_with_the_known_ones() {
        let mut others = Others::of(&SealedGroup { directory: 10, ..SealedGroup::default() }, Duration::from_secs(60));
        let say = |directory| Hello { knows: versions::OWN, directory, ..Hello::default() };
        let mut members = Membership { version: versions::OPENINGS, ..Membership::founded(&[1, 2, 3]) };
        others.hear(2, None, say(20));
        assert_eq!(with_directories(&members, &others, 1, |_| true), None, "one was not heard of");
        others.hear(3, None, say(30));
        assert_eq!(with_directories(&members, &others, 1, |number| number != 3), None, "one lags behind");
        let next = with_directories(&members, &others, 1, |_| true).expect("all are there");
        assert_eq!(next.seats.values().map(|seat| seat.directory).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(with_directories(&next, &others, 1, |_| true), None, "it is agreed on");
        others.hear(3, None, say(31));
        assert_eq!(with_directories(&members, &others, 1, |_| true), None, "one has another directory");
        others.hear(3, None, say(30));
        members.version = versions::OPENINGS - 1;
        assert_eq!(with_directories(&members, &others, 1, |_| true), None, "one may have an earlier version");
    }

    #[test]
    fn one_that_was_removed_is_added_again_once_it_is_heard_after_that() {
        let mut others = Others::of(&SealedGroup::default(), Duration::from_secs(60));
        let say = |directory| Hello { knows: versions::OWN, directory, ..Hello::default() };
        let left = Membership::founded(&[1]);
        others.hear(2, None, say(20));
        others.agree(1, &Membership::founded(&[1, 2]));
        others.agree(1, &left);
        let add = MemberChange::Add { member: 2, address: "http://two".to_owned() };
        assert!(after(&add, &left, &others, 1).is_err(), "what it said is of the directory that was removed");
        others.hear(2, None, say(21));
        others.agree(1, &left);
        let next = after(&add, &left, &others, 1).expect("it is heard").expect("a change");
        assert_eq!(next.seats[&2].directory, 21);
    }
}
