//! Where a member stands, and changes of the members and of who leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use tokio::time::{sleep, timeout};

use super::Front;
use super::office::call;
use crate::api::access::Role;
use crate::api::audited::{self, audited};
use crate::api::body::read;
use crate::api::call::Answer;
use crate::api::error::{ApiError, Code};
use crate::api::extract::{Query, parse};
use crate::api::json::ok;
use crate::api::observe::{REQUEST_ID, request_id};
use crate::manager::{AuditChange, ChangeName, Manager};
use crate::peers::ClusterMap;
use crate::store::{ChangeError, Heard, Hindrance, MemberChange, Standing};
use crate::wire::{ChangeCluster, ClusterHindrance, ClusterMember, ClusterStatus, MemberClockState};

/// The most bytes that an order has.
const MAX_ORDER_BYTES: usize = 16 << 10;

/// How long the entry in the audit is waited for before the lead is handed over without it.
const AUDITED_WITHIN: Duration = Duration::from_secs(1);
/// How long the calls that are served have before the lead is handed over.
const SERVED_WITHIN: Duration = Duration::from_secs(1);
/// How long another member may take to lead that says nothing against it: the store gives up a try after a second, and
/// on a busy machine it may take two of them.
const LEADS_WITHIN: Duration = Duration::from_millis(2_400);
/// How often the lead is handed over at most, where no member takes it, and the pause in between: calls wait meanwhile.
const TRIES: usize = 5;
const NEXT_TRY_AFTER: Duration = Duration::from_millis(40);
/// A member that was not heard of for so long is not given the lead.
pub(super) const SILENT: Duration = Duration::from_secs(3);

impl Front {
    pub(super) async fn status(State(front): State<Arc<Front>>, headers: HeaderMap, query: Query) -> Answer {
        front.guard.access.allow(&headers, Role::Read)?;
        query.only(&[])?;
        ok(&status_of(&front))
    }
}

fn status_of(front: &Front) -> ClusterStatus {
    let Standing { role, identity, receives, term, leader, leads, applied, committed, .. } = front.standing();
    let ClusterMap { cluster, member, .. } = &front.map;
    let (members, heard) = (front.member.members(), front.member.heard());
    let agreed = members.borrow().clone();
    let address = |member: u64| front.map.address(member, &agreed).map(|address| address.to_string());
    let hindrances = front.member.hindrances();
    let went_back = hindrances.iter().filter(|(_, hindrance)| **hindrance == Hindrance::WentBack);
    let went_back = went_back.map(|(member, _)| *member).collect();
    let clocks = front.clocks_seen();
    let unequal = front.member.unequal();
    let uncertain = !unequal.members.is_empty() && !unequal.is_certain;
    let members = agreed.seats.iter().map(|(number, seat)| ClusterMember {
        member: *number,
        address: address(*number).unwrap_or_default(),
        votes: seat.votes,
        heard_ms: heard.get(number).map(|heard| u64::try_from(heard.ago.as_millis()).unwrap_or(u64::MAX)),
        version: heard.get(number).map(|heard| heard.knows),
        lag: leads.then(|| heard.get(number).map(|heard| committed.saturating_sub(heard.last))).flatten(),
        clock_ahead_ms: clocks.ahead.get(number).map(|ahead| ahead.middle()),
        clock_uncertain_ms: clocks.ahead.get(number).map(|ahead| ahead.uncertain()),
        clock: MemberClockState::of(&clocks, *number),
    });
    ClusterStatus {
        cluster: cluster.to_string(),
        identity: identity.map(|identity| identity.to_string()),
        version: agreed.version,
        member: *member,
        term,
        leader,
        leader_address: leader.and_then(address),
        role: role.into(),
        receives,
        leads,
        applied,
        committed,
        members: members.collect(),
        hindrances: hindrances.into_iter().filter_map(|(of, why)| ClusterHindrance::of(of, why)).collect(),
        went_back,
        unequal: unequal.members.into_iter().collect(),
        uncertain,
    }
}

impl Front {
    /// Changes the members or who leads, if this member leads, and otherwise has the leader do it.
    pub(super) async fn change(State(front): State<Arc<Front>>, mut request: Request) -> Response {
        let _under_way = front.calls.token();
        let id = request_id(request.headers());
        request.headers_mut().insert(REQUEST_ID, id);
        if !front.standing().leads || front.shutdown.is_cancelled() {
            return call(front.forwarding.clone(), request).await;
        }
        try_change(&front, request).await.unwrap_or_else(IntoResponse::into_response)
    }
}

async fn try_change(front: &Front, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    let permit = front.guard.access.allow(&parts.headers, Role::Admin)?;
    let body = read(&parts, body, MAX_ORDER_BYTES).await?;
    let order: ChangeCluster = parse(&body.bytes)?;
    tracing::info!(?order, by = %permit.caller.name, "the cluster is to be changed");
    let entry = AuditChange::new(ChangeName::ClusterChanged, &permit.caller.name).to(&order);
    let manager = front.own.office.manager();
    if matches!(order, ChangeCluster::Transfer { .. }) {
        return transfer_audited(front, manager, entry, order).await;
    }
    let Some(manager) = manager else {
        let detail = format!("member {} was elected, and does not lead the cluster yet", front.map.member);
        return Err(ApiError::new(Code::NotLeader, detail));
    };
    audited(&manager, entry, make_change(front, order)).await
}

