//! Refusals: every way in which a call is not done, and the only place that knows HTTP status codes for them.
//!
//! A handler fails with an [`ApiError`]. It leaves the handler as a response without a body, which [`super::observe`]
//! fills in on its way out, since only there the request's id is known.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};

use crate::job::{Actor, Fence, JobId, Refusal};
use crate::manager::ManagerError;
use crate::store::StoreError;
use crate::wire::{FieldError, Invalid, ItemError, Problem};

/// The media type of a problem (RFC 9457).
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// The default `Retry-After`, in seconds.
const LATER_SECONDS: u64 = 1;

macro_rules! codes {
    ($($variant:ident $status:ident $code:literal $title:literal;)*) => {
        /// The kinds of refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $(#[doc = $title] $variant,)*
        }

        impl Code {
            /// Every kind of refusal.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the HTTP status of the refusal.
            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// Returns the stable word for the refusal.
            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    MalformedRequest BAD_REQUEST "malformed_request" "The request cannot be read";
    MalformedJson BAD_REQUEST "malformed_json" "The body is not JSON";
    Unauthorized UNAUTHORIZED "unauthorized" "A valid token is needed";
    Forbidden FORBIDDEN "forbidden" "The token lacks a role";
    ForeignLease FORBIDDEN "foreign_lease" "The lease was taken with a token of another name";
    ForeignOrigin FORBIDDEN "foreign_origin" "The request comes from another site";
    NotFound NOT_FOUND "not_found" "There is no such job";
    NoSuchSubscription NOT_FOUND "subscription_not_found" "There is no such subscription";
    TooManySubscriptions CONFLICT "too_many_subscriptions" "There cannot be more subscriptions";
    NoSuchSchedule NOT_FOUND "schedule_not_found" "There is no such schedule";
    ScheduleDiffers CONFLICT "schedule_differs" "Another schedule is stored under this id";
    ScheduleUnreadable CONFLICT "schedule_unreadable" "The schedule cannot be read any more";
    VersionDiffers PRECONDITION_FAILED "version_differs" "The job or schedule has changed since it was read";
    NoSuchWorker NOT_FOUND "no_such_worker" "Nothing is known of this worker";
    NoSuchRoute NOT_FOUND "no_such_route" "There is no such route";
    MethodNotAllowed METHOD_NOT_ALLOWED "method_not_allowed" "The route does not take this method";
    BodyStalled REQUEST_TIMEOUT "body_stalled" "The body did not come in time";
    SubmissionDiffers CONFLICT "submission_differs" "Another job was submitted under this id or key";
    DuplicateJob CONFLICT "duplicate_job" "Another job of the same unique key waits or runs";
    LeaseLost CONFLICT "lease_lost" "The lease is lost";
    NotAvailable CONFLICT "not_available" "The job does not wait to be claimed";
    Held CONFLICT "held" "The job is held";
    StillRunning CONFLICT "still_running" "The job runs";
    NotDue CONFLICT "not_due" "The job is not due";
    StartDeadlinePassed CONFLICT "start_deadline_passed" "The job's start deadline has passed";
    NotRunning CONFLICT "not_running" "The job does not run";
    FenceMoved CONFLICT "fence_moved" "The job was claimed anew";
    AlreadyFinal CONFLICT "already_final" "The job has already ended";
    NotEnded CONFLICT "not_ended" "The job has not ended";
    NotRetryable CONFLICT "not_retryable" "The job cannot be retried";
    NotYet CONFLICT "not_yet" "The time has not come";
    BodyTooLarge PAYLOAD_TOO_LARGE "body_too_large" "The body is too long";
    PayloadTooLarge PAYLOAD_TOO_LARGE "payload_too_large" "The payload or result is too long";
    UnsupportedMediaType UNSUPPORTED_MEDIA_TYPE "unsupported_media_type" "The body has the wrong content type";
    InvalidRequest UNPROCESSABLE_ENTITY "invalid_request" "The request cannot be meant";
    QueryTooSlow UNPROCESSABLE_ENTITY "query_too_slow" "The query takes longer than one may";
    ShareTaken TOO_MANY_REQUESTS "share_taken" "The caller has as much under way as it may";
    HeadersTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE "headers_too_large" "The headers are too long";
    Internal INTERNAL_SERVER_ERROR "internal" "The server failed";
    LeadersLost INTERNAL_SERVER_ERROR "leaders_lost" "Leaders were lost at this call";
    Overloaded SERVICE_UNAVAILABLE "overloaded" "The server has more to do than it takes";
    Contended SERVICE_UNAVAILABLE "contended" "Others write the same job";
    StoreUnavailable SERVICE_UNAVAILABLE "store_unavailable" "The store is not available";
    StoreOutOfOrder SERVICE_UNAVAILABLE "store_out_of_order" "The store is out of order";
    UnreadableDocument SERVICE_UNAVAILABLE "unreadable_document" "The store holds a document that cannot be read";
    OutcomeUnknown SERVICE_UNAVAILABLE "outcome_unknown" "Whether it was done is unknown";
    WrongMember CONFLICT "wrong_member" "The messages are for a member of another cluster, or for another member";
    OtherCluster MISDIRECTED_REQUEST "other_cluster" "The call is for another cluster";
    MembersUnchanged CONFLICT "members_unchanged" "The members of the cluster cannot be changed like that now";
    NoLeader SERVICE_UNAVAILABLE "no_leader" "No member of the cluster leads";
    NotLeader SERVICE_UNAVAILABLE "not_leader" "This member does not lead the cluster";
    ShuttingDown SERVICE_UNAVAILABLE "shutting_down" "The server is shutting down";
}

impl Code {
    /// Returns whether the refusal is a fault of the server, which its operator should find in the log.
    pub(crate) const fn is_a_fault(self) -> bool {
        matches!(self, Self::Internal | Self::LeadersLost | Self::StoreUnavailable | Self::OutcomeUnknown)
    }

    /// Returns the code for a status from a part below the handlers.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::NoSuchRoute,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            StatusCode::PAYLOAD_TOO_LARGE => Self::BodyTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::UnsupportedMediaType,
            status if status.is_client_error() => Self::MalformedRequest,
            _ => Self::Internal,
        }
    }
}

