use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::query::kql::Expression;

fn read(text: &str) -> Node {
    parse(text).unwrap_or_else(|error| panic!("{}", error.render()))
}

fn literal(value: Value) -> Literal {
    Literal { value, offset: ByteOffset::default() }
}

fn words(text: &str) -> Literal {
    literal(Value::Words(text.to_owned()))
}

fn phrase(text: &str) -> Literal {
    literal(Value::Phrase(text.to_owned()))
}

fn wild(text: &str) -> Literal {
    let pieces = text.split('*').map(str::to_owned).collect();
    literal(Value::Pattern(Pattern::new(pieces).expect("a wildcard")))
}

fn bare(text: &str) -> Node {
    Node::Is { field: None, value: words(text) }
}

fn is(field: &str, value: &str) -> Node {
    Node::Is { field: Some(words(field)), value: words(value) }
}

fn range(field: &str, operator: Operator, value: &str) -> Node {
    Node::Range { field: words(field), operator, value: words(value) }
}

fn not(node: Node) -> Node {
    Node::Not(Box::new(node))
}

fn nested(path: &str, inside: Node) -> Node {
    Node::Nested { path: words(path), inside: Box::new(inside) }
}

#[test]
fn nothing_but_white_space_asks_for_everything() {
    for text in ["", "  ", "\t\r\n\u{a0}", "*:*", "*: *"] {
        assert_eq!(read(text), Node::everything(), "{text:?}");
    }
}

#[test]
fn white_space_around_a_query_is_nothing_and_inside_a_value_is_part_of_it() {
    assert_eq!(read("  foo "), bare("foo"));
    assert_eq!(read("foo bar"), bare("foo bar"));
    assert_eq!(read("foo   bar"), bare("foo   bar"));
    assert_eq!(read("foo:bar baz"), is("foo", "bar baz"));
    assert_eq!(read(" foo bar \t:\n baz "), is("foo bar", "baz"));
}

#[test]
fn not_binds_closer_than_and_which_binds_closer_than_or() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(bare);
    assert_eq!(read("a and b"), Node::And(vec![a.clone(), b.clone()]));
    assert_eq!(read("a and\u{a0}b"), Node::And(vec![a.clone(), b.clone()]));
    assert_eq!(read("a or b"), Node::Or(vec![a.clone(), b.clone()]));
    let both = Node::And(vec![b.clone(), c.clone()]);
    assert_eq!(read("a or b and c or d"), Node::Or(vec![a.clone(), both, d]));
    let either = Node::Or(vec![a.clone(), b.clone()]);
    assert_eq!(read("(a or b) and c"), Node::And(vec![either.clone(), c]));
    assert_eq!(read("not a and b"), Node::And(vec![not(a), b]));
    assert_eq!(read("not (a or b)"), not(either));
}

#[test]
fn a_chain_of_one_word_is_one_node_however_long() {
    let [a, b, c] = ["a", "b", "c"].map(bare);
    assert_eq!(read("a and b and c"), Node::And(vec![a.clone(), b.clone(), c.clone()]));
    assert_eq!(read("a or b or c"), Node::Or(vec![a, b, c]));
    let Node::Or(nodes) = read(&vec!["a"; 1_000].join(" or ")) else { panic!("an or") };
    assert_eq!(nodes.len(), 1_000);
}

