//! What is carried to a member that is there, and what becomes of messages for one that is not.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, Method};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::*;
use crate::clock::{Clock, MemberClocks, SystemClock};
use crate::peers::{Gate, HEAD, OPENING, PROOF, PeerSecret, Reached};
use crate::store::waiting::MOST_WAITING_BYTES;
use crate::store::{ChangeError, Heard, Hindrance, MemberChange, PROVED_ANSWERS, SIGNED_HEADS, Standing, Unequal};

/// How long anything that is waited for may take.
const SOON: Duration = Duration::from_secs(20);

const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// A member whose messages the test gives.
struct Given {
    outgoing: tokio::sync::Mutex<mpsc::UnboundedReceiver<Vec<MemberMessage>>>,
    members: Membership,
}

#[async_trait]
impl Member for Given {
    fn number(&self) -> u64 {
        1
    }

    fn members(&self) -> watch::Receiver<Arc<Membership>> {
        watch::channel(Arc::new(self.members.clone())).1
    }

    fn heard(&self) -> BTreeMap<u64, Heard> {
        BTreeMap::new()
    }

    fn unequal(&self) -> Unequal {
        Unequal::default()
    }

    fn hindrances(&self) -> BTreeMap<u64, Hindrance> {
        BTreeMap::new()
    }

    async fn change(&self, _: MemberChange) -> Result<(), ChangeError> {
        Ok(())
    }

    async fn outgoing(&self) -> Vec<MemberMessage> {
        self.outgoing.lock().await.recv().await.unwrap_or_default()
    }

    fn is_bulk(&self, message: &Bytes) -> bool {
        message.starts_with(b"bulk")
    }

    fn receive(&self, _message: MemberMessage) {}

    async fn hand_over(&self, _to: Option<u64>) -> bool {
        false
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        watch::channel(Standing::default()).1
    }
}

fn secret() -> PeerSecret {
    SECRET.parse().expect("a secret")
}

