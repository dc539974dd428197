//! `outbox why`: explains missing deliveries.

use std::fmt::Write as _;

use crate::admin::{Cause, Explanation, Finding, MessageOrAggregate, Question};
use clap::Args;

use super::arguments::{PlaceArguments, parse_subject};
use super::place::Place;
use super::stream_view::Stream;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain};

/// Arguments of `outbox why`.
#[derive(Debug, Clone, Args)]
pub struct WhyCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// A message by its id, or an aggregate such as `order/4711`.
    #[arg(value_name = "MESSAGE|TYPE/ID", value_parser = parse_subject)]
    pub subject: MessageOrAggregate,
}

impl WhyCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let question = place.ask(Question::of(&place.store, &self.subject)).await?;
        let stream = Stream::new(&place, &self.place.file);
        let explanation = question.explain(&place.store, &stream, place.timeout).await;
        output::one(self.place.output, &explanation)?;
        let is_absent = |finding: &Finding| finding.cause == Cause::NotRecorded;
        Ok(if explanation.findings.iter().all(is_absent) {
            Outcome::NothingMatched
        } else {
            explanation.state.into()
        })
    }
}

impl Print for Explanation {
    fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let _ = writeln!(text, "{}: {}", finding.cause, plain(&finding.what));
            for next in &finding.next {
                text.push_str(&output::next_line(next, "  "));
            }
            if let Some(advice) = &finding.advice {
                text.push_str(&output::advice_line(advice, "  "));
            }
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "not checked: {}", plain(unseen));
        }
        text
    }
}
