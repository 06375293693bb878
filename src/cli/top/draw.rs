//! How the view is drawn.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::app::{App, Mode, OpenJob, SORTS, Tab};
use super::view::{View, lease_left, progress};
use crate::cli::output::clean;
use crate::cli::statistics::{age, failing, per_minute};
use crate::wire::JobState;

/// A column, and from which width of the terminal on it is shown.
type Column = (&'static str, u16, Constraint);

const JOBS: [Column; 8] = [
    ("job", 0, Constraint::Fill(3)),
    ("state", 0, Constraint::Length(9)),
    ("queue", 50, Constraint::Fill(2)),
    ("kind", 70, Constraint::Fill(2)),
    ("worker", 90, Constraint::Fill(2)),
    ("for", 40, Constraint::Length(8)),
    ("lease", 110, Constraint::Length(8)),
    ("progress", 60, Constraint::Fill(2)),
];
const QUEUES: [Column; 7] = [
    ("queue", 0, Constraint::Fill(2)),
    ("waiting", 0, Constraint::Length(9)),
    ("running", 0, Constraint::Length(9)),
    ("oldest", 50, Constraint::Length(9)),
    ("per minute", 70, Constraint::Length(11)),
    ("failing", 80, Constraint::Length(9)),
    ("paused", 40, Constraint::Fill(1)),
];
const WORKERS: [Column; 4] = [
    ("worker", 0, Constraint::Fill(2)),
    ("running", 0, Constraint::Length(8)),
    ("last seen", 50, Constraint::Length(10)),
    ("queues", 60, Constraint::Fill(2)),
];

const KEYS: &str = "\
1 2 3, Tab   jobs, queues, workers
j k, arrows  go down and up
/            filter the jobs by a KQL query
s            sort the jobs in another order
Enter        open the job and follow its output
c            cancel the job
t            retry the job
r            take the job from its worker
p            pause or resume the queue
q, Esc       back, or end";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, has_colours: bool) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(header(app)), head);
    match &app.mode {
        Mode::Opened(job) => draw_job(frame, job, body),
        _ => draw_list(frame, app, body, has_colours),
    }
    frame.render_widget(Paragraph::new(footer(app)), foot);
    if app.mode == Mode::Help {
        let area = centred(body, 48, KEYS.lines().count() as u16 + 2);
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(KEYS).block(Block::new().borders(Borders::ALL).title("keys")), area);
    }
}

fn header(app: &App) -> Text<'static> {
    let tab = |tab: Tab| {
        let style = if tab == app.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {} {} ", tab.title(), app.rows(tab)), style), Span::raw(" ")]
    };
    let tabs = Line::from_iter(Tab::ALL.into_iter().flat_map(tab));
    let below = match (&app.trouble, &app.mode) {
        (Some(trouble), _) => format!("no answer; asking until there is one: {}", clean(trouble)),
        (None, Mode::Filter(text)) => format!("/{}\u{2588}", clean(text)),
        (None, _) if app.tab == Tab::Jobs => format!("{}   (sorted by {})", clean(&app.query), SORTS[app.sort]),
        (None, _) => String::new(),
    };
    Text::from(vec![tabs, Line::raw(below)])
}

fn footer(app: &App) -> Line<'static> {
    match (&app.mode, &app.message) {
        (Mode::Confirm(change), _) => Line::styled(
            format!("{} y/n", clean(&change.question())),
            Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
        ),
        (_, Some(message)) => Line::raw(clean(message).replace('\n', " ")),
        (Mode::Opened(_), None) => Line::raw("q back  c cancel  t retry  r release  j/k scroll"),
        (_, None) => Line::raw("q end  / filter  s sort  Enter open  p pause  ? keys"),
    }
}

