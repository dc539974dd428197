//! Streams are created once, always checked, and never degraded.

use std::time::Duration;

use outbox_core::EventDescriptor;
use outbox_nats::async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use outbox_nats::{EventStream, ProvisionError, Provisioning, StreamReport};

use crate::environment::{Nats, PLACED, SHIPPED, answered, event_on, on_both_servers, refused};

on_both_servers! {
    eight_processes_create_one_stream,
    eight_processes_add_their_subjects_to_one_stream,
    verify_only_reports_a_missing_stream,
    a_fixed_subject_is_added_to_an_existing_stream,
    only_a_short_duplicate_window_is_changed,
    foreign_settings_survive_an_update,
    error_names_the_stream_that_has_the_subject,
}

async fn provision(nats: &Nats, stream: &EventStream, events: &[&EventDescriptor]) -> StreamReport {
    answered(async || stream.provision_for(&nats.client, events.iter().copied()).await).await
}

async fn refusal(nats: &Nats, stream: &EventStream, events: &[&EventDescriptor]) -> ProvisionError {
    refused(async || stream.provision_for(&nats.client, events.iter().copied()).await).await
}

async fn eight_processes_create_one_stream(nats: &Nats) {
    let runs = (0..8).map(async |_| provision(nats, &nats.stream(), &[&PLACED]).await);
    let reports = futures_util::future::join_all(runs).await;
    assert!(reports.iter().any(|report| report.created));
    let config = nats.stream_config().await;
    assert_eq!(config.subjects, [nats.prefix.wildcard()]);
    assert_eq!(config.duplicate_window, Duration::from_mins(10));
    assert_eq!(
        (config.retention, config.discard),
        (RetentionPolicy::Limits, DiscardPolicy::New)
    );

    let again = provision(nats, &nats.stream(), &[&PLACED, &SHIPPED]).await;
    assert!(!again.created && again.subjects_added.is_empty(), "{again:?}");
}

async fn eight_processes_add_their_subjects_to_one_stream(nats: &Nats) {
    let events: Vec<_> = (0..8)
        .map(|n| event_on("shipped", format!("legacy-{}.{n}", nats.name)))
        .collect();
    let runs = events.iter().map(|event| async move {
        provision(nats, &nats.stream(), &[&PLACED, *event]).await;
    });
    futures_util::future::join_all(runs).await;
    assert_eq!(nats.stream_config().await.subjects.len(), 9);
}

async fn verify_only_reports_a_missing_stream(nats: &Nats) {
    let spec = nats.stream().with_provisioning(Provisioning::VerifyOnly);
    let error = refusal(nats, &spec, &[&PLACED]).await;
    assert!(
        error.to_string().contains(&format!(
            "nats stream add {} --subjects='{}.>'",
            nats.name, nats.name
        )),
        "{error}"
    );
    assert!(nats.jetstream().get_stream(&nats.name).await.is_err());

    nats.provision().await;
    provision(nats, &spec, &[&PLACED]).await;
}

async fn a_fixed_subject_is_added_to_an_existing_stream(nats: &Nats) {
    nats.provision().await;
    let subject = format!("legacy-{}", nats.name);
    let legacy = event_on("shipped", subject.clone());
    let verify = nats.stream().with_provisioning(Provisioning::VerifyOnly);
    let error = refusal(nats, &verify, &[&PLACED, legacy]).await;
    assert!(error.to_string().contains(&subject), "{error}");
    let report = provision(nats, &nats.stream(), &[&PLACED, legacy]).await;
    assert_eq!(report.subjects_added, [subject]);
    provision(nats, &verify, &[&PLACED, legacy]).await;
}

async fn only_a_short_duplicate_window_is_changed(nats: &Nats) {
    let short = nats.stream().with_duplicate_window(Duration::from_mins(1));
    provision(nats, &short, &[&PLACED]).await;
    let verify = nats.stream().with_provisioning(Provisioning::VerifyOnly);
    let error = refusal(nats, &verify, &[&PLACED]).await;
    assert!(error.to_string().contains("--dupe-window=600s"), "{error}");

    provision(nats, &nats.stream(), &[&PLACED]).await;
    provision(nats, &short, &[&PLACED]).await;
    assert_eq!(
        nats.stream_config().await.duplicate_window,
        Duration::from_mins(10)
    );
}

async fn foreign_settings_survive_an_update(nats: &Nats) {
    let config = Config {
        name: nats.name.clone(),
        subjects: vec![format!("{}.order.>", nats.prefix)],
        description: Some("of the operator".to_owned()),
        max_age: Duration::from_hours(1),
        max_messages: 1_000,
        max_consumers: 7,
        duplicate_window: Duration::from_mins(20),
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let before = nats.stream_config().await;
    let report = provision(nats, &nats.stream(), &[&PLACED]).await;
    assert_eq!(report.warnings.len(), 2, "{report:?}");
    let expected = Config {
        subjects: vec![nats.prefix.wildcard()],
        ..before
    };
    assert_eq!(nats.stream_config().await, expected);
}

async fn error_names_the_stream_that_has_the_subject(nats: &Nats) {
    nats.provision().await;
    let other = Nats::with(nats.client.clone());
    let spec = other.stream().with_prefix(nats.prefix.as_str()).unwrap();
    let error = refusal(nats, &spec, &[&PLACED]).await;
    assert!(
        error
            .to_string()
            .contains(&format!("overlaps with stream `{}`", nats.name)),
        "{error}"
    );
}