fn message(text: &str) -> MemberMessage {
    MemberMessage { from: 1, to: 2, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

/// Starts a carrier to member 2 at this address; what it is given it carries.
fn carrier(address: &str) -> (mpsc::UnboundedSender<Vec<MemberMessage>>, Carrier) {
    carrier_of(address, Membership::founded(&[1, 2]))
}

/// Starts a carrier that knows these members, and this address of member 2 from its settings.
fn carrier_of(address: &str, members: Membership) -> (mpsc::UnboundedSender<Vec<MemberMessage>>, Carrier) {
    let (give, carrier, _) = carrier_and_map(address, members);
    (give, carrier)
}

/// The same, with what returns where member 2 has proved to be.
fn carrier_and_map(
    address: &str,
    members: Membership,
) -> (mpsc::UnboundedSender<Vec<MemberMessage>>, Carrier, impl Fn() -> Option<Arc<str>>) {
    let (give, outgoing) = mpsc::unbounded_channel();
    let member = Arc::new(Given { outgoing: tokio::sync::Mutex::new(outgoing), members });
    let addresses = BTreeMap::from([(1, "http://127.0.0.1:1".into()), (2, address.into())]);
    let map = ClusterMap { cluster: "c".into(), member: 1, addresses, reached: Reached::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let clocks = Arc::new(MemberClocks::new(Arc::clone(&clock)));
    let of_map = Arc::clone(&member);
    let carrier = Carrier::start(member, &map, Signer::new(secret(), "c/1", clock), clocks).expect("a client");
    (give, carrier, move || map.proved_address(2, &*of_map))
}

/// Serves as member 2 of an earlier version, which reads no heads, and hands on what it is sent.
async fn serve(listener: TcpListener) -> mpsc::UnboundedReceiver<Envelope> {
    let (taken, sent) = mpsc::unbounded_channel();
    let take = async |State(taken): State<mpsc::UnboundedSender<Envelope>>, headers: HeaderMap, body: Bytes| {
        secret().verify(&headers, &body, SystemClock::default().now()).expect("it is signed");
        taken.send(Envelope::decode(body).expect("an envelope")).expect("the test listens");
    };
    let router = Router::new().route(MESSAGES_PATH, post(take)).with_state(taken);
    tokio::spawn(async move { axum::serve(listener, router).await });
    sent
}

#[tokio::test]
async fn messages_come_signed_in_order_and_together_when_they_have_waited() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (give, _carrier) = carrier(&format!("http://{}", listener.local_addr().expect("an address")));
    let texts: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    give.send(texts.iter().map(|text| message(text)).collect()).expect("carried");
    let mut sent = serve(listener).await;
    let mut came: Vec<Bytes> = Vec::new();
    while came.len() < texts.len() {
        let envelope = timeout(SOON, sent.recv()).await.expect("in time").expect("the server lives");
        assert_eq!((envelope.cluster.as_str(), envelope.from, envelope.to), ("c", 1, 2));
        came.extend(envelope.messages);
    }
    assert_eq!(came, texts);
}

#[tokio::test]
async fn a_member_that_comes_back_is_sent_what_is_new() {
    // Bound and not listening: nobody is there, and nobody else can have the port.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let (give, _carrier) = carrier(&format!("http://{}", socket.local_addr().expect("an address")));
    give.send(vec![message("lost")]).expect("carried");
    comes(&give, serve(socket.listen(16).expect("it listens")).await).await;
}

#[tokio::test]
async fn a_member_is_sent_messages_where_the_settings_say_when_it_is_not_where_was_agreed_on() {
    let nobody = TcpSocket::new_v4().expect("a socket");
    nobody.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let mut members = Membership::founded(&[1, 2]);
    let agreed = format!("http://{}", nobody.local_addr().expect("an address"));
    members.seats.get_mut(&2).expect("a member").address = Some(agreed);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (give, _carrier) = carrier_of(&format!("http://{}", listener.local_addr().expect("an address")), members);
    comes(&give, serve(listener).await).await;
}

/// Serves at an address as whatever answers any call with 204.
async fn stranger() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(async || StatusCode::NO_CONTENT);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Serves as member 2, which proves with its answers that it has the secret.
async fn serve_and_prove() -> (String, mpsc::UnboundedReceiver<Envelope>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (taken, sent) = mpsc::unbounded_channel();
    let gate = Arc::new(Gate::new(secret(), Some("c/2")));
    let take = async move |method: Method, headers: HeaderMap, body: Bytes| match gate.take(
        &method,
        MESSAGES_PATH,
        &headers,
    ) {
        Ok(_) => {
            taken.send(Envelope::decode(body).expect("an envelope")).expect("the test listens");
            (StatusCode::NO_CONTENT, [(PROOF, gate.proof(&headers[HEAD]))])
        }
        Err(_) => (StatusCode::UNAUTHORIZED, [(OPENING, gate.opening())]),
    };
    let router = Router::new().route(MESSAGES_PATH, post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, sent)
}

#[tokio::test]
async fn a_member_is_where_it_proves_that_it_has_the_secret_and_nowhere_else() {
    let (address, sent) = serve_and_prove().await;
    let mut members = Membership { version: PROVED_ANSWERS, ..Membership::founded(&[1, 2]) };
    // The others have not agreed yet that it is elsewhere, as far as this one knows.
    members.seats.get_mut(&2).expect("a member").address = Some(stranger().await);
    let (give, _carrier, proved) = carrier_and_map(&address, members.clone());
    assert_eq!(proved(), None);
    comes(&give, sent).await;
    let noted = async {
        while proved().as_deref() != Some(&*address) {
            assert_eq!(proved(), None, "it is nowhere else");
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, noted).await.expect("it is known where the member is");
    // A version that does not say so proves nothing.
    members.version = SIGNED_HEADS - 1;
    let agreed = members.seats[&2].address.clone();
    let (_give, _carrier, taken_for) = carrier_and_map(&address, members);
    assert_eq!(taken_for().as_deref(), agreed.as_deref());
}

/// Sends messages until one comes.
async fn comes(give: &mpsc::UnboundedSender<Vec<MemberMessage>>, mut sent: mpsc::UnboundedReceiver<Envelope>) {
    let telling = async {
        loop {
            give.send(vec![message("new")]).expect("carried");
            sleep(Duration::from_millis(10)).await;
        }
    };
    let coming = async {
        while let Some(envelope) = sent.recv().await {
            if envelope.messages.iter().any(|message| message == "new") {
                return;
            }
        }
        panic!("the server has ended");
    };
    tokio::select! {
        () = telling => {}
        came = timeout(SOON, coming) => came.expect("the message came in time"),
    }
}

#[test]
fn the_oldest_bulk_is_dropped_when_too_much_waits_and_what_is_too_long_at_once() {
    let (queue, large) = (Queue::default(), Bytes::from(vec![0; MOST_WAITING_BYTES / 2]));
    queue.push(Bytes::from_static(b"vote"), false);
    (0..3).for_each(|_| queue.push(large.clone(), true));
    queue.push(Bytes::from(vec![0; MAX_MESSAGE_BYTES + 1]), true);
    let waiting: Vec<usize> = queue.waiting.lock().take().map(|message| message.len()).collect();
    assert_eq!(waiting, [4, MOST_WAITING_BYTES / 2, MOST_WAITING_BYTES / 2]);
}

#[test]
fn a_call_takes_what_waits_up_to_its_size_and_at_least_one() {
    let queue = Queue::default();
    let half = Bytes::from(vec![0; CALL_BYTES / 2]);
    (0..3).for_each(|_| queue.push(half.clone(), true));
    assert_eq!((queue.take().len(), queue.take().len(), queue.take().len()), (2, 1, 0));
}
