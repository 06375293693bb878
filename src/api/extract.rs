//! The extractors of the handlers: the body as JSON or text, the job's id from the path, the query.
//!
//! Every failure is an [`ApiError`] that says what is wrong and where.

use std::convert::Infallible;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::App;
use super::body::{Read, read};
use super::error::{ApiError, Code};
use super::remote::Remote;
use crate::job::strict::{self, Strict};
use crate::job::{ConcurrencyKey, InvalidName, JobId, LimitName, LimitScope, QueueName, ScheduleId, WorkerId};
use crate::wire::Invalid;

/// The longest body of a call about one job, in bytes. It is well above the limit of a payload or result, so that one
/// that is a little too long is still read and named in the refusal.
pub(super) const MAX_SINGLE_BYTES: usize = 4 * 1024 * 1024;
/// The longest body of a bulk call, in bytes.
pub(super) const MAX_BULK_BYTES: usize = 64 * 1024 * 1024;

/// Returns the media type of a request, without parameters.
fn media_type(parts: &Parts) -> Option<&str> {
    Some(parts.headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim())
}

pub(super) fn expect_media_type(parts: &Parts, wanted: &'static str) -> Result<(), ApiError> {
    let given = media_type(parts);
    if given.is_some_and(|given| given.eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    let instead = given.map(|given| format!(", not `{given}`")).unwrap_or_default();
    let detail = format!("the body must be sent with content type `{wanted}`{instead}");
    Err(ApiError::new(Code::UnsupportedMediaType, detail))
}

/// A JSON body of at most `MAX` bytes.
pub(crate) struct JsonBody<T, const MAX: usize = MAX_SINGLE_BYTES>(pub(crate) T);

/// The JSON body of a bulk call.
pub(crate) type BulkBody<T> = JsonBody<T, MAX_BULK_BYTES>;

impl<T: DeserializeOwned, const MAX: usize> FromRequest<App> for JsonBody<T, MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        expect_media_type(&parts, "application/json")?;
        let read = read(&parts, body, MAX).await?;
        parse(&read.bytes).map(Self)
    }
}

/// The JSON body of a call about one job, where the body may be missing.
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let read = read(&parts, body, MAX_SINGLE_BYTES).await?;
        if read.bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        expect_media_type(&parts, "application/json")?;
        parse(&read.bytes).map(Self)
    }
}

/// The lines of a newline-delimited JSON body. Lines with nothing but white space are skipped.
pub(crate) struct Lines(Read);

impl FromRequest<App> for Lines {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        expect_media_type(&parts, "application/x-ndjson")?;
        read(&parts, body, MAX_BULK_BYTES).await.map(Self)
    }
}

impl Lines {
    /// Returns the text of each line.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
    }
}

/// Reads a JSON text. A text that is not JSON and JSON of another shape are refused differently.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    let error = match strict::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if !error.is_data() {
        let what = if text.trim_ascii().is_empty() { "the body is empty".to_owned() } else { error.to_string() };
        return Err(ApiError::new(Code::MalformedJson, what));
    }
    // The text is parsed once more, more slowly, to find the field at fault.
    let whole = strict::without_halves(text);
    let mut json = serde_json::Deserializer::from_slice(whole.as_deref().unwrap_or(text));
    let path = match serde_path_to_error::deserialize::<_, T>(Strict(&mut json)) {
        Ok(_) => String::new(),
        Err(located) => located.path().to_string(),
    };
    Err(Invalid::field(field_at_fault(&path, &error.to_string()), error.to_string()).into())
}

/// The name of the field at fault. One that is missing or comes twice is not on the path, which ends at its object.
fn field_at_fault(path: &str, message: &str) -> String {
    let path = if path == "." { "" } else { path };
    let named = ["missing field `", "duplicate field `"].iter().find_map(|start| message.strip_prefix(start));
    match named.and_then(|rest| rest.split('`').next()) {
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) => format!("{path}.{name}"),
        None => path.to_owned(),
    }
}

/// The job's id in a path.
pub(crate) struct JobPath(pub(crate) JobId);

