use chrono_tz::Asia::Kolkata;
use chrono_tz::{Europe, UTC};

use super::*;

fn of_user(text: &str) -> Crontab {
    Crontab::parse(text, CrontabKind::User, UTC, "c")
}

fn refused(crontab: &Crontab) -> Vec<(usize, &str)> {
    crontab.not_understood.iter().map(|refused| (refused.line, refused.why.as_str())).collect()
}

#[test]
fn a_line_has_the_environment_and_the_comment_that_stand_above_it() {
    let crontab = of_user(
        "# Not about a line.\n\nPATH = /usr/bin:/bin\n# Reports\n#  of the day\n5 4 * * sun\t./report --all\n\
         X=\" a \"\n\
         'Y'=''\n@daily true\r\n",
    );
    assert_eq!(refused(&crontab), []);
    let [first, second] = &crontab.entries[..] else { panic!("{crontab:?}") };
    assert_eq!((first.line, first.expression.as_str(), first.command.as_str()), (6, "5 4 * * sun", "./report --all"));
    assert_eq!(first.comment.as_deref(), Some("Reports\nof the day"));
    assert_eq!(first.environment, BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]));
    assert_eq!((second.line, second.command.as_str(), second.comment.as_deref()), (9, "true", None));
    let added = [("X", " a "), ("Y", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(second.environment, first.environment.clone().into_iter().chain(added).collect());
}

#[test]
fn a_percent_sign_begins_the_input_and_ends_its_lines_unless_it_is_escaped() {
    for (line, command, input) in [
        ("mail -s x%Dear all,%%It is 5 \\% now.%", "mail -s x", Some("Dear all,\n\nIt is 5 % now.\n")),
        ("cat%first%second", "cat", Some("first\nsecond\n")),
        ("date +\\%F", "date +%F", None),
        ("echo \\\\ a=b", "echo \\\\ a=b", None),
        ("cat%", "cat", Some("")),
    ] {
        let crontab = of_user(&format!("* * * * * {line}"));
        let [entry] = &crontab.entries[..] else { panic!("{crontab:?}") };
        assert_eq!((entry.command.as_str(), entry.input.as_deref()), (command, input), "{line}");
    }
}

#[test]
fn the_system_names_a_user_before_each_command() {
    let crontab = Crontab::parse("17 * * * * root cd / && x\n@daily root\n@daily\n", CrontabKind::System, UTC, "c");
    assert_eq!(refused(&crontab), [(2, "has no command"), (3, "has no command")]);
    let [entry] = &crontab.entries[..] else { panic!("{crontab:?}") };
    assert_eq!((entry.user.as_deref(), entry.command.as_str()), (Some("root"), "cd / && x"));
    for line in ["0 2 * * * /usr/local/bin/backup --all", "*/5 * * * * cd /srv && ./poll"] {
        let why = Crontab::parse(line, CrontabKind::System, UTC, "c").not_understood.remove(0).why;
        assert!(why.contains("without `--system`"), "{why}");
    }
    let named = "0 2 * * * svc@corp x\n0 2 * * * DOM\\user x\n0 2 * * * test x";
    assert_eq!(Crontab::parse(named, CrontabKind::System, UTC, "c").entries.len(), 3);
    assert_eq!(of_user("0 2 * * * root -b -q x.C").entries.len(), 1, "a program of that name");
    let why = of_user("17 * * * * root cd /").not_understood.remove(0).why;
    assert!(why.contains("`--system`"), "{why}");
}

#[test]
fn times_are_in_the_zone_that_stands_above_them_and_in_none_that_is_not_known() {
    let crontab = of_user(
        "@daily a\nCRON_TZ=Europe/Berlin\n@daily b\nCRON_TZ=Europe/Berln\n@daily c\nTZ=Asia/Kolkata\n\
         CRON_TZ=UTC\n@daily d",
    );
    let zones: Vec<(&str, Tz)> =
        crontab.entries.iter().map(|entry| (entry.command.as_str(), entry.period.zone)).collect();
    assert_eq!(zones, [("a", UTC), ("b", Europe::Berlin), ("d", UTC)]);
    let lines: Vec<usize> = refused(&crontab).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [4, 5]);
    assert!(refused(&crontab)[0].1.contains("did you mean `Europe/Berlin`?"));

    let crontab =
        Crontab::parse("CRON_TZ='Europe/Berlin'\n@daily a\nCRON_TZ=\"\"\n@daily b", CrontabKind::User, Kolkata, "c");
    assert_eq!(refused(&crontab), []);
    let zones: Vec<Tz> = crontab.entries.iter().map(|entry| entry.period.zone).collect();
    assert_eq!(zones, [Europe::Berlin, Kolkata], "an empty one ends the one above it");
}

