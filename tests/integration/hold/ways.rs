//! What is between the members of a cluster: a way for the calls of each to each other one, which can be cut in either
//! direction and slowed down. It knows nothing of what it carries.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::servers::ports;

/// The most bytes that are under way at once in one direction of a connection.
const AT_ONCE: usize = 256 * 1024;

/// How late everything arrives on a slow way.
const SLOW_MS: std::ops::Range<u64> = 20..300;

/// What passes on a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// Everything.
    Open,
    /// Everything, this much later.
    Slow(Duration),
    /// Calls and no answers. These arrive once the way is open again.
    Unanswered,
    /// Nothing, and nobody is told. What was sent arrives once the way is open again.
    Silent,
    /// Nothing: connections end, and no further ones are made.
    Refused,
}

/// Which ways are not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// A member reaches nobody and is reached by nobody.
    Isolated,
    /// A member reaches nobody.
    Mute,
    /// A member is reached by nobody.
    Deaf,
    /// One member does not reach one other.
    OneWay,
    /// Two members do not reach each other, and both reach the third.
    Line,
    /// Nobody reaches anybody.
    Apart,
    /// Everything arrives late.
    Slow,
}

const SHAPES: [Shape; 7] =
    [Shape::Isolated, Shape::Mute, Shape::Deaf, Shape::OneWay, Shape::Line, Shape::Apart, Shape::Slow];

impl Shape {
    /// Returns whether the calls of a member to another do not pass where this befalls `first`, and where it befalls
    /// two, `second` as well.
    fn cuts(self, (from, to): (usize, usize), first: usize, second: usize) -> bool {
        match self {
            Self::Isolated => from == first || to == first,
            Self::Mute => from == first,
            Self::Deaf => to == first,
            Self::OneWay => (from, to) == (first, second),
            Self::Line => [(first, second), (second, first)].contains(&(from, to)),
            Self::Apart | Self::Slow => true,
        }
    }
}

/// The ways between members, which are counted from zero.
pub(super) struct Network(BTreeMap<(usize, usize), Way>);

impl Network {
    /// Opens all ways between members that listen on these ports.
    pub(super) async fn between(members: &[u16]) -> Self {
        let mut ways = BTreeMap::new();
        for from in 0..members.len() {
            for (to, port) in members.iter().enumerate().filter(|(to, _)| *to != from) {
                ways.insert((from, to), Way::to(*port).await);
            }
        }
        Self(ways)
    }

    /// Returns where a member reaches another.
    pub(super) fn url(&self, from: usize, to: usize) -> String {
        format!("http://{}", self.0[&(from, to)].address)
    }

    /// Opens all ways.
    pub(super) fn open(&self) {
        self.set(Passage::Open, |_| true);
    }

    /// Lets this pass on all ways, until they are opened.
    pub(super) fn set_all(&self, passage: Passage) {
        self.set(passage, |_| true);
    }

    /// Lets this pass on all ways from and to a member, until they are opened.
    pub(super) fn set_around(&self, member: usize, passage: Passage) {
        self.set(passage, |(from, to)| from == member || to == member);
    }

    /// Lets this pass on all ways to a member, until they are opened.
    pub(super) fn set_to(&self, member: usize, passage: Passage) {
        self.set(passage, |(_, to)| to == member);
    }

    fn set(&self, passage: Passage, is_meant: impl Fn((usize, usize)) -> bool) {
        for (_, way) in self.0.iter().filter(|(ends, _)| is_meant(**ends)) {
            way.passage.send_replace(passage);
        }
    }

    /// Closes or slows down some ways in any manner, more often around the leader, and returns which.
    pub(super) fn disturb(&self, members: usize, leader: Option<usize>, random: &mut StdRng) -> Shape {
        let shape = *SHAPES.choose(random).expect("there are some");
        let first = leader.filter(|_| random.random_ratio(1, 2)).unwrap_or_else(|| random.random_range(0..members));
        let second = (first + random.random_range(1..members)) % members;
        let passage = match shape {
            Shape::Slow => Passage::Slow(Duration::from_millis(random.random_range(SLOW_MS))),
            _ => any_cut(random),
        };
        self.set(passage, |ends| shape.cuts(ends, first, second));
        shape
    }
}

fn any_cut(random: &mut impl Rng) -> Passage {
    *[Passage::Unanswered, Passage::Silent, Passage::Refused].choose(random).expect("there are some")
}

/// The way of one member's calls to one other. It ends when it is dropped.
struct Way {
    address: SocketAddr,
    passage: watch::Sender<Passage>,
    carrying: AbortHandle,
}

