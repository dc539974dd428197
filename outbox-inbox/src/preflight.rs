//! Finds handler options that contradict each other, the configuration or the stream.

mod raw_handlers;

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::StreamFacts;

use crate::config::InboxConfig;
use crate::handler::{Order, Registration, Strategy};
use crate::start_error::Problem;

const MARGIN: Duration = Duration::from_secs(3600);

const BATCH_MAX: u32 = 1_000;

pub(crate) fn options(handlers: &[Registration]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut first_of: BTreeMap<&str, &Registration> = BTreeMap::new();
    for handler in handlers {
        let first = first_of.entry(handler.consumer).or_insert(handler);
        if first.options.order != handler.options.order {
            problems.push(Problem::new(format!(
                "handlers of consumer `{}` disagree on `order`: {first} has {:?} and {handler} has {:?}; use \
                 the same `order` for all, or another `consumer` for one handler",
                handler.consumer, first.options.order, handler.options.order
            )));
        }
        problems.extend(of_one(handler));
    }
    problems.extend(mixed_sequences(handlers));
    problems.extend(raw_handlers::problems(handlers));
    problems
}

fn of_one(handler: &Registration) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut wrong = |option, wrong: &str| problems.push(wrong_option(handler, option, wrong));
    let options = &handler.options;
    if let (Strategy::Sequence { .. }, Order::None) = (options.strategy, options.order) {
        wrong(
            "`strategy = sequence`",
            "needs an order; remove `order = none`, or use another strategy",
        );
    }
    if let Strategy::Sequence { .. } = options.strategy
        && let Some(event) = handler.events.iter().find(|event| !event.sequenced)
    {
        let event_type = event.event_type();
        wrong(
            "`strategy = sequence`",
            &format!(
                "cannot work: event `{event_type}` is unsequenced; use another strategy, or remove `unsequenced` from the event"
            ),
        );
    }
    if let Some(batch) = options.batch.filter(|batch| !(1..=BATCH_MAX).contains(batch)) {
        wrong("`batch`", &format!("is {batch}; use 1 to {BATCH_MAX}"));
    }
    if options.attempts_max == Some(0) {
        wrong("`attempts`", "is 0; use 1 or more");
    }
    if let Some(backoff) = options.backoff
        && (backoff.min.is_zero() || backoff.min > backoff.max)
    {
        let (min, max) = (backoff.min, backoff.max);
        wrong("`backoff`", &format!("is {min:?} to {max:?}; use 0 < min <= max"));
    }
    if options.timeout.is_some_and(|timeout| timeout.is_zero()) {
        wrong("`timeout`", "is zero; use a longer time");
    }
    problems
}

fn wrong_option(handler: &Registration, option: &str, wrong: &str) -> Problem {
    Problem::new(format!("{option} of handler {handler} {wrong}"))
}

