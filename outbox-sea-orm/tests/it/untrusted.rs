//! Untrusted certificates, and certificates for another name.
//!
//! A listener implements each database protocol up to the TLS handshake. Its certificates are from
//! the tests of outbox-nats.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayError, SetupKind, StoreError, describe};
use outbox_sea_orm::{ConnectError, SqlStore, connect};
use outbox_testing::MemoryBroker;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use sea_orm::{ConnectOptions, Database, DbBackend};

const SOON: Duration = Duration::from_secs(60);

const SERVERS: [DbBackend; 2] = [DbBackend::Postgres, DbBackend::MySql];

/// MySQL's greeting: protocol 10, version, first half of the scramble, TLS flag, rest of the
/// scramble.
const GREETING: &[u8] =
    b"\x0a11.4.2-MariaDB\0\x01\0\0\0abcdefgh\0\x00\xaa\x21\x02\0\x08\0\x15\0\0\0\0\0\0\0\0\0\0abcdefghijkl\0mysql_native_password\0";

fn file(name: &str) -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../outbox-nats/tests/tls");
    tests.join(name)
}

fn serve(backend: DbBackend) -> u16 {
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = shake_hands(client, backend, config.clone());
        }
    });
    port
}

fn shake_hands(mut client: TcpStream, backend: DbBackend, config: Arc<ServerConfig>) -> std::io::Result<()> {
    if backend == DbBackend::Postgres {
        client.read_exact(&mut [0; 8])?;
        client.write_all(b"S")?;
    } else {
        let length = u8::try_from(GREETING.len()).expect("a short greeting");
        client.write_all(&[&[length, 0, 0, 0], GREETING].concat())?;
        client.read_exact(&mut [0; 36])?;
    }
    let mut session = ServerConnection::new(config).expect("a sound configuration");
    session.complete_io(&mut client)?;
    session.complete_io(&mut client).map(|_| ())
}

fn address(backend: DbBackend, host: &str, authority: Option<&str>) -> String {
    let port = serve(backend);
    let (scheme, mode, key) = match backend {
        DbBackend::Postgres => ("postgres", "sslmode=verify-full", "sslrootcert"),
        _ => ("mysql", "ssl-mode=VERIFY_IDENTITY", "ssl-ca"),
    };
    let authority = authority.map(|name| format!("&{key}={}", file(name).display()));
    format!(
        "{scheme}://relay:hunter2@{host}:{port}/shop?{mode}{}",
        authority.unwrap_or_default()
    )
}

fn assert_names_the_cause(text: &str, reason: &str) {
    for part in [
        reason,
        "no TLS connection to ",
        "user `relay`",
        "sslrootcert=FILE",
        "ssl-ca=FILE",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn failed_tls_is_not_retried() {
    for (host, authority, reason) in [
        ("localhost", None, "UnknownIssuer"),
        ("127.0.0.1", Some("ca.pem"), "not valid for name"),
        ("localhost", Some("missing.pem"), "No such file"),
    ] {
        for backend in SERVERS {
            let connecting = connect(address(backend, host, authority));
            let error = tokio::time::timeout(SOON, connecting).await.expect("no waiting");
            let error = error.unwrap_err();
            assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
            assert_names_the_cause(&describe(&error), reason);
        }
    }
}

#[tokio::test]
async fn untrusted_database_stops_the_relay_at_start() {
    for backend in SERVERS {
        let mut options = ConnectOptions::new(address(backend, "localhost", None));
        options.connect_lazy(true);
        let store = SqlStore::new(Database::connect(options).await.unwrap());
        let relay = Relay::new(store, MemoryBroker::new().publisher());
        let ended = tokio::time::timeout(SOON, relay.run(CancellationToken::new())).await;
        let error = ended.expect("no waiting").unwrap_err();
        let RelayError::Store(StoreError::Setup(problem)) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(problem.kind, SetupKind::Tls);
        assert_names_the_cause(&problem.seen, "UnknownIssuer");
    }
}

#[tokio::test]
async fn error_after_a_trusted_handshake_is_no_tls_failure() {
    for backend in SERVERS {
        let mut options = ConnectOptions::new(address(backend, "localhost", Some("ca.pem")));
        options.connect_lazy(true);
        let store = SqlStore::new(Database::connect(options).await.unwrap());
        let error = outbox_core::OutboxStore::backlog(&store).await.unwrap_err();
        let text = describe(&error);
        assert!(
            text.contains("unreachable") && !text.contains("no TLS connection"),
            "{text}"
        );
    }
}