#[test]
fn keywords_are_read_in_any_case() {
    let expected = read("a and not b or c");
    for text in ["a AND NOT b OR c", "a And nOt b oR c"] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn a_keyword_is_one_only_between_white_space() {
    for text in ["and", "or", "not", "foo and", "and foo", "or foo", "android", "nothing", "foo andbar", "corand more"]
    {
        assert_eq!(read(text), bare(text), "{text}");
    }
    assert_eq!(read("foo and and bar"), Node::And(vec![bare("foo"), bare("and bar")]));
    assert_eq!(read("not not"), not(bare("not")));
}

#[test]
fn a_word_that_ends_in_not_ends_the_value() {
    let error = parse("error: cannot connect").expect_err("a quirk of the grammar");
    assert_eq!(error.position, 10);
    assert!(error.suggestion.is_some_and(|advice| advice.contains("quotes")));
    assert!(parse("not not a").is_err());
}

#[test]
fn a_field_has_one_value_or_a_list_with_words_between() {
    assert_eq!(read("foo:bar"), is("foo", "bar"));
    assert_eq!(read("foo:\"bar baz\""), Node::Is { field: Some(words("foo")), value: phrase("bar baz") });
    assert_eq!(read("\"foo bar\":baz"), Node::Is { field: Some(phrase("foo bar")), value: words("baz") });
    let either = Node::Or(vec![is("foo", "bar"), is("foo", "baz")]);
    assert_eq!(read("foo:(bar or baz)"), either);
    assert_eq!(read("foo:( bar OR baz )"), either);
    let expected = Node::And(vec![either, not(is("foo", "qux"))]);
    assert_eq!(read("foo:((bar or baz) and not qux)"), expected);
    assert_eq!(
        read("f:(a or b and not c)"),
        Node::Or(vec![is("f", "a"), Node::And(vec![is("f", "b"), not(is("f", "c"))])])
    );
    assert_eq!(read("f:(not (a or b))"), not(Node::Or(vec![is("f", "a"), is("f", "b")])));
}

#[test]
fn ranges_are_open_or_closed_on_either_side() {
    use Operator::{AtLeast, AtMost, Greater, Less};
    assert_eq!(
        read("bytes > 1000 and bytes < 8000"),
        Node::And(vec![range("bytes", Greater, "1000"), range("bytes", Less, "8000")])
    );
    assert_eq!(
        read("bytes>=1000 and bytes<=8000"),
        Node::And(vec![range("bytes", AtLeast, "1000"), range("bytes", AtMost, "8000")])
    );
    assert_eq!(read("at >= now-15m"), range("at", AtLeast, "now-15m"));
    assert_eq!(read("at < now/d"), range("at", Less, "now/d"));
}

#[test]
fn a_value_with_wildcards_is_bounded_unless_its_only_wildcard_stands_at_its_end() {
    let refused = |value: &str| Expression::parse(&format!("owner: {value}")).expect_err("too long").problem;
    for long in ["a*".repeat(200), format!("*{}", "a".repeat(MAX_PATTERN)), format!("é*{}", "é".repeat(MAX_PATTERN))]
    {
        assert_eq!(refused(&long), "a value with wildcards is longer than 256 characters");
    }
    for fits in
        ["a*".repeat(MAX_PATTERN / 2), format!("*{}", "é".repeat(MAX_PATTERN - 1)), format!("{}*", "a".repeat(900))]
    {
        assert!(Expression::parse(&format!("owner: {fits}")).is_ok(), "{fits}");
    }
}

#[test]
fn a_star_is_a_wildcard_in_names_and_values() {
    assert_eq!(read("foo:*"), Node::Is { field: Some(words("foo")), value: wild("*") });
    assert_eq!(read("machine*:osx"), Node::Is { field: Some(wild("machine*")), value: words("osx") });
    assert_eq!(read("foo:ba* r*"), Node::Is { field: Some(words("foo")), value: wild("ba* r*") });
    assert_eq!(read("* "), Node::Is { field: None, value: wild("*") });
    assert_eq!(read("f:\"a*\""), Node::Is { field: Some(words("f")), value: phrase("a*") });
    assert_eq!(read("f:a\\*"), is("f", "a*"));
    assert_eq!(
        read("f:\\**"),
        Node::Is {
            field: Some(words("f")),
            value: literal(Value::Pattern(Pattern::new(vec!["*".to_owned(), String::new()]).expect("two")))
        }
    );
}

#[test]
fn a_nested_group_is_said_of_one_element() {
    assert_eq!(read("list:{ child: foo }"), nested("list", is("child", "foo")));
    let either = Node::Or(vec![is("child", "foo"), is("child", "bar")]);
    assert_eq!(
        read("response:200 and list:{ child:foo or child:bar }"),
        Node::And(vec![is("response", "200"), nested("list", either)])
    );
    assert_eq!(
        read("a:1 and ( list:{ child:foo } or list:{ child:bar } )"),
        Node::And(vec![
            is("a", "1"),
            Node::Or(vec![nested("list", is("child", "foo")), nested("list", is("child", "bar"))])
        ])
    );
    assert_eq!(read("a:{ b:{ c:d } }"), nested("a", nested("b", is("c", "d"))));
}

#[test]
fn unquoted_values_keep_their_text_but_for_three_words() {
    let value = |text: &str| match read(&format!("f: {text}")) {
        Node::Is { value, .. } => value.value,
        other => panic!("{other}"),
    };
    assert_eq!(value("true"), Value::Flag(true));
    assert_eq!(value("false"), Value::Flag(false));
    assert_eq!(value("null"), Value::Null);
    assert_eq!(value("\\u0074rue"), Value::Flag(true));
    assert_eq!(value("\"true\""), Value::Phrase("true".to_owned()));
    let numbers = [".3", ".00001", "3", "-4", "0", "0.0", "2.0", "790.9", "96565646732345", "070"];
    let others = ["..4", ".3text", "text", ".", "-", "001", "0.0.1", "3.", "--4", "-.4", "-0", "True", "NULL", "w-1"];
    for text in numbers.into_iter().chain(others) {
        assert_eq!(value(text), Value::Words(text.to_owned()));
    }
    assert_eq!(read("null:foo"), bare("foo"), "a field named null is none");
}

#[test]
fn every_escape_means_what_it_stands_for() {
    let cases = [
        (r#"\\\(\)\:\<\>\"\*\{\}"#, r#"\():<>"*{}"#),
        (r"\u0041\u00e9\u20AC", "Aé€"),
        (r"\ud83e\udd80", "🦀"),
        (r"a\tb\rc\nd", "a\tb\rc\nd"),
        (r"a \and b", "a and b"),
        (r"a \OR b", "a OR b"),
        (r"a \NOT b", "a NOT b"),
        // As in Kibana, where the escaped line's end is found first.
        (r"a \not b", "a \not b"),
        (r"a\u0020or b", "a or b"),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text), bare(expected), "{text}");
    }
    assert_eq!(read(r"\tfoo\n"), bare("foo"), "white space at the ends goes, also when it is escaped");
    let quoted = [
        (r#""\\():<>\"*""#, r#"\():<>"*"#),
        (r#""\u00A0x""#, "\u{a0}x"),
        (r#""\x \and \t""#, "\\x \\and \t"),
        (r#""""#, ""),
    ];
    for (text, expected) in quoted {
        assert_eq!(read(text), Node::Is { field: None, value: phrase(expected) }, "{text}");
    }
}

#[test]
fn a_query_that_is_none_is_refused_where_it_goes_wrong() {
    let cases = [
        ("response:", 9),
        ("response:200 or ", 16),
        ("response:(200 or )", 17),
        ("response:200 and not ", 21),
        ("response:(200 and not )", 22),
        ("foo:\"ba ", 4),
        ("foo:\"ba \"r\"", 9),
        ("foo:ba:r", 6),
        ("foo > ", 6),
        ("< 1000", 0),
        ("(a", 2),
        ("a)", 1),
        ("f:(a", 4),
        ("n:{a:b", 6),
        ("C:\\foo", 2),
        ("()", 1),
        ("f:()", 3),
        ("foo and(bar)", 7),
        ("not(a)", 3),
        ("f: \\ud800 x", 3),
        ("ä ö : ü : x", 8),
    ];
    for (text, position) in cases {
        let error = parse(text).expect_err(text);
        assert_eq!(error.position, position, "{}", error.render());
    }
}

#[test]
fn an_error_says_what_could_stand_there() {
    let error = parse("state:(running or )").expect_err("a value is missing");
    assert_eq!(
        error.render(),
        "`)` cannot stand here (at character 19); expected a value, `(` or `not`; where `)` is meant as such, write \
         `\\)` or use quotes\n  state:(running or )\n                    ^"
    );
    let error = parse("a and").and(parse("a and ")).expect_err("something is missing");
    assert_eq!(
        error.render(),
        "the query ends too early (at character 7); expected a field, a value, `(` or `not`\n  a and \n        ^"
    );
    let long = format!("{} x:y:z {}", "ü".repeat(200), "b".repeat(200));
    let error = parse(&long).expect_err("two colons");
    let lines: Vec<String> = error.render().lines().map(str::to_owned).collect();
    let caret = lines[2].chars().count() - 1;
    assert_eq!(lines[1].chars().nth(caret), Some(':'));
    assert!(lines[1].chars().count() < 140);
}

#[test]
fn hostile_texts_are_read_in_one_pass() {
    let deep = "(".repeat(10_000);
    let error = parse(&deep).expect_err("too deep");
    assert_eq!(error.position, MAX_GROUPS);
    for open in ["f:(", "n:{", "not (", "(not "] {
        assert!(parse(&open.repeat(10_000)).is_err());
    }
    assert!(parse(&format!("{}a{}", "(".repeat(MAX_GROUPS), ")".repeat(MAX_GROUPS))).is_ok());
    // With anything much worse than a steady pace these would not end today.
    let long = |text: &str| text.repeat(200_000 / text.len());
    assert!(parse(&long("a or ")).is_err());
    assert!(parse(&format!("{}a", long("a or "))).is_ok());
    for text in ["a ", " ", "*", "no", "\\:", "\\u0041", "a*", "\"a\" or ", "or ", "an", "\u{a0}", "\\", "\""] {
        let _either = parse(&long(text));
        let _either = parse(&format!("f:({}", long(text)));
        let _either = parse(&format!("\"{}", long(text)));
    }
}

fn any_literal() -> impl Strategy<Value = Literal> {
    let plain = || {
        prop_oneof![
            "[a-z ]{1,8}",
            "(not|or|and|NOT|Or|n|t| |a|\u{a0}|\t|\\*|:|\\\\|\"|\\(|\\}|é|🦀){1,6}",
            any::<String>(),
        ]
        .prop_map(|text| trimmed(&text).to_owned())
    };
    let words =
        plain().prop_filter("is read as something else", |text| !matches!(text.as_str(), "null" | "true" | "false"));
    let pattern = proptest::collection::vec(plain(), 2..4).prop_filter_map("a wildcard", Pattern::new);
    prop_oneof![
        4 => words.prop_map(Value::Words),
        2 => any::<String>().prop_map(Value::Phrase),
        2 => pattern.prop_map(Value::Pattern),
        1 => any::<bool>().prop_map(Value::Flag),
        1 => Just(Value::Null),
    ]
    .prop_map(literal)
}

fn any_node() -> impl Strategy<Value = Node> {
    let field = || any_literal().prop_filter("is no field", |field| field.value != Value::Null);
    let operator =
        prop_oneof![Just(Operator::Less), Just(Operator::AtMost), Just(Operator::Greater), Just(Operator::AtLeast)];
    let leaf = prop_oneof![
        (proptest::option::of(field()), any_literal()).prop_map(|(field, value)| Node::Is { field, value }),
        (any_literal(), operator, any_literal()).prop_map(|(field, operator, value)| Node::Range {
            field,
            operator,
            value
        }),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 2..4).prop_map(Node::And),
            proptest::collection::vec(inner.clone(), 2..4).prop_map(Node::Or),
            inner.clone().prop_map(not),
            (any_literal(), inner).prop_map(|(path, inside)| Node::Nested { path, inside: Box::new(inside) }),
        ]
    })
}

proptest! {
    #[test]
    fn a_query_that_is_printed_reads_as_it_was(node in any_node()) {
        let text = node.to_string();
        let again = parse(&text);
        prop_assert_eq!(again.as_ref().map_err(KqlError::render), Ok(&node), "{}", text);
    }

    #[test]
    fn any_text_is_read_or_refused_at_a_place_inside_of_it(text in any::<String>()) {
        if let Err(error) = parse(&text) {
            prop_assert!(error.position <= text.chars().count());
            prop_assert!(error.render().ends_with('^'));
        }
    }

    #[test]
    fn any_text_of_the_languages_own_signs_is_read_or_refused(
        text in "(\\(|\\)|\\{|\\}|:|<|=|>|\"|\\\\|u00|\\*| |and|or|not|true|null|a|é|\u{a0}|\n){0,40}"
    ) {
        match parse(&text) {
            Ok(node) => prop_assert_eq!(parse(&node.to_string()).map_err(|error| error.render()), Ok(node)),
            Err(error) => prop_assert!(error.position <= text.chars().count()),
        }
    }
}
