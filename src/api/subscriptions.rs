//! The calls about subscriptions.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::App;
use super::allowed::{Admin, Allowed};
use super::error::{ApiError, Code};
use super::extract::{JobPath, JsonBody};
use super::json::json;
use crate::notify::{SubscriptionError, Subscriptions};
use crate::wire::{SigningKey, Subscribe, Subscription, SubscriptionList};

/// Subscribes a receiver to events.
///
/// Only this answer has the secret. A receiver that answers 410 is switched off. After any other answer than 2xx the
/// delivery is retried for hours, and then stays as a failed job in the queue `leasehold.notifications`.
#[utoipa::path(post, path = "/v1/subscriptions", tag = "notifications", request_body = Subscribe,
    responses((status = 201, description = "Subscribed", body = Subscription)))]
pub(crate) async fn subscribe(
    Allowed { caller, .. }: Allowed<Admin>,
    State(app): State<App>,
    JsonBody(new): JsonBody<Subscribe>,
) -> Result<Response, ApiError> {
    let made = subscriptions(&app)?.create(&caller, new.into_new()?).await?;
    Ok(json(StatusCode::CREATED, &Subscription::with_secret(&made)))
}

/// Lists the subscriptions.
#[utoipa::path(get, path = "/v1/subscriptions", operation_id = "subscriptions", tag = "notifications",
    responses((status = 200, description = "The subscriptions", body = SubscriptionList)))]
pub(crate) async fn list(_: Allowed<Admin>, State(app): State<App>) -> Result<Response, ApiError> {
    let all = subscriptions(&app)?.all();
    let items = all.iter().map(|subscription| Subscription::from(&**subscription)).collect();
    Ok(json(StatusCode::OK, &SubscriptionList { items, next_cursor: None }))
}

/// Returns a subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{id}", operation_id = "subscription", tag = "notifications",
    params(("id" = String, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription", body = Subscription)))]
pub(crate) async fn get(_: Allowed<Admin>, State(app): State<App>, JobPath(id): JobPath) -> Result<Response, ApiError> {
    let found = subscriptions(&app)?.get(id.as_str()).await?;
    Ok(json(StatusCode::OK, &Subscription::from(&found)))
}

/// Removes a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{id}", tag = "notifications",
    params(("id" = String, Path, description = "The subscription's id")),
    responses((status = 204, description = "The subscription is removed")))]
pub(crate) async fn remove(
    _: Allowed<Admin>,
    State(app): State<App>,
    JobPath(id): JobPath,
) -> Result<Response, ApiError> {
    subscriptions(&app)?.remove(id.as_str()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Switches a subscription on again.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/enable", tag = "notifications",
    params(("id" = String, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription", body = Subscription)))]
pub(crate) async fn enable(
    _: Allowed<Admin>,
    State(app): State<App>,
    JobPath(id): JobPath,
) -> Result<Response, ApiError> {
    let changed = subscriptions(&app)?.switch_on(id.as_str()).await?;
    Ok(json(StatusCode::OK, &Subscription::from(&changed)))
}

/// Changes a subscription's secret.
///
/// Messages carry a signature of the new and one of the former secret until the next change, so that the receiver can
/// switch over at any time.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/secret", tag = "notifications",
    params(("id" = String, Path, description = "The subscription's id")),
    responses((status = 200, description = "The subscription with its new secret", body = Subscription)))]
pub(crate) async fn change_secret(
    _: Allowed<Admin>,
    State(app): State<App>,
    JobPath(id): JobPath,
) -> Result<Response, ApiError> {
    let changed = subscriptions(&app)?.change_secret(id.as_str()).await?;
    Ok(json(StatusCode::OK, &Subscription::with_secret(&changed)))
}

/// Returns the secret that signs the messages to receivers that a job names itself.
#[utoipa::path(get, path = "/v1/admin/signing-key", tag = "notifications",
    responses((status = 200, description = "The key", body = SigningKey)))]
pub(crate) async fn signing_key(_: Allowed<Admin>, State(app): State<App>) -> Result<Response, ApiError> {
    let secret = subscriptions(&app)?.signing_key().await?.reveal();
    Ok(json(StatusCode::OK, &SigningKey { secret }))
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
