//! Changing the number of primary shards of an index behind its alias, while servers write to it.
//!
//! The server makes an index with another number of shards out of one that takes no writes (`_split`, `_shrink`), and
//! every document keeps its version. So the index is blocked for as long as that takes, the aliases are exchanged in
//! one request, and writers wait meanwhile ([`super::standing`]). Each run marks the index with an alias of its own,
//! and does nothing without that mark:
//!
//! - the exchange names the mark and fails without it. Whoever takes over removes it in the request that sets another
//!   one, and only then lifts the block. So an index that was made before the block was lifted never gets the alias;
//! - the index that is made bears the same mark from its first moment. One with a mark and without its kind's alias is
//!   half made, and can be removed;
//! - the index that was replaced gets an alias that says so in the exchange itself. It stays until searches that began
//!   in it have ended and its successor has as many copies as it has.
//!
//! A run may be frozen between finding its mark and lifting the block. Who takes over therefore waits ([`SETTLE`])
//! before it sets the block, and before the exchange makes sure that no setting of the index was changed since. Who
//! takes its change back keeps a mark for as long, should the block for which it no longer waited still come.

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::connect::Link;
use super::definition::{MAPPING_VERSION, without_tombstones};
use super::error::ConnectError;
use super::indices::{Indices, Kind};
use super::nodes::{Nodes, Request};
use super::shards::{Found, Index, Status, possible};

/// How long a node may take to answer one request.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one that has taken over, or takes back, waits for requests that may still be under way.
const SETTLE: Duration = Duration::from_secs(2);
/// The time between two looks at what is waited for.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest time that an index may take to move to one node, or a new one to have all its copies.
const COPIES_WITHIN: Duration = Duration::from_secs(3_600);
/// How often it is tried to get the mark.
const MAX_ROUNDS: usize = 5;
/// The most former indices that an index remembers.
const MAX_LINEAGE: usize = 20;

/// A change of the number of shards of the index of one kind, or the end of one that was interrupted.
pub(super) struct Resize {
    kind: Kind,
    /// The number of shards; `None` to end what was interrupted and leave it at that.
    shards: Option<u32>,
    what: String,
}

impl Resize {
    /// Returns the change that the index of a kind needs; `None` when it needs none.
    ///
    /// # Errors
    /// [`ConnectError`] when the index cannot be brought to `shards` shards in one step.
    pub(super) async fn plan(
        link: &Link<'_>,
        indices: &Indices,
        kind: Kind,
        shards: Option<u32>,
    ) -> Result<Option<Self>, ConnectError> {
        let found = Found::look(link, indices, kind).await?;
        let is_left = found.is_left();
        let is_marked = !found.marks.is_empty();
        let Ok((name, live)) = found.live() else { return Ok(None) };
        let from = live.shards();
        let target = shards.filter(|to| *to != from);
        if let Some(to) = target.filter(|to| !possible(from, live.routing_num_shards).contains(to)) {
            let possible: Vec<String> = possible(from, live.routing_num_shards).iter().map(u32::to_string).collect();
            let possible = possible.join(", ");
            return Err(ConnectError::refused(
                format!("`{name}` has {from} shards, of which {to} cannot be made in one step"),
                format!("possible are {possible}; every number can be reached by way of 1"),
            ));
        }
        if target.is_some() && live.is_blocked() && !is_marked {
            return Err(blocked(&name));
        }
        let what = match target {
            Some(to) => {
                let verb = if to > from { "split" } else { "shrink" };
                format!("{verb} `{name}` from {from} to {to} shards; writes wait meanwhile")
            }
            None if is_left => format!("end the interrupted change of the shards of `{name}`"),
            None => return Ok(None),
        };
        Ok(Some(Self { kind, shards: target, what }))
    }

