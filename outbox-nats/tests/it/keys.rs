//! NKeys and credentials files pass through to every connection.

use std::path::Path;

use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use outbox_nats::connect_options;
use serde_json::{Value, json};

use crate::authentication::{assert_refused, assert_works};
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

/// A JSON Web Token of NATS: `issuer` says that `subject` is a user, an account or an operator.
fn token(issuer: &KeyPair, subject: &KeyPair, mut nats: Value) -> String {
    nats["version"] = json!(2);
    let claims = json!({
        "jti": "test", "iat": 0, "name": "test", "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    let encode = |part: &Value| BASE64URL_NOPAD.encode(part.to_string().as_bytes());
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = BASE64URL_NOPAD.encode(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

/// The file that `nsc` writes for a user of the account.
fn credentials(account: &KeyPair, file: &Path) {
    let user = KeyPair::new_user();
    let token = token(
        account,
        &user,
        json!({"type": "user", "subs": -1, "data": -1, "payload": -1}),
    );
    let seed = user.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(file, text).unwrap();
}

#[tokio::test]
async fn credentials_file() {
    let folder = tempfile::tempdir().unwrap();
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
    let Some(server) = start(folder.path(), &config).await else {
        return;
    };
    let file = |name: &str| folder.path().join(name);
    credentials(&account, &file("relay.creds"));
    credentials(&KeyPair::new_account(), &file("stranger.creds"));
    let options = async |name| connect_options().credentials_file(file(name)).await.unwrap();
    assert_works(&server, options("relay.creds").await).await;
    assert_refused(&server, options("stranger.creds").await).await;
}
