//! Dead letters of one aggregate from two services with independent numbers.

use super::*;

async fn make(test: &TestDb, source: &str, sequence: u64, stream_sequence: u64) {
    let message = Message {
        sequence: Some(sequence),
        ..message()
    };
    let incoming = Incoming {
        headers: vec![("ce-source".to_owned(), source.to_owned())],
        ..incoming(stream_sequence, b"{}")
    };
    let letter = letter(Some(&message), &incoming);
    assert!(insert(&test.db, &test.sql, &letter).await.unwrap());
}

#[tokio::test]
async fn letters_of_two_services_come_in_stream_order() {
    for test in TestDb::open_all().await {
        for (source, sequence, place) in [
            ("shop", 7, 10),
            ("stock", 2, 20),
            // A dead letter of the new stream.
            ("shop", 9, 3),
        ] {
            make(&test, source, sequence, place).await;
        }
        let all = DeadLetterSelection::all();
        assert_eq!(test.letters().retry(&all).await.unwrap(), 3);
        assert_eq!(test.due_places().await, [10, 20]);
    }
}

#[tokio::test]
async fn failing_letter_holds_back_other_service_by_stream_order() {
    for test in TestDb::open_all().await {
        for (source, sequence, place) in [
            ("stock", 60, 5),
            ("shop", 7, 10),
            ("stock", 2, 20),
            ("shop", 8, 30),
        ] {
            make(&test, source, sequence, place).await;
        }
        let all = DeadLetterSelection::all();
        assert_eq!(test.letters().retry(&all).await.unwrap(), 4);
        let letters = test.due().await;
        let failing = letters.iter().find(|letter| letter.sequence == Some(7)).unwrap();
        assert!(test.begin_retry(failing).await);
        test.fail(failing, "again").await;
        assert_eq!(test.due_places().await, [5], "only this one is before it");
    }
}
