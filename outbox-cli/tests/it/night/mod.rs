//! The ten questions of `docs/guide/16-night.md`: each problem is produced on real servers, and
//! commands and output are compared with the page.

mod page;
mod q01_is_it_us;
mod q02_is_anything_lost;
mod q03_where_is_it;
mod q04_why_does_it_wait;
mod q05_what_fails;
mod q06_who_is_behind;
mod q07_what_would_retry_do;
mod q08_did_it_work;
mod q09_who_publishes;
mod q10_until_morning;
