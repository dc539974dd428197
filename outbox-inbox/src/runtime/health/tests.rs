//! Health of consumers in each state, on a paused clock.

use super::vitals::{FORGOTTEN_AFTER, OVERDUE, SILENCE_MAX};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const STUCK_AFTER: Duration = Duration::from_secs(300);

fn running() -> (InboxHealthCheck, Run, Arc<ConsumerVitals>) {
    let check = InboxHealthCheck::new(STUCK_AFTER);
    let run = check.begin();
    let books = Arc::new(ConsumerVitals::new("books"));
    books.subscribed();
    check.running(std::iter::once(books.clone()));
    (check, run, books)
}

fn consumer(check: &InboxHealthCheck) -> ConsumerHealth {
    let [consumer] = check.consumers().try_into().expect("there is one consumer");
    consumer
}

async fn pass(consumer: &ConsumerVitals, time: Duration) {
    tokio::time::advance(time).await;
    consumer.turned();
}

#[track_caller]
fn assert_text(check: &InboxHealthCheck, text: &str) {
    assert_eq!(check.now().to_string(), text);
}

#[tokio::test(start_paused = true)]
async fn health_follows_a_run_from_start_to_end() {
    let check = InboxHealthCheck::new(STUCK_AFTER);
    assert_text(&check, "stopped: the inbox is not running");
    let run = check.begin();
    assert_text(&check, "degraded: starting for 0ns: start not finished");
    assert!(!check.now().is_ready(), "not subscribed yet");
    tokio::time::advance(STUCK_AFTER - SECOND).await;
    check.cannot_start("connection refused");
    assert_text(&check, "degraded: starting for 299s: connection refused");
    tokio::time::advance(SECOND).await;
    assert_text(&check, "stuck: starting for 300s: connection refused");
    check.running(std::iter::empty());
    check.cannot_start("too late to be told");
    assert_eq!(check.now(), Health::Alive);
    check.stopping();
    assert_text(&check, "degraded: the inbox is stopping");
    run.ended(None);
    assert_text(&check, "stopped: the inbox has stopped");
    check.begin().ended(Some("tables are missing".to_owned()));
    assert_text(&check, "stopped: the inbox has stopped: tables are missing");
    drop(check.begin());
    assert_text(
        &check,
        "stopped: the inbox has stopped: the future of `run` was dropped",
    );
}

#[tokio::test(start_paused = true)]
async fn ended_subscription_is_degraded_until_next_opens() {
    let (check, _run, books) = running();
    assert_eq!(check.now(), Health::Alive);
    books.trouble("it was deleted");
    books.subscribing();
    let away_for = FORGOTTEN_AFTER + 10 * SECOND;
    pass(&books, away_for).await;
    assert_text(
        &check,
        &format!("degraded: consumer `books`: no subscription for {away_for:?}: it was deleted"),
    );
    books.received();
    books.trouble("no answer");
    pass(&books, STUCK_AFTER - away_for).await;
    assert_text(
        &check,
        "stuck: consumer `books`: no subscription for 300s: no answer",
    );
    assert!(check.now().is_alive(), "a restart does not help");
    books.subscribed();
    assert_eq!(check.now(), Health::Alive);
}

#[tokio::test(start_paused = true)]
async fn interruption_ends_with_a_delivery_or_without_new_errors() {
    let (check, _run, books) = running();
    let between = FORGOTTEN_AFTER - SECOND;
    for _ in 0..10 {
        books.trouble("no answer");
        pass(&books, between).await;
    }
    let away_for = 10 * between;
    assert_text(
        &check,
        &format!("degraded: consumer `books`: no subscription for {away_for:?}: no answer"),
    );
    pass(&books, SECOND).await;
    assert_eq!(check.now(), Health::Alive, "a silent stream is no trouble");
    books.trouble("no answer");
    assert!(!check.now().is_ready());
    books.received();
    assert_eq!(check.now(), Health::Alive);
}

#[tokio::test(start_paused = true)]
async fn uncancellable_handler_is_not_alive() {
    let (check, _run, books) = running();
    let job = books.begin_job();
    let limit = 20 * SECOND;
    let first = books.begin_handler("book", limit);
    pass(&books, SECOND).await;
    let second = books.begin_handler("reserve", SECOND);
    drop(second);
    pass(&books, limit - SECOND).await;
    pass(&books, OVERDUE).await;
    assert_eq!(check.now(), Health::Alive, "timers may be late");
    pass(&books, SECOND).await;
    let running_for = limit + OVERDUE + SECOND;
    let text = check.now().to_string();
    assert!(
        text.starts_with(&format!(
            "stopped: consumer `books`: handler `book` has run for {running_for:?} (limit 20s)"
        )),
        "{text}"
    );
    drop(first);
    assert_eq!(check.now(), Health::Alive);
    drop(job);
}

#[tokio::test(start_paused = true)]
async fn endlessly_waiting_job_is_stuck() {
    let (check, _run, books) = running();
    let job = books.begin_job();
    drop(books.begin_handler("book", SECOND));
    for _ in 0..6 {
        assert_eq!(check.now(), Health::Alive);
        pass(&books, STUCK_AFTER / 6).await;
    }
    let text = check.now().to_string();
    assert!(
        text.starts_with("stuck: consumer `books`: no started message has progressed for 300s"),
        "{text}"
    );
    drop(job);
    pass(&books, STUCK_AFTER / 6).await;
    assert_eq!(check.now(), Health::Alive, "an idle consumer is alive");
}

#[tokio::test(start_paused = true)]
async fn stalled_or_stopped_consumer_is_not_alive() {
    let (check, _run, books) = running();
    tokio::time::advance(SILENCE_MAX).await;
    assert_eq!(check.now(), Health::Alive);
    tokio::time::advance(SECOND).await;
    let silent = SILENCE_MAX + SECOND;
    assert_text(
        &check,
        &format!("stopped: consumer `books`: main loop without progress for {silent:?}"),
    );
    books.turned();
    assert_eq!(consumer(&check).state, ConsumerState::Running);
    books.stopped(Some("it panicked".to_owned()));
    assert_text(
        &check,
        "stopped: consumer `books`: the consumer has stopped: it panicked",
    );
    let reason = Some("it panicked".to_owned());
    assert_eq!(consumer(&check).state, ConsumerState::Stopped { reason });
}
