//! Tests of the forecast and its sentences.

use super::*;

const BETWEEN: Duration = Duration::from_secs(10);

fn backlog(pending: u64) -> Seen {
    Seen {
        pending: Some((pending, true)),
        ..Seen::default()
    }
}

fn stream() -> Seen {
    Seen {
        stream: Some(StreamUse {
            max_age: Some(Duration::from_secs(3600)),
            ..StreamUse::default()
        }),
        ..Seen::default()
    }
}

fn consumer(left: u64, floor: u64, oldest: Option<u64>) -> Seen {
    let mut seen = stream();
    seen.consumers.push(ConsumerSeen {
        consumer: "billing".to_owned(),
        left,
        floor,
        oldest: oldest.map(Duration::from_secs),
    });
    seen
}

#[track_caller]
fn check(earlier: &Seen, now: &Seen, expected: &[(Outlook, Option<u64>, &str)]) -> Forecast {
    let forecast = forecast(earlier, now, BETWEEN);
    let found: Vec<_> = forecast
        .prospects
        .iter()
        .map(|prospect| {
            assert_eq!(
                prospect.next.is_empty(),
                !prospect.outlook.is_bad(),
                "{prospect:?}"
            );
            let within = prospect.within.map(|within| within.as_secs());
            (prospect.outlook, within, prospect.what.as_str())
        })
        .collect();
    assert_eq!(found, expected);
    forecast
}

#[test]
fn a_backlog_that_shrinks_ends_and_one_that_does_not_never_does() {
    let ends = "500 messages are to be published, 10.0 fewer each second; all of them in 50 s";
    check(&backlog(600), &backlog(500), &[(Outlook::Ends, Some(50), ends)]);
    let grows = "1 message is to be published, 0.1 more each second";
    check(&backlog(0), &backlog(1), &[(Outlook::Never, None, grows)]);
    let stands = "7 messages are to be published, as many as before";
    check(&backlog(7), &backlog(7), &[(Outlook::Never, None, stands)]);
    let done = "nothing is to be published";
    check(&backlog(7), &backlog(0), &[(Outlook::Done, None, done)]);
}

#[test]
fn a_backlog_beyond_the_count_has_a_rate_and_an_end() {
    let about = |estimate| Seen {
        pending: Some((estimate, false)),
        ..Seen::default()
    };
    let ends = "about 2000000 messages are to be published, 8000.0 fewer each second; all of them in 4 min";
    check(
        &about(2_080_000),
        &about(2_000_000),
        &[(Outlook::Ends, Some(250), ends)],
    );
    let grows = "about 2000000 messages are to be published, 100.0 more each second";
    check(
        &about(1_999_000),
        &about(2_000_000),
        &[(Outlook::Never, None, grows)],
    );
    // A count and an estimate are not comparable.
    check(&about(200_000), &backlog(99_000), &[]);
}

#[test]
fn a_consumer_catches_up_or_never_does() {
    let ends = "100 messages are left, 10.0 fewer each second; it catches up in 10 s";
    check(
        &consumer(200, 1, None),
        &consumer(100, 101, None),
        &[(Outlook::Ends, Some(10), ends)],
    );
    let never =
        "200 messages are left; it passes 5.0 stream sequences each second and never catches up at this rate";
    check(
        &consumer(100, 1, None),
        &consumer(200, 51, None),
        &[(Outlook::Never, None, never)],
    );
    let none = "1 message is left, and it handles none";
    check(
        &consumer(1, 1, None),
        &consumer(1, 1, None),
        &[(Outlook::Never, None, none)],
    );
    let done = "it has handled everything";
    check(
        &consumer(1, 1, None),
        &consumer(0, 2, None),
        &[(Outlook::Done, None, done)],
    );
}

#[test]
fn what_the_stream_deletes_unread_comes_before_what_ends_well() {
    let expires = "its oldest message is deleted by the stream in 10 min";
    let ends = "100 messages are left, 10.0 fewer each second; it catches up in 10 s";
    check(
        &consumer(200, 1, Some(2990)),
        &consumer(100, 101, Some(3000)),
        &[
            (Outlook::Runs, Some(600), expires),
            (Outlook::Ends, Some(10), ends),
        ],
    );
}

/// A stream limited to 1,000 messages, with its consumer.
fn full(drops_oldest: bool, last_sequence: u64, left: u64, oldest: u64) -> Seen {
    let mut seen = consumer(left, last_sequence - left, Some(oldest));
    let stream = seen.stream.as_mut().unwrap();
    (stream.max_age, stream.drops_oldest) = (None, drops_oldest);
    (stream.messages, stream.max_messages) = (1_000, Some(1_000));
    stream.last_sequence = last_sequence;
    seen
}

#[test]
fn what_a_full_stream_drops_unread_is_told_with_its_time() {
    let drops =
        "the stream is full and drops its oldest messages: that of this consumer in 60 s, read or not";
    let never = "400 messages are left; it passes 10.0 stream sequences each second and never catches up at this rate";
    // The stream drops 10 messages per second, so it keeps each message for 100 seconds.
    check(
        &full(true, 5_000, 400, 40),
        &full(true, 5_100, 400, 40),
        &[(Outlook::Runs, Some(60), drops), (Outlook::Never, None, never)],
    );
    // The consumer catches up first.
    let ends = "100 messages are left, 30.0 fewer each second; it catches up in 3 s";
    check(
        &full(true, 5_000, 400, 40),
        &full(true, 5_100, 100, 10),
        &[(Outlook::Ends, Some(3), ends)],
    );
    let none = "400 messages are left, and it handles none";
    let seen = full(false, 5_000, 400, 40);
    check(&seen, &seen, &[(Outlook::Never, None, none)]);
}

#[test]
fn a_stream_is_full_of_bytes_if_the_next_message_has_no_room() {
    assert!(full::is_full_of_bytes(9_600, 10_000, 16));
    assert!(!full::is_full_of_bytes(9_300, 10_000, 16));
    assert!(!full::is_full_of_bytes(0, 1_000, 0));
}

#[test]
fn one_look_or_an_unknown_consumer_tells_nothing() {
    assert!(
        forecast(&backlog(1), &backlog(1), Duration::ZERO)
            .prospects
            .is_empty()
    );
    check(&stream(), &consumer(1, 1, None), &[]);
}
