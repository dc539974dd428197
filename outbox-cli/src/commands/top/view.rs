//! Draws what the model holds.
//!
//! Invariant: no text of somebody else reaches the terminal with control characters.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState, Tabs, Wrap};

use outbox_admin::{BacklogCounts, ConsumerRow, PauseRow, State, Status};

use super::super::{foresee, status, text};
use super::model::{Model, Page};
use super::sample::Sample;
use crate::hint;
use crate::output::{Print, plain};

/// Widest column but the last.
const WIDTH_MAX: usize = 40;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let [title, tabs, body, help] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(sentence(model), title);
    let titles = Page::ALL.map(Page::title);
    let selected = Style::new().bold().reversed();
    frame.render_widget(
        Tabs::new(titles).select(model.page).highlight_style(selected),
        tabs,
    );
    if let Some((subject, answer)) = &model.why {
        let answer = answer.as_deref().unwrap_or("asking");
        let lines: Vec<Line<'_>> = answer.lines().map(|line| Line::raw(plain(line))).collect();
        let block = Block::bordered().title(format!(" why {} ", plain(subject)));
        frame.render_widget(
            Paragraph::new(lines).block(block).wrap(Wrap { trim: false }),
            body,
        );
        frame.render_widget(Line::raw("any key goes back · q ends").dim(), help);
        return;
    }
    if let Some(sample) = &model.sample {
        page(frame, model, sample, body);
    }
    let keys = "1-5 tab pages · ↑ ↓ rows · enter why · q ends · it changes nothing";
    frame.render_widget(Line::raw(keys).dim(), help);
}

fn sentence(model: &Model) -> Line<'static> {
    let status = model.sample.as_ref().and_then(|sample| sample.status.as_ref());
    match status {
        Some(status) => {
            let text = status::sentence(&plain(&model.outbox), &plain(&model.stream), status.state);
            Line::styled(text, of_state(status.state))
        }
        None if model.sample.is_none() => Line::raw(format!("{}: looking", plain(&model.outbox))),
        None => Line::raw(format!("{}: not seen", plain(&model.outbox))),
    }
}

/// The words say it, too, so that nobody needs the colours.
fn of_state(state: State) -> Style {
    let style = Style::new().bold();
    match state {
        State::Well => style.fg(Color::Green),
        State::Degraded => style.fg(Color::Yellow),
        _ => style.fg(Color::Red),
    }
}

fn page(frame: &mut Frame<'_>, model: &Model, sample: &Sample, area: Rect) {
    let mut state = TableState::new().with_selected(model.selected[model.page]);
    match model.page() {
        Page::Overview => {
            let lines = overview(sample);
            frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
        }
        Page::Relays => frame.render_stateful_widget(table(&sample.relays, &[]), area, &mut state),
        Page::Consumers => {
            let forecast: Vec<String> = sample.consumers.iter().map(|row| forecast(row, sample)).collect();
            frame.render_stateful_widget(table(&sample.consumers, &forecast), area, &mut state);
        }
        Page::Blocked => frame.render_stateful_widget(table(&sample.blocked, &[]), area, &mut state),
        Page::Dead => frame.render_stateful_widget(table(&sample.dead, &[]), area, &mut state),
    }
}

fn overview(sample: &Sample) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(status) = &sample.status {
        for reason in &status.reasons {
            let what = format!("{:<8}  {}", reason.state.as_str(), plain(&reason.what));
            lines.push(Line::styled(what, of_state(reason.state)));
            let next = hint::lines(&reason.next, "          ");
            lines.extend(next.lines().map(|line| Line::raw(line.to_owned())));
        }
        lines.extend(counts(status).map(Line::raw));
        for pause in &status.pauses {
            lines.push(Line::raw(paused(pause)).fg(Color::Yellow));
        }
    }
    let stored = sample.stored.map(|rate| format!("{rate:.0}/s"));
    lines.push(Line::raw(format!(
        "stream      stores {}",
        stored.as_deref().unwrap_or("-")
    )));
    if let Some(log) = &sample.log {
        lines.push(Line::raw(log.line()));
    }
    for row in &sample.consumers {
        lines.push(Line::raw(format!(
            "consumer    {}: {}, undelivered {}",
            plain(&row.consumer),
            row.state.as_str(),
            row.undelivered
                .map_or_else(|| "-".to_owned(), |count| count.to_string())
        )));
    }
    if let Some(forecast) = &sample.forecast {
        lines.extend(
            foresee::lines(forecast)
                .lines()
                .map(|line| Line::raw(line.to_owned())),
        );
    }
    for unseen in &sample.unseen {
        lines.push(Line::raw(format!("not seen    {}", plain(unseen))).fg(Color::Yellow));
    }
    lines
}

