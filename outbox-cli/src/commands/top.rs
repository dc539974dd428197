//! `outbox top`: the same as `status` and the lists, live in a terminal.
//!
//! Invariants: nothing is changed or received, and the database is read by one session that cannot write. One sampler reads, however often the screen is drawn.
//! The terminal is as it was before, whether the program is told to end, fails or panics.

mod model;
mod sample;
mod view;

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use outbox::core::shutdown;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;

use super::arguments::{PlaceArguments, parse_duration};
use super::place::Place;
use super::why;
use crate::failure::{CommandError, Outcome};
use crate::output::Print as _;
use model::{Ask, Model};
use sample::{Sample, Sampler};

/// How long a key waits at most until the thread that reads keys notices that nobody asks for them.
const KEYS: Duration = Duration::from_millis(200);

/// Arguments of `outbox top`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct TopCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The pause between two looks at the database and the stream: from 1 s to 60 s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_interval)]
    pub every: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(60)).contains(&interval) {
        return Ok(interval);
    }
    Err("not between `1s` and `60s`".to_owned())
}

impl TopCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Err(CommandError::configuration(
                "`top` needs a terminal; next: outbox status",
            ));
        }
        let place = Place::open(&self.place).await?.reading(1).await?;
        // A session of its own, so that a question of somebody who looks does not wait for the sampler.
        let asked = place.reading(1).await?;
        let stop = shutdown::on_signals();
        let mut model = Model::new(place.outbox.name(), &place.outbox.section.stream.name);
        let (sampled, mut samples) = mpsc::channel(1);
        let sampling = sample_for_ever(Sampler::new(place), self.every, sampled);
        tokio::pin!(sampling);
        let mut answers = FuturesUnordered::new();
        let mut screen = Screen::open().map_err(CommandError::failed)?;
        let mut keys = keys();
        loop {
            let drawn = screen.0.draw(|frame| view::draw(frame, &model));
            drawn.map_err(CommandError::failed)?;
            tokio::select! {
                () = stop.cancelled() => return Ok(Outcome::Well),
                never = &mut sampling => match never {},
                Some(sample) = samples.recv() => model.show(sample),
                Some(answer) = answers.next() => model.answer(answer),
                event = keys.recv() => match event {
                    Some(Event::Key(key)) => match model.press(key) {
                        Ask::Nothing => {}
                        Ask::Why(subject) => answers.push(answer(&asked, subject)),
                        Ask::End => return Ok(Outcome::Well),
                    },
                    // Anything else, such as another size, only draws it anew.
                    Some(_) => {}
                    None => return Err(CommandError::failed("the terminal cannot be read")),
                },
            }
        }
    }
}

/// Looks, and hands over what it has seen.
async fn sample_for_ever(mut sampler: Sampler, every: Duration, sampled: mpsc::Sender<Sample>) -> Infallible {
    loop {
        // The receiver lives as long as this future.
        let _ = sampled.send(sampler.look().await).await;
        tokio::time::sleep(every).await;
    }
}

/// The lines that `outbox why` prints.
async fn answer(place: &Place, subject: super::arguments::Subject) -> String {
    match why::explain(place, None, &subject).await {
        Ok(explanation) => explanation.text().unwrap_or_default(),
        Err(CommandError::Configuration(error) | CommandError::Failed(error)) => error.to_string(),
    }
}

/// The terminal while it shows this program.
struct Screen(DefaultTerminal);

impl Screen {
    /// Also lets a panic restore the terminal before its text is printed.
    fn open() -> std::io::Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What is typed. The thread ends soon after nobody asks any more.
fn keys() -> mpsc::Receiver<Event> {
    let (typed, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !typed.is_closed() {
            let event = match event::poll(KEYS) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if typed.blocking_send(event).is_err() {
                return;
            }
        }
    });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_looks_has_bounds() {
        assert_eq!(parse_interval("1s"), Ok(Duration::from_secs(1)));
        for text in ["0s", "999ms", "61s"] {
            assert!(parse_interval(text).unwrap_err().contains("`60s`"), "{text}");
        }
    }
}
