//! Valid credentials work; wrong credentials are reported at once, without the secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{FailureClass, Message, PublishError, Publisher as _};
use outbox_nats::async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerError};
use outbox_nats::{EventStream, connect, connect_options, connect_with_events};

use crate::environment::{Nats, PLACED, SOON, answered, connected, consumer, message, publish, sent};
use crate::private_server::PrivateServer;

pub(crate) async fn assert_works(server: &PrivateServer, options: ConnectOptions) {
    let nats = Nats::with(connected(server.url(), options).await);
    nats.provision().await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    let subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    let shown = format!("{:?} {:?} {subscription:?}", nats.publisher(), nats.subscriber());
    assert!(!shown.contains("secret"), "{shown}");
}

pub(crate) async fn assert_refused(server: &PrivateServer, options: ConnectOptions) {
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
async fn program_started_before_nats_waits() {
    let Some(mut server) = PrivateServer::start(&["--user", "relay", "--pass", "secret"]).await else {
        return;
    };
    server.kill();
    let address = |login: &str| format!("nats://{login}@{}", server.address());
    let (right, wrong) = (address("relay:secret"), address("relay:wrong-secret"));
    let stream = EventStream::new("WAITED_FOR");
    let waiting = [right.clone(), wrong.clone()].map(|address| {
        let stream = stream.clone();
        tokio::spawn(async move { stream.connect(address).await })
    });
    for _ in 0..3 {
        let refused = connect(right.clone(), connect_options()).await.unwrap_err();
        assert_eq!(refused.kind(), ConnectErrorKind::Io);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    server.restart().await;
    let [right, wrong] = waiting.map(|waiting| tokio::time::timeout(SOON, waiting));
    right.await.unwrap().unwrap().unwrap();
    let error = wrong.await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ConnectErrorKind::AuthorizationViolation);
    let text = error.to_string();
    assert!(
        text.contains(&server.address()) && text.contains("of user `relay`"),
        "{text}"
    );
    assert!(!format!("{text} {error:?}").contains("secret"), "{error:?}");
}

async fn denying(permissions: &str) -> Option<PrivateServer> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let user = format!("user: relay, password: secret, permissions: {{ {permissions} }}");
    std::fs::write(&file, format!("authorization {{ users = [{{ {user} }}] }}")).unwrap();
    PrivateServer::start(&["-c", file.to_str().unwrap()]).await
}

fn assert_names(error: &PublishError, subject: &str) {
    assert_eq!(error.class(), FailureClass::Configuration);
    assert!(error.to_string().contains(subject), "{error}");
}

fn relay() -> ConnectOptions {
    connect_options().user_and_password("relay".into(), "secret".into())
}

fn denied_message() -> Message {
    message(&PLACED, "denied", 1)
}

/// The server never answers a denied publish; it reports the denial asynchronously.
#[tokio::test]
async fn denied_publish_names_the_permission() {
    let Some(server) = denying(r#"publish: { deny: ["*.order.denied.>"] }"#).await else {
        return;
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let client = connect_with_events(server.url(), relay(), {
        let seen = seen.clone();
        move |event| {
            if let Event::ServerError(ServerError::Other(reason)) = event {
                seen.lock().unwrap().push(reason.clone());
            }
        }
    })
    .await
    .unwrap();
    let nats = Nats::with(client);
    nats.provision().await;
    let config = nats.publisher_config().ack_timeout(Duration::from_hours(1));
    let publisher = nats.publisher().with_config(config);
    for _ in 0..2 {
        let denied = denied_message();
        let error = tokio::time::timeout(SOON, sent(&publisher, &denied))
            .await
            .expect("no waiting")
            .unwrap_err();
        assert_names(&error, ".order.denied.");
    }
    publish(&publisher, &message(&PLACED, "1", 2)).await;
    assert!(
        seen.lock()
            .unwrap()
            .iter()
            .any(|text| text.contains(".order.denied."))
    );
}

#[tokio::test]
async fn denied_reply_names_the_permission() {
    let Some(server) = denying(r#"subscribe: { deny: ["_INBOX.>"] }"#).await else {
        return;
    };
    let nats = Nats::with(connected(server.url(), relay()).await);
    let config = nats.publisher_config().ack_timeout(Duration::from_secs(3));
    let publisher = nats.publisher().with_config(config);
    let error = sent(&publisher, &message(&PLACED, "1", 1)).await.unwrap_err();
    assert_names(&error, "_INBOX.");
}

#[tokio::test]
async fn denied_duplicate_check_names_the_permission() {
    let Some(server) = denying(r#"publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] }"#).await else {
        return;
    };
    let nats = Nats::with(connected(server.url(), relay()).await);
    nats.provision().await;
    let config = nats.publisher_config().ack_timeout(Duration::from_secs(3));
    let publisher = nats.publisher().with_config(config);
    let message = message(&PLACED, "1", 1);
    publish(&publisher, &message).await;
    let error = sent(&publisher, &message).await.unwrap_err();
    assert_names(&error, "$JS.API.STREAM.MSG.GET.");
}

/// A publisher searches the stream after a rejection, possibly long after its start.
#[tokio::test]
async fn denied_search_is_detected_at_the_start() {
    let Some(server) = denying(r#"publish: { deny: ["$JS.API.CONSUMER.CREATE.>"] }"#).await else {
        return;
    };
    let nats = Nats::with(connected(server.url(), relay()).await);
    nats.provision().await;
    let plain = nats.publisher();
    answered(async || plain.preflight().await).await;
    let fenced = nats.stream().with_strong_mode().publisher(nats.client.clone());
    let error = fenced.preflight().await.unwrap_err();
    assert_names(&error, "$JS.API.CONSUMER.CREATE.");
}

#[tokio::test]
async fn a_denied_permission_of_a_plain_client_is_unknown() {
    let Some(server) = denying(r#"publish: { deny: ["*.order.denied.>"] }"#).await else {
        return;
    };
    let nats = Nats::with(relay().connect(server.url()).await.unwrap());
    let config = nats.publisher_config().ack_timeout(Duration::from_millis(300));
    let publisher = nats.publisher().with_config(config);
    let error = publisher.publish(&denied_message()).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::Unknown);
}