fn draw_list(frame: &mut Frame<'_>, app: &App, area: Rect, has_colours: bool) {
    let Some(view) = &app.view else { return };
    let (columns, rows): (&[Column], Vec<Vec<Cell<'static>>>) = match app.tab {
        Tab::Jobs => (&JOBS, job_rows(view, has_colours)),
        Tab::Queues => (&QUEUES, queue_rows(view)),
        Tab::Workers => (&WORKERS, worker_rows(view)),
    };
    if rows.is_empty() {
        let nothing = match app.tab {
            Tab::Jobs => "no jobs match",
            Tab::Queues => "there are no queues",
            Tab::Workers => "no worker has called",
        };
        return frame.render_widget(Paragraph::new(nothing), area);
    }
    let shown: Vec<usize> = (0..columns.len()).filter(|column| columns[*column].1 <= area.width).collect();
    let visible = |cells: Vec<Cell<'static>>| {
        Row::new(cells.into_iter().enumerate().filter(|(column, _)| shown.contains(column)).map(|(_, cell)| cell))
    };
    let header =
        Row::new(shown.iter().map(|column| columns[*column].0)).style(Style::new().add_modifier(Modifier::DIM));
    let table = Table::new(rows.into_iter().map(visible), shown.iter().map(|column| columns[*column].2))
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut chosen = TableState::new().with_selected(Some(app.chosen[app.tab as usize]));
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn cell(text: impl AsRef<str>) -> Cell<'static> {
    Cell::new(clean(text.as_ref()).replace(['\n', '\t'], " "))
}

fn job_rows(view: &View, has_colours: bool) -> Vec<Vec<Cell<'static>>> {
    let row = |job: &crate::wire::Job| {
        let state = match has_colours {
            true => cell(job.state.as_str()).style(Style::new().fg(colour(job.state))),
            false => cell(job.state.as_str()),
        };
        vec![
            cell(&job.id),
            state,
            cell(&job.queue),
            cell(&job.kind),
            cell(job.lease.as_ref().map(|lease| lease.worker_id.to_string()).unwrap_or_default()),
            cell(age(job.started_at.filter(|_| job.state == JobState::Running), view.at)),
            cell(lease_left(job, view.at)),
            cell(progress(job)),
        ]
    };
    view.jobs.iter().map(row).collect()
}

fn queue_rows(view: &View) -> Vec<Vec<Cell<'static>>> {
    let row = |queue: &crate::wire::Queue| {
        let count = |state| queue.jobs.get(&state).copied().unwrap_or(0).to_string();
        let pause = queue.pause.as_ref().and_then(|pause| pause.reason.clone());
        vec![
            cell(queue.name.to_string()),
            cell(count(JobState::Available)),
            cell(count(JobState::Running)),
            cell(age(queue.oldest_waiting_since, view.at)),
            cell(per_minute(queue)),
            cell(failing(queue)),
            cell(if queue.paused { pause.unwrap_or_else(|| "paused".to_owned()) } else { String::new() }),
        ]
    };
    view.queues.iter().map(row).collect()
}

fn worker_rows(view: &View) -> Vec<Vec<Cell<'static>>> {
    let row = |worker: &crate::wire::Worker| {
        let queues: Vec<String> = worker.queues.iter().map(ToString::to_string).collect();
        vec![
            cell(worker.id.to_string()),
            cell(worker.running.to_string()),
            cell(age(worker.last_seen_at, view.at)),
            cell(queues.join(", ")),
        ]
    };
    view.workers.items.iter().map(row).collect()
}

const fn colour(state: JobState) -> Color {
    match state {
        JobState::Available => Color::Reset,
        JobState::Running => Color::Cyan,
        JobState::Completed => Color::Green,
        JobState::Failed | JobState::Expired => Color::Red,
        JobState::Cancelled => Color::Yellow,
    }
}

fn draw_job(frame: &mut Frame<'_>, job: &OpenJob, area: Rect) {
    let [above, below] = Layout::vertical([Constraint::Percentage(50), Constraint::Min(3)]).areas(area);
    let page = Paragraph::new(job.page.clone()).wrap(Wrap { trim: false }).scroll((job.scrolled, 0));
    frame.render_widget(page, above);
    let block = Block::new().borders(Borders::TOP).title("output");
    let lines = usize::from(block.inner(below).height);
    let output = clean(&job.output).replace('\t', "    ");
    let all: Vec<&str> = output.lines().collect();
    let last = all[all.len().saturating_sub(lines)..].join("\n");
    frame.render_widget(Paragraph::new(last).block(block), below);
}

/// Returns an area of at most this size in the middle of another.
fn centred(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    Rect { x, y, width, height }
}
