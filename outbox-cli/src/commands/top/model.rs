//! What the screen shows, and what a key does to that.
//!
//! Invariant: no key changes anything but what is shown.

use outbox::core::Aggregate;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::arguments::Subject;
use super::sample::Sample;

/// The pages, in the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Relays,
    Consumers,
    Blocked,
    Dead,
}

impl Page {
    pub(super) const ALL: [Self; 5] = [
        Self::Overview,
        Self::Relays,
        Self::Consumers,
        Self::Blocked,
        Self::Dead,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "1 overview",
            Self::Relays => "2 relays",
            Self::Consumers => "3 consumers",
            Self::Blocked => "4 blocked",
            Self::Dead => "5 dead letters",
        }
    }
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Nothing,
    /// Why something does not arrive.
    Why(Subject),
    /// The end.
    End,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) outbox: String,
    pub(super) stream: String,
    /// `None` until the first look.
    pub(super) sample: Option<Sample>,
    /// The index of the page.
    pub(super) page: usize,
    /// The row that is selected on each page.
    pub(super) selected: [usize; Page::ALL.len()],
    /// What was asked for, and the answer when it is there.
    pub(super) why: Option<(String, Option<String>)>,
}

impl Model {
    pub(super) fn new(outbox: &str, stream: &str) -> Self {
        Self {
            outbox: outbox.to_owned(),
            stream: stream.to_owned(),
            sample: None,
            page: 0,
            selected: [0; Page::ALL.len()],
            why: None,
        }
    }

    pub(super) fn page(&self) -> Page {
        Page::ALL[self.page]
    }

    pub(super) fn show(&mut self, sample: Sample) {
        self.sample = Some(sample);
        for page in 0..Page::ALL.len() {
            self.selected[page] = self.selected[page].min(self.rows(page).saturating_sub(1));
        }
    }

    /// Shows an answer, unless it is no longer waited for.
    pub(super) fn answer(&mut self, text: String) {
        if let Some((_, answer)) = &mut self.why {
            *answer = Some(text);
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Ask {
        if key.kind == KeyEventKind::Release {
            return Ask::Nothing;
        }
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        if is_interrupt || key.code == KeyCode::Char('q') {
            return Ask::End;
        }
        if self.why.is_some() {
            // One answer at a time: an answer that is waited for cannot be taken for that of another question.
            if self.why.as_ref().is_some_and(|(_, answer)| answer.is_some()) {
                self.why = None;
            }
            return Ask::Nothing;
        }
        let pages = Page::ALL.len();
        match key.code {
            KeyCode::Char(digit @ '1'..='5') => self.page = digit as usize - '1' as usize,
            KeyCode::Tab | KeyCode::Right => self.page = (self.page + 1) % pages,
            KeyCode::BackTab | KeyCode::Left => self.page = (self.page + pages - 1) % pages,
            KeyCode::Up => self.selected[self.page] = self.selected[self.page].saturating_sub(1),
            KeyCode::Down => {
                let last = self.rows(self.page).saturating_sub(1);
                self.selected[self.page] = (self.selected[self.page] + 1).min(last);
            }
            KeyCode::Enter => return self.ask(),
            _ => {}
        }
        Ask::Nothing
    }

    /// Asks for the row that is selected.
    fn ask(&mut self) -> Ask {
        let Some(sample) = &self.sample else {
            return Ask::Nothing;
        };
        let row = self.selected[self.page];
        let aggregate =
            |aggregate_type: &str, id: &str| Subject::Aggregate(Aggregate::new(aggregate_type, id));
        let asked = match self.page() {
            Page::Blocked => sample.blocked.get(row).map(|row| {
                let name = format!("{}/{}", row.aggregate_type, row.aggregate_id);
                (name, aggregate(&row.aggregate_type, &row.aggregate_id))
            }),
            Page::Dead => sample
                .dead
                .get(row)
                .map(|row| (row.id.to_string(), Subject::Message(row.id))),
            _ => None,
        };
        let Some((name, subject)) = asked else {
            return Ask::Nothing;
        };
        self.why = Some((name, None));
        Ask::Why(subject)
    }

    fn rows(&self, page: usize) -> usize {
        let Some(sample) = &self.sample else {
            return 0;
        };
        match Page::ALL[page] {
            Page::Overview => 0,
            Page::Relays => sample.relays.len(),
            Page::Consumers => sample.consumers.len(),
            Page::Blocked => sample.blocked.len(),
            Page::Dead => sample.dead.len(),
        }
    }
}