impl Way {
    async fn to(upstream: u16) -> Self {
        // Not one that the system gives to outgoing connections: nobody is to take it while the way is refused.
        let address = SocketAddr::from(([127, 0, 0, 1], ports::free()));
        let listener = TcpListener::bind(address).await.expect("a free port");
        let (passage, passes) = watch::channel(Passage::Open);
        let carrying = tokio::spawn(listen(listener, address, upstream, passes)).abort_handle();
        Self { address, passage, carrying }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

async fn listen(mut listener: TcpListener, address: SocketAddr, upstream: u16, mut passage: watch::Receiver<Passage>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = refused(passage.clone()) => {
                drop(listener);
                connections.shutdown().await;
                if passage.wait_for(|passage| *passage != Passage::Refused).await.is_err() {
                    return;
                }
                listener = ports::listen_again(address).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if let Ok((client, _)) = accepted {
            let passage = passage.clone();
            connections.spawn(async move {
                // A connection that breaks, on either side, is what this is for.
                let _ended = connect(client, upstream, passage).await;
            });
        }
    }
}

/// Waits until the way is refused.
async fn refused(mut passage: watch::Receiver<Passage>) {
    if passage.wait_for(|passage| *passage == Passage::Refused).await.is_err() {
        std::future::pending().await
    }
}

/// Carries what passes on one connection, until one side ends it.
async fn connect(client: TcpStream, upstream: u16, mut passage: watch::Receiver<Passage>) -> io::Result<()> {
    passes(&mut passage, Direction::Call).await;
    let server = TcpStream::connect(("127.0.0.1", upstream)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((calls, answers), (returning, calling)) = (client.into_split(), server.into_split());
    let calls = carry(calls, calling, Direction::Call, passage.clone());
    let answers = carry(returning, answers, Direction::Answer, passage);
    tokio::try_join!(calls, answers).map(drop)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Call,
    Answer,
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut passage: watch::Receiver<Passage>,
) -> io::Result<()> {
    let mut bytes = vec![0; AT_ONCE];
    loop {
        let count = from.read(&mut bytes).await?;
        passes(&mut passage, direction).await;
        match &bytes[..count] {
            [] => return to.shutdown().await,
            some => to.write_all(some).await?,
        }
    }
}

/// Waits until what goes in this direction passes.
async fn passes(passage: &mut watch::Receiver<Passage>, direction: Direction) {
    let is_passing = |passage: &Passage| match passage {
        Passage::Open | Passage::Slow(_) => true,
        Passage::Unanswered => direction == Direction::Call,
        Passage::Silent | Passage::Refused => false,
    };
    let now = passage.wait_for(is_passing).await.map(|now| *now);
    if let Ok(Passage::Slow(by)) = now {
        tokio::time::sleep(by).await;
    }
}

mod tests {
    use super::*;

    /// A server that answers each byte with the next one, and a connection to it over a way.
    async fn echo() -> (Network, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", ports::free())).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a connection");
            while let Ok(byte) = client.read_u8().await {
                client.write_u8(byte + 1).await.expect("written");
            }
        });
        let network = Network::between(&[0, port]).await;
        let client = TcpStream::connect(network.0[&(0, 1)].address).await.expect("connected");
        (network, client)
    }

    #[tokio::test]
    async fn what_a_cut_way_holds_back_arrives_once_it_is_open() {
        let (network, mut client) = echo().await;
        for (number, cut) in [Passage::Silent, Passage::Unanswered, Passage::Open].into_iter().enumerate() {
            network.set_around(1, cut);
            client.write_u8(number as u8).await.expect("written");
            if cut != Passage::Open {
                let early = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
                assert!(early.is_err(), "{cut:?}");
                network.open();
            }
            assert_eq!(client.read_u8().await.expect("answered"), number as u8 + 1);
        }
    }

    #[tokio::test]
    async fn a_refused_way_ends_connections_and_takes_none() {
        let (network, mut client) = echo().await;
        client.write_u8(1).await.expect("written");
        assert_eq!(client.read_u8().await.expect("answered"), 2);
        network.set_to(1, Passage::Refused);
        assert!(client.read_u8().await.is_err());
        ports::closed(network.0[&(0, 1)].address).await;
    }

    #[test]
    fn each_shape_leaves_the_ways_that_its_name_leaves() {
        let all = || (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let cut = |shape: Shape| all().filter(|ends| shape.cuts(*ends, 0, 1)).collect::<Vec<_>>();
        assert_eq!(cut(Shape::Isolated), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        assert_eq!(cut(Shape::Mute), [(0, 1), (0, 2)]);
        assert_eq!(cut(Shape::Deaf), [(1, 0), (2, 0)]);
        assert_eq!(cut(Shape::OneWay), [(0, 1)]);
        assert_eq!(cut(Shape::Line), [(0, 1), (1, 0)]);
        assert_eq!(cut(Shape::Apart).len(), 6);
    }
}
