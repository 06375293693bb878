use chrono_tz::{Europe, UTC};

use super::*;

fn of_user(text: &str) -> Crontab {
    Crontab::parse(text, CrontabKind::User, UTC)
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
    let crontab = Crontab::parse("17 * * * * root cd / && x\n@daily root\n@daily\n", CrontabKind::System, UTC);
    assert_eq!(refused(&crontab), [(2, "has no command"), (3, "has no command")]);
    let [entry] = &crontab.entries[..] else { panic!("{crontab:?}") };
    assert_eq!((entry.user.as_deref(), entry.command.as_str()), (Some("root"), "cd / && x"));
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
}

#[test]
fn what_cannot_be_a_schedule_is_told_with_its_line_and_the_rest_is_read() {
    let crontab = of_user(
        "@reboot x\nMAILTO=root\nMAILTO=\"\"\n* * * *\n0 0 31 2 * x\n\
         0~30 * * * * x\n@daily\n-* * * * * x\n0 0 * * * x\n",
    );
    assert_eq!(
        refused(&crontab),
        [
            (1, "runs when the machine starts, which is no time of a calendar"),
            (2, "no mail is sent; events can be subscribed to instead"),
            (4, "has fewer than five fields of time"),
            (5, "never fires: no month has such a day"),
            (6, "minute `0~30`: must be from 0 to 59"),
            (7, "has no command"),
            (8, "minute `-*`: must be from 0 to 59"),
        ]
    );
    assert_eq!(crontab.entries.iter().map(|entry| entry.line).collect::<Vec<_>>(), [9]);
}
