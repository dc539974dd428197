//! The metrics of all relays of the program, as Prometheus reads them. Each has the label `outbox`.
//!
//! The library's metrics have no such label, and a gauge of one outbox would overwrite that of another. So each outbox has threads of its own, on which
//! a recorder adds its name. Invariant: nothing is recorded globally; a program that these commands are mounted in keeps its own recorder.

use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
    set_default_local_recorder,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// All metrics.
#[derive(Clone)]
pub(super) struct Metrics(Arc<PrometheusRecorder>);

impl Metrics {
    pub(super) fn new() -> Self {
        Self(Arc::new(PrometheusBuilder::new().build_recorder()))
    }

    pub(super) fn handle(&self) -> PrometheusHandle {
        self.0.handle()
    }

    /// What the current thread must call first if it works for this outbox.
    pub(super) fn recorder_of(&self, outbox: &str) -> &'static OfOutbox {
        let label = Label::new("outbox", outbox.to_owned());
        // It lives as long as the threads of the outbox, so as long as the program.
        Box::leak(Box::new(OfOutbox {
            all: self.0.clone(),
            label,
        }))
    }
}

/// Records with the label of one outbox.
pub(super) struct OfOutbox {
    all: Arc<PrometheusRecorder>,
    label: Label,
}

impl OfOutbox {
    /// Makes it the recorder of this thread, until the thread ends.
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
