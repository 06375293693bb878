//! The definitions as they are sent, and the documents of what is neither a job nor a schedule, compared with recorded
//! files.

use serde::Serialize;
use serde_json::Value;

use super::ElasticsearchOptions;
use super::archive::Month;
use super::audit::{Audit, Form};
use super::bodies::BodyDocument;
use super::collection::Element;
use super::definition::Definitions;
use super::document::tests::available;
use super::document::{BodyForm, WriteIds};
use super::encryption::EncryptionKeys;
use super::flavour::Flavour;
use super::indices::Kind;
use super::output::{self, CellDocument};
use super::tombstone::{Destination, TombstoneDocument};
use crate::clock::Timestamp;
use crate::golden::{Files, check};
use crate::job::{Body, BodyId, BodyRef, Job, JobId, Json, NewBody, RecordName};
use crate::store::output::OutputCell;
use crate::store::{Record, RecordKey, RecordKind, RecordWrite};

/// Options as they are by default, and others.
fn options() -> [(&'static str, ElasticsearchOptions); 2] {
    let by_default = ElasticsearchOptions::default();
    let set = ElasticsearchOptions { shards: Some(3), replicas: Some(2), ..by_default.clone() };
    [("default", by_default), ("set", set)]
}

fn pretty(sent: &impl Serialize) -> String {
    serde_json::to_string_pretty(sent).expect("JSON") + "\n"
}

/// The ids of the writes of a document.
pub(super) fn write_ids() -> WriteIds {
    let id = |text: &str| text.parse().expect("the id of a write");
    WriteIds { own: id("00000000000000a1-2"), previous: Some(id("00000000000000a1-1")) }
}

#[test]
fn the_definitions_are_as_recorded() {
    let mut files = Files::new();
    for (name, options) in options() {
        let indices = options.indices().expect("names");
        for flavour in [Flavour::Elasticsearch, Flavour::OpenSearch] {
            let mut add =
                |what: String, sent: Value| files.insert(format!("{flavour}-{name}-{what}.json"), pretty(&sent));
            let definitions = Definitions { flavour, indices: &indices, options: &options };
            for kind in Kind::ALL {
                add(format!("{kind:?}"), definitions.of(kind).expect("a definition"));
                add(format!("{kind:?}-template"), definitions.template(kind).expect("a template"));
            }
            let audit = Audit::new(&options.index_prefix, flavour, options.replicas);
            for (form, sent) in
                [("stream", Form::Stream { rolled_over_at: tokio::time::Instant::now() }), ("monthly", Form::Monthly)]
            {
                add(format!("Audit-{form}"), audit.template(sent).expect("a template"));
            }
            add("Output".to_owned(), output::definition(options.replicas).expect("a definition"));
        }
    }
    check("elasticsearch/definitions", &files);
}

#[test]
fn the_documents_of_what_is_no_job_are_as_recorded() {
    let key = RecordKey::new(RecordKind::Queue, RecordName::new("reports").expect("a name"));
    let write = RecordWrite::Create { key, body: Json::parse("{\"a\":1}".to_owned()).expect("JSON") };
    let none = EncryptionKeys::default();
    let record = |form| pretty(&Record::document(&write, write_ids(), form, &none).expect("a document"));
    let at = Timestamp::from_millis(1_900_000_000_000);
    let tombstone = |to| pretty(&TombstoneDocument::new(JobId::new("job-7").expect("an id"), to, at, write_ids()));
    let id = JobId::new("job-7").expect("an id");
    let json = Json::parse("{\"a\": [1]}".to_owned()).expect("JSON");
    let body = NewBody { reference: BodyRef { id: BodyId(uuid::Uuid::from_u128(17)), bytes: 10 }, json };
    let job = Job { id, ..available(Body::Stored(body.reference)) };
    let cell = OutputCell::whole(4096, b"a line\n\xff".to_vec(), true);
    let torn = OutputCell::whole(4000, b"more".to_vec(), false).united(OutputCell::whole(4010, b"end".to_vec(), true));
    let documents = [
        ("body", pretty(&BodyDocument::new(&job, &body, &EncryptionKeys::default()).expect("a document"))),
        ("output", pretty(&CellDocument::of(&torn, Some(at)))),
        ("output-before-gaps", pretty(&CellDocument::of(&cell, None))),
        ("record", record(BodyForm::Json)),
        ("record-text", record(BodyForm::Text)),
        ("tombstone", tombstone(Destination::Nowhere)),
        ("tombstone-month", tombstone(Destination::Month(Month::of(at)))),
    ];
    check("elasticsearch/documents", &documents.map(|(name, text)| (format!("{name}.json"), text)).into());
}
