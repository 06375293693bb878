//! The servers of a client: at which of them a call begins, and where it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Url;

use super::error::{ClientError, ServerFailure};

/// The most servers of a client.
const MAX_SERVERS: usize = 32;
/// How late an answer is, beyond the time that its call waits for, when a call that its caller gives up counts against
/// the server.
const LATE: Duration = Duration::from_millis(500);

/// The servers of one installation. Clones share which of them is called first.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    bases: Arc<[Url]>,
    /// The place of the server that is called first: the one that answered last, or the one behind it once it failed.
    first: Arc<AtomicUsize>,
}

/// The place of a server among the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(usize);

impl Addresses {
    /// Reads the URLs of servers; one without a scheme is one of `http`. One that is named twice is called once.
    pub(super) fn parse<S: AsRef<str>>(urls: &[S]) -> Result<Self, ClientError> {
        let mut bases = Vec::new();
        for url in urls.iter().map(AsRef::as_ref) {
            let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
            let base = Url::parse(&with_scheme).map_err(|error| ClientError::Usage(format!("{url}: {error}")))?;
            if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
                return Err(ClientError::Usage(format!("{url}: must begin with http:// or https://")));
            }
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
        match bases.len() {
            0 => Err(ClientError::Usage("no server is named".to_owned())),
            1..=MAX_SERVERS => Ok(Self { bases: bases.into(), first: Arc::default() }),
            many => Err(ClientError::Usage(format!("{many} servers are named, and {MAX_SERVERS} are the most"))),
        }
    }

    /// Returns whether any of the servers is called by TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.bases.iter().any(|base| base.scheme() == "https")
    }

    /// Returns all addresses in the order in which a call that begins now tries them.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = Address> + use<> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.bases.len());
        (0..count).map(move |turn| Address((first + turn) % count))
    }

    /// Returns the URL of a server.
    pub(super) fn url(&self, Address(place): Address) -> &Url {
        &self.bases[place]
    }

    /// Begins a try at a server, of a call that waits there for this long.
    pub(super) fn begin(&self, address: Address, wait: Duration) -> Try<'_> {
        Try { addresses: self, address, late_at: Some(Instant::now() + wait + LATE) }
    }

    /// Lets calls begin at the next server, if they still begin at this one.
    pub(super) fn failed(&self, Address(place): Address) {
        let next = (place + 1) % self.bases.len();
        // When it is not the first any more, another call has found that already.
        let _ = self.first.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the error of a call that failed at these servers, each named. Where there is only one server, that is
    /// its own error.
    pub(super) fn error(&self, mut failures: Vec<(Address, ClientError)>) -> ClientError {
        if self.bases.len() == 1
            && let Some((_, error)) = failures.pop()
        {
            return error;
        }
        let named = failures.into_iter().map(|(address, error)| ServerFailure { server: self.name(address), error });
        ClientError::Servers(named.collect())
    }

    /// Returns the error of a request that was not answered. Where there are several servers, an error is given the
    /// name of one elsewhere, and needs no URL.
    pub(super) fn unanswered(&self, error: reqwest::Error) -> ClientError {
        if self.bases.len() == 1 { error.into() } else { error.without_url().into() }
    }

    /// Returns the URL of a server for people, without a password.
    fn name(&self, address: Address) -> String {
        let mut url = self.url(address).clone();
        // Neither fails: the URL has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.as_str().trim_end_matches('/').to_owned()
    }
}

/// A try of a call at one server. When it is dropped without a word of how it ended, the caller has given it up, which
/// counts as a failure of the server if the answer was late: a caller with less patience than a call has would else
/// begin at a server that hangs again and again.
pub(super) struct Try<'a> {
    addresses: &'a Addresses,
    address: Address,
    /// From when on the answer is late; `None` once the try has ended.
    late_at: Option<Instant>,
}

impl Try<'_> {
    /// Ends the try: the server has answered, and the next call begins there.
    pub(super) fn answered(mut self) {
        self.late_at = None;
        self.addresses.first.store(self.address.0, Ordering::Relaxed);
    }

    /// Ends the try: the server cannot serve.
    pub(super) fn failed(mut self) {
        self.late_at = None;
        self.addresses.failed(self.address);
    }
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        if self.late_at.is_some_and(|late_at| late_at <= Instant::now()) {
            self.addresses.failed(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: [&str; 3] = ["http://a:1", "http://b:2", "http://c:3"];

    fn order(addresses: &Addresses) -> Vec<String> {
        addresses.in_turn().map(|address| addresses.name(address)).collect()
    }

    #[test]
    fn calls_begin_where_the_last_answer_came_from_and_behind_a_server_that_failed() {
        let addresses = Addresses::parse(&THREE).expect("good addresses");
        assert_eq!(order(&addresses), THREE);
        let [a, b, c] = [0, 1, 2].map(Address);
        addresses.begin(b, Duration::ZERO).answered();
        assert_eq!(order(&addresses), ["http://b:2", "http://c:3", "http://a:1"]);
        addresses.clone().begin(c, Duration::ZERO).failed();
        assert_eq!(order(&addresses)[0], "http://b:2", "another server's failure moves nothing");
        addresses.begin(b, Duration::ZERO).failed();
        addresses.begin(b, Duration::ZERO).failed();
        assert_eq!(order(&addresses)[0], "http://c:3", "it is passed over once");
        addresses.failed(c);
        assert_eq!(order(&addresses)[0], addresses.name(a), "behind the last one comes the first");
    }

    #[test]
    fn a_call_that_is_given_up_counts_against_the_server_only_when_its_answer_is_late() {
        let addresses = Addresses::parse(&THREE).expect("good addresses");
        drop(addresses.begin(Address(0), Duration::from_secs(30)));
        assert_eq!(order(&addresses)[0], "http://a:1", "nobody waited too long");
        drop(Try { addresses: &addresses, address: Address(0), late_at: Some(Instant::now()) });
        assert_eq!(order(&addresses)[0], "http://b:2");
    }

    #[test]
    fn a_list_that_cannot_be_meant_is_refused() {
        let many: Vec<String> = (0..=MAX_SERVERS).map(|number| format!("http://{number}.example")).collect();
        for urls in [&[][..], &many, &["http://a".to_owned(), "ftp://b:7400".to_owned()]] {
            assert!(matches!(Addresses::parse(urls), Err(ClientError::Usage(_))), "{urls:?}");
        }
        assert_eq!(Addresses::parse(&["http://a", "http://a/", "a"]).expect("one server").in_turn().count(), 1);
    }

    #[test]
    fn an_error_names_every_server_in_one_sentence_and_no_password() {
        let broken = || ClientError::Broken("reset".to_owned());
        let refused = || ClientError::Connect("refused".to_owned());
        let addresses = Addresses::parse(&["http://me:secret@a:1/", "http://b:2/jobs"]).expect("good addresses");
        let said = addresses.error(vec![(Address(0), refused()), (Address(1), broken())]).to_string();
        let (one, other) = ("cannot reach the server: refused", "the connection broke: reset");
        assert_eq!(said, format!("the call failed at http://a:1 ({one}) and at http://b:2/jobs ({other})"));
        let alone = Addresses::parse(&["http://a:1"]).expect("a good address");
        assert_eq!(alone.error(vec![(Address(0), broken())]).to_string(), other);
    }
}
