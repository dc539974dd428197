//! A PostgreSQL database for one test, for programs with fixed schema and table names.

use outbox::testing::backend_url;
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection};

pub(crate) struct OwnDatabase {
    pub(crate) url: String,
    admin: DatabaseConnection,
    name: String,
}

impl OwnDatabase {
    pub(crate) async fn create(prefix: &str) -> Option<Self> {
        let url = backend_url("OUTBOX_TEST_POSTGRES_URL")?;
        let admin = Database::connect(&url).await.unwrap();
        let name = format!("{prefix}_{}", uuid::Uuid::now_v7().simple());
        admin
            .execute_unprepared(&format!("CREATE DATABASE {name}"))
            .await
            .unwrap();
        let (server, _) = url.rsplit_once('/').unwrap();
        Some(Self {
            url: format!("{server}/{name}"),
            admin,
            name,
        })
    }

    pub(crate) fn server(&self) -> String {
        let (_, rest) = self.url.rsplit_once('@').unwrap();
        rest.split('/').next().unwrap().to_owned()
    }

    pub(crate) fn behind(&self, port: u16) -> String {
        self.url.replace(&self.server(), &format!("127.0.0.1:{port}"))
    }

    pub(crate) async fn remove(self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.admin.execute_unprepared(&sql).await.unwrap();
    }
}
