//! The metric that names schedules in trouble. As with queues, what is known of them is written anew each time, and a
//! schedule whose trouble is over has no series any more.

use std::fmt::Write as _;

use metrics_exporter_prometheus::formatting::sanitize_label_value;

use super::queue_metrics::head_of;
use crate::job::ScheduleId;
use crate::schedule::Trouble;

const TROUBLE: &str = "leasehold_schedule_trouble";

/// Returns the metric of schedules in trouble.
pub(super) fn of_schedules(in_trouble: &[(ScheduleId, Trouble)]) -> String {
    let mut text = head_of(TROUBLE);
    for (id, trouble) in in_trouble {
        let _ = writeln!(text, "{TROUBLE}{{schedule=\"{}\",kind=\"{trouble}\"}} 1", sanitize_label_value(id.as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_a_series_that_names_its_schedule_whatever_the_id_is() {
        let id = ScheduleId::new(r#"a"b\c"#).expect("an id");
        let text = of_schedules(&[(id.clone(), Trouble::Missed), (id, Trouble::Paused)]);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                r#"leasehold_schedule_trouble{schedule="a\"b\\c",kind="missed"} 1"#,
                r#"leasehold_schedule_trouble{schedule="a\"b\\c",kind="paused"} 1"#,
            ]
        );
    }
}