#[test]
fn forms_that_only_crontabs_have_are_read_as_cron_reads_them() {
    let fields = |line: &str| {
        let crontab = of_user(&format!("{line} x"));
        assert_eq!(refused(&crontab), [], "{line}");
        crontab.entries[0].expression.clone()
    };
    for (line, expected) in [
        ("-*/15 * * * *", "*/15 * * * *"),
        ("*/60 * * * *", "0 * * * *"),
        ("0 */24 * * *", "0 0 * * *"),
        ("0 0 1 */12 *", "0 0 1 1 *"),
        ("0 0 */31 * *", "0 0 1 * *"),
        ("0 0 * * */7", "0 0 * * 0"),
        ("*/30 * * * *", "*/30 * * * *"),
        ("@every_minute", "* * * * *"),
    ] {
        assert_eq!(fields(line), expected, "{line}");
    }
    let mut drawn = std::collections::BTreeSet::new();
    let of = |name: &str, command: &str| {
        let line = format!("6~8,30~ ~ * * * {command}\n");
        let crontab = Crontab::parse(&line.repeat(2), CrontabKind::User, UTC, name);
        crontab.entries.iter().map(|entry| entry.expression.clone()).collect::<Vec<String>>()
    };
    for number in 0..200 {
        let name = number.to_string();
        for expression in of(&name, "x") {
            let (minutes, rest) = expression.split_once(' ').expect("fields");
            let [first, second] =
                [0, 1].map(|at| minutes.split(',').nth(at).and_then(|value| value.parse::<u8>().ok()));
            let (first, second) = (first.expect("a number"), second.expect("a number"));
            let hour: u8 = rest.trim_end_matches(" * * *").parse().expect("a number");
            assert!((6..=8).contains(&first) && (30..=59).contains(&second) && hour <= 23, "{expression}");
            drawn.insert((first, hour));
        }
        assert_eq!(of(&name, "x"), of(&name, "another command"), "the times are those of the place");
    }
    assert!(drawn.len() > 50, "they are spread: {drawn:?}");
}

#[test]
fn what_may_look_otherwise_is_noted_and_is_read_all_the_same() {
    let crontab = of_user("MAILTO=ops\nRANDOM_DELAY=30\nPATH=/opt:$PATH\n~ 4 * * * x\n*/90 * * * * y");
    assert_eq!((refused(&crontab), crontab.entries.len()), (Vec::new(), 2));
    let noted: Vec<usize> = crontab.notes.iter().map(|note| note.line).collect();
    assert_eq!(noted, [1, 2, 3, 4, 5], "{:?}", crontab.notes);
    assert_eq!(crontab.entries[0].environment["PATH"], "/opt:$PATH");
    assert_eq!(crontab.notes[4].why, "minute `*/90` is 0");
}

#[test]
fn what_cannot_be_a_schedule_is_told_with_its_line_and_the_rest_is_read() {
    let crontab = of_user(
        "@reboot x\nMAILTO=\"\"\n* * * *\n0 0 31 2 * x\n\
         0~60 * * * * x\n@daily\n5/15 * * * * x\n0 0 * * *\u{a0} x\n\"0 * * * *\" x\n0 0 12 ? * MON x\n\
         0 0/5 * * * ? x\n0 0 * * * x\n0 0 1 * */7 x\n",
    );
    assert_eq!(
        refused(&crontab),
        [
            (1, "runs when the machine starts, which is no time of a calendar"),
            (3, "has fewer than five fields of time"),
            (4, "never fires: no month has such a day"),
            (5, "minute `0~60`: must be from 0 to 59"),
            (6, "has no command"),
            (7, "minute `5/15`: a step needs `*` or a range before it, such as `5-59/15`"),
            (8, "has the character U+00A0 where a blank belongs"),
            (9, "has quotes around its fields of time, which crontabs have not"),
            (10, "has the fields of Quartz: leave out the seconds, and write `*` for `?`"),
            (11, "has the fields of Quartz: leave out the seconds, and write `*` for `?`"),
        ]
    );
    assert_eq!(crontab.entries.iter().map(|entry| entry.line).collect::<Vec<_>>(), [12, 13]);
    assert_eq!(crontab.entries[1].expression, "0 0 1 * */7", "a day has to be in both fields");
}