fn mixed_sequences(handlers: &[Registration]) -> Vec<Problem> {
    type Pair<'a> = (Option<&'a Registration>, Option<&'a Registration>);
    let mut by_aggregate: BTreeMap<(&str, &'static str), Pair<'_>> = BTreeMap::new();
    for handler in handlers {
        for event in handler.events {
            let (sequence, other) = by_aggregate
                .entry((handler.consumer, event.aggregate))
                .or_default();
            match handler.options.strategy {
                Strategy::Sequence { .. } => sequence.get_or_insert(handler),
                _ => other.get_or_insert(handler),
            };
        }
    }
    for handler in handlers
        .iter()
        .filter(|handler| handler.events.iter().any(|event| event.is_everything()))
    {
        for ((consumer, _), (_, other)) in &mut by_aggregate {
            if *consumer == handler.consumer && !matches!(handler.options.strategy, Strategy::Sequence { .. })
            {
                other.get_or_insert(handler);
            }
        }
    }
    by_aggregate
        .into_iter()
        .filter_map(|((_, aggregate), (sequence, other))| {
            let (sequence, other) = (sequence?, other?);
            Some(Problem::new(format!(
                "handlers of aggregate `{aggregate}` in consumer `{}` mix strategies: {sequence} has \
                 `sequence` and {other} has not; use `sequence` for both, or another `consumer` for one \
                 handler",
                sequence.consumer
            )))
        })
        .collect()
}

pub(crate) fn settings(handlers: &[Registration], config: &InboxConfig, has_store: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let ack_wait = config.ack_wait;
    for handler in handlers {
        let mut wrong = |option, wrong: &str| problems.push(wrong_option(handler, option, wrong));
        if let Some(timeout) = handler.options.timeout.filter(|timeout| *timeout >= ack_wait) {
            wrong(
                "`timeout`",
                &format!(
                    "is {timeout:?} and `InboxConfig::ack_wait` {ack_wait:?}; use a shorter timeout or a \
                     longer `ack_wait`; otherwise the broker redelivers a message while its handler runs"
                ),
            );
        }
        match handler.options.strategy {
            Strategy::Sequence { gap: Some(gap) } if !gap.is_zero() && gap <= ack_wait => wrong(
                "`gap`",
                &format!(
                    "is {gap:?} and `InboxConfig::ack_wait` {ack_wait:?}; use a longer gap; otherwise \
                     messages of a crashed process become dead letters before their redelivery"
                ),
            ),
            Strategy::External if !has_store => wrong(
                "`strategy = external`",
                "has no store; set it with `Inbox::with_dedup_store`",
            ),
            _ => {}
        }
    }
    problems
}

pub(crate) fn stream(
    facts: &StreamFacts,
    handlers: &[Registration],
    config: &InboxConfig,
) -> (Option<Problem>, Option<String>) {
    let Some(handler) = handlers
        .iter()
        .find(|handler| handler.options.strategy.keeps_rows())
    else {
        return (None, None);
    };
    let retention = config.retention;
    match facts.retention {
        Some(of_stream) if retention < of_stream + MARGIN => {
            let text = format!(
                "the stream keeps messages for {of_stream:?}, but the inbox keeps its rows for {retention:?} \
                 only, so a later replay would repeat effects; set `InboxConfig::retention` to at least \
                 {:?}, or a shorter `max_age` on the stream, or use strategy `sequence` or `natural` for \
                 handler {handler} and similar handlers",
                of_stream + MARGIN
            );
            (Some(Problem::new(text)), None)
        }
        Some(_) => (None, None),
        None => {
            let warning = format!(
                "the stream keeps messages forever, but the inbox keeps its rows for {retention:?} only: a \
                 replay of older messages (new consumer name, reset consumer) repeats effects; set `max_age` \
                 on the stream, or use strategy `sequence` or `natural` for handler {handler} and similar \
                 handlers"
            );
            (None, Some(warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{EventDescriptor, StreamPolicy};

    use super::*;
    use crate::handler::HandlerOptions;
    use crate::tests::HANDLER;

    const EVENTS: &[EventDescriptor] = &[EventDescriptor {
        aggregate: "order",
        name: "placed",
        version: 1,
        subject: None,
        sequenced: true,
        rust_type: "Test",
        file: "test.rs",
        line: 1,
    }];

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn handler(options: HandlerOptions) -> Registration {
        Registration {
            events: EVENTS,
            options,
            ..HANDLER
        }
    }

    fn with(strategy: Strategy) -> Registration {
        handler(HandlerOptions::new().strategy(strategy))
    }

    fn config() -> InboxConfig {
        InboxConfig::default()
            .ack_wait(30 * SECOND)
            .handler_timeout(20 * SECOND)
    }

    #[track_caller]
    fn assert_wrong(found: &[Problem], option: &str) {
        let [problem] = found else { panic!("{found:?}") };
        let text = problem.to_string();
        assert!(
            text.starts_with(&format!("{option} of handler `book` (book.rs:7) ")),
            "{text}"
        );
    }

    #[test]
    fn a_timeout_beyond_ack_wait_is_refused() {
        let timeout = |timeout| {
            settings(
                &[handler(HandlerOptions::new().timeout(timeout))],
                &config(),
                false,
            )
        };
        assert_wrong(&timeout(30 * SECOND), "`timeout`");
        assert!(timeout(29 * SECOND).is_empty());
    }

    #[test]
    fn a_sequence_without_order_is_refused() {
        let sequence = |order| {
            let options = HandlerOptions::new().strategy(Strategy::Sequence { gap: None });
            super::options(&[handler(options.order(order))])
        };
        assert_wrong(&sequence(Order::None), "`strategy = sequence`");
        for order in [Order::Aggregate, Order::Strict] {
            assert!(sequence(order).is_empty(), "{order:?}");
        }
    }

    #[test]
    fn a_gap_within_ack_wait_is_refused() {
        let gap = |gap| settings(&[with(Strategy::Sequence { gap })], &config(), false);
        assert_wrong(&gap(Some(30 * SECOND)), "`gap`");
        for gap in [gap(Some(31 * SECOND)), gap(Some(Duration::ZERO)), gap(None)] {
            assert!(gap.is_empty(), "{gap:?}");
        }
    }

    #[test]
    fn a_strategy_without_its_store_is_refused() {
        let store = [with(Strategy::External)];
        assert_wrong(&settings(&store, &config(), false), "`strategy = external`");
        assert!(settings(&store, &config(), true).is_empty());
        assert!(settings(&[with(Strategy::MessageId)], &config(), false).is_empty());
    }

    fn facts(retention: Option<Duration>) -> StreamFacts {
        StreamFacts {
            retention,
            policy: StreamPolicy::Limits,
            duplicate_window: None,
            first_stream_sequence: None,
            last_stream_sequence: 0,
            messages: 0,
        }
    }

    #[test]
    fn the_defaults_of_inbox_and_stream_fit() {
        let handlers = [with(Strategy::MessageId)];
        let (problem, warning) = stream(&facts(Some(14 * DAY)), &handlers, &InboxConfig::default());
        assert!(problem.is_none() && warning.is_none(), "{problem:?} {warning:?}");
    }

    #[test]
    fn strategies_without_rows_need_no_retention() {
        let handlers = [
            with(Strategy::Natural),
            with(Strategy::Sequence { gap: None }),
            with(Strategy::Constraint(&["orders_pkey"])),
            with(Strategy::External),
        ];
        for of_stream in [None, Some(3650 * DAY)] {
            let (problem, warning) = stream(&facts(of_stream), &handlers, &config());
            assert!(problem.is_none() && warning.is_none(), "{problem:?} {warning:?}");
        }
    }
}
