//! Checks before the first message that the database server is supported.

use outbox_sea_orm::{unfit_settings, untested_engine, version_query};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbErr, Statement};

use crate::start_error::Problem;

pub(crate) async fn problems(db: &DatabaseConnection, allows_untested: bool) -> Result<Vec<Problem>, DbErr> {
    let backend = db.get_database_backend();
    let asked = Statement::from_string(backend, version_query(backend));
    let version = match db.query_one_raw(asked).await? {
        Some(row) => row.try_get_by_index::<String>(0)?,
        None => String::new(),
    };
    let mut problems = Vec::new();
    problems.extend(refused_engine(&version, allows_untested));
    let unfit = unfit_settings(db).await?;
    problems.extend(unfit.iter().map(|setting| Problem::new(setting.to_string())));
    Ok(problems)
}

fn refused_engine(version: &str, is_allowed: bool) -> Option<Problem> {
    let engine = untested_engine(version).filter(|_| !is_allowed)?;
    Some(Problem::new(format!(
        "the server is {engine} ({version}), which was not tested and may lack locks or isolation that the inbox relies on; use PostgreSQL, MySQL, \
         MariaDB or SQLite, or allow it with `InboxConfig::allow_untested_engine`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untested_engine_is_refused_unless_allowed() {
        let refused = |version: &str, is_allowed| refused_engine(version, is_allowed);
        let problem = refused("8.0.11-TiDB-v8.5.0", false).unwrap().to_string();
        assert!(
            problem.contains("TiDB") && problem.contains("allow_untested_engine"),
            "{problem}"
        );
        assert!(refused("8.0.11-TiDB-v8.5.0", true).is_none());
        assert!(refused("10.11.19-MariaDB", false).is_none());
    }
}
