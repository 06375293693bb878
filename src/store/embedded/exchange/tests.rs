use raft::eraftpb::Entry;

use super::super::seal::SealedGroup;
use super::super::words::Piece;
use super::*;
use crate::store::Seat;
use crate::store::waiting::{MOST_WAITING, MOST_WAITING_BYTES};

/// A large message has a quarter of the bytes that may wait.
const LARGE: usize = MOST_WAITING_BYTES / 4;

/// The mailbox of a member that has heard of no other one, which it may send to as an earlier version does.
fn exchange() -> Exchange {
    let group = GroupOptions { member: 1, members: vec![1, 2, 3], ..GroupOptions::default() };
    let exchange = Exchange::new(group.clone(), drop);
    exchange.meet(
        Others::of(&SealedGroup { is_admitted: true, ..SealedGroup::default() }, group.tick),
        Arc::default(),
        &Arc::default(),
    );
    exchange
}

fn append(to: u64, index: u64, bytes: usize) -> Message {
    let entry = Entry { index: index + 1, term: 1, data: vec![7; bytes].into(), ..Entry::default() };
    let entries = if bytes == 0 { vec![] } else { vec![entry] };
    let (from, msg_type) = (if to == 1 { 2 } else { 1 }, MessageType::MsgAppend);
    Message { msg_type, from, to, term: 1, index, entries: entries.into(), ..Message::default() }
}

fn heartbeat(to: u64, commit: u64) -> Message {
    Message { msg_type: MessageType::MsgHeartbeat, commit, ..append(to, 0, 0) }
}

fn encoded(message: &Message) -> MemberMessage {
    message::encode(message).expect("writable").expect("it is sent")
}

/// What a message is: its sort, and the number that it was made with.
fn read(message: &MemberMessage) -> (MessageType, u64) {
    let Ok(words::Said::Library(bytes, _)) = words::decode(&message.bytes) else { panic!("a word") };
    let message = message::decode(&MemberMessage { bytes, ..message.clone() }).expect("readable");
    (message.msg_type, message.index.max(message.commit))
}

#[tokio::test]
async fn entries_for_which_there_is_no_room_take_the_place_of_older_ones_and_of_no_other_message() {
    let exchange = exchange();
    exchange.send(vec![heartbeat(2, 1), append(2, 1, 0)]);
    // Each is shorter by what stands before its entry.
    exchange.send((2..8).map(|index| append(2, index, LARGE - 100)).collect());
    exchange.send(vec![heartbeat(2, 8), append(3, 9, LARGE)]);
    let sent = exchange.outgoing().await;
    let to = |member| sent.iter().filter(move |message| message.to == member).map(read).collect::<Vec<_>>();
    let (alive, entries) = (MessageType::MsgHeartbeat, MessageType::MsgAppend);
    let left = [(alive, 1), (entries, 1), (entries, 4), (entries, 5), (entries, 6), (entries, 7), (alive, 8)];
    assert_eq!(to(2), left);
    assert_eq!(to(3), [(entries, 9)], "what one member does not take costs no other anything");
}

#[tokio::test]
async fn an_entry_that_is_longer_than_what_may_wait_is_sent_to_each_member() {
    let exchange = exchange();
    exchange.send(vec![append(2, 1, 2 * MOST_WAITING_BYTES), append(3, 1, 2 * MOST_WAITING_BYTES)]);
    assert_eq!(exchange.outgoing().await.len(), 2);
}

#[test]
fn entries_that_come_in_too_large_a_number_keep_out_no_other_message() {
    let exchange = exchange();
    (2..9).for_each(|index| exchange.receive(encoded(&append(1, index, LARGE - 100))));
    (0..10).for_each(|commit| exchange.receive(encoded(&heartbeat(1, commit))));
    let taken = exchange.next(Instant::now()).expect("it is open").messages;
    let taken: Vec<_> = taken.iter().map(read).collect();
    let entries: Vec<_> = (2..6).map(|index| (MessageType::MsgAppend, index)).collect();
    assert_eq!(taken[..4], entries, "the first ones: the others are of no use without them");
    assert_eq!(taken.len(), 4 + 10);
    exchange.receive(encoded(&append(1, 6, LARGE)));
    let taken = exchange.next(Instant::now()).expect("it is open").messages;
    assert_eq!(taken.iter().map(read).collect::<Vec<_>>(), [(MessageType::MsgAppend, 6)], "there is room again");
}

