//! TLS options apply to every connection, including a publisher's own.

use std::path::PathBuf;

use outbox_nats::async_nats::{ConnectErrorKind, ConnectOptions};
use outbox_nats::{ConnectError, connect, connect_options};

use crate::environment::{Nats, PLACED, SOON, connected, consumer, message, receive_and_ack};
use crate::private_server::PrivateServer;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(name)
}

async fn start(arguments: &[&str]) -> Option<PrivateServer> {
    let (certificate, key, authority) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let mut all = vec!["--tls", "--tlscert", certificate.to_str().unwrap()];
    all.extend([
        "--tlskey",
        key.to_str().unwrap(),
        "--tlscacert",
        authority.to_str().unwrap(),
    ]);
    all.extend(arguments);
    PrivateServer::start(&all).await
}

fn localhost(server: &PrivateServer) -> String {
    server.url().replace("127.0.0.1", "localhost")
}

fn trusting() -> ConnectOptions {
    connect_options()
        .add_root_certificates(file("ca.pem"))
        .require_tls(true)
}

async fn assert_works(url: &str, options: ConnectOptions) {
    let nats = Nats::with(connected(url, options).await);
    nats.provision().await;
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
}

async fn refused(url: &str, options: ConnectOptions) -> ConnectError {
    tokio::time::timeout(SOON, connect(url, options))
        .await
        .expect("no waiting")
        .unwrap_err()
}

async fn assert_refused(url: &str, options: ConnectOptions) {
    let error = refused(url, options).await;
    assert_eq!(error.kind(), ConnectErrorKind::Tls, "{error:?}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_name() {
    let Some(server) = start(&[]).await else { return };
    assert_works(&localhost(&server), trusting()).await;
    assert_refused(&localhost(&server), connect_options()).await;
    assert_refused(&server.url(), trusting()).await;
}

#[tokio::test]
async fn client_sends_its_certificate() {
    let Some(server) = start(&["--tlsverify"]).await else {
        return;
    };
    let with_certificate = trusting().add_client_certificate(file("client.pem"), file("client.key"));
    assert_works(&localhost(&server), with_certificate).await;
    assert_refused(&localhost(&server), trusting()).await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_if_tls_is_required() {
    let Some(server) = PrivateServer::start(&[]).await else {
        return;
    };
    assert_refused(&localhost(&server), trusting()).await;
}
