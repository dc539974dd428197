//! Sets up, drops and hands over the log under load. If the database is killed during a call, a
//! retry of the same call must succeed.

use std::time::Duration;

use outbox_log::LogError;
use outbox_stress::patient;

use super::world::World;
use crate::Result;

const AGAIN: Duration = Duration::from_millis(100);
const TRIES: u32 = 600;

pub(crate) async fn set_up(world: &World) -> Result<()> {
    repeat(async || patient::init(&world.log()?).await).await
}

pub(crate) async fn take_down(world: &World) -> Result<()> {
    repeat(async || world.log()?.drop().await).await
}

pub(crate) async fn hand_over(world: &World, times: u32, time: Duration) -> Result<()> {
    let pause = time / (2 * times).max(1);
    for n in 1..=times {
        tokio::time::sleep(pause).await;
        take_down(world).await?;
        tokio::time::sleep(pause).await;
        set_up(world).await?;
        eprintln!("the log was dropped and recreated {n} times");
    }
    Ok(())
}

pub(crate) async fn drop_slot(world: &World) -> Result<bool> {
    let slot = format!("slot_name = '{}_log'", world.ground.place.name);
    let end =
        format!("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE {slot} AND active");
    let drop = format!("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {slot}");
    for _ in 0..TRIES {
        world.execute(&end).await?;
        match world.execute(&drop).await {
            Ok(dropped) => return Ok(dropped == 1),
            Err(_) => tokio::time::sleep(AGAIN / 10).await,
        }
    }
    Err("the slot cannot be dropped".into())
}

async fn repeat(mut step: impl AsyncFnMut() -> std::result::Result<(), LogError>) -> Result<()> {
    let mut tries = 0;
    loop {
        match step().await {
            Ok(()) => return Ok(()),
            Err(error @ LogError::Failed { .. }) if tries < TRIES => {
                eprintln!("again: {}", outbox_core::describe(&error));
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
