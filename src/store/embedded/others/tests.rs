use super::*;

const VOTE: MessageType = MessageType::MsgRequestVote;

fn message(msg_type: MessageType, index: u64) -> Message {
    Message { msg_type, index, ..Message::default() }
}

fn between(from: u64, to: u64) -> Directories {
    Directories { from, to, opening: None }
}

fn vote() -> Message {
    message(VOTE, 3)
}

fn others(directory: u64, is_admitted: bool) -> Others {
    let group = SealedGroup { cluster: "test".to_owned(), member: 1, directory, is_admitted, ..SealedGroup::default() };
    Others::of(&group, Duration::from_secs(1))
}

fn hello(directory: u64, yours: u64) -> Hello {
    Hello { knows: versions::OWN, directory, yours, last: 0, receives: false }
}

#[test]
fn members_that_were_never_heard_of_are_taken_by_the_first_directory() {
    let mut one = others(10, false);
    assert_eq!(one.way(2, VOTE), Way::None, "a new directory speaks to nobody who may know another one");
    assert!(one.hear(2, None, hello(20, 0)) && !one.hear(2, None, hello(20, 0)));
    assert_eq!(one.way(2, VOTE), Way::Between(between(10, 20)));
    assert!(
        one.admits(2, Some(between(20, 10)), &vote())
            && !one.admits(2, Some(between(21, 10)), &vote())
            && !one.admits(2, Some(between(20, 11)), &vote())
    );
    let group = one.sealed(&SealedGroup::default()).expect("it knows more");
    assert_eq!(group.known, BTreeMap::from([(2, 20)]));
    assert!(!group.is_admitted && one.sealed(&group).is_none());
}

#[test]
fn one_with_another_directory_is_taken_once_the_group_has_agreed_on_it() {
    let mut one = others(10, true);
    one.hear(2, None, hello(20, 10));
    assert!(one.hear(2, None, hello(21, 0)), "it is answered, so that it learns that it is not known");
    assert_eq!((one.way(2, VOTE), one.admits(2, Some(between(21, 10)), &vote())), (Way::None, false));
    let of_leader = [MessageType::MsgAppend, MessageType::MsgHeartbeat];
    assert!(
        of_leader.iter().all(|kind| one.admits(2, Some(between(21, 10)), &message(*kind, 3))),
        "it may lead by now"
    );
    assert_eq!(one.way(2, MessageType::MsgAppendResponse), Way::Between(between(10, 21)));
    let mut two = others(21, false);
    two.hear(1, None, one.hello(2, 0, false));
    assert!(two.is_disowned() && !two.is_admitted);
    let mut agreed = Membership::founded(&[1, 2]);
    agreed.seats.get_mut(&2).expect("a member").directory = 21;
    one.agree(1, &agreed);
    assert_eq!(
        (one.way(2, VOTE), one.admits(2, Some(between(21, 10)), &vote())),
        (Way::Between(between(10, 21)), true)
    );
    two.hear(1, None, one.hello(2, 0, false));
    assert!(!two.is_disowned() && two.is_admitted);
}

#[test]
fn one_that_was_removed_disowns_nobody() {
    let mut one = others(10, true);
    let mut agreed = Membership::founded(&[1, 2]);
    agreed.seats.get_mut(&1).expect("a member").directory = 10;
    one.agree(1, &agreed);
    one.hear(3, None, hello(30, 9));
    assert!(!one.is_disowned());
    one.hear(2, None, hello(20, 9));
    assert!(one.is_disowned());
}

#[test]
fn one_that_joins_is_disowned_until_the_last_member_has_learned_that_its_former_directory_is_forgotten() {
    let mut one = others(10, false);
    for from in [2, 3] {
        one.hear(from, None, hello(from * 10, 9));
    }
    one.hear(2, None, hello(20, 0));
    assert!(one.is_disowned(), "member 3 has not learned of it");
    one.hear(3, None, hello(30, 0));
    assert!(!one.is_disowned());
}

#[test]
fn one_that_is_known_by_its_directory_is_not_heard_without_it() {
    let mut one = others(10, true);
    assert!(one.admits(2, None, &vote()), "it may have a version that knows of none");
    one.hear(2, None, hello(20, 10));
    assert!(!one.admits(2, None, &vote()) && one.admits(2, Some(between(20, 10)), &vote()));
    let group = one.sealed(&SealedGroup { directory: 10, ..SealedGroup::default() }).expect("it knows more");
    let mut again = Others::of(&group, Duration::from_secs(1));
    assert_eq!(again.way(2, VOTE), Way::Between(between(10, 20)), "it has not heard of it again");
    assert!(!again.admits(2, None, &vote()) && again.admits(2, Some(between(20, 10)), &vote()));
    let mut silent = Others::of(&group, Duration::ZERO);
    assert!(silent.admits(2, None, &vote()), "it may have gone back to a version that knows of none");
}

