//! Credentials pass through, and wrong ones are reported at once and without the secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::Publisher as _;
use outbox_nats::async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerError};
use outbox_nats::{connect, connect_options, connect_with_events};

use crate::environment::{Nats, PLACED, SOON, consumer, eventually, message};
use crate::private_server::PrivateServer;

async fn assert_works(server: &PrivateServer, options: ConnectOptions) {
    let nats = Nats::with(connect(server.url(), options).await.unwrap());
    nats.provision().await;
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    let subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    let shown = format!("{:?} {:?} {subscription:?}", nats.publisher(), nats.source());
    assert!(!shown.contains("secret"), "{shown}");
}

async fn assert_refused(server: &PrivateServer, options: ConnectOptions) {
    let refused = tokio::time::timeout(SOON, connect(server.url(), options))
        .await
        .unwrap();
    let error = refused.expect_err("wrong credentials");
    assert_eq!(error.kind(), ConnectErrorKind::AuthorizationViolation);
    let text = format!("{error} {error:?}");
    assert!(
        text.contains(&server.address()) && text.contains("credentials"),
        "{text}"
    );
    assert!(!text.contains("wrong-secret"), "{text}");
}

#[tokio::test]
async fn user_and_password() {
    let Some(server) = PrivateServer::start(&["--user", "relay", "--pass", "secret"]).await else {
        return;
    };
    assert_works(
        &server,
        connect_options().user_and_password("relay".into(), "secret".into()),
    )
    .await;
    assert_refused(
        &server,
        connect_options().user_and_password("relay".into(), "wrong-secret".into()),
    )
    .await;
    assert_refused(&server, connect_options()).await;
}

/// As in a `NATS_URL`; async-nats itself ignores what stands before the `@`.
#[tokio::test]
async fn credentials_in_the_address() {
    let Some(server) = PrivateServer::start(&["--user", "relay", "--pass", "p@ss/wörd"]).await else {
        return;
    };
    let right = format!("nats://relay:p%40ss%2Fw%C3%B6rd@{}", server.address());
    connect(right, connect_options()).await.unwrap();
    let wrong = connect(
        format!("nats://relay:wrong-secret@{}", server.address()),
        connect_options(),
    )
    .await
    .unwrap_err();
    assert!(
        !format!("{wrong} {wrong:?}").contains("wrong-secret"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn token() {
    let Some(server) = PrivateServer::start(&["--auth", "secret"]).await else {
        return;
    };
    assert_works(&server, connect_options().token("secret".into())).await;
    assert_refused(&server, connect_options().token("wrong-secret".into())).await;
    connect(format!("nats://secret@{}", server.address()), connect_options())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_at_once() {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    server.kill();
    let refused = tokio::time::timeout(SOON, connect(server.url(), connect_options()))
        .await
        .unwrap();
    assert_eq!(refused.unwrap_err().kind(), ConnectErrorKind::Io);
}

/// The publish itself only times out, so the event is all that tells an operator.
#[tokio::test]
async fn a_denied_permission_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let permissions = r#"authorization { users = [{ user: relay, password: secret, permissions: { publish: { deny: ["denied.>"] } } }] }"#;
    std::fs::write(&file, permissions).unwrap();
    let Some(server) = PrivateServer::start(&["-c", file.to_str().unwrap()]).await else {
        return;
    };
    let violations = Arc::new(Mutex::new(Vec::new()));
    let options = connect_options().user_and_password("relay".into(), "secret".into());
    let client = connect_with_events(server.url(), options, {
        let violations = violations.clone();
        move |event| {
            if let Event::ServerError(ServerError::Other(reason)) = event {
                violations.lock().unwrap().push(reason.clone());
            }
        }
    })
    .await
    .unwrap();
    let nats = Nats::with(client);
    nats.provision().await;
    let mut denied = message(&PLACED, "1", 1);
    denied.subject = Some("denied.subject".to_owned());
    let publisher = outbox_nats::JetStreamPublisher::new(
        nats.client.clone(),
        nats.publisher_config().ack_timeout(Duration::from_millis(300)),
    );
    let error = publisher.publish(&denied).await.unwrap_err();
    assert_eq!(error.class(), outbox_core::FailureClass::Unknown);
    eventually("the event", || async {
        violations
            .lock()
            .unwrap()
            .iter()
            .any(|text| text.contains("denied.subject"))
    })
    .await;
}