/// What there is instead of what a request expected.
#[derive(Clone, Debug)]
enum Instead {
    /// The job's current fence.
    Fence(Fence),
    /// Another job, which is in the way.
    Job(JobId),
}

/// A refused call.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    code: Code,
    detail: String,
    errors: Vec<FieldError>,
    /// The time after which the client may try again, in seconds.
    retry_after: Option<u64>,
    /// What there is instead of what the request expected.
    instead: Option<Instead>,
    /// The cause for the log, which the answer does not contain.
    cause: Option<Box<str>>,
    /// Whether the log has the cause already, once for all calls.
    is_known: bool,
    /// Whether this process did not lead when the store was to write.
    is_not_led: bool,
    /// The name of the caller's token, where the refusal itself says it. In a box: every call may be refused.
    token: Option<Box<Actor>>,
}

impl ApiError {
    /// Creates a refusal of this kind.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let is_for_later = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&code.status());
        let retry_after = is_for_later.then_some(LATER_SECONDS);
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after,
            instead: None,
            cause: None,
            is_known: false,
            is_not_led: false,
            token: None,
        }
    }

    /// Returns the same refusal of a caller with a token of this name.
    pub(crate) fn of_token(self, name: &Actor) -> Self {
        Self { token: Some(Box::new(name.clone())), ..self }
    }

    /// Returns the name of the caller's token, where the refusal says it.
    pub(crate) fn token(&self) -> Option<&Actor> {
        self.token.as_deref()
    }

    /// Creates a refusal because of one field.
    pub(crate) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::from(Invalid::field(field, message))
    }

    /// Returns the same refusal with a cause for the log.
    pub(crate) fn caused_by(self, cause: impl Into<String>) -> Self {
        Self { cause: Some(cause.into().into_boxed_str()), ..self }
    }

    /// Returns the kind of refusal.
    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    /// Returns whether this process did not lead when the store was to write. What was written before is.
    pub(crate) const fn is_not_led(&self) -> bool {
        self.is_not_led
    }

    /// Returns whether the failure is worth a line in the log.
    pub(crate) fn is_news(&self) -> bool {
        self.code.is_a_fault() && !self.is_known
    }

    /// The cause for the log, which the answer does not contain.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// Returns what was wrong with the request.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the status, and the refusal as one item of a bulk answer.
    pub(crate) fn into_item(self) -> (u16, ItemError) {
        let field = self.errors.into_iter().next().map(|error| error.field).filter(|field| !field.is_empty());
        let error = ItemError { code: self.code.as_str().to_owned(), message: self.detail, field };
        (self.code.status().as_u16(), error)
    }

    /// Returns the problem for the answer's body.
    pub(crate) fn to_problem(&self, request_id: &str) -> Problem {
        let (fence, job_id) = match &self.instead {
            Some(Instead::Fence(fence)) => (Some(fence.get()), None),
            Some(Instead::Job(id)) => (None, Some(id.as_str().to_owned())),
            None => (None, None),
        };
        Problem {
            kind: format!("urn:leasehold:problem:{}", self.code.as_str()),
            title: self.code.title().to_owned(),
            status: self.code.status().as_u16(),
            detail: self.detail.clone(),
            code: self.code.as_str().to_owned(),
            errors: self.errors.clone(),
            fence,
            job_id,
            request_id: request_id.to_owned(),
        }
    }

    /// Returns the refusal behind a response, if it is one: a handler's own, or that of a part below the handlers,
    /// whose plain text is replaced. What another server has answered stands as it is.
    pub(crate) fn of_response(response: &Response) -> Option<Self> {
        if response.extensions().get::<Relayed>().is_some() {
            return None;
        }
        if let Some(refused) = response.extensions().get::<Self>() {
            return Some(refused.clone());
        }
        // A page says itself why it is not the one that was asked for.
        if response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
            return None;
        }
        let status = response.status();
        (status.is_client_error() || status.is_server_error()).then(|| {
            let code = Code::of_status(status);
            Self::new(code, code.title())
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"leasehold\""));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Marks the answer of another server, which is passed on as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relayed;