#[test]
fn so_many_confirmations_wait_as_a_mailbox_holds() {
    let exchange = exchange();
    (0..2 * MOST_WAITING as u64).for_each(|commit| exchange.receive(encoded(&heartbeat(1, commit))));
    assert_eq!(exchange.next(Instant::now()).expect("it is open").messages.len(), MOST_WAITING);
}

#[test]
fn entries_and_pieces_are_bulk_and_nothing_else_is() {
    let piece = Piece::of(7, words::Cursor { keyspace: 1, after: None }, vec![1, 2, 3], true);
    let word = |word: &Word| words::encode(word).expect("writable");
    let of_library = |message: &Message| encoded(message).bytes;
    let between =
        |message: &Message| words::between(words::Directories { from: 5, to: 6, opening: None }, &of_library(message));
    let bulk = [word(&Word::Piece(piece)), of_library(&append(2, 1, 10)), between(&append(2, 1, 10))];
    let vote = Message { msg_type: MessageType::MsgRequestVote, ..append(2, 1, 0) };
    let others = [
        word(&Word::Gone(7)),
        word(&Word::Hello(words::Hello::default())),
        of_library(&vote),
        between(&vote),
        between(&heartbeat(2, 1)),
        of_library(&append(2, 1, 0)),
        Bytes::new(),
        Bytes::from_static(b"\x03short"),
    ];
    for of_group in [|message: &Bytes| message.clone(), |message: &Bytes| words::of_group(None, message)] {
        assert!(bulk.iter().all(|message| words::is_bulk(&of_group(message))));
        assert!(!others.iter().any(|message| words::is_bulk(&of_group(message))));
    }
}

/// The members of a group of which so many vote.
fn voters(count: u64) -> Arc<Membership> {
    let seats = (1..4).map(|number| (number, Seat { votes: number <= count, ..Seat::default() }));
    Arc::new(Membership { seats: seats.collect(), ..Membership::default() })
}

#[tokio::test]
async fn a_leader_that_gives_the_lead_up_says_nothing_that_only_a_leader_says_until_another_leads() {
    let exchange = exchange();
    exchange.agree(&voters(3));
    let position = Position { term: 1, leader: Some(1), is_leader: true, committed: 1, role: Role::Voter };
    let stand = |position: Position| {
        exchange.stand(position, (1, Timestamp::default()), position.is_leader);
        exchange.standing().borrow().leads
    };
    assert!(stand(position));
    exchange.give_up_lead(true);
    assert!(!exchange.standing().borrow().leads && !stand(position));
    let vote = Message { msg_type: MessageType::MsgRequestVoteResponse, ..append(2, 0, 0) };
    exchange.send(vec![heartbeat(2, 1), append(3, 1, 10), vote]);
    let sent = exchange.outgoing().await;
    assert_eq!(sent.iter().map(|message| read(message).0).collect::<Vec<_>>(), [MessageType::MsgRequestVoteResponse]);
    exchange.give_up_lead(false);
    assert!(!stand(position), "what hangs may be answered as the lead is given up, which is not done yet");
    assert!(!stand(Position { leader: Some(2), is_leader: false, ..position }));
    exchange.give_up_lead(false);
    assert!(stand(Position { term: 3, ..position }), "it was elected again");
}

#[test]
fn the_only_voter_gives_the_lead_up_to_nobody() {
    let exchange = exchange();
    exchange.agree(&voters(1));
    exchange.give_up_lead(true);
    assert!(!exchange.gives_up_lead());
}
