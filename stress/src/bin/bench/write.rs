//! The cost of recording an event in a transaction, with 16 writers.

use std::time::{Duration, Instant};

use outbox_sea_orm::SaveWithEvents as _;
use sea_orm::{ActiveModelTrait as _, ConnectionTrait as _, DatabaseConnection, Set, TransactionTrait as _};
use tokio::task::JoinSet;

use crate::figure::{Figure, Series};
use crate::load::{Moved, Seen, account_id};
use crate::raw::per_second;
use crate::servers::Servers;
use crate::{Failure, Options, Result, check};

const WRITERS: u32 = 16;
const ACCOUNTS: u64 = 10_000;

mod account {

    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "accounts")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: i64,
        pub balance: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    None,
    Sequenced,
    Unsequenced,
}

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let time = Duration::from_secs(options.size(8, 2));
    let mut rates = Series::default();
    for _ in options.runs("write") {
        for (name, event) in [
            ("write_sequenced", Event::Sequenced),
            ("plain", Event::None),
            ("write_unsequenced", Event::Unsequenced),
        ] {
            rates.add(name, rate(servers, event, time).await?);
        }
    }
    let against = |name| rates.against(name, "tx/s", name, "plain");
    Ok(vec![
        against("write_sequenced").at_least(0.65),
        against("write_unsequenced").at_least(0.72),
    ])
}

async fn rate(servers: &Servers, event: Event, time: Duration) -> Result<f64> {
    let outbox = servers.outbox().await?;
    let table =
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 70)";
    outbox.db.execute_unprepared(table).await?;
    let rows = format!(
        "INSERT INTO accounts SELECT {} + n, 0 FROM generate_series(0, {ACCOUNTS} - 1) n",
        account_id(0)
    );
    outbox.db.execute_unprepared(&rows).await?;
    let db = outbox.pool(WRITERS).await?;
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let db = db.clone();
        writers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(u64::from(writer));
            let mut written = 0;
            while start.elapsed() < time {
                write(&db, event, account_id(random.u64(..ACCOUNTS)), written).await?;
                written += 1;
            }
            Ok::<_, Failure>(written)
        });
    }
    let mut written = 0;
    for writer in writers.join_all().await {
        written += u64::try_from(writer?)?;
    }
    let rate = per_second(written, start.elapsed());
    let messages = if event == Event::None { 0 } else { written };
    check("messages recorded", outbox.messages().await?, messages)?;
    db.close().await?;
    outbox.remove().await?;
    Ok(rate)
}

async fn write(db: &DatabaseConnection, event: Event, id: i64, balance: i64) -> Result<()> {
    let account = account::ActiveModel {
        id: Set(id),
        balance: Set(balance),
    };
    match event {
        Event::None => {
            let tx = db.begin().await?;
            account.update(&tx).await?;
            tx.commit().await?;
        }
        Event::Sequenced => {
            account
                .update_with_events(db, move |_| [Moved::new(id, balance)])
                .await?;
        }
        Event::Unsequenced => {
            account
                .update_with_events(db, move |_| [Seen::new(id, balance)])
                .await?;
        }
    }
    Ok(())
}
