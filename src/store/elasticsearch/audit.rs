//! The audit: a data stream where the server has them, an index a month otherwise.
//!
//! Readers use the name `{prefix}audit` for both: it is the stream's name, and the indices' alias. Which of the two is
//! used is determined with the first entry, so that a server without an audit gets neither.
//!
//! They are read by that name as well ([`pages`]), in the order of time.
//!
//! An entry is created under its own id, so that a repeated entry is rejected, but only within the index being written
//! to, which for a stream is the latest. Entries repeated after a rollover are stored twice.

mod pages;

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::archive::Month;
use super::bulk::{Action, ItemOutcome, Lines, MAX_BYTES, Target};
use super::context::{Context, Sent};
use super::definition::{TEMPLATE_PRIORITY, set_replicas};
use super::fault::{self, Fault};
use super::flavour::Flavour;
use super::nodes::{Nodes, Reply, Request, reason};
use crate::store::StoreError;
use crate::store::audit::AuditEntry;

/// The index definition (JSON) of the audit.
const DEFINITION: &str = include_str!("../../../mappings/audit.json");
/// The least time between two rollover requests for a stream.
const ROLLOVER_PERIOD: Duration = Duration::from_secs(3600);
/// A stream rolls over when its latest index is this old, or its largest primary shard is this large.
const OLDEST: &str = "30d";
const LARGEST: &str = "30gb";

/// The form in which the server keeps the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Stream { rolled_over_at: Instant },
    Monthly,
}

/// The audit of a store.
#[derive(Debug)]
pub(super) struct Audit {
    name: String,
    flavour: Flavour,
    replicas: Option<u32>,
    /// The form of the audit; `None` before the first entry.
    form: Mutex<Option<Form>>,
}

impl Audit {
    pub(super) fn new(prefix: &str, flavour: Flavour, replicas: Option<u32>) -> Self {
        Self { name: format!("{prefix}audit"), flavour, replicas, form: Mutex::new(None) }
    }

    /// Adds the entries that the audit does not have yet.
    pub(super) async fn append(
        &self,
        context: &Context,
        entries: &[AuditEntry],
        timeout: Duration,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let form = self.form(&context.nodes, Instant::now() + timeout).await.map_err(of_the_audit)?;
        let mut rest = entries;
        // Ends: every round sends at least one entry.
        while !rest.is_empty() {
            let (mut lines, mut count) = (Lines::default(), 0);
            for entry in rest {
                let index = match form {
                    Form::Stream { .. } => self.name.clone(),
                    Form::Monthly => format!("{}-{}", self.name, Month::of(entry.at)),
                };
                lines.add(&Action::Create(Target::any(&entry.id).in_index(&index)), Some(&entry.document))?;
                count += 1;
                if lines.bytes() >= MAX_BYTES {
                    break;
                }
            }
            let (sent, after) = rest.split_at(count);
            // Each line names its own index; the path needs one all the same.
            let answers = context.send(&self.name, lines, Instant::now() + timeout).await;
            judge(sent, answers)?;
            rest = after;
        }
        Ok(())
    }

    /// Returns the form of the audit. Creates the stream or template before the first entry, and rolls an old stream
    /// over.
    async fn form(&self, nodes: &Nodes, deadline: Instant) -> Result<Form, StoreError> {
        let mut known = self.form.lock().await;
        let form = match *known {
            None if has_streams(nodes, &self.name, deadline).await? => {
                self.make_stream(nodes, deadline).await?;
                Form::Stream { rolled_over_at: Instant::now() }
            }
            None => {
                self.make_template(nodes, Form::Monthly, deadline).await?;
                Form::Monthly
            }
            Some(Form::Stream { rolled_over_at }) if rolled_over_at.elapsed() >= ROLLOVER_PERIOD => {
                self.roll_over(nodes, deadline).await?;
                Form::Stream { rolled_over_at: Instant::now() }
            }
            Some(form) => form,
        };
        *known = Some(form);
        Ok(form)
    }

    /// Makes the template, and adds the fields to indices of an earlier version that they lack: they take no others.
    async fn make_template(&self, nodes: &Nodes, form: Form, deadline: Instant) -> Result<(), StoreError> {
        let template = self.template(form)?;
        let request = Request::put(format!("_index_template/{}", self.name), Some(&template));
        allowed(nodes.call(&request, deadline).await?)?.body().map(drop)?;
        self.add_fields(nodes, form, &template["template"]["mappings"], deadline).await
    }

