//! Tests of the forecast and its sentences.

use super::*;

const BETWEEN: Duration = Duration::from_secs(10);

fn backlog(pending: u64) -> Seen {
    Seen {
        pending: Some((pending, true)),
        ..Seen::default()
    }
}

fn consumer(left: u64, floor: u64) -> Seen {
    let mut seen = Seen::default();
    seen.consumers.push(ConsumerSeen {
        consumer: "billing".to_owned(),
        left,
        floor,
        oldest: None,
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
fn only_a_shrinking_backlog_ends() {
    let ends = "500 messages are pending, 10.0 fewer each second; all are published in 50 s";
    check(&backlog(600), &backlog(500), &[(Outlook::Ends, Some(50), ends)]);
    let grows = "1 message is pending, 0.1 more each second";
    check(&backlog(0), &backlog(1), &[(Outlook::Never, None, grows)]);
    let stands = "7 messages are pending, unchanged";
    check(&backlog(7), &backlog(7), &[(Outlook::Never, None, stands)]);
    let done = "nothing is pending";
    check(&backlog(7), &backlog(0), &[(Outlook::Done, None, done)]);
}

#[test]
fn estimated_backlog_has_a_rate_and_an_end() {
    let about = |estimate| Seen {
        pending: Some((estimate, false)),
        ..Seen::default()
    };
    let ends = "about 2000000 messages are pending, 8000.0 fewer each second; all are published in 4 min";
    check(
        &about(2_080_000),
        &about(2_000_000),
        &[(Outlook::Ends, Some(250), ends)],
    );
    let grows = "about 2000000 messages are pending, 100.0 more each second";
    check(
        &about(1_999_000),
        &about(2_000_000),
        &[(Outlook::Never, None, grows)],
    );
    check(&about(200_000), &backlog(99_000), &[]);
}

#[test]
fn a_consumer_catches_up_or_never_does() {
    let ends = "100 messages are left, 10.0 fewer each second; it catches up in 10 s";
    check(
        &consumer(200, 1),
        &consumer(100, 101),
        &[(Outlook::Ends, Some(10), ends)],
    );
    let never =
        "200 messages are left; it passes 5.0 stream sequences each second and never catches up at this rate";
    check(
        &consumer(100, 1),
        &consumer(200, 51),
        &[(Outlook::Never, None, never)],
    );
    let none = "1 message is left, and none are handled";
    check(&consumer(1, 1), &consumer(1, 1), &[(Outlook::Never, None, none)]);
    let done = "nothing is left";
    check(&consumer(1, 1), &consumer(0, 2), &[(Outlook::Done, None, done)]);
}

#[test]
fn unread_expiry_precedes_good_prospects() {
    let mut now = consumer(100, 101);
    now.max_age = Some(Duration::from_secs(3600));
    now.consumers[0].oldest = Some(Duration::from_secs(3000));
    let expires = "its oldest message is deleted by the stream in 10 min";
    let ends = "100 messages are left, 10.0 fewer each second; it catches up in 10 s";
    check(
        &consumer(200, 1),
        &now,
        &[
            (Outlook::Runs, Some(600), expires),
            (Outlook::Ends, Some(10), ends),
        ],
    );
}

#[test]
fn single_observation_gives_no_forecast() {
    assert!(
        forecast(&backlog(1), &backlog(1), Duration::ZERO)
            .prospects
            .is_empty()
    );
    check(&Seen::default(), &consumer(1, 1), &[]);
}
