//! Tables and stream of a run, and the arguments that pass them to child processes.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{Context, stream::Stream};
use clap::Args;
use outbox_nats::EventStream;
use outbox_sea_orm::TableNames;
use outbox_stress::patient;
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, QueryResult, Statement,
};
use uuid::Uuid;

use crate::Result;

const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str, connections: u32) -> Result<DatabaseConnection> {
    let mut options = ConnectOptions::new(url);
    options.max_connections(connections).sqlx_logging(false);
    // A paused process may hold SQLite's lock, so other processes wait.
    options.map_sqlx_sqlite_opts(|options| options.busy_timeout(BUSY_TIMEOUT));
    Ok(Database::connect(options).await?)
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    #[arg(long)]
    pub(crate) database_url: String,
    #[arg(long)]
    pub(crate) nats_url: String,
    #[arg(long)]
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn stream(&self) -> Result<EventStream> {
        Ok(EventStream::new(&self.name).with_prefix(&self.name)?)
    }

    pub(crate) fn names(&self) -> Result<TableNames> {
        Ok(TableNames::new().with_prefix(format!("{}_", self.name))?)
    }

    pub(crate) fn arguments(&self) -> [&str; 6] {
        let Self {
            database_url,
            nats_url,
            name,
        } = self;
        [
            "--database-url",
            database_url,
            "--nats-url",
            nats_url,
            "--name",
            name,
        ]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) place: Place,
    pub(crate) db: DatabaseConnection,
    pub(crate) names: TableNames,
    pub(crate) client: Client,
    pub(crate) stream: Stream,
    context: Context,
}

impl Ground {
    pub(crate) async fn make(database_url: &str, nats_url: &str, connections: u32) -> Result<Self> {
        let id = Uuid::now_v7().simple().to_string();
        let place = Place {
            database_url: database_url.to_owned(),
            nats_url: nats_url.to_owned(),
            name: format!("chaos_{}", &id[24..]),
        };
        let client = patient::provision(&place.stream()?, nats_url).await?;
        let context = patient::context(client.clone());
        Ok(Self {
            db: connect(database_url, connections).await?,
            names: place.names()?,
            stream: context.get_stream(&place.name).await?,
            client,
            context,
            place,
        })
    }

    pub(crate) fn table(&self, name: &'static str) -> String {
        self.names.table(self.db.get_database_backend(), name)
    }

    pub(crate) async fn query(&self, sql: &str) -> Result<Vec<QueryResult>> {
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        Ok(self.db.query_all_raw(statement).await?)
    }

    pub(crate) async fn remove(self) -> Result<()> {
        self.context.delete_stream(&self.place.name).await?;
        // A file of SQLite is removed as a whole.
        if self.db.get_database_backend() != DbBackend::Sqlite {
            // Views come before their tables, and tables before their functions.
            let sql = format!(
                "SELECT concat(CASE table_type WHEN 'VIEW' THEN 'VIEW ' ELSE 'TABLE ' END, table_name) AS object \
                 FROM information_schema.tables WHERE table_name LIKE '{0}%' \
                 UNION ALL SELECT concat('FUNCTION ', routine_name) \
                 FROM information_schema.routines WHERE routine_name LIKE '{0}%' ORDER BY object DESC",
                self.place.name
            );
            for row in self.query(&sql).await? {
                let object: String = row.try_get("", "object")?;
                self.db.execute_unprepared(&format!("DROP {object}")).await?;
            }
        }
        Ok(self.db.close().await?)
    }
}