    /// Adds the fields to the index of a stream that is written to, or to those of the months that take changes: one
    /// that is blocked, such as an old one that is to stay as it is, takes no entries either.
    async fn add_fields(
        &self,
        nodes: &Nodes,
        form: Form,
        mappings: &Value,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let add = async |target: &str| -> Result<Reply, StoreError> {
            Ok(nodes.call(&Request::put(format!("{target}/_mapping"), Some(mappings)), deadline).await?)
        };
        // There is none before the first entry, and one may be removed meanwhile.
        let added = |reply: Reply| -> Result<(), StoreError> {
            if reply.status == 404 { Ok(()) } else { allowed(reply)?.body().map(drop) }
        };
        if let Form::Stream { .. } = form {
            let reply = add(&self.name).await?;
            if !is_blocked(&reply) {
                return added(reply);
            }
            // A block of any of its indices keeps all from being changed by the stream's name.
            let Some(latest) = self.latest(nodes, deadline).await? else { return Ok(()) };
            return added(add(&latest).await?);
        }
        for month in self.months(nodes, deadline).await? {
            let reply = add(&month).await?;
            if is_blocked(&reply) {
                tracing::warn!(index = month, "an index of the audit is blocked and takes no entries");
            } else {
                added(reply)?;
            }
        }
        Ok(())
    }

    /// Returns the name of the index that a stream writes to, if there is the stream.
    async fn latest(&self, nodes: &Nodes, deadline: Instant) -> Result<Option<String>, StoreError> {
        let reply = allowed(nodes.call(&Request::get(format!("_data_stream/{}", self.name)), deadline).await?)?;
        if reply.status == 404 {
            return Ok(None);
        }
        let found: Value =
            serde_json::from_slice(&reply.body()?).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let latest = found["data_streams"][0]["indices"].as_array().and_then(|indices| indices.last());
        Ok(latest.and_then(|index| index["index_name"].as_str()).map(str::to_owned))
    }

    /// Returns the names of the indices that the audit has of months.
    async fn months(&self, nodes: &Nodes, deadline: Instant) -> Result<Vec<String>, StoreError> {
        let reply = allowed(nodes.call(&Request::get(format!("_alias/{}", self.name)), deadline).await?)?;
        if reply.status == 404 {
            return Ok(Vec::new());
        }
        let found: Map<String, Value> =
            serde_json::from_slice(&reply.body()?).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        Ok(found.into_iter().map(|(name, _)| name).collect())
    }

    async fn make_stream(&self, nodes: &Nodes, deadline: Instant) -> Result<(), StoreError> {
        self.make_template(nodes, Form::Stream { rolled_over_at: Instant::now() }, deadline).await?;
        let reply = allowed(nodes.call(&Request::put(format!("_data_stream/{}", self.name), None), deadline).await?)?;
        if reply.is_there_already() { Ok(()) } else { reply.body().map(drop) }
    }

    /// Starts a new index behind the stream if the latest one is old or large, so that the server needs no lifecycle
    /// policy.
    async fn roll_over(&self, nodes: &Nodes, deadline: Instant) -> Result<(), StoreError> {
        let conditions = json!({ "conditions": { "max_age": OLDEST, "max_primary_shard_size": LARGEST } });
        let request = Request::post(format!("{}/_rollover", self.name), conditions.to_string().into_bytes());
        allowed(nodes.call(&request, deadline).await?)?.body().map(drop)
    }

    pub(super) fn template(&self, form: Form) -> Result<Value, StoreError> {
        let template = serde_json::from_str(DEFINITION).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let mut template = self.flavour.adapt(template);
        set_replicas(&mut template["settings"]["index"], self.replicas);
        let meta = template["mappings"]["_meta"].clone();
        Ok(match form {
            Form::Stream { .. } => json!({
                "index_patterns": [self.name],
                "data_stream": {},
                "priority": TEMPLATE_PRIORITY,
                "template": template,
                "_meta": meta,
            }),
            Form::Monthly => {
                template["aliases"] = json!({ self.name.as_str(): {} });
                json!({
                    "index_patterns": [format!("{}-*", self.name)],
                    "priority": TEMPLATE_PRIORITY,
                    "template": template,
                    "_meta": meta,
                })
            }
        })
    }
}