    /// Returns a sentence that describes the change.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Makes the change. Writes wait for less than `pause`; searches that began before the exchange have `linger` to
    /// end.
    ///
    /// # Errors
    /// [`ConnectError`] when it could not be made. What it had begun is taken back, if the server lets it.
    pub(super) async fn apply(
        &self,
        nodes: &Nodes,
        indices: &Indices,
        pause: Duration,
        linger: Duration,
    ) -> Result<(), ConnectError> {
        let run = Run {
            link: Link::new(nodes, COPIES_WITHIN),
            indices,
            kind: self.kind,
            mark: format!("{}{:08x}", indices.resizing, rand::random::<u32>()),
            pause,
        };
        let mut is_marked = false;
        let made = match run.take_mark().await {
            Ok(took_over) => {
                is_marked = true;
                run.under_mark(self.shards, took_over).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            return match run.take_back().await {
                // Whatever was refused was refused because of what the other run had done.
                Ok(false) if is_marked => Err(taken_over(&error)),
                Ok(_) => Err(error),
                Err(why) => {
                    tracing::warn!(
                        "the change of the shards could not be taken back: {why}; run `leasehold migrate` again"
                    );
                    Err(error)
                }
            };
        }
        run.remove_replaced(linger).await
    }
}

fn remove(index: &str, alias: &str) -> Value {
    json!({ "remove": { "index": index, "alias": alias, "must_exist": true } })
}

fn add(index: &str, alias: &str) -> Value {
    json!({ "add": { "index": index, "alias": alias } })
}

fn blocked(name: &str) -> ConnectError {
    ConnectError::refused(
        format!("`{name}` takes no writes, and not because of a change of its shards"),
        "lift the block",
    )
}

/// The error of a run that does not find its mark.
fn unmarked() -> ConnectError {
    ConnectError::NotYet("the mark of this change is gone".to_owned())
}

/// The error of a run into which a request of another one came that was under way for longer than [`SETTLE`].
fn disturbed(what: String) -> ConnectError {
    ConnectError::refused(what, "all is as before; run `leasehold migrate` again when no other one runs")
}

fn taken_over(why: &ConnectError) -> ConnectError {
    ConnectError::refused(
        format!("another `leasehold migrate` has taken over: {why}"),
        "run `leasehold migrate` again when it has ended",
    )
}

/// One run, which does nothing to an index that does not bear its mark.
struct Run<'a> {
    link: Link<'a>,
    indices: &'a Indices,
    kind: Kind,
    mark: String,
    pause: Duration,
}

