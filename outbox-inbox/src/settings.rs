//! The settings of each consumer: those of the inbox, changed where the program says so.
//!
//! Invariant: what holds for the inbox as a whole is the same for all its consumers. Not here: the settings themselves ([`crate::config`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::InboxConfig;
use crate::handler::Registration;
use crate::start_error::Problem;

type Change = Arc<dyn Fn(InboxConfig) -> InboxConfig + Send + Sync>;

/// The settings of an inbox, and how those of single consumers differ.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) of_inbox: InboxConfig,
    changes: BTreeMap<String, Change>,
}

impl Settings {
    pub(crate) fn change(
        &mut self,
        consumer: String,
        change: impl Fn(InboxConfig) -> InboxConfig + Send + Sync + 'static,
    ) {
        self.changes.insert(consumer, Arc::new(change));
    }

    /// The consumers whose settings differ.
    pub(crate) fn consumers(&self) -> impl Iterator<Item = &String> {
        self.changes.keys()
    }

    /// The settings of a consumer that differs from the others.
    pub(crate) fn of(&self, consumer: &str) -> Option<InboxConfig> {
        let change = self.changes.get(consumer)?;
        Some(change(self.of_inbox.clone()))
    }

    /// Handlers that have the same settings, with these: first those of the consumers that do not differ.
    pub(crate) fn groups(&self, handlers: &[Registration]) -> Vec<(Vec<Registration>, InboxConfig)> {
        let of = |wanted: &dyn Fn(&str) -> bool| -> Vec<_> {
            let wanted = handlers.iter().filter(|handler| wanted(handler.consumer));
            wanted.copied().collect()
        };
        let common = of(&|consumer| !self.changes.contains_key(consumer));
        let mut groups = vec![(common, self.of_inbox.clone())];
        for name in self.changes.keys() {
            groups.extend(
                self.of(name)
                    .map(|config| (of(&|consumer| consumer == name), config)),
            );
        }
        groups.retain(|(handlers, _)| !handlers.is_empty());
        groups
    }

    /// Handlers that run at a time, over all these consumers.
    pub(crate) fn concurrency(&self, consumers: &[&str]) -> usize {
        let of = |consumer: &&str| self.of(consumer).unwrap_or_else(|| self.of_inbox.clone());
        consumers.iter().map(|consumer| of(consumer).concurrency).sum()
    }

    /// What is wrong with the settings of the inbox and of these consumers.
    pub(crate) fn problems(&self, consumers: &[&str]) -> Vec<Problem> {
        let mut problems = self.of_inbox.problems();
        for name in self
            .changes
            .keys()
            .filter(|name| consumers.contains(&name.as_str()))
        {
            let Some(config) = self.of(name) else { continue };
            let own: Vec<_> = config
                .problems()
                .into_iter()
                .chain(self.of_whole_inbox(&config))
                .collect();
            let new = own
                .into_iter()
                .filter(|text| !problems.contains(text))
                .collect::<Vec<_>>();
            problems.extend(new.into_iter().map(|text| format!("consumer `{name}`: {text}")));
        }
        problems.into_iter().map(Problem::config).collect()
    }

    /// Settings that consumers cannot have for themselves.
    fn of_whole_inbox(&self, config: &InboxConfig) -> Vec<String> {
        let inbox = &self.of_inbox;
        [
            (
                "shutdown_timeout",
                config.shutdown_timeout != inbox.shutdown_timeout,
            ),
            ("stuck_after", config.stuck_after != inbox.stuck_after),
            (
                "allow_untested_engine",
                config.allow_untested_engine != inbox.allow_untested_engine,
            ),
        ]
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| format!("{name} holds for the whole inbox; set it with `Inbox::with_config`"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings::default();
        settings.change("slow".to_owned(), |config| config.concurrency(2));
        settings
    }

    #[test]
    fn a_consumer_has_the_settings_of_the_inbox_but_for_what_is_changed() {
        let mut settings = settings();
        settings.of_inbox = InboxConfig::default().attempts_max(3);
        let slow = settings.of("slow").unwrap();
        assert_eq!((slow.concurrency, slow.attempts_max), (2, 3));
        assert_eq!(settings.of("other"), None);
        assert_eq!(settings.concurrency(&["slow", "other"]), 10);
        assert!(settings.problems(&["slow", "other"]).is_empty());
    }

    #[test]
    fn each_problem_is_told_once_and_names_its_consumer() {
        let mut settings = settings();
        settings.of_inbox = InboxConfig::default().attempts_max(0);
        settings.change("slow".to_owned(), |config| {
            config.concurrency(0).stuck_after(Duration::from_secs(60))
        });
        let texts = |consumers: &[&str]| -> Vec<_> {
            let problems = settings.problems(consumers);
            problems.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            texts(&["slow"]),
            [
                "inbox configuration: attempts_max is 0; use 1 to 1000000",
                "inbox configuration: consumer `slow`: concurrency is 0; use 1 to 1024",
                "inbox configuration: consumer `slow`: stuck_after holds for the whole inbox; set it with `Inbox::with_config`",
            ]
        );
        // It does not run here.
        assert_eq!(texts(&["other"]).len(), 1);
    }
}