/// Writes a problem into the response that stands for it.
pub(crate) fn write_problem(response: &mut Response, problem: &Problem) {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.remove(http::header::CONTENT_LENGTH);
    *response.body_mut() = axum::body::Body::from(Bytes::from(body));
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        let code = if invalid.too_large { Code::PayloadTooLarge } else { Code::InvalidRequest };
        Self { errors: invalid.errors.clone(), ..Self::new(code, invalid.to_string()) }
    }
}

impl From<ManagerError> for ApiError {
    fn from(error: ManagerError) -> Self {
        let text = error.to_string();
        match error {
            ManagerError::NotFound(_) => Self::new(Code::NotFound, text),
            ManagerError::Invalid { field, message } => Self::field(field, message),
            ManagerError::SubmissionDiffers(_) => Self::new(Code::SubmissionDiffers, text),
            ManagerError::Duplicate(other) => {
                Self { instead: Some(Instead::Job(other)), ..Self::new(Code::DuplicateJob, text) }
            }
            ManagerError::Refused(refusal) => {
                let fence = match refusal {
                    Refusal::FenceMoved(fence) | Refusal::LeaseLost { fence, .. } => Some(fence),
                    _ => None,
                };
                Self { instead: fence.map(Instead::Fence), ..Self::new(Code::from(&refusal), text) }
            }
            ManagerError::VersionDiffers(_) => Self::new(Code::VersionDiffers, text),
            ManagerError::Contended { .. } => Self::new(Code::Contended, text),
            ManagerError::Store(error) => Self::from(error),
            ManagerError::Unknown(why) => {
                let detail = "whether it was done is unknown; the same request again finds out";
                Self::new(Code::OutcomeUnknown, detail).caused_by(why)
            }
            ManagerError::ShuttingDown => Self::new(Code::ShuttingDown, text),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Overloaded { retry_after } => {
                // Rounded up: `Retry-After` counts whole seconds, and zero would be no wait at all.
                let seconds = retry_after.as_millis().div_ceil(1000).max(1);
                let detail = "more is waiting than the server takes";
                Self { retry_after: u64::try_from(seconds).ok(), ..Self::new(Code::Overloaded, detail) }
            }
            // What a store says of its trouble can name hosts and paths, which are nobody's business out there.
            StoreError::Unavailable(why) => {
                Self::new(Code::StoreUnavailable, "the store is not available").caused_by(why)
            }
            StoreError::NotLeading(why) => Self { is_not_led: true, ..Self::from(StoreError::Unavailable(why)) },
            // It has said why in the log when it stopped.
            StoreError::Stopped(_) => Self { is_known: true, ..Self::new(Code::StoreUnavailable, error.to_string()) },
            StoreError::OutOfOrder(what) => Self::new(Code::StoreOutOfOrder, what),
            StoreError::Unreadable { what, why } => {
                let detail = format!(
                    "{what} cannot be read by this server: a later version wrote it, or somebody changed it by hand"
                );
                Self::new(Code::UnreadableDocument, detail).caused_by(why)
            }
            StoreError::QueryTooSlow { .. } => {
                let advice =
                    "name an owner, or of jobs a state, a queue, a kind or a time, so that it has less to read";
                Self::new(Code::QueryTooSlow, format!("{error}; {advice}"))
            }
            StoreError::Unsupported(what) => Self::new(Code::InvalidRequest, what),
            StoreError::Corrupt(why) => {
                Self::new(Code::Internal, "the store holds something unexpected").caused_by(why)
            }
        }
    }
}

