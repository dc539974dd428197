//! What the forecast foresees, and the sentence that it says.

use super::*;

const BETWEEN: Duration = Duration::from_secs(10);

fn backlog(pending: u64) -> Seen {
    Seen {
        pending: Some((pending, true)),
        ..Seen::default()
    }
}

fn stream(bytes: u64, max_bytes: Option<u64>) -> Seen {
    Seen {
        stream: Some(StreamUse {
            bytes,
            max_bytes,
            max_age: Some(Duration::from_secs(3600)),
            ..StreamUse::default()
        }),
        ..Seen::default()
    }
}

fn consumer(left: u64, floor: u64, oldest: Option<u64>) -> Seen {
    let mut seen = stream(0, None);
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
    // A count and an estimate cannot be compared.
    check(&about(200_000), &backlog(99_000), &[]);
}

#[test]
fn a_stream_that_grows_is_full_at_a_time() {
    let full = "the stream is 20 % full and refuses new messages in 80 s";
    check(
        &stream(100, Some(1000)),
        &stream(200, Some(1000)),
        &[(Outlook::Runs, Some(80), full)],
    );
    let stands = "the stream is 20 % full (200 of 1000 bytes), and does not grow";
    check(
        &stream(200, Some(1000)),
        &stream(200, Some(1000)),
        &[(Outlook::Done, None, stands)],
    );
}

#[test]
fn of_two_bounds_of_a_stream_the_one_that_is_reached_first_is_told() {
    let look = |bytes, messages, max_messages| {
        let mut seen = stream(bytes, Some(10_000));
        let stream = seen.stream.as_mut().unwrap();
        (stream.messages, stream.max_messages) = (messages, Some(max_messages));
        seen
    };
    let bytes_first = "the stream is 20 % full and refuses new messages in 80 s";
    let forecast = check(
        &look(1_000, 10, 1_000),
        &look(2_000, 20, 1_000),
        &[(Outlook::Runs, Some(80), bytes_first)],
    );
    assert_eq!(forecast.prospects[0].per_second, 100.0);
    let messages_first = "the stream is 50 % full and refuses new messages in 20 s";
    let forecast = check(
        &look(1_000, 10, 40),
        &look(2_000, 20, 40),
        &[(Outlook::Runs, Some(20), messages_first)],
    );
    assert_eq!(forecast.prospects[0].per_second, 1.0);
    let stands = "the stream is 50 % full (20 of 40 messages), and does not grow";
    check(
        &look(2_000, 20, 40),
        &look(2_000, 20, 40),
        &[(Outlook::Done, None, stands)],
    );
}

#[test]
fn a_full_stream_that_refuses_is_no_good_news_although_it_does_not_grow() {
    let full = "the stream is 99 % full (995 of 1000 bytes), and refuses what does not fit";
    let mut seen = stream(995, Some(1_000));
    check(&seen, &seen, &[(Outlook::Never, None, full)]);
    let stream = seen.stream.as_mut().unwrap();
    (stream.bytes, stream.messages, stream.max_messages) = (10, 40, Some(40));
    let full = "the stream is 100 % full (40 of 40 messages), and refuses what does not fit";
    check(&seen, &seen, &[(Outlook::Never, None, full)]);
    seen.stream.as_mut().unwrap().drops_oldest = true;
    let stands = "the stream is 100 % full (40 of 40 messages), and does not grow";
    check(&seen, &seen, &[(Outlook::Done, None, stands)]);
}

#[test]
fn a_stream_is_not_full_while_it_shrinks_or_has_room_for_messages() {
    let shrinks = "the stream is 99 % full (995 of 1000 bytes), and does not grow";
    let (before, now) = (stream(998, Some(1_000)), stream(995, Some(1_000)));
    check(&before, &now, &[(Outlook::Done, None, shrinks)]);
    let mut seen = stream(99_500_000_000, Some(100_000_000_000));
    let stands = "the stream is 99 % full (99500000000 of 100000000000 bytes), and does not grow";
    check(&seen, &seen, &[(Outlook::Done, None, stands)]);
    let stream = seen.stream.as_mut().unwrap();
    (stream.max_bytes, stream.messages, stream.max_messages) = (None, 199, Some(200));
    let stands = "the stream is 99 % full (199 of 200 messages), and does not grow";
    check(&seen, &seen, &[(Outlook::Done, None, stands)]);
}

#[test]
fn a_stream_that_grows_without_a_bound_ends_with_the_disk_at_an_unknown_time() {
    let without_age = |bytes| {
        let mut seen = stream(bytes, None);
        seen.stream.as_mut().unwrap().max_age = None;
        seen
    };
    let grows =
        "the stream grows by 50.0 bytes each second and has no bound: it ends when the server's disk is full";
    let forecast = check(
        &without_age(500),
        &without_age(1_000),
        &[(Outlook::Runs, None, grows)],
    );
    assert_eq!(forecast.prospects[0].next.line(), "outbox doctor");
    check(&without_age(1_000), &without_age(1_000), &[]);
    // It was purged meanwhile.
    check(&without_age(1_000), &without_age(500), &[]);
    // What is older than its age is deleted, so it may stop growing before.
    check(&stream(500, None), &stream(1_000, None), &[]);
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

/// A stream that holds 1,000 messages at most, and its consumer.
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
    let room = "the stream is 100 % full (1000 of 1000 messages), and does not grow";
    // It drops 10 messages each second, so it keeps one for 100 seconds.
    check(
        &full(true, 5_000, 400, 40),
        &full(true, 5_100, 400, 40),
        &[
            (Outlook::Runs, Some(60), drops),
            (Outlook::Never, None, never),
            (Outlook::Done, None, room),
        ],
    );
    // It has caught up before.
    let ends = "100 messages are left, 30.0 fewer each second; it catches up in 3 s";
    check(
        &full(true, 5_000, 400, 40),
        &full(true, 5_100, 100, 10),
        &[(Outlook::Ends, Some(3), ends), (Outlook::Done, None, room)],
    );
    let refuses = "the stream is 100 % full (1000 of 1000 messages), and refuses what does not fit";
    let none = "400 messages are left, and it handles none";
    let seen = full(false, 5_000, 400, 40);
    check(
        &seen,
        &seen,
        &[(Outlook::Never, None, refuses), (Outlook::Never, None, none)],
    );
}

#[test]
fn a_stream_is_full_of_bytes_if_the_next_message_has_no_room() {
    assert!(full::is_full_of_bytes(9_600, 10_000, 16));
    assert!(!full::is_full_of_bytes(9_300, 10_000, 16));
    assert!(!full::is_full_of_bytes(0, 1_000, 0));
    // It has room for eight hundred more, unless the next one is far larger; one to which nothing is added has met that one.
    let (used, most, messages) = (49_600_000, 50_000_000, 99_200);
    assert!(!full::is_full_of_bytes(used, most, messages));
    assert!(full::may_be_full_of_bytes(used, most, messages));
}

#[test]
fn one_look_or_an_unknown_consumer_tells_nothing() {
    assert!(
        forecast(&backlog(1), &backlog(1), Duration::ZERO)
            .prospects
            .is_empty()
    );
    check(&stream(0, None), &consumer(1, 1, None), &[]);
}
