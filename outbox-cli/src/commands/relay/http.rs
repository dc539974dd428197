//! `/livez`, `/readyz` and `/metrics`.
//!
//! Responses never wait for relays. The server has no TLS and no login, so expose these paths only
//! in the internal network.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use outbox::core::Health;

use super::probes::Probes;

/// Liveness probe: fails only if a relay does not run. Outages of broker or database do not matter.
pub(crate) const LIVEZ: &str = "/livez";
/// Readiness probe: fails on any problem.
pub(crate) const READYZ: &str = "/readyz";
pub(crate) const METRICS: &str = "/metrics";

#[derive(Clone)]
struct Answers {
    probes: Probes,
    metrics: PrometheusHandle,
}

pub(super) fn router(probes: Probes, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route(LIVEZ, get(livez))
        .route(READYZ, get(readyz))
        .route(METRICS, get(render))
        .with_state(Answers { probes, metrics })
}

async fn livez(State(answers): State<Answers>) -> impl IntoResponse {
    let health = answers.probes.now();
    probe(health.is_alive(), &health)
}

async fn readyz(State(answers): State<Answers>) -> impl IntoResponse {
    let health = answers.probes.now();
    probe(health.is_ready(), &health)
}

fn probe(passes: bool, health: &Health) -> (StatusCode, String) {
    let status = if passes {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, format!("{health}\n"))
}

async fn render(State(answers): State<Answers>) -> impl IntoResponse {
    answers.metrics.run_upkeep();
    let content_type = (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    ([content_type], answers.metrics.render())
}