/// Checks that the audit has all of `entries`, which were sent with these answers.
fn judge(entries: &[AuditEntry], answers: Vec<Sent>) -> Result<(), StoreError> {
    for (entry, Sent { outcome, .. }) in entries.iter().zip(answers) {
        match outcome {
            // The audit already has the entry.
            ItemOutcome::Done(_) | ItemOutcome::Conflict => {}
            ItemOutcome::Invalid(why) => {
                // The entry would be rejected every time and block all entries after it.
                metrics::counter!("leasehold_audit_refused_total").increment(1);
                tracing::error!(id = entry.id, why, "the server does not take an entry of the audit; it is left out");
            }
            ItemOutcome::Denied(why) if lacks_privilege(&why) => return Err(denied(&why)),
            ItemOutcome::NotDone(why) | ItemOutcome::Denied(why) | ItemOutcome::Unsure(why) => {
                return Err(unavailable(&why));
            }
            ItemOutcome::OutOfOrder(fault) | ItemOutcome::Withheld(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

/// Returns whether the server has data streams. They are a module, and a minimal distribution lacks it and its path. It
/// is asked for streams of the audit's own name, of which a role need allow no others; where the path is missing,
/// `_data_stream` alone would be taken for the name of an index that no role allows.
async fn has_streams(nodes: &Nodes, name: &str, deadline: Instant) -> Result<bool, StoreError> {
    let reply = allowed(nodes.call(&Request::get(format!("_data_stream/{name}*")), deadline).await?)?;
    match reply.status {
        400 | 404 | 405 => Ok(false),
        _ => reply.success().map(|_| true).map_err(StoreError::Unavailable),
    }
}

/// Returns whether an answer is the refusal of a change of an index that is blocked.
fn is_blocked(reply: &Reply) -> bool {
    matches!(fault::of_answer(reply.status, &reply.body), Some(Fault::Blocked { .. }))
}

/// Returns an answer, unless it says that an index is at fault or that the program lacks a privilege: asking again does
/// not change that, so what is said is fit to be read by whoever can.
fn allowed(reply: Reply) -> Result<Reply, StoreError> {
    match (reply.status, fault::of_answer(reply.status, &reply.body)) {
        (401 | 403, None) => Err(denied(&reason(reply.status, &reply.body))),
        (401 | 403, Some(fault)) => Err(fault.into()),
        _ => Ok(reply),
    }
}

/// Returns whether the reason of a refusal is a privilege that is missing, in the words of Elasticsearch or OpenSearch.
fn lacks_privilege(why: &str) -> bool {
    ["HTTP 401", "HTTP 403", "is unauthorized", "no permissions"].iter().any(|sign| why.contains(sign))
}

/// Returns the error of a refusal for this reason, of which only the action that is refused is told to everybody.
fn denied(why: &str) -> StoreError {
    let is_action = |part: &&str| part.starts_with("indices:") || part.starts_with("cluster:");
    let action = why.split(['[', ']']).find(is_action).map(|action| format!(" ({action})")).unwrap_or_default();
    StoreError::OutOfOrder(format!(
        "the server does not let the audit be written: the user or the API key of the program lacks a \
         privilege{action}; docs/deploying.md has the role that suffices, under \"A role for Elasticsearch\""
    ))
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable(format!("the audit: {why}"))
}

fn of_the_audit(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(why) => unavailable(&why),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privilege_that_is_missing_is_named_and_nobody_else_is() {
        let of = |why: &str| lacks_privilege(why).then(|| denied(why).to_string());
        let elasticsearch = "action [indices:data/write/bulk[s]] is unauthorized for user [jo] on indices [a]";
        assert!(
            of(elasticsearch).is_some_and(|said| said.contains("(indices:data/write/bulk)") && !said.contains("jo"))
        );
        let opensearch = "no permissions for [indices:admin/data_stream/get] and User [name=jo]";
        assert!(of(opensearch).is_some_and(|said| said.contains("privilege (indices:admin/data_stream/get);")));
        assert!(of("HTTP 403: forbidden by a proxy").is_some_and(|said| said.contains("lacks a privilege;")));
        assert_eq!(of("HTTP 413: too large"), None);
    }
}
