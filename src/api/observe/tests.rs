use super::*;

fn with_id(value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static(value))])
}

#[test]
fn a_sane_request_id_is_taken_over_and_any_other_replaced() {
    assert_eq!(request_id(&with_id("trace-17/a:b")), "trace-17/a:b");
    for odd in ["", "a b", "a\tb", "{\"a\":1}"] {
        let given = request_id(&with_id(odd));
        assert!(uuid::Uuid::parse_str(given.to_str().expect("text")).is_ok(), "{odd:?} gave {given:?}");
    }
    let long = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_str(&"x".repeat(129)).expect("value"))]);
    assert_eq!(request_id(&long).len(), 36);
}
