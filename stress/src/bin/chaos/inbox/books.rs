//! Compares the published events with their effects and dead letters.

use serde::Serialize;

use super::consumer::is_doomed;

const HANDLED: i16 = 1;
const DEAD: i16 = 2;

#[derive(Debug, Clone, Copy, Default)]
struct Traces {
    effects: u32,
    dead_letters: u32,
    handled: bool,
    dead: bool,
}

#[derive(Debug)]
pub(super) struct Found {
    events: Vec<Traces>,
    ghosts: u64,
    misbehaved: bool,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Books {
    pub(super) events: u64,
    pub(super) handled: u64,
    pub(super) dead_letters: u64,
    /// Dead letters of events that should succeed: random failures or crashes used up their
    /// attempts.
    pub(super) unlucky: u64,
    /// Effects of events whose handler always fails.
    pub(super) torn: u64,
    pub(super) missing: u64,
    pub(super) double_effects: u64,
    /// Dead letters beyond the first of an event, or in addition to an effect.
    pub(super) double_letters: u64,
    /// Inbox rows that contradict the outcome of their event.
    pub(super) wrong_rows: u64,
    /// Effects or dead letters of unpublished events.
    pub(super) ghosts: u64,
}

impl Found {
    pub(super) fn new(events: u32, misbehaved: bool) -> Self {
        Self {
            events: vec![Traces::default(); events as usize],
            ghosts: 0,
            misbehaved,
        }
    }

    pub(super) fn effect(&mut self, number: u128) {
        self.note(Some(number), |traces| traces.effects += 1);
    }

    pub(super) fn row(&mut self, number: u128, status: i16) {
        self.note(Some(number), |traces| {
            traces.handled |= status == HANDLED;
            traces.dead |= status == DEAD;
        });
    }

    pub(super) fn dead_letter(&mut self, number: Option<u128>) {
        self.note(number, |traces| traces.dead_letters += 1);
    }

    fn note(&mut self, number: Option<u128>, note: impl FnOnce(&mut Traces)) {
        let index = number.and_then(|number| usize::try_from(number).ok());
        match index.and_then(|index| self.events.get_mut(index)) {
            Some(traces) => note(traces),
            None => self.ghosts += 1,
        }
    }

    pub(super) fn balance(&self) -> Books {
        let mut books = Books {
            events: self.events.len() as u64,
            ghosts: self.ghosts,
            ..Books::default()
        };
        for (number, traces) in (0..).zip(&self.events) {
            let is_handled = traces.effects > 0;
            let is_dead = traces.dead_letters > 0;
            books.handled += u64::from(is_handled);
            books.dead_letters += u64::from(is_dead);
            let is_doomed = self.misbehaved && is_doomed(number);
            books.unlucky += u64::from(is_dead && !is_doomed);
            books.torn += u64::from(is_handled && is_doomed);
            books.missing += u64::from(!is_handled && !is_dead);
            books.double_effects += u64::from(traces.effects.saturating_sub(1));
            let letters_allowed = u32::from(!is_handled);
            books.double_letters += u64::from(traces.dead_letters.saturating_sub(letters_allowed));
            books.wrong_rows += u64::from((traces.handled, traces.dead) != (is_handled, is_dead));
        }
        books
    }
}

impl Books {
    pub(super) fn is_balanced(&self) -> bool {
        let Self {
            torn,
            missing,
            double_effects,
            double_letters,
            wrong_rows,
            ghosts,
            ..
        } = *self;
        [torn, missing, double_effects, double_letters, wrong_rows, ghosts] == [0; 6]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(change: impl FnOnce(&mut Found)) -> Books {
        let mut found = Found::new(100, true);
        for number in 0..100 {
            let is_dead = number == 1 || number == 99;
            if is_dead {
                found.dead_letter(Some(number));
            } else {
                found.effect(number);
            }
            found.row(number, if is_dead { DEAD } else { HANDLED });
        }
        change(&mut found);
        found.balance()
    }

    #[test]
    fn correct_books_balance() {
        let books = books(|_| {});
        assert!(books.is_balanced());
        assert_eq!((books.handled, books.dead_letters, books.unlucky), (98, 2, 1));
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        assert_eq!(books(|found| found.effect(5)).double_effects, 1);
        assert_eq!(books(|found| found.dead_letter(Some(5))).double_letters, 1);
        assert_eq!(books(|found| found.dead_letter(Some(1))).double_letters, 1);
        assert_eq!(books(|found| found.events[7] = Traces::default()).missing, 1);
        assert_eq!(books(|found| found.events[7].handled = false).wrong_rows, 1);
        assert_eq!(books(|found| found.row(7, DEAD)).wrong_rows, 1);
        assert_eq!(books(|found| found.effect(100)).ghosts, 1);
        assert_eq!(books(|found| found.dead_letter(None)).ghosts, 1);
        let late = books(|found| found.effect(99));
        assert_eq!((late.torn, late.double_letters), (1, 1));
        assert!(!late.is_balanced());
        assert!(!books(|found| found.effect(5)).is_balanced());
        assert!(!books(|found| found.events[7] = Traces::default()).is_balanced());
        assert!(!books(|found| found.row(7, DEAD)).is_balanced());
        assert!(!books(|found| found.effect(100)).is_balanced());
        assert!(!books(|found| found.dead_letter(Some(1))).is_balanced());
    }
}
