//! The delivery of claimed jobs to their worker.
//!
//! A worker that goes away while it waits takes no job: the server drops the call. One that goes away between the
//! claim and the answer would leave its jobs running for nobody until their leases end, so the answer's body keeps hold
//! of them: sent, they are the worker's; dropped before that, they go back. What happens after the answer was handed to
//! the network cannot be seen from here; that is what leases are for. Where another member of the group forwards the
//! answer, that one says when its client's connection has taken it ([`super::front`]).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use serde::Serialize;
use serde::ser::Serializer;

use super::call::Answer;
use super::error::ApiError;
use super::json::{to_long_bytes, with_body};
use crate::job::Json;
use crate::manager::{Claimed, JobView, ManagerError};
use crate::wire::job::JobAnswer;
use crate::wire::{CompletionItem, ItemError, Sight};

/// About how many bytes a claimed job takes in an answer, apart from its payload.
const JOB_BYTES: usize = 1_536;

/// About how many bytes an item for the end of an attempt takes in an answer.
const ITEM_BYTES: usize = 128;

/// Returns the answer to a claim.
pub(crate) fn deliver(claimed: Claimed) -> Answer {
    let out = ClaimOut { jobs: claimed.jobs(), error: None };
    let text = to_long_bytes(&out, out.about_bytes())?;
    Ok(answer(text, claimed))
}

/// Returns the answer to the end of an attempt and the claim of the next jobs.
pub(crate) fn deliver_with_job(job: JobAnswer<'_>, claimed: Result<Claimed, ManagerError>) -> Answer {
    deliver_next(claimed, |next| {
        let about = JOB_BYTES + next.about_bytes();
        to_long_bytes(&EndOut { job, next }, about)
    })
}

/// Returns the answer to the ends of many attempts and the claim of the next jobs.
pub(crate) fn deliver_with_items(items: &[CompletionItem], claimed: Result<Claimed, ManagerError>) -> Answer {
    deliver_next(claimed, |next| {
        let about = ITEM_BYTES * items.len() + next.about_bytes();
        to_long_bytes(&EndsOut { items, next }, about)
    })
}

/// Returns an answer with the claimed jobs, or with why there are none: the call was done all the same, apart from its
/// claim.
fn deliver_next(
    claimed: Result<Claimed, ManagerError>,
    text: impl FnOnce(ClaimOut<'_>) -> Result<Bytes, ApiError>,
) -> Answer {
    let (claimed, error) = match claimed {
        Ok(claimed) => (claimed, None),
        Err(error) => (Claimed::none(), Some(ApiError::from(error).into_item().1)),
    };
    let text = text(ClaimOut { jobs: claimed.jobs(), error })?;
    Ok(answer(text, claimed))
}

fn answer(text: Bytes, claimed: Claimed) -> Response {
    let (is_given_back, has_jobs) = (claimed.is_given_back(), !claimed.jobs().is_empty());
    let parcel = Parcel(Arc::new(Mutex::new(Contents { claimed: Some(claimed), is_held: false })));
    let mut answer = with_body(StatusCode::OK, Body::new(Delivery { text: Some(text), parcel: parcel.clone() }));
    if is_given_back {
        answer.extensions_mut().insert(parcel);
    }
    if has_jobs {
        answer.extensions_mut().insert(HasJobs);
    }
    answer
}

/// Marks an answer that brings jobs: their leases were written.
#[derive(Clone, Copy)]
pub(super) struct HasJobs;

/// The claimed jobs of an answer, which are given back unless they are delivered. It is among the answer's extensions,
/// for whoever knows more of the answer's way than the connection does. Clones are one parcel.
#[derive(Clone)]
pub(super) struct Parcel(Arc<Mutex<Contents>>);

struct Contents {
    /// The jobs; `None` once they are delivered or given back.
    claimed: Option<Claimed>,
    /// Whether it is not enough that the connection takes the answer.
    is_held: bool,
}

impl Parcel {
    /// Holds the jobs until [`Self::delivered`] is called, or the answer's body is dropped.
    pub(super) fn hold(&self) {
        self.0.lock().is_held = true;
    }

    /// Confirms that the worker has the jobs, and returns whether they were not given back before.
    pub(super) fn delivered(&self) -> bool {
        let claimed = self.0.lock().claimed.take();
        claimed.is_some_and(|claimed| {
            claimed.delivered();
            true
        })
    }

    /// Takes note of that the connection takes the answer.
    fn sent(&self) {
        if !self.0.lock().is_held {
            self.delivered();
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct ClaimOut<'a> {
    #[serde(serialize_with = "jobs_out")]
    jobs: &'a [JobView],
    error: Option<ItemError>,
}

impl ClaimOut<'_> {
    fn about_bytes(&self) -> usize {
        self.jobs.iter().map(|view| JOB_BYTES + view.payload.as_ref().map_or(0, Json::bytes)).sum()
    }
}

#[derive(Serialize)]
struct EndOut<'a> {
    job: JobAnswer<'a>,
    next: ClaimOut<'a>,
}

#[derive(Serialize)]
struct EndsOut<'a> {
    items: &'a [CompletionItem],
    next: ClaimOut<'a>,
}

fn jobs_out<S: Serializer>(jobs: &[JobView], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(jobs.iter().map(|job| JobAnswer::with_bodies(job, Sight::Everything)))
}

/// A body of one piece that keeps the claimed jobs until it is sent, or as long as they are held.
struct Delivery {
    text: Option<Bytes>,
    parcel: Parcel,
}

impl http_body::Body for Delivery {
    type Data = Bytes;
    type Error = Infallible;

    /// Called by the connection once it can write.
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.text.take().map(|text| {
            self.parcel.sent();
            Ok(Frame::data(text))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.as_ref().map_or(0, |text| text.len() as u64))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let not_delivered = self.parcel.0.lock().claimed.take();
        drop(not_delivered);
    }
}