#[test]
fn a_founder_speaks_to_members_with_an_earlier_version_that_found_the_group_with_it() {
    let founder = || {
        let group = SealedGroup { directory: 10, founders: vec![1, 2, 3], ..SealedGroup::default() };
        Others::of(&group, Duration::from_secs(1))
    };
    let mut one = founder();
    assert!(one.admits(2, None, &vote()) && one.admits(2, None, &message(MessageType::MsgAppend, 0)));
    assert_eq!(one.way(2, VOTE), Way::None, "the group has a log, and may have known another directory");
    assert!(one.admits(2, None, &message(MessageType::MsgRequestPreVote, 0)));
    assert_eq!((one.way(2, VOTE), one.way(3, VOTE)), (Way::Plain, Way::Plain));
    assert!(one.sealed(&SealedGroup::default()).expect("it is admitted").is_admitted);
    let mut again = founder();
    again.hear(3, None, hello(30, 9));
    assert!(again.is_disowned() && again.admits(2, None, &message(VOTE, 0)));
    assert_eq!(again.way(2, VOTE), Way::None, "another member knows it by another directory");
    let mut known = founder();
    known.hear(2, None, hello(20, 0));
    assert!(!known.admits(2, None, &message(VOTE, 0)) && !known.is_admitted, "it has no earlier version");
    let mut joining = others(10, false);
    assert!(joining.admits(2, None, &message(VOTE, 0)));
    assert_eq!(joining.way(2, VOTE), Way::None, "it founds nothing");
}

#[test]
fn one_stands_for_election_only_where_its_seat_is_for_its_directory() {
    let group = SealedGroup { directory: 10, founders: vec![1, 2, 3], ..SealedGroup::default() };
    let (founded, mut members) = (Membership::founded(&[1, 2, 3]), Membership::founded(&[1, 2]));
    let mut founder = Others::of(&group, Duration::from_secs(1));
    assert!(founder.may_stand(1, &founded) && !others(10, true).may_stand(1, &founded));
    for (directory, stands) in [(9, false), (10, true)] {
        members.seats.get_mut(&1).expect("a member").directory = directory;
        assert_eq!(founder.may_stand(1, &members), stands);
        assert_eq!(others(10, false).may_stand(1, &members), stands);
    }
    founder.hear(2, None, hello(20, 9));
    assert!(!founder.may_stand(1, &founded), "it has lost the directory that the group was founded with");
    let sealed = founder.sealed(&group).expect("it knows more");
    assert_eq!(sealed.founders, [0; 0]);
    founder.hear(2, None, hello(20, 10));
    assert!(!founder.may_stand(1, &founded) && founder.may_stand(1, &members));
}

#[test]
fn one_that_left_is_known_by_its_directory_until_the_group_has_agreed_on_another() {
    let mut one = others(10, true);
    one.hear(2, None, hello(20, 10));
    one.agree(1, &Membership::founded(&[1, 3]));
    assert_eq!((one.hello(2, 0, false).yours, one.hello(3, 0, false).yours), (0, 0), "it may join with any directory");
    one.hear(2, None, hello(22, 0));
    let founded = Membership::founded(&[1, 2, 3]);
    one.agree(1, &founded);
    assert_eq!((one.directory_of(2), one.hello(2, 0, false).yours), (Some(20), 20), "the members may be of earlier");
    assert!(!one.admits(2, Some(between(22, 10)), &vote()));
    let mut joined = founded;
    joined.seats.get_mut(&2).expect("a member").directory = 22;
    one.agree(1, &joined);
    assert!(one.admits(2, Some(between(22, 10)), &vote()));
}

#[test]
fn one_that_joins_takes_the_identity_that_its_leader_says_and_no_former_one_of_the_log() {
    let (former, present) = (Identity::random(), Identity::random());
    let mut one = others(10, false);
    let before = Membership { identity: Some(former), ..Membership::founded(&[1, 2, 3]) };
    one.agree(4, &before);
    one.hear(5, Some(present), hello(50, 10));
    assert!(one.takes(5, Some(present), Some(between(50, 10)), (&vote(), 3)));
    assert_eq!(one.identity(), None, "a candidate may be of long ago");
    assert!(!one.takes(5, Some(former), Some(between(50, 11)), (&message(MessageType::MsgAppend, 3), 3)));
    assert!(one.takes(5, Some(present), Some(between(50, 10)), (&message(MessageType::MsgAppend, 3), 3)));
    one.agree(4, &before);
    assert_eq!(one.identity(), Some(present));
    assert!(!one.may_be_ours(1, Some(former)) && one.may_be_ours(5, Some(present)));
}

#[test]
fn the_identity_goes_to_members_that_were_not_heard_yet_and_to_none_that_says_not_to_know_it() {
    let mut one = others(10, true);
    one.adopt(Some(Identity::random()));
    let mut members = Membership::founded(&[1, 2, 3]);
    one.agree(1, &members);
    assert_eq!(one.identity_for(2), None);
    members.version = versions::IDENTITY;
    one.agree(1, &members);
    assert_eq!((one.identity_for(2), one.identity_for(4)), (Some(one.identity()), None));
    one.hear(2, None, Hello { knows: versions::CHANGES, ..hello(20, 10) });
    assert_eq!(one.identity_for(2), None, "it went back to an earlier version");
}

#[test]
fn one_that_says_who_it_is_before_it_knows_the_group_is_no_stranger() {
    let (mut one, group) = (others(10, true), Identity::random());
    one.agree(1, &Membership { identity: Some(group), ..Membership::founded(&[1, 2, 3]) });
    one.adopt(Some(group));
    one.hear(4, None, hello(40, 10));
    let opened = Said::Word(Word::Opened(Opened { directory: 40, ..Opened::default() }));
    assert!(one.counts(4, None, &opened) && !one.is_stranger(4));
    let of_another = Said::Library(bytes::Bytes::new(), Some(between(40, 10)));
    assert!(!one.counts(4, None, &of_another) && one.is_stranger(4));
}
