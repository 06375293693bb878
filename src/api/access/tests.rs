use http::HeaderValue;
use http::header::AUTHORIZATION;

use super::*;

fn token(name: &str, roles: &[Role], secret: &str) -> Token {
    Token {
        name: Actor::new(name).expect("name"),
        roles: roles.iter().copied().collect(),
        sha256: token_hash(secret),
        may_edit_others: false,
    }
}

fn headers(pairs: &[(http::HeaderName, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
}

#[test]
fn a_token_allows_what_its_roles_say_and_nothing_else() {
    let tokens = vec![token("ci", &[Role::Submit], "s3cret"), token("ops", &[Role::Admin], "0ther")];
    let access = Access::new(tokens).expect("tokens");
    let ci = headers(&[(AUTHORIZATION, "Bearer s3cret")]);
    assert_eq!(access.allow(&ci, Role::Submit).expect("allowed").caller.name.as_str(), "ci");
    let refused = access.allow(&ci, Role::Work).expect_err("refused");
    assert_eq!(refused.code(), Code::Forbidden);
    assert!(refused.detail().contains("`work`"), "{}", refused.detail());

    let ops = headers(&[(AUTHORIZATION, "bearer 0ther")]);
    for role in [Role::Read, Role::Submit, Role::Work, Role::Admin] {
        assert_eq!(access.allow(&ops, role).expect("an administrator may do everything").caller.name.as_str(), "ops");
    }
    for wrong in ["Bearer s3cre", "Bearer s3cret0", "Basic s3cret", "Bearer", "s3cret"] {
        let refused = access.allow(&headers(&[(AUTHORIZATION, wrong)]), Role::Submit).expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthorized, "{wrong}");
    }
    assert_eq!(access.allow(&HeaderMap::new(), Role::Read).expect_err("refused").code(), Code::Unauthorized);
}

#[test]
fn a_server_without_tokens_listens_on_loopback_only_unless_told() {
    let at = |text: &str| text.parse::<SocketAddr>().expect("address");
    let open = Access::default();
    for loopback in ["127.0.0.1:7400", "127.8.9.1:1", "[::1]:7400"] {
        assert_eq!(check_exposure(at(loopback), &open, false), Ok(()));
    }
    for elsewhere in ["0.0.0.0:7400", "[::]:7400", "10.1.2.3:7400"] {
        assert_eq!(check_exposure(at(elsewhere), &open, false), Err(AccessError::Exposed(at(elsewhere))));
        assert_eq!(check_exposure(at(elsewhere), &open, true), Ok(()));
        let access = Access::new(vec![token("ci", &[Role::Read], "s")]).expect("tokens");
        assert_eq!(check_exposure(at(elsewhere), &access, false), Ok(()));
    }
}

#[test]
fn tokens_that_cannot_be_meant_are_refused() {
    let name = Actor::new("ci").expect("name");
    let no_hash = Token { sha256: "abc".to_owned(), ..token("ci", &[Role::Read], "s") };
    assert_eq!(Access::new(vec![no_hash]).err(), Some(AccessError::Hash(name.clone())));
    let signed = Token { sha256: format!("+{}", "0".repeat(63)), ..token("ci", &[Role::Read], "s") };
    assert_eq!(Access::new(vec![signed]).err(), Some(AccessError::Hash(name.clone())));
    assert_eq!(Access::new(vec![token("ci", &[], "s")]).err(), Some(AccessError::NoRoles(name.clone())));
    let twice = vec![token("ops", &[Role::Read], "s"), token("ci", &[Role::Work], "s")];
    assert_eq!(Access::new(twice).err(), Some(AccessError::Twice(name)));
}

#[test]
fn tokens_are_renewed_in_every_clone_and_what_cannot_be_meant_changes_nothing() {
    let access = Access::new(vec![token("a", &[Role::Read], "one")]).expect("tokens");
    let clone = access.clone();
    let knows = |secret: &str| clone.know(&headers_of(secret)).is_ok();
    assert_eq!(access.renew(vec![token("a", &[Role::Read], "one")]), Ok(false));
    assert_eq!(access.renew(vec![token("b", &[Role::Read], "two"), token("a", &[Role::Read], "one")]), Ok(true));
    assert!(knows("one") && knows("two"));
    assert_eq!(access.renew(vec![token("b", &[Role::Submit], "two")]), Ok(true));
    assert!(!knows("one") && knows("two"));
    let successor = vec![token("b", &[Role::Submit], "two"), token("b", &[Role::Submit], "three")];
    assert_eq!(access.renew(successor), Ok(true));
    assert!(knows("two") && knows("three"), "two of one name are one holder's");
    assert_eq!(access.names().len(), 1);
    assert_eq!(access.renew(vec![token("b", &[Role::Submit], "two")]), Ok(true));
    assert_eq!(clone.allow(&headers_of("two"), Role::Read).expect_err("refused").code(), Code::Forbidden);
    let twice = vec![token("c", &[Role::Read], "s"), token("d", &[Role::Work], "s")];
    assert!(matches!(access.renew(twice), Err(AccessError::Twice(_))));
    assert_eq!(access.renew(Vec::new()), Err(AccessError::Last), "it would be open to everybody");
    assert!(knows("two") && !clone.is_open());
    assert_eq!(Access::default().renew(vec![token("a", &[Role::Read], "one")]), Err(AccessError::First));
}

fn headers_of(secret: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {secret}")).expect("a value");
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

#[test]
fn no_token_has_a_name_under_which_the_system_acts() {
    for name in crate::job::RESERVED_ACTORS.into_iter().chain(["leasehold.x"]) {
        let token = Token {
            name: Actor::system(name),
            roles: [Role::Read].into(),
            sha256: token_hash("a"),
            may_edit_others: false,
        };
        assert_eq!(Access::new(vec![token]).err(), Some(AccessError::Reserved(Actor::system(name))));
    }
}
