//! The calls about subscriptions.

use std::sync::Arc;

use axum::response::IntoResponse;
use http::StatusCode;

use super::App;
use super::call::{Admin, Answer, Call};
use super::error::{ApiError, Code};
use super::extract::{JobPath, JsonBody};
use super::json::{json, ok};
use crate::executor::TargetUrl;
use crate::job::JobId;
use crate::manager::ChangeName;
use crate::notify::{SubscriptionError, Subscriptions};
use crate::wire::{Page, SigningKey, Subscribe, Subscription};

/// Subscribes a receiver to events.
///
/// Only this answer has the secret. A receiver that answers 410 is switched off. After any other answer than 2xx the
/// delivery is retried for hours, and then stays as a failed job in the queue `leasehold.notifications`.
#[utoipa::path(post, path = "/v1/subscriptions", tag = "notifications", request_body = Subscribe,
    responses(
        (status = 201, description = "Subscribed", body = Subscription),
        (status = 404, description = "`no_such_route`: this server does not deal with notifications"),
        (status = 409, description = "`too_many_subscriptions`"),
    ))]
pub(crate) async fn subscribe(call: Call<Admin>, JsonBody(new): JsonBody<Subscribe>) -> Answer {
    let new = new.into_new()?;
    let subscriptions = subscriptions(&call.app)?;
    // The rest of the URL can be secret: at some receivers the path is all that one needs to send to them.
    let target = TargetUrl::parse(&new.url).map_err(|error| ApiError::field("url", error.to_string()))?;
    let change = call.change(ChangeName::SubscriptionMade).of(target.origin());
    let made = call.audited(change, subscriptions.create(&call.caller.name, new)).await?;
    Ok(json(StatusCode::CREATED, &Subscription::with_secret(&made)))
}

/// Lists the subscriptions.
#[utoipa::path(get, path = "/v1/subscriptions", operation_id = "subscriptions", tag = "notifications",
    responses(
        (status = 200, description = "The subscriptions", body = Page<Subscription>),
        (status = 404, description = "`no_such_route`: this server does not deal with notifications"),
    ))]
pub(crate) async fn list(call: Call<Admin>) -> Answer {
    let all = subscriptions(&call.app)?.all();
    let items: Vec<Subscription> = all.iter().map(|subscription| Subscription::from(&**subscription)).collect();
    ok(&Page { items, next_cursor: None })
}

/// Returns a subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{id}", operation_id = "subscription", tag = "notifications",
    params(("id" = JobId, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription", body = Subscription)))]
pub(crate) async fn get(call: Call<Admin>, JobPath(id): JobPath) -> Answer {
    let found = subscriptions(&call.app)?.get(id.as_str()).await?;
    ok(&Subscription::from(&found))
}

/// Removes a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{id}", tag = "notifications",
    params(("id" = JobId, Path, description = "The subscription's id")),
    responses((status = 204, description = "The subscription is removed")))]
pub(crate) async fn remove(call: Call<Admin>, JobPath(id): JobPath) -> Answer {
    let change = call.change(ChangeName::SubscriptionRemoved).of(&id);
    call.audited(change, subscriptions(&call.app)?.remove(id.as_str())).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Switches a subscription on again.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/enable", tag = "notifications",
    params(("id" = JobId, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription", body = Subscription)))]
pub(crate) async fn enable(call: Call<Admin>, JobPath(id): JobPath) -> Answer {
    let change = call.change(ChangeName::SubscriptionEnabled).of(&id);
    let changed = call.audited(change, subscriptions(&call.app)?.switch_on(id.as_str())).await?;
    ok(&Subscription::from(&changed))
}

/// Changes a subscription's secret.
///
/// Messages carry a signature of the new and one of the former secret until the next change, so that the receiver can
/// switch over at any time.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/secret", tag = "notifications",
    params(("id" = JobId, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription with its new secret", body = Subscription)))]
pub(crate) async fn change_secret(call: Call<Admin>, JobPath(id): JobPath) -> Answer {
    let change = call.change(ChangeName::SubscriptionSecretChanged).of(&id);
    let changed = call.audited(change, subscriptions(&call.app)?.change_secret(id.as_str())).await?;
    ok(&Subscription::with_secret(&changed))
}

/// Returns the secret that signs the messages to receivers that a job names itself.
#[utoipa::path(get, path = "/v1/admin/signing-key", tag = "notifications",
    responses(
        (status = 200, description = "The key", body = SigningKey),
        (status = 404, description = "`no_such_route`: this server does not deal with notifications"),
    ))]
pub(crate) async fn signing_key(call: Call<Admin>) -> Answer {
    let change = call.change(ChangeName::SigningKeyRead);
    let secret = call.audited(change, subscriptions(&call.app)?.signing_key()).await?.reveal();
    ok(&SigningKey { secret })
}

fn subscriptions(app: &App) -> Result<&Arc<Subscriptions>, ApiError> {
    let here = app.subscriptions.as_ref();
    here.ok_or_else(|| ApiError::new(Code::NoSuchRoute, "this server does not deal with notifications"))
}

impl From<SubscriptionError> for ApiError {
    fn from(error: SubscriptionError) -> Self {
        let text = error.to_string();
        match error {
            SubscriptionError::NotFound(_) => Self::new(Code::NoSuchSubscription, text),
            SubscriptionError::Url(_) => Self::field("url", text),
            SubscriptionError::TooMany => Self::new(Code::TooManySubscriptions, text),
            SubscriptionError::Contended => Self::new(Code::Contended, text),
            SubscriptionError::Store(error) => Self::from(error),
            SubscriptionError::Unknown(why) => {
                Self::new(Code::OutcomeUnknown, "whether it was done is unknown").caused_by(why)
            }
        }
    }
}
