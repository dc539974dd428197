//! Writes the filters of a durable in the form that its server supports.
//!
//! Invariant: the written filters select every wanted message, or more.

use async_nats::jetstream::consumer::{Info, pull};

use crate::stream::subject::{captures, covers, narrowest_cover, without_covered};

/// Lists the filters of a consumer. A consumer without filters receives all messages.
pub(crate) fn filters_of(filter_subject: &str, filter_subjects: &[String]) -> Vec<String> {
    if !filter_subjects.is_empty() {
        return without_covered(filter_subjects.iter().cloned());
    }
    vec![if filter_subject.is_empty() {
        ">".to_owned()
    } else {
        filter_subject.to_owned()
    }]
}

pub(crate) fn takes(info: &Info, subject: &str) -> bool {
    let config = &info.config;
    captures(
        &filters_of(&config.filter_subject, &config.filter_subjects),
        subject,
    )
}

pub(crate) fn filters_of_pull(config: &pull::Config) -> Vec<String> {
    filters_of(&config.filter_subject, &config.filter_subjects)
}

pub(crate) fn with_filters(
    config: pull::Config,
    filters: Vec<String>,
    many_filters: bool,
    stream_subjects: &[String],
) -> pull::Config {
    let everything = filters.iter().any(|filter| filter == ">");
    match filters.as_slice() {
        _ if everything => pull::Config {
            filter_subject: String::new(),
            filter_subjects: Vec::new(),
            ..config
        },
        [filter] => pull::Config {
            filter_subject: filter.clone(),
            filter_subjects: Vec::new(),
            ..config
        },
        _ if many_filters => pull::Config {
            filter_subject: String::new(),
            filter_subjects: filters,
            ..config
        },
        _ => {
            // Old servers reject a filter that spans several subjects of the stream.
            let cover = narrowest_cover(filters.iter().map(String::as_str))
                .filter(|cover| stream_subjects.iter().any(|subject| covers(subject, cover)))
                .unwrap_or_default();
            pull::Config {
                filter_subject: cover,
                filter_subjects: Vec::new(),
                ..config
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(config: &pull::Config) -> (&str, Vec<&str>) {
        (
            &config.filter_subject,
            config.filter_subjects.iter().map(String::as_str).collect(),
        )
    }

    fn with(patterns: &[&str], many_filters: bool, stream_subjects: &[&str]) -> pull::Config {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        with_filters(
            pull::Config::default(),
            owned(patterns),
            many_filters,
            &owned(stream_subjects),
        )
    }

    #[test]
    fn filters_are_written_in_the_form_of_the_server() {
        let two = ["events.order.*.placed", "events.order.*.shipped"];
        assert_eq!(
            filters(&with(&two[..1], true, &["events.>"])),
            ("events.order.*.placed", vec![])
        );
        assert_eq!(filters(&with(&two, true, &["events.>"])), ("", two.to_vec()));
        assert_eq!(
            filters(&with(&two, false, &["events.>"])),
            ("events.order.*.*", vec![])
        );
        assert_eq!(filters(&with(&[">"], true, &["events.>"])), ("", vec![]));
    }

    #[test]
    fn old_server_gets_no_filter_across_subjects() {
        let config = with(
            &["events.order.*.placed", "legacy.shipped"],
            false,
            &["events.>", "legacy.shipped"],
        );
        assert_eq!(filters(&config), ("", vec![]));
    }

    #[test]
    fn a_consumer_without_filter_receives_everything() {
        assert_eq!(filters_of_pull(&pull::Config::default()), [">"]);
    }
}