fn counts(status: &Status) -> [String; 3] {
    let (backlog, relays) = (&status.backlog, &status.relays);
    let oldest = backlog.oldest_unpublished.map(text::duration);
    [
        format!(
            "messages    pending {}, of these waiting {}, oldest {}, dead letters {}",
            backlog.pending_text(),
            BacklogCounts::text(backlog.waiting),
            oldest.unwrap_or_else(|| "-".to_owned()),
            BacklogCounts::text(backlog.dead_letters)
        ),
        format!(
            "aggregates  blocked {}, of these halted {}",
            backlog.blocked_aggregates, backlog.halted_aggregates
        ),
        format!(
            "relays      alive {}, ailing {}; partitions owned {} of {}",
            relays.alive, relays.ailing, status.partitions.owned, status.partitions.all
        ),
    ]
}

/// A pause that stands: who, since when, until when, and why.
fn paused(pause: &PauseRow) -> String {
    let ends = match pause.ends_in {
        Some(left) => format!("for {} more", text::duration(left)),
        None => "until `outbox unpause`".to_owned(),
    };
    format!(
        "paused      {} by {} since {}, {ends}: {}",
        plain(&pause.scope()),
        plain(&pause.by),
        text::time(pause.since),
        plain(&pause.reason)
    )
}

/// What is to come for a consumer, as `status --forecast` says it.
fn forecast(row: &ConsumerRow, sample: &Sample) -> String {
    let prospects = sample.forecast.iter().flat_map(|forecast| &forecast.prospects);
    let of_it = prospects.filter(|prospect| prospect.name == row.consumer);
    let words: Vec<String> = of_it.map(|prospect| plain(&prospect.what)).collect();
    match words.is_empty() {
        true => "-".to_owned(),
        false => words.join("; "),
    }
}