/// Hands the lead over, also where the audit cannot be written: so one gets away from a member whose disk hangs. The
/// entry has a moment, and is written later if it can be.
async fn transfer_audited(
    front: &Front,
    manager: Option<Manager>,
    entry: AuditChange,
    transfer: ChangeCluster,
) -> Answer {
    if let Some(manager) = manager.clone() {
        let entry = entry.clone();
        in_a_moment(async move {
            if let Err(error) = manager.audit_changes(&[entry]).await {
                tracing::warn!(%error, "the audit lacks that the lead is handed over");
            }
        })
        .await;
    }
    let answer = make_change(front, transfer).await;
    if let Some(manager) = manager
        && let Some(why) = answer.as_ref().err().and_then(audited::why_not)
    {
        in_a_moment(async move { manager.audit_refusals(&[(entry, why)]).await }).await;
    }
    answer
}

/// Waits a moment for something to be written, which goes on afterwards.
async fn in_a_moment(writing: impl Future<Output = ()> + Send + 'static) {
    if timeout(AUDITED_WITHIN, tokio::spawn(writing)).await.is_err() {
        tracing::warn!("the audit does not have it yet that the lead is to be handed over, or was not");
    }
}

async fn make_change(front: &Front, order: ChangeCluster) -> Answer {
    let change = match order {
        ChangeCluster::Add { member, address } => {
            let address = address.trim_end_matches('/').to_owned();
            let is_url =
                reqwest::Url::parse(&address).is_ok_and(|url| url.has_host() && url.scheme().starts_with("http"));
            if !is_url || member == 0 {
                let detail = "a member has a number from 1 on and a URL, such as http://10.0.0.8:7400";
                return Err(ApiError::new(Code::InvalidRequest, detail));
            }
            MemberChange::Add { member, address }
        }
        ChangeCluster::Remove { member } => MemberChange::Remove { member, is_gone: false },
        ChangeCluster::Forget { member } => MemberChange::Remove { member, is_gone: true },
        ChangeCluster::Replace { member } => MemberChange::Replace { member },
        ChangeCluster::Transfer { member } => return transfer(front, member).await,
    };
    front.member.change(change).await.map_err(|error| match error {
        ChangeError::Refused(why) => ApiError::new(Code::MembersUnchanged, why),
        ChangeError::Store(error) => error.into(),
    })?;
    ok(&status_of(front))
}

/// Hands the lead over, and waits until another member leads.
pub(super) async fn transfer(front: &Front, to: Option<u64>) -> Answer {
    front.own.store.confirm_now().await?;
    let own = front.member.number();
    let votes = |member: u64| front.member.members().borrow().seats.get(&member).is_some_and(|seat| seat.votes);
    match to {
        Some(to) if to == own => return ok(&status_of(front)),
        Some(to) if !votes(to) => {
            let detail = format!("member {to} cannot lead: it is no member of the cluster that votes");
            return Err(ApiError::new(Code::MembersUnchanged, detail));
        }
        Some(to) => {
            if let Some(why) = why_not(&front.member.heard(), to) {
                return Err(ApiError::new(Code::MembersUnchanged, format!("member {to} cannot lead: {why}")));
            }
        }
        None => {
            let (members, heard) = (front.member.members(), front.member.heard());
            let mut others = heard.keys().filter(|number| **number != own && votes(**number));
            // Before calls are held up for nothing.
            if members.borrow().that_vote(true).count() < 2 || others.all(|number| why_not(&heard, *number).is_some()) {
                return Err(no_successor());
            }
        }
    }
    // Those that come meanwhile wait here, and are served by whoever leads then.
    let shut = front.own.serving.shut(SERVED_WITHIN).await;
    let is_led = hand_over(front, to).await;
    drop(shut);
    if is_led { ok(&status_of(front)) } else { Err(no_successor()) }
}

fn no_successor() -> ApiError {
    ApiError::new(Code::MembersUnchanged, "no other member has taken the lead: does one that votes stand for election?")
}

/// Returns why a member is not given the lead, as far as it has said.
fn why_not(heard: &BTreeMap<u64, Heard>, member: u64) -> Option<String> {
    match heard.get(&member) {
        Some(heard) if heard.ago > SILENT => Some(format!("it was not heard of for {} s", SILENT.as_secs())),
        Some(Heard { declines: true, .. }) => Some("it says that it does not stand for election".to_owned()),
        Some(_) => None,
        None => Some("it was not heard of".to_owned()),
    }
}

/// Hands the lead over; where nobody is named, to one after the other, as each says that it does not take it. Returns
/// whether another member leads in time.
async fn hand_over(front: &Front, to: Option<u64>) -> bool {
    let (own, mut standing) = (front.member.number(), front.member.standing());
    let handing_over = async {
        for _ in 0..TRIES {
            if front.member.hand_over(to).await {
                let is_led = |standing: &Standing| standing.leader.is_some_and(|leader| leader != own);
                return standing.wait_for(is_led).await.is_ok();
            }
            if to.is_some_and(|to| why_not(&front.member.heard(), to).is_some()) {
                return false;
            }
            // One that leads since a moment ago learns within a few milliseconds how far the others have come.
            sleep(NEXT_TRY_AFTER).await;
        }
        false
    };
    timeout(LEADS_WITHIN, handing_over).await.unwrap_or(false)
}
