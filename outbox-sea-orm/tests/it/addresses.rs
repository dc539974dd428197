//! Addresses for `connect`, and answers that the driver cannot parse.

use outbox_sea_orm::{ConnectError, connect};
use outbox_testing::not_applicable;
use sea_orm::{ConnectOptions, ConnectionTrait as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::connecting::{SERVERS, server_of, soon};
use crate::support::{Backend, TestDb};

#[tokio::test]
async fn connect_retries_after_an_error_to_the_tls_request() {
    let Some(test) = TestDb::open(Backend::Postgres, "error_about_tls").await else {
        return;
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = server_of(test.url()).to_owned();
    let url = test.url().replace(&server, &format!("127.0.0.1:{port}"));
    tokio::spawn(async move {
        let mut refused = 0;
        while let Ok((mut client, _)) = listener.accept().await {
            if refused < 6 {
                refused += 1;
                let _ = client.read_exact(&mut [0; 8]).await;
                let _ = client.write_all(b"EFATAL:  out of memory\n\0").await;
                continue;
            }
            let server = server.clone();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let db = soon(connect(url)).await.unwrap();
    db.execute_unprepared("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn connect_does_not_retry_a_foreign_protocol() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = client.read_exact(&mut [0; 8]).await;
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = soon(connect(format!("postgres://relay@127.0.0.1:{port}/shop")))
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Failed { .. }), "{error:?}");
}

#[tokio::test]
async fn ipv6_addresses_work() {
    for backend in SERVERS {
        let Some(test) = TestDb::open(backend, "ipv6").await else {
            continue;
        };
        let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
            not_applicable("this machine has no IPv6");
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let server = server_of(test.url()).to_owned();
        let url = test.url().replace(&server, &format!("[::1]:{port}"));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let mut options = ConnectOptions::new(url);
        options.map_sqlx_postgres_opts(|options| options.application_name("mapped"));
        let db = soon(connect(options)).await.unwrap();
        db.execute_unprepared("SELECT 1").await.unwrap();
        if backend == Backend::Postgres {
            let pool = db.get_postgres_connection_pool();
            assert_eq!(pool.connect_options().get_application_name(), Some("mapped"));
        }
    }
}

#[tokio::test]
async fn missing_sqlite_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no_such.db");
    let error = connect(format!("sqlite://{}", file.display())).await.unwrap_err();
    assert!(matches!(error, ConnectError::File { .. }), "{error:?}");
    assert!(error.to_string().contains("no_such.db"), "{error}");
    connect(format!("sqlite://{}?mode=rwc", file.display()))
        .await
        .unwrap();
}