/// The columns of the lists; with `more`, one more at the end.
fn table<T: Print>(rows: &[T], more: &[String]) -> Table<'static> {
    let columns: Vec<_> = T::COLUMNS.iter().filter(|column| !column.is_wide).collect();
    let mut names: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|column| plain(&(column.text)(row))).collect())
        .collect();
    if !more.is_empty() {
        names.push("FORECAST".to_owned());
        for (row, more) in cells.iter_mut().zip(more) {
            row.push(more.clone());
        }
    }
    let width = |index: usize| {
        let widest = cells.iter().filter_map(|row| row.get(index));
        let widest = widest.map(|cell| cell.chars().count()).max().unwrap_or_default();
        let width = widest.max(names[index].len()).min(WIDTH_MAX);
        Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX))
    };
    let mut widths: Vec<Constraint> = (0..names.len()).map(width).collect();
    if let Some(last) = widths.last_mut() {
        *last = Constraint::Fill(1);
    }
    Table::new(cells.into_iter().map(Row::new), widths)
        .header(Row::new(names).bold())
        .row_highlight_style(Style::new().reversed())
        .column_spacing(2)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use outbox::core::{
        FetchRequest, Fitness, Lease, OutboxAdmin as _, OutboxStore as _, OwnerId, PauseRequest, Verdict,
    };
    use outbox::testing::MemoryStore;
    use outbox::testing::conformance::probe::Probe;
    use outbox_admin::BrokerCheck;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::super::arguments::{Subject, parse_aggregate};
    use super::super::model::Ask;
    use super::*;

    fn screen(model: &Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(140, 16)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    fn press(model: &mut Model, code: KeyCode) -> Ask {
        model.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    const ALL: NonZeroU32 = NonZeroU32::new(10).unwrap();

    /// Sets aside what waits, and settles the first message that is due.
    async fn settle_first(store: &MemoryStore, leases: &[Lease], verdict: Option<Verdict>) {
        let request = FetchRequest {
            leases,
            limit: ALL,
            bytes: usize::MAX,
            in_flight: &[],
        };
        let fetched = store.fetch(request).await.unwrap();
        store.settle(leases, &fetched.waits).await.unwrap();
        if let (Some(row), Some(verdict)) = (fetched.due.first(), verdict) {
            let settlement = row.with_verdict(verdict);
            assert_eq!(store.settle(leases, &[settlement]).await.unwrap(), 1);
        }
    }

    /// An outbox in which `probe/1` is halted by a dead letter, and another message waits behind it.
    async fn halted() -> MemoryStore {
        const LONG: Duration = Duration::from_secs(600);
        let (store, owner) = (MemoryStore::new(), OwnerId::fresh());
        for number in 1..=2 {
            store.record([Probe::noted("1", number)]).unwrap();
        }
        store.announce(owner, LONG, &Fitness::Fit.into()).await.unwrap();
        let leases = store.acquire(owner, LONG, 64).await.unwrap();
        let verdict = Verdict::Dead {
            error: "maximum payload exceeded".to_owned(),
            halt: true,
        };
        settle_first(&store, &leases, Some(verdict)).await;
        settle_first(&store, &leases, None).await;
        store
    }

    /// A look at a backlog.
    fn look(pending: u64) -> outbox_admin::Seen {
        outbox_admin::Seen {
            pending: Some((pending, true)),
            ..outbox_admin::Seen::default()
        }
    }

    async fn model() -> Model {
        let (store, all) = (halted().await, ALL);
        let mut model = Model::new("shop", "SHOP");
        let checked = BrokerCheck::Checked(Vec::new());
        let dead = outbox::core::Selection::dead_letters();
        model.show(Sample {
            status: Some(outbox_admin::status(&store, &checked).await.unwrap()),
            relays: outbox_admin::relays(&store).await.unwrap(),
            blocked: outbox_admin::blocked(&store, all).await.unwrap(),
            dead: outbox_admin::list(&store, &dead, all).await.unwrap(),
            stored: Some(1204.0),
            forecast: Some(outbox_admin::forecast(
                &look(0),
                &look(120),
                Duration::from_secs(60),
            )),
            unseen: vec!["consumers\u{1b}[2J".to_owned()],
            ..Sample::default()
        });
        model
    }

    #[tokio::test(start_paused = true)]
    async fn the_overview_says_what_status_says() {
        let screen = screen(&model().await);
        for text in [
            "shop -> SHOP: degraded",
            "1 aggregate is halted by a dead letter",
            "next: outbox blocked --halted",
            "pending 1, of these waiting 1",
            "stores 1204/s",
            "if it goes on as in the last 60s:",
            "not seen    consumers\\u{1b}[2J",
            "it changes nothing",
        ] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        assert!(!screen.contains('\u{1b}'), "{screen}");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_choose_pages_and_ask_why() {
        let mut model = model().await;
        assert_eq!(press(&mut model, KeyCode::Enter), Ask::Nothing);
        press(&mut model, KeyCode::Char('4'));
        assert!(screen(&model).contains("probe/1"), "{}", screen(&model));
        press(&mut model, KeyCode::Down);
        let order = Subject::Aggregate(parse_aggregate("probe/1").unwrap());
        assert_eq!(press(&mut model, KeyCode::Enter), Ask::Why(order));
        assert!(screen(&model).contains("asking"), "{}", screen(&model));
        assert_eq!(press(&mut model, KeyCode::Enter), Ask::Nothing);
        model.answer("dead-letter: too large".to_owned());
        let shown = screen(&model);
        assert!(
            shown.contains("why probe/1") && shown.contains("dead-letter: too large"),
            "{shown}"
        );
        press(&mut model, KeyCode::Esc);
        press(&mut model, KeyCode::Tab);
        assert_eq!(model.page(), Page::Dead);
        assert!(
            screen(&model).contains("maximum payload exceeded"),
            "{}",
            screen(&model)
        );
        press(&mut model, KeyCode::Tab);
        assert_eq!(model.page(), Page::Overview);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.press(interrupt), Ask::End);
        assert_eq!(press(&mut model, KeyCode::Char('q')), Ask::End);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_said_first_with_who_since_when_and_why() {
        let store = MemoryStore::new();
        let owner = OwnerId::fresh();
        let ttl = Duration::from_secs(600);
        store.announce(owner, ttl, &Fitness::Fit.into()).await.unwrap();
        store.acquire(owner, ttl, 64).await.unwrap();
        let request = PauseRequest {
            aggregate_type: Some("order".to_owned()),
            reason: "overrun".to_owned(),
            by: "alice".to_owned(),
            lasts: Some(Duration::from_secs(7_200)),
        };
        store.pause(&request).await.unwrap();
        let mut model = Model::new("shop", "SHOP");
        model.show(Sample {
            status: Some(
                outbox_admin::status(&store, &BrokerCheck::NotAsked)
                    .await
                    .unwrap(),
            ),
            ..Sample::default()
        });
        let screen = screen(&model);
        for text in [
            "shop -> SHOP: degraded",
            "next: outbox unpause --aggregate-type order",
            "paused      aggregates of type order by alice since 2",
            "for 2h more: overrun",
        ] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
    }

    #[test]
    fn before_the_first_look_it_says_so() {
        assert!(screen(&Model::new("shop", "SHOP")).contains("shop: looking"));
    }
}