impl Run<'_> {
    async fn look(&self) -> Result<Found, ConnectError> {
        Found::look(&self.link, self.indices, self.kind).await
    }

    async fn must(&self, request: Request) -> Result<(), ConnectError> {
        self.must_within(PATIENCE, request).await
    }

    async fn must_within(&self, patience: Duration, request: Request) -> Result<(), ConnectError> {
        let refused = |why| ConnectError::refused(why, "mend that and run `leasehold migrate` again");
        self.link.send(request.with_patience(patience)).await?.success().map(drop).map_err(refused)
    }

    /// Changes aliases, all or none. Returns `false` when one that is to be removed is not there.
    async fn exchange(&self, actions: &[Value]) -> Result<bool, ConnectError> {
        let body = json!({ "actions": actions }).to_string();
        let request = Request::post("_aliases".to_owned(), body).with_patience(PATIENCE);
        let reply = self.link.send(request).await?;
        Ok((200..300).contains(&reply.status))
    }

    /// Marks the index, and takes away the marks of others. Returns whether there were any.
    async fn take_mark(&self) -> Result<bool, ConnectError> {
        let (mut took_over, mut is_marked) = (false, false);
        for _ in 0..MAX_ROUNDS {
            let found = self.look().await?;
            let (others, own): (Vec<String>, Vec<String>) =
                found.marks.iter().cloned().partition(|mark| *mark != self.mark);
            let (name, _) = found.live()?;
            match (own.is_empty(), others.is_empty()) {
                (false, true) => return Ok(took_over),
                (true, _) if is_marked => return Err(taken_over(&unmarked())),
                _ => {}
            }
            let mut actions: Vec<Value> = others.iter().chain(&own).map(|mark| remove(&name, mark)).collect();
            actions.push(add(&name, &self.mark));
            let is_done = self.exchange(&actions).await?;
            took_over |= is_done && !others.is_empty();
            is_marked |= is_done;
        }
        Err(taken_over(&unmarked()))
    }

    /// Removes what former runs have left, and changes the number of shards.
    async fn under_mark(&self, shards: Option<u32>, took_over: bool) -> Result<(), ConnectError> {
        let found = self.look().await?;
        let found = if took_over {
            let (name, _) = found.live()?;
            self.lift_for_good(&name, &self.mark).await?.ok_or_else(unmarked)?
        } else {
            found
        };
        for index in found.half_made.keys() {
            self.must(Request::delete(index.clone())).await?;
        }
        let target = format!("{}-{:06}", self.indices.name(self.kind), found.last_number + 1);
        let (name, live) = found.live()?;
        if live.is_blocked() {
            return Err(blocked(&name));
        }
        match shards.filter(|shards| *shards != live.shards()) {
            None => self.exchange(&[remove(&name, &self.mark)]).await.map(drop),
            Some(shards) => {
                if shards < live.shards() {
                    self.gather(&name).await?;
                }
                self.remake(&name, &live, shards, &target).await
            }
        }
    }

    /// Waits until one node has a copy of every shard, which is what an index is shrunk from. Writes go on.
    async fn gather(&self, name: &str) -> Result<(), ConnectError> {
        let away = || ConnectError::NotYet(format!("`{name}` has a shard without a copy"));
        let (node, mut is_gathered) = self.look().await?.gathered(name).ok_or_else(away)?;
        if is_gathered {
            return Ok(());
        }
        let setting = json!({ "index.routing.allocation.require._id": node });
        self.must(Request::put(format!("{name}/_settings"), Some(&setting))).await?;
        let until = Instant::now() + COPIES_WITHIN;
        while !is_gathered {
            if Instant::now() > until {
                return Err(ConnectError::NotYet(format!("the shards of `{name}` do not come together on one node")));
            }
            sleep(PERIOD).await;
            is_gathered = self.look().await?.gathered(name).is_some_and(|(_, all)| all);
        }
        Ok(())
    }

    /// Makes `target` of the index, and gives it the aliases.
    async fn remake(&self, name: &str, live: &Index, shards: u32, target: &str) -> Result<(), ConnectError> {
        self.marked(name).await?;
        let as_before = self.status(name).await?.max(Status::Yellow);
        let blocked = Instant::now();
        let left = || self.pause.saturating_sub(blocked.elapsed());
        self.block(name, left()).await?;
        let before = self.marked(name).await?;
        if !before.is_blocked() {
            return Err(disturbed(format!("`{name}` takes writes again, which another run has let it")));
        }
        let how = if shards > live.shards() { "_split" } else { "_shrink" };
        let definition = json!({
            "settings": {
                "index.number_of_shards": shards,
                // The server takes over other settings, and not this one.
                "index.number_of_replicas": live.setting("number_of_replicas"),
                "index.blocks.write": null,
                "index.routing.allocation.require._id": null,
            },
            "aliases": { &self.mark: {} },
        });
        let path = format!("{name}/{how}/{target}?wait_for_active_shards=0");
        self.must_within(left(), Request::post(path, definition.to_string())).await?;
        // All copies, while there is time for it.
        while self.status(target).await? < as_before {
            if left().is_zero() {
                return Err(self.too_slow(target));
            }
            if left() < self.pause / 2 && self.status(target).await? >= Status::Yellow {
                break;
            }
            sleep(PERIOD).await;
        }
        let mut lineage = live.lineage();
        lineage.push(self.look().await?.half_made.remove(target).ok_or_else(unmarked)?.setting("uuid").to_owned());
        let lineage = &lineage[lineage.len().saturating_sub(MAX_LINEAGE)..];
        let meta = json!({ "_meta": { "leasehold": { "version": MAPPING_VERSION, "lineage": lineage } } });
        self.must(Request::put(format!("{target}/_mapping"), Some(&meta))).await?;
        if self.marked(name).await?.settings_version != before.settings_version {
            return Err(disturbed(format!("the settings of `{name}` were changed meanwhile")));
        }
        let Indices { all, replaced, .. } = self.indices;
        let alias = self.indices.name(self.kind);
        let mut actions = vec![
            remove(name, &self.mark),
            remove(name, alias),
            add(name, replaced),
            remove(target, &self.mark),
            add(target, alias),
        ];
        if self.kind == Kind::Jobs {
            let mut filtered = without_tombstones();
            filtered["index"] = target.into();
            filtered["alias"] = all.as_str().into();
            actions.push(remove(name, all));
            actions.push(json!({ "add": filtered }));
        }
        if left().is_zero() {
            return Err(self.too_slow(target));
        }
        if !self.exchange(&actions).await? {
            return Err(unmarked());
        }
        let waited = blocked.elapsed().as_millis();
        tracing::info!(index = target, shards, "exchanged the index; writes waited for {waited} ms");
        Ok(())
    }

    fn too_slow(&self, target: &str) -> ConnectError {
        let waited = self.pause.as_secs();
        ConnectError::NotYet(format!(
            "`{target}` was not ready when writes had waited for {waited} s; all is as before"
        ))
    }

    /// Returns the index, which must bear this run's mark.
    async fn marked(&self, name: &str) -> Result<Index, ConnectError> {
        let found = self.look().await?;
        let is_marked = found.marks == [self.mark.clone()];
        let (live, index) = found.live()?;
        if is_marked && live == name { Ok(index) } else { Err(unmarked()) }
    }

    /// Has the index take no more writes, within `pause`.
    ///
    /// # Errors
    /// [`ConnectError`] when that was refused, or took longer. A request that is late is waited for all the same: a
    /// block that came after it was taken back would be lifted by nobody.
    async fn block(&self, name: &str, pause: Duration) -> Result<(), ConnectError> {
        let mut request = pin!(self.must(Request::put(format!("{name}/_block/write"), None)));
        if let Ok(answered) = timeout(pause, &mut request).await {
            return answered;
        }
        // Writes go on meanwhile, if the block has come; if it comes later, it is lifted once more by `take_back`.
        let (lifted, answered) = (self.lift(name).await, request.await);
        tracing::debug!(?lifted, ?answered, "gave up a block of `{name}`");
        Err(self.too_slow(name))
    }

    /// Lifts the block of an index with this run's mark, and lets its shards lie where they may.
    async fn lift(&self, name: &str) -> Result<(), ConnectError> {
        let setting = json!({ "index.blocks.write": null, "index.routing.allocation.require._id": null });
        self.must(Request::put(format!("{name}/_settings"), Some(&setting))).await
    }

    /// Lifts the block of an index until none comes any more for which nobody has waited. Returns what was found then;
    /// `None` when `mark` is gone, and the block therefore another run's.
    async fn lift_for_good(&self, name: &str, mark: &str) -> Result<Option<Found>, ConnectError> {
        loop {
            self.lift(name).await?;
            sleep(SETTLE).await;
            let found = self.look().await?;
            if found.marks != [mark] {
                return Ok(None);
            }
            if !found.is_blocked()? {
                return Ok(Some(found));
            }
        }
    }

    /// Leaves the index as it was: lifts its block, removes what was made of it, and then takes the mark away. Returns
    /// `false` when it was not this run's any more.
    async fn take_back(&self) -> Result<bool, ConnectError> {
        let found = self.look().await?;
        if found.marks != [self.mark.clone()] {
            return Ok(false);
        }
        let (name, _) = found.live()?;
        // An exchange that is still under way names the mark that is taken away here.
        let ending = format!("{}-back", self.mark);
        if !self.exchange(&[remove(&name, &self.mark), add(&name, &ending)]).await? {
            return Ok(false);
        }
        let Some(found) = self.lift_for_good(&name, &ending).await? else { return Ok(false) };
        for index in found.half_made.keys() {
            self.must(Request::delete(index.clone())).await?;
        }
        self.exchange(&[remove(&name, &ending)]).await.map(|_| true)
    }

    /// Removes indices that were replaced, when nobody reads from them and their successor has as many copies.
    async fn remove_replaced(&self, linger: Duration) -> Result<(), ConnectError> {
        let replaced = self.look().await?.replaced;
        if replaced.is_empty() {
            return Ok(());
        }
        sleep(linger).await;
        for index in replaced {
            let (alias, until) = (self.indices.name(self.kind), Instant::now() + COPIES_WITHIN);
            while self.status(alias).await? < self.status(&index).await? {
                if Instant::now() > until {
                    let why = format!("`{alias}` has fewer copies than `{index}`, which is kept until then");
                    return Err(ConnectError::NotYet(why));
                }
                sleep(PERIOD).await;
            }
            self.must(Request::delete(index)).await?;
        }
        Ok(())
    }

    async fn status(&self, index: &str) -> Result<Status, ConnectError> {
        Status::read(&self.link, index).await
    }
}
