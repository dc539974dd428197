//! Finds out before the first message whether the database server can be relied on.

use outbox_sea_orm::{unfit_settings, untested_engine, version_query};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbErr, Statement};

use crate::start_error::Problem;

/// An engine that was not tested, unless it is allowed, and settings of sessions that give statements another meaning.
///
/// # Errors
///
/// The database's error.
pub(crate) async fn problems(db: &DatabaseConnection, allows_untested: bool) -> Result<Vec<Problem>, DbErr> {
    let backend = db.get_database_backend();
    let asked = Statement::from_string(backend, version_query(backend));
    let version = match db.query_one_raw(asked).await? {
        Some(row) => row.try_get_by_index::<String>(0)?,
        None => String::new(),
    };
    let mut problems = Vec::new();
    if let Some(engine) = untested_engine(&version).filter(|_| !allows_untested) {
        problems.push(Problem::UntestedEngine { engine, version });
    }
    let unfit = unfit_settings(db).await?;
    problems.extend(unfit.into_iter().map(Problem::UnfitSetting));
    Ok(problems)
}
