//! NKeys and credentials files.

use std::path::Path;
use std::sync::atomic::Ordering;

use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use outbox_nats::{connect_options, connect_options_with_credentials};
use outbox_testing::eventually;
use serde_json::{Value, json};

use crate::authentication::{assert_refused, assert_works};
use crate::environment::{Nats, PLACED, connected, message};
use crate::private_server::PrivateServer;

async fn start(folder: &Path, config: &str) -> Option<PrivateServer> {
    let file = folder.join("nats.conf");
    std::fs::write(&file, config).unwrap();
    PrivateServer::start(&["-c", file.to_str().unwrap()]).await
}

#[tokio::test]
async fn nkey() {
    let folder = tempfile::tempdir().unwrap();
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let config = format!("authorization {{ users = [{{ nkey: {} }}] }}", user.public_key());
    let Some(server) = start(folder.path(), &config).await else {
        return;
    };
    assert_works(&server, connect_options().nkey(user.seed().unwrap())).await;
    assert_refused(&server, connect_options().nkey(stranger.seed().unwrap())).await;
}

fn token(issuer: &KeyPair, subject: &KeyPair, nats: Value) -> String {
    token_until(issuer, subject, nats, None)
}

fn token_until(issuer: &KeyPair, subject: &KeyPair, mut nats: Value, expires: Option<i64>) -> String {
    nats["version"] = json!(2);
    let mut claims = json!({
        "jti": "test", "iat": 0, "name": "test", "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    if let Some(expires) = expires {
        claims["exp"] = json!(expires);
    }
    let encode = |part: &Value| BASE64URL_NOPAD.encode(part.to_string().as_bytes());
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = BASE64URL_NOPAD.encode(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

fn credentials(account: &KeyPair, file: &Path) {
    credentials_until(account, file, None);
}

fn credentials_until(account: &KeyPair, file: &Path, expires: Option<i64>) {
    let user = KeyPair::new_user();
    let rights = json!({"type": "user", "subs": -1, "data": -1, "payload": -1});
    let token = token_until(account, &user, rights, expires);
    let seed = user.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(file, text).unwrap();
}

async fn start_with_account(folder: &Path) -> Option<(PrivateServer, KeyPair)> {
    let (operator, system, account) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let unlimited = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let config = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n  {}: {}\n  {}: {}\n}}\n",
        token(&operator, &operator, json!({"type": "operator"})),
        system.public_key(),
        system.public_key(),
        token(&operator, &system, json!({"type": "account"})),
        account.public_key(),
        token(
            &operator,
            &account,
            json!({"type": "account", "limits": unlimited})
        ),
    );
    Some((start(folder, &config).await?, account))
}

#[tokio::test]
async fn credentials_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some((server, account)) = start_with_account(folder.path()).await else {
        return;
    };
    let file = |name: &str| folder.path().join(name);
    credentials(&account, &file("relay.creds"));
    credentials(&KeyPair::new_account(), &file("stranger.creds"));
    let options = async |name| connect_options().credentials_file(file(name)).await.unwrap();
    assert_works(&server, options("relay.creds").await).await;
    assert_refused(&server, options("stranger.creds").await).await;
}

#[tokio::test]
async fn a_renewed_credentials_file_is_read_at_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let Some((server, account)) = start_with_account(folder.path()).await else {
        return;
    };
    let file = folder.path().join("relay.creds");
    let soon = time::OffsetDateTime::now_utc().unix_timestamp() + 5;
    credentials_until(&account, &file, Some(soon));
    let options = connect_options_with_credentials(&file).unwrap();
    let nats = Nats::with(connected(server.url(), options).await);
    let connections = || nats.client.statistics().connects.load(Ordering::Relaxed);
    let before = connections();
    credentials(&account, &file);
    eventually("another connection", async || connections() > before).await;
    assert!(time::OffsetDateTime::now_utc().unix_timestamp() >= soon);
    nats.provision().await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    assert!(nats.client.new_inbox().starts_with("_INBOX.test."));
}
