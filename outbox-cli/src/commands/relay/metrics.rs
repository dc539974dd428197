//! Prometheus metrics of all relays, with label `outbox`.
//!
//! Metrics of the library lack this label, so gauges of several outboxes would overwrite each
//! other. Each outbox has its own threads, with a recorder that adds the label. Invariant: no
//! global recorder is installed, so an embedding program keeps its own.

use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
    set_default_local_recorder,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

#[derive(Clone)]
pub(super) struct Metrics(Arc<PrometheusRecorder>);

impl Metrics {
    pub(super) fn new() -> Self {
        Self(Arc::new(PrometheusBuilder::new().build_recorder()))
    }

    pub(super) fn handle(&self) -> PrometheusHandle {
        self.0.handle()
    }

    pub(super) fn recorder_of(&self, outbox: &str) -> &'static OfOutbox {
        let label = Label::new("outbox", outbox.to_owned());
        // The leaked recorder lives as long as the program.
        Box::leak(Box::new(OfOutbox {
            all: self.0.clone(),
            label,
        }))
    }
}

pub(super) struct OfOutbox {
    all: Arc<PrometheusRecorder>,
    label: Label,
}

impl OfOutbox {
    pub(super) fn take_thread(&'static self) {
        std::mem::forget(set_default_local_recorder(self));
    }

    fn labelled(&self, key: &Key) -> Key {
        key.with_extra_labels(vec![self.label.clone()])
    }
}

impl Recorder for OfOutbox {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.all.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.all.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.all.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.all.register_counter(&self.labelled(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.all.register_gauge(&self.labelled(key), metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.all.register_histogram(&self.labelled(key), metadata)
    }
}
