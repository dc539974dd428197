//! The check of a publisher's stream before the first message.

use std::time::Duration;

use outbox_core::{FailureClass, Publisher as _};
use outbox_nats::async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};

use crate::environment::{Nats, answered, on_both_servers, refused};

on_both_servers! {
    a_missing_stream_is_a_configuration_error,
    weak_settings_are_warnings,
}

async fn a_missing_stream_is_a_configuration_error(nats: &Nats) {
    let publisher = nats.publisher();
    let error = refused(async || publisher.preflight().await).await;
    assert_eq!(error.class(), FailureClass::Configuration);
    let text = error.to_string();
    assert!(text.contains("EventStream::provision"), "{text}");
    assert!(
        text.contains("--dupe-window=600s") && text.contains("--max-age=1209600s"),
        "{text}"
    );
}

async fn weak_settings_are_warnings(nats: &Nats) {
    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.wildcard()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::Memory,
        duplicate_window: Duration::from_secs(42),
        max_messages: 4_711,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let publisher = nats.publisher();
    let warnings = answered(async || publisher.preflight().await).await;
    for value in ["WorkQueue", "in memory", "42s", "4711 messages"] {
        assert_eq!(
            warnings.iter().filter(|warning| warning.contains(value)).count(),
            1,
            "{value}: {warnings:?}"
        );
    }
    assert_eq!(warnings.len(), 4, "{warnings:?}");
}
