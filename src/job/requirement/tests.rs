use proptest::prelude::*;

use super::definition::{Comparison, Test};
use super::number::Number;
use super::*;

fn requirement(text: &str) -> Requirement {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    text.parse::<Requirement>().expect_err(text).to_string()
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9_.-]{1,64}",
        prop::sample::select(vec!["in".to_owned(), "not".to_owned(), "NOT".to_owned(), "-".to_owned(), ".".to_owned()]),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9_./:-]{0,30}",
        "\\PC{0,8}".prop_filter("it is too long", |text| is_offered_value(text)),
        "[\\\\\" ,()=!]{0,12}",
    ]
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    let values = || prop::collection::btree_set(value(), 1..5).prop_map(Vec::from_iter);
    let number = "-?[0-9]{1,20}(\\.[0-9]{1,5})?";
    let comparisons = vec![Comparison::AtLeast, Comparison::Above, Comparison::AtMost, Comparison::Below];
    let compared = (prop::sample::select(comparisons), number).prop_map(|(comparison, number)| {
        Test::Compares(comparison, Number::parse(&number).expect("a number").shortest())
    });
    let test = prop_oneof![
        Just(Test::Offered),
        Just(Test::NotOffered),
        value().prop_map(Test::Is),
        value().prop_map(Test::IsNot),
        values().prop_map(Test::In),
        values().prop_map(Test::NotIn),
        compared,
    ];
    let whole = (name(), test).prop_map(|(label, test)| Requirement { label, test });
    whole.prop_filter("it is too long", |requirement| requirement.to_string().len() <= MAX_REQUIREMENT_BYTES)
}

proptest! {
    #[test]
    fn the_normal_form_is_read_as_what_it_was_written_from(requirement in any_requirement()) {
        prop_assert_eq!(requirement.to_string().parse::<Requirement>(), Ok(requirement));
    }

    #[test]
    fn no_text_makes_reading_panic(text in "[a-z !=<>(),\"\\\\.0-9äin]{0,40}|\\PC{0,40}") {
        if let Ok(requirement) = text.parse::<Requirement>() {
            prop_assert_eq!(requirement.to_string().parse::<Requirement>(), Ok(requirement));
        }
    }
}

#[test]
fn each_form_has_one_normal_form() {
    for (text, normal) in [
        ("gpu", "gpu"),
        (" ! gpu ", "!gpu"),
        ("hw=fpga", "hw = fpga"),
        ("hw  !=  \"fpga\"", "hw != fpga"),
        ("os in(linux,darwin , linux)", "os in (linux, darwin)"),
        ("os NOT  IN (\"a b\")", "os not in (\"a b\")"),
        ("build>=042.50", "build >= 42.5"),
        ("build < -0", "build < 0"),
        ("image = registry/a:1.2-b_c", "image = registry/a:1.2-b_c"),
        ("note = \"a \\\"b\\\" \\\\ c\"", "note = \"a \\\"b\\\" \\\\ c\""),
        ("empty = \"\"", "empty = \"\""),
        ("in in (in)", "in in (in)"),
        ("not in (in)", "not in (in)"),
        ("not not in (not)", "not not in (not)"),
    ] {
        assert_eq!(requirement(text).to_string(), normal, "{text}");
    }
}

#[test]
fn a_mistake_says_what_is_expected_and_where() {
    for (text, said) in [
        ("", "a label's name (1 to 64 letters, digits, `_`, `-` or `.`) is expected at the end"),
        ("!", "a label's name"),
        (
            "größe = 1",
            "`=`, `!=`, `in (…)`, `not in (…)`, `>=`, `>`, `<=` or `<` is expected in the place of \"öße = 1\"",
        ),
        ("hw fpga", "in the place of \"fpga\""),
        ("hw =", "a value (at most 128 letters"),
        ("hw == fpga", "in the place of \"= fpga\""),
        ("hw = a b", "nothing more is expected in the place of \"b\""),
        ("!hw = a", "nothing more is expected in the place of \"= a\""),
        ("hw = \"a", "with a double quote after it, is expected in the place of \"\\\"a\""),
        ("hw = \"a\tb\"", "without control characters"),
        ("os in linux", "`(` with values after it is expected in the place of \"linux\""),
        ("os in ()", "a value"),
        ("os in (a b)", "`,` or `)` is expected in the place of \"b)\""),
        ("os in (a", "`,` or `)` is expected at the end"),
        ("os not linux", "`in (…)` is expected in the place of \"linux\""),
        ("build >= new", "a decimal number is expected in the place of \"new\""),
        ("build >= 1e3", "a decimal number"),
        ("build >= \"42\"", "a decimal number"),
    ] {
        assert!(refusal(text).contains(said), "{text}: {}", refusal(text));
    }
}

#[test]
fn names_values_and_whole_requirements_have_a_longest() {
    let name = "n".repeat(MAX_OFFERED_NAME);
    let value = "v".repeat(MAX_OFFERED_VALUE);
    assert!(is_offered_name(&name) && is_offered_value(&value));
    requirement(&format!("{name} = {value}"));
    assert!(refusal(&format!("{name}n = {value}")).contains("a label's name"));
    assert!(refusal(&format!("{name} = {value}v")).contains("a value"));
    assert!(refusal(&format!("{name} = \"{value}v\"")).contains("at most 128 bytes"));
    assert!(refusal(&format!("a{}", " ".repeat(256))).contains("at most 256 bytes, not 257"));
    // The normal form has a space after each comma.
    let values = vec!["ab"; 80].iter().enumerate().map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(",");
    assert!(values.len() < MAX_REQUIREMENT_BYTES - 20);
    assert!(refusal(&format!("a in ({values})")).contains("at most 256 bytes, not "));
    for wrong in ["", "a b", "\u{e4}", "a/b"] {
        assert!(!is_offered_name(wrong), "{wrong}");
    }
    assert!(!is_offered_value("a\nb"));
}

#[test]
fn a_label_that_is_not_offered_meets_only_what_excludes_it() {
    let nothing = Offers::new();
    for text in ["hw != fpga", "hw not in (fpga, gpu)", "!hw"] {
        assert!(requirement(text).is_met_by(&nothing), "{text}");
    }
    for text in ["hw = fpga", "hw in (fpga)", "hw", "hw >= 0", "hw > 0", "hw <= 0", "hw < 0", "hw = \"\""] {
        assert!(!requirement(text).is_met_by(&nothing), "{text}");
    }
}

#[test]
fn an_offered_value_is_compared_as_the_requirement_says() {
    let offers: Offers = [("hw", "fpga"), ("build", "43"), ("version", "1.10"), ("empty", "")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    for text in [
        "hw",
        "hw = fpga",
        "hw != gpu",
        "hw in (gpu, fpga)",
        "hw not in (gpu)",
        "build >= 43",
        "build > 42.9",
        "build <= 43.0",
        "build < 100",
        "version > 1.09",
        "version <= 1.1",
        "empty",
        "empty = \"\"",
        "build = 43",
    ] {
        assert!(requirement(text).is_met_by(&offers), "{text}");
    }
    for text in [
        "!hw",
        "hw = gpu",
        "hw != fpga",
        "hw in (gpu)",
        "hw not in (gpu, fpga)",
        "build > 43",
        "build < 43",
        "build >= 44",
        "build = 43.0",
        "hw >= 0",
        "hw < 0",
        "empty >= 0",
        "HW = fpga",
        "hw = FPGA",
    ] {
        assert!(!requirement(text).is_met_by(&offers), "{text}");
    }
}
