//! Tables at several widths.

use super::*;

const COLUMNS: &[Column] = &[
    Column::id("id"),
    Column::text("queue").weight(70),
    Column::state("state"),
    Column::word("created"),
    Column::text("error").weight(60),
    Column::word("priority").only_wide(),
];

fn rows() -> Vec<Vec<String>> {
    let row = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
    vec![
        row([
            "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5",
            "reports",
            "failed",
            "3m ago",
            "exit: a very long story of why",
            "5",
        ]),
        row(["0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd6", "r", "running", "10s ago", "", "0"]),
        row(["my-job", "r", "retrying in 2h", "10s ago", "", "0"]),
    ]
}

fn at(width: usize) -> String {
    table(COLUMNS, rows(), &Look::plain(Some(width)))
}

#[test]
fn a_wide_terminal_shows_every_column_and_short_ids() {
    assert_eq!(
        at(200),
        "id        queue    state           created  error\n\
         RULE\n\
         bdad0cd5  reports  failed          3m ago   exit: a very long story of why\n\
         bdad0cd6  r        running         10s ago\n\
         my-job    r        retrying in 2h  10s ago"
            .replace("RULE", &"─".repeat(74))
    );
}

#[test]
fn a_text_is_cut_first_and_then_the_lightest_column_goes() {
    let table = at(60);
    assert!(table.contains("exit: a very lo\u{2026}") && table.contains("created"), "{table}");
    let table = at(40);
    assert!(!table.contains("created") && !table.contains("error") && table.contains("reports"), "{table}");
    let table = at(12);
    assert_eq!(table.lines().collect::<Vec<_>>()[2..], ["bdad0cd5", "bdad0cd6", "my-job"], "{table}");
    assert_eq!(at(3).lines().last(), Some("my\u{2026}"));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in 1..100 {
        for line in at(width).lines() {
            assert!(line.width() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn a_wide_table_has_all_there_is() {
    let look = Look { wide: true, ..Look::plain(Some(10)) };
    let table = table(COLUMNS, rows(), &look);
    assert!(table.contains("0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5") && table.contains("priority"), "{table}");
}

#[test]
fn wide_characters_take_two_columns_and_are_never_halved() {
    assert_eq!(cut("漢字漢字", 8), "漢字漢字");
    assert_eq!(cut("漢字漢字", 7), "漢字漢\u{2026}");
    assert_eq!(cut("漢字漢字", 6), "漢字\u{2026}");
    assert_eq!(cut("🇩🇪🇩🇪", 3), "🇩🇪\u{2026}");
    assert_eq!((cut("ab", 1), cut("ab", 0)), ("\u{2026}".to_owned(), String::new()));
}

#[test]
fn ids_are_as_long_as_it_takes_to_tell_them_apart() {
    let ids = |ids: &[&str]| {
        let mut ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        shorten_ids(&mut ids);
        ids
    };
    let twins = ["0197b2f0-6c1e-7c57-a6ac-11dcbdad0cd5", "0197b2f0-6c1e-7c57-a6ac-22dcbdad0cd5", "my-job"];
    assert_eq!(ids(&twins), ["1dcbdad0cd5", "2dcbdad0cd5", "my-job"].map(|id| id.to_owned()));
    assert_eq!(ids(&[twins[0], twins[0]]), ["bdad0cd5", "bdad0cd5"], "one job, listed twice");
    assert_eq!(ids(&[twins[0], "bdad0cd5"]), ["cbdad0cd5", "bdad0cd5"], "an exact id wins");
    assert_eq!(ids(&["0197b2f0-6c1e-7c57-a6ac"]), ["0197b2f0-6c1e-7c57-a6ac"]);
}

#[test]
fn states_have_colors_only_where_colors_are_wanted() {
    let look = Look { colors: true, ..Look::plain(None) };
    let colored = table(COLUMNS, rows(), &look);
    assert!(
        colored.contains("\u{1b}[31mfailed\u{1b}[0m") && colored.contains("\u{1b}[36mrunning\u{1b}[0m"),
        "{colored}"
    );
    assert!(!at(200).contains('\u{1b}'));
}

#[test]
fn a_cell_from_outside_is_one_line_without_control() {
    let hostile = "a\u{1b}[2J\nb\tc\u{202e}d\"'";
    let table = table_of(&["name", hostile], [vec![hostile.to_owned(), "x".to_owned()]], &Look::plain(None));
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.ends_with("a\u{fffd}[2J b c\u{fffd}d\"'  x"), "{table}");
}