/// The schedule's id in a path.
pub(crate) struct SchedulePath(pub(crate) ScheduleId);

/// The queue's name in a path.
pub(crate) struct QueuePath(pub(crate) QueueName);

/// The limit that the scope and the name in a path are of.
pub(crate) struct LimitPath(pub(crate) LimitName);

/// What the caller says of its program, if it says anything.
pub(crate) struct UserAgent(pub(crate) Option<String>);

/// The client's address; `None` for a call of this process itself.
pub(crate) struct CallerAddress(pub(crate) Option<IpAddr>);

/// The worker's name in a path.
pub(crate) struct WorkerPath(pub(crate) WorkerId);

impl FromRequestParts<App> for JobPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        name_in_path("id", parts, app).await.map(Self)
    }
}

impl FromRequestParts<App> for SchedulePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        name_in_path("id", parts, app).await.map(Self)
    }
}

impl FromRequestParts<App> for QueuePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        name_in_path("name", parts, app).await.map(Self)
    }
}

impl FromRequestParts<App> for LimitPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path((scope, name)) = Path::<(String, String)>::from_request_parts(parts, app)
            .await
            .map_err(|rejection| ApiError::field("name", rejection.body_text()))?;
        let scope: LimitScope = scope.parse().map_err(|error: String| ApiError::field("scope", error))?;
        let of: ConcurrencyKey =
            name.parse().map_err(|error: InvalidName| ApiError::field("name", error.to_string()))?;
        Ok(Self(LimitName::new(scope, of)))
    }
}

impl FromRequestParts<App> for WorkerPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        name_in_path("worker_id", parts, app).await.map(Self)
    }
}

impl<S: Sync> FromRequestParts<S> for UserAgent {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let said = parts.headers.get(USER_AGENT).and_then(|value| value.to_str().ok());
        Ok(Self(said.filter(|said| !said.trim().is_empty()).map(str::to_owned)))
    }
}

impl FromRequestParts<App> for CallerAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let remote = parts.extensions.get::<Arc<Remote>>();
        Ok(Self(remote.map(|remote| app.guard.proxies.client(remote.address(), &parts.headers))))
    }
}

async fn name_in_path<T>(field: &str, parts: &mut Parts, app: &App) -> Result<T, ApiError>
where
    T: FromStr<Err = InvalidName>,
{
    let Path(name) = Path::<String>::from_request_parts(parts, app)
        .await
        .map_err(|rejection| ApiError::field(field, rejection.body_text()))?;
    name.parse().map_err(|error: InvalidName| ApiError::field(field, error.to_string()))
}

/// The query's parameters, in the order given.
#[derive(Serialize)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    /// Splits values at their commas before they are decoded, so that a comma written as `%2C` is part of a name. A KQL
    /// query keeps its commas.
    fn parse(query: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, values) = pair.split_once('=').unwrap_or((pair, ""));
            if name == "kql" {
                pairs.push((name.to_owned(), decode(values)?));
                continue;
            }
            for value in values.split(',') {
                pairs.push((decode(name)?, decode(value)?));
            }
        }
        Ok(Self(pairs))
    }

    /// Refuses parameters of any other name.
    pub(crate) fn only(&self, names: &[&str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) if names.is_empty() => {
                Err(ApiError::field(name, "is unknown: this call has no parameters"))
            }
            Some((name, _)) => Err(ApiError::field(name, format!("is unknown; there are {}", names.join(", ")))),
        }
    }

    /// Returns the values of a parameter that may have many.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a parameter that has at most one.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut values = self.0.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str());
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(ApiError::field(name, "must have one value")),
        }
    }

    /// Returns the value of a parameter as a number within bounds.
    pub(crate) fn number(&self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse() {
            Ok(number) if bounds.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = bounds.into_inner();
                Err(ApiError::field(name, format!("must be a whole number from {least} to {most}, not `{text}`")))
            }
        }
    }
}

fn decode(text: &str) -> Result<String, ApiError> {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| ApiError::new(Code::MalformedRequest, "the query is not UTF-8"))
}

#[cfg(test)]
mod tests;
