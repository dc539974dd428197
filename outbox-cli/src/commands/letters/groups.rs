//! `outbox dead-letters groups`: what fails, since when, and since which deployment.
//!
//! Invariant: nothing is changed. Nobody here knows of deployments but whoever asks.

use clap::Args;
use outbox_admin::{LetterGroup, quoted};
use serde::Serialize;
use time::OffsetDateTime;

use super::super::arguments::{PlaceArguments, parse_time};
use super::super::place::Place;
use super::super::text;
use super::{GROUPED_MAX, LetterSelectionArguments, letters_of};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, say, say_next};

/// Arguments of `outbox dead-letters groups`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct GroupLettersCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The dead letters.
    #[command(flatten)]
    pub selection: LetterSelectionArguments,
    /// A deployment and when it was: `v42=2h`, or with a date or a time by RFC 3339. Each group then names the last one at or before its first failure. May be repeated.
    #[arg(long = "deploy", value_name = "NAME=TIME", value_parser = parse_deployment)]
    pub deployments: Vec<Deployment>,
}

/// A deployment, by whatever name it has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// When it was.
    pub at: OffsetDateTime,
}

fn parse_deployment(text: &str) -> Result<Deployment, String> {
    let deployment = deployment(text)?;
    // `0s` is now, so the clock is read behind it.
    has_been(&deployment, OffsetDateTime::now_utc())?;
    Ok(deployment)
}

/// Nothing has failed since a deployment that is to come.
fn has_been(deployment: &Deployment, now: OffsetDateTime) -> Result<(), String> {
    match deployment.at <= now {
        true => Ok(()),
        false => Err(format!(
            "{} is still to come, by the clock of this machine; write when the deployment was, such as `v42=2h` for two hours ago",
            text::time(deployment.at)
        )),
    }
}

/// No time holds an equals sign, and a name may.
fn deployment(text: &str) -> Result<Deployment, String> {
    match text.rsplit_once('=') {
        Some((name, at)) if !name.is_empty() => Ok(Deployment {
            name: name.to_owned(),
            at: parse_time(at)?,
        }),
        _ => Err("no deployment; write its name and its time, such as `v42=2h`".to_owned()),
    }
}

/// The last deployment at this time or before it.
fn last_until(deployments: &[Deployment], at: OffsetDateTime) -> Option<&Deployment> {
    let earlier = deployments.iter().filter(|deployment| deployment.at <= at);
    earlier.max_by_key(|deployment| deployment.at)
}

impl GroupLettersCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let letters = letters_of(&place)?;
        let selection = self.selection.selection();
        let (rows, is_complete) = self
            .selection
            .read(&place, &letters, &selection, GROUPED_MAX)
            .await?;
        let groups: Vec<Grouped> = outbox_admin::group_letters(&rows)
            .into_iter()
            .map(|group| Grouped::new(group, &self.deployments))
            .collect();
        output::many(self.place.output, &groups)?;
        if !is_complete {
            say(&format!(
                "there are more: only the oldest {GROUPED_MAX} were read; `--since` begins later"
            ));
        }
        let Some(Grouped { group: first, .. }) = groups.first() else {
            say("no dead letter matches");
            return Ok(Outcome::NothingMatched);
        };
        say_next(format!(
            "outbox dead-letters list --consumer {} --group {}",
            quoted(&first.consumer),
            first.fingerprint
        ));
        Ok(Outcome::Well)
    }
}

/// A group, and the deployment since which there is one like it.
#[derive(Debug, Serialize)]
struct Grouped {
    #[serde(flatten)]
    group: LetterGroup,
    /// `null` without a deployment at or before the first failure.
    deploy: Option<String>,
}

impl Grouped {
    fn new(group: LetterGroup, deployments: &[Deployment]) -> Self {
        let deploy = last_until(deployments, group.first_at);
        Self {
            deploy: deploy.map(|deployment| deployment.name.clone()),
            group,
        }
    }
}

impl Print for Grouped {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("fingerprint", |grouped| grouped.group.fingerprint.to_string()),
        Column::new("consumer", |grouped| grouped.group.consumer.clone()),
        Column::new("type", |grouped| text::any(grouped.group.event_type.clone())),
        Column::new("dead_letters", |grouped| grouped.group.dead_letters.to_string()),
        Column::new("first", |grouped| text::time(grouped.group.first_at)),
        Column::new("last", |grouped| text::time(grouped.group.last_at)),
        Column::new("deploy", |grouped| text::any(grouped.deploy.clone())),
        Column::new("error", |grouped| grouped.group.error.clone()),
    ];

    fn name(&self) -> String {
        self.group.fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_has_a_name_and_a_time() {
        let one = deployment("app=v42=2026-11-20").unwrap();
        assert_eq!(
            one,
            Deployment {
                name: "app=v42".to_owned(),
                at: parse_time("2026-11-20").unwrap(),
            }
        );
        for text in ["", "v42", "=2h", "v42=", "v42=yesterday"] {
            deployment(text).unwrap_err();
        }
    }

    #[test]
    fn a_deployment_has_been() {
        let one = deployment("v42=2026-11-20").unwrap();
        let has_been = |now| has_been(&one, parse_time(now).unwrap());
        assert_eq!(has_been("2026-11-20"), Ok(()));
        let error = has_been("2026-11-19T23:59:59Z").unwrap_err();
        assert!(
            error.starts_with("2026-11-20T00:00:00Z is still to come"),
            "{error}"
        );
        parse_deployment("v42=0s").unwrap();
    }

    #[test]
    fn the_last_deployment_at_or_before_a_failure_is_found_in_any_order() {
        let deployments = ["v42=2026-11-20", "v43=2026-11-21", "v41=2026-11-19"];
        let deployments = deployments.map(|text| deployment(text).unwrap());
        let found = |time: &str| {
            let found = last_until(&deployments, parse_time(time).unwrap());
            found.map(|deployment| deployment.name.as_str())
        };
        assert_eq!(found("2026-11-18T23:59:59Z"), None);
        assert_eq!(found("2026-11-20T00:00:00Z"), Some("v42"));
        assert_eq!(found("2026-11-20T23:59:59Z"), Some("v42"));
        assert_eq!(found("2026-11-22"), Some("v43"));
    }
}
