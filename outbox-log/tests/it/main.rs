//! Tests of the log relay in memory, and of the log of a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test marks an unexpected failure with it")]

macro_rules! with_a_place {
    ($module:ident, $open:ident, $($test:ident,)+) => {
        mod $module {
            use crate::support::Place;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(place) = Place::$open().await {
                        super::$test(&place).await;
                        place.close().await;
                    }
                }
            )+
        }
    };
}

macro_rules! on_a_log {
    ($($test:ident,)+) => { crate::with_a_place!(on_a_log, open, $($test,)+); };
}

macro_rules! without_a_log {
    ($($test:ident,)+) => { crate::with_a_place!(without_a_log, without_log, $($test,)+); };
}

use {on_a_log, with_a_place, without_a_log};

mod conformance;
mod hand_over;
mod lost;
#[cfg(unix)]
mod odd;
#[cfg(unix)]
mod planted;
mod published;
mod reading;
mod relay;
mod set_up;
mod support;
mod unclaimed;