impl From<&Refusal> for Code {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NotAvailable(_) => Self::NotAvailable,
            Refusal::NotOwn => Self::Forbidden,
            Refusal::Held => Self::Held,
            Refusal::TooMany { .. } => Self::InvalidRequest,
            Refusal::StillRunning => Self::StillRunning,
            Refusal::NotEnded(_) => Self::NotEnded,
            Refusal::NotDue(_) => Self::NotDue,
            Refusal::StartDeadlinePassed(_) => Self::StartDeadlinePassed,
            Refusal::LeaseLost { .. } => Self::LeaseLost,
            Refusal::ForeignLease => Self::ForeignLease,
            Refusal::NotRunning(_) => Self::NotRunning,
            Refusal::FenceMoved(_) => Self::FenceMoved,
            Refusal::AlreadyFinal(_) => Self::AlreadyFinal,
            Refusal::NotRetryable(_) | Refusal::NeverCreated => Self::NotRetryable,
            Refusal::NotYet => Self::NotYet,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_two_kinds_share_a_word() {
        let mut words: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
    }

    #[test]
    fn a_wait_shorter_than_a_second_is_not_rounded_to_none() {
        let overloaded = StoreError::Overloaded { retry_after: Duration::from_millis(20) };
        let response = ApiError::from(overloaded).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn what_a_store_says_of_its_trouble_stays_in_the_log() {
        let error = ApiError::from(StoreError::Unavailable("http://user:secret@es:9200 refused".to_owned()));
        assert!(error.cause().is_some_and(|cause| cause.contains("es:9200")));
        assert!(!serde_json::to_string(&error.to_problem("r")).expect("json").contains("es:9200"));
    }

    #[test]
    fn what_was_not_written_for_want_of_the_lead_is_told_apart_in_the_process_only() {
        let not_led = ApiError::from(StoreError::NotLeading("member 2 leads".to_owned()));
        let unavailable = ApiError::from(StoreError::Unavailable("the disk".to_owned()));
        assert!(not_led.is_not_led() && !unavailable.is_not_led());
        assert_eq!(not_led.to_problem("r"), unavailable.to_problem("r"));
    }
}
