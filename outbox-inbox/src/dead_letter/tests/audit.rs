//! Changes recorded in the audit log.

use std::num::NonZeroU32;

use outbox_core::{Intent, Operation, OperationFilter, OperationId, OperationKind, OperationScope};

use super::*;
use crate::{InboxOperations, PausedConsumers};

fn operation(kind: OperationKind) -> Operation {
    Operation::new(
        kind,
        OperationScope::names(["billing"]),
        Intent::of("ann").because("INC-1"),
    )
}

fn operations(test: &TestDb) -> InboxOperations {
    InboxOperations::new(test.db.clone()).with_names(test.names.clone())
}

async fn written(test: &TestDb, id: OperationId) -> Option<(u64, bool)> {
    let found = operations(test).get(id).await.unwrap();
    found.map(|found| (found.changed, found.is_finished()))
}

#[tokio::test]
async fn changes_of_letters_and_pauses_are_audited() {
    for test in TestDb::open_all().await {
        let all = DeadLetterSelection::all();
        for stream_sequence in 1..=3 {
            make_dead_letter(&test, stream_sequence).await;
        }
        let retry = operation(OperationKind::RetryLetters);
        let letters = test.letters().written_down(&retry);
        assert_eq!(letters.retry(&all).await.unwrap(), 3);
        assert_eq!(written(&test, retry.id).await, Some((3, true)));
        let named = operations(&test).letters_of(retry.id).await.unwrap();
        let listed = test.letters().list_without_payloads(&all, 10).await.unwrap();
        let ids: Vec<Uuid> = listed.iter().map(|letter| letter.id).collect();
        assert!(listed.iter().all(|letter| letter.payload.is_empty()));
        assert_eq!((named.len(), named.iter().all(|id| ids.contains(id))), (3, true));
        let again = operation(OperationKind::RetryLetters);
        let letters = test.letters().written_down(&again);
        assert_eq!(letters.retry(&all).await.unwrap(), 0);
        assert_eq!(written(&test, again.id).await, None, "nothing was changed");

        let erase = operation(OperationKind::EraseLetters);
        let letters = test.letters().written_down(&erase);
        let erased = letters.erase(&Aggregate::new("order", "1")).await.unwrap();
        assert_eq!(erased.erased, 3);
        assert_eq!(written(&test, erase.id).await, Some((3, true)));

        let pauses = PausedConsumers::new(test.db.clone()).with_names(test.names.clone());
        let pause = operation(OperationKind::PauseConsumer);
        for (changes, expected) in [(true, Some((1, true))), (false, Some((1, true)))] {
            let pauses = pauses.clone().written_down(&pause);
            assert_eq!(pauses.pause("billing", "why").await.unwrap(), changes);
            assert_eq!(written(&test, pause.id).await, expected);
        }
        let resume = operation(OperationKind::ResumeConsumer);
        assert!(
            pauses
                .clone()
                .written_down(&resume)
                .resume("billing")
                .await
                .unwrap()
        );
        assert!(!pauses.resume("billing").await.unwrap());
        let mut filter = OperationFilter::default();
        filter.actor = Some("ann".to_owned());
        let listed = operations(&test).list(&filter, NonZeroU32::MAX).await.unwrap();
        let ids: Vec<OperationId> = listed.iter().map(|operation| operation.id).collect();
        assert_eq!(ids, [resume.id, pause.id, erase.id, retry.id]);
    }
}

#[tokio::test]
async fn missing_audit_table_prevents_inbox_changes() {
    for test in TestDb::open_all().await {
        make_dead_letter(&test, 1).await;
        let backend = test.db.get_database_backend();
        let table = test.names.table(backend, "inbox_operations");
        test.db
            .execute_unprepared(&format!("DROP TABLE {table}"))
            .await
            .unwrap();
        let discard = operation(OperationKind::DiscardLetters);
        let letters = test.letters().written_down(&discard);
        letters.discard(&DeadLetterSelection::all()).await.unwrap_err();
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            1
        );
        let pauses = PausedConsumers::new(test.db.clone()).with_names(test.names.clone());
        let written = pauses.clone().written_down(&discard);
        written.pause("billing", "why").await.unwrap_err();
        assert_eq!(pauses.list().await.unwrap(), []);
        assert!(
            pauses.pause("billing", "why").await.unwrap(),
            "without an operation"
        );
    }
}
