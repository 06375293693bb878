//! Changes of the members of a cluster, and of who leads, as the audit has them.

use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use super::members::{NOWHERE, Process, pair};
use super::server::problem;

async fn change(member: &Process, order: Value) -> Response {
    Client::new().post(member.url("/v1/admin/cluster")).json(&order).send().await.expect("an answer")
}

#[tokio::test]
async fn no_member_is_changed_without_an_entry_and_the_lead_is_handed_over_without_one_too() {
    let [leader, _other] = pair(NOWHERE).await;
    let (remove, transfer) = (json!({ "action": "remove", "member": 3 }), json!({ "action": "transfer", "member": 2 }));
    // It was elected, and has no manager yet.
    leader.sees(1, Some(1));
    let refused = problem(change(&leader, remove.clone()).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "not_leader"));
    assert_eq!(change(&leader, transfer.clone()).await.status(), StatusCode::OK);
    assert_eq!(leader.status().await.leader, Some(2));

    leader.sees(3, Some(1));
    let _manager = leader.take_office();
    assert_eq!(change(&leader, remove).await.status(), StatusCode::OK);
    assert_eq!(change(&leader, transfer).await.status(), StatusCode::OK);
    leader.sees(5, Some(1));
    let nobody = problem(change(&leader, json!({ "action": "transfer", "member": 9 })).await).await;
    assert_eq!(nobody.code, "members_unchanged");
    let audit = reqwest::get(leader.url("/v1/audit?event=cluster_changed")).await.expect("an answer");
    let audit: Value = audit.json().await.expect("JSON");
    let to = |entry: &Value| {
        let order: Value = serde_json::from_str(entry["change"]["to"].as_str().expect("an order")).expect("JSON");
        (order["action"].clone(), order["member"].clone(), entry["change"]["refused"].clone())
    };
    let found: Vec<_> = audit["items"].as_array().expect("a list").iter().map(to).collect();
    let of = |action: &str, member: u64, refused: bool| (action.into(), member.into(), refused.into());
    let (nobody, refused) = (of("transfer", 9, false), of("transfer", 9, true));
    assert_eq!(found, [refused, nobody, of("transfer", 2, false), of("remove", 3, false)], "{audit}");
}
