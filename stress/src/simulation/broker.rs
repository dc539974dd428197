//! The connection from a simulated relay to the broker. Invariant: a sent message arrives even if
//! its caller is dropped.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::message::Message;
use outbox_core::publisher::{Destination, FailureClass, PublishError, Publisher, Receipt};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::history::{Life, MessageNo};
use super::plan::{self, Cut};
use super::world::{Shared, World, spawn_unless_dropped};

#[derive(Debug, Clone)]
pub(super) struct SimPublisher {
    pub(super) world: Arc<World>,
    pub(super) life: Life,
}

#[derive(Debug, Clone, Copy)]
struct CallFault {
    before: Duration,
    after: Duration,
    way: Way,
    buffered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Straight,
    AckLost,
    /// The call times out, and the message arrives this much later.
    Ghost(Duration),
    Vanishes,
    Refused(FailureClass),
}

impl CallFault {
    fn draw(shared: &mut Shared, world: &World) -> Self {
        let plan = &world.plan.broker;
        let (is_bad, rng) = (!shared.is_calm, &mut shared.rng);
        let mut latency = || plan::latency(rng, plan.latency_max);
        let (before, mut after) = (latency(), latency());
        let mut way = Way::Straight;
        if is_bad {
            if plan::chance(rng, plan.is_late) {
                after += plan::ms(rng, 1..=500).min(plan.timeout);
            }
            if plan::chance(rng, plan.loses_ack) {
                way = Way::AckLost;
            } else if plan::chance(rng, plan.ghosts) {
                way = Way::Ghost(plan::ms(rng, 1..=3000));
            } else if plan::chance(rng, plan.vanishes) {
                way = Way::Vanishes;
            } else if plan::chance(rng, plan.refuses) {
                way = Way::Refused(refusal(rng));
            }
        }
        Self {
            before,
            after,
            way,
            buffered: rng.u8(..) < 80,
        }
    }
}

pub(super) fn refusal(rng: &mut fastrand::Rng) -> FailureClass {
    [
        FailureClass::Transient,
        FailureClass::Backpressure,
        FailureClass::Configuration,
    ][rng.usize(0..3)]
}

struct Flight<'a> {
    publisher: &'a SimPublisher,
    no: MessageNo,
    answer: Option<Result<(), FailureClass>>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let SimPublisher { world, life } = self.publisher;
        world.shared().checker.publish_done(*life, self.no, self.answer);
    }
}

impl World {
    fn arrive(&self, message: &Message, no: MessageNo, way: Way) -> Result<Receipt, FailureClass> {
        let mut shared = self.shared();
        if shared.broker_is_down {
            return Err(FailureClass::Unknown);
        }
        if let Way::Refused(class) = way {
            return Err(class);
        }
        if let Some(class) = shared.broker_refuses {
            return Err(class);
        }
        if let Some(class) = shared.checker.own_fault(no) {
            return Err(class);
        }
        let receipt = self.broker.store_message(message);
        let now = self.store.now();
        shared.checker.stored(no, receipt, now);
        match way {
            Way::Straight => Ok(receipt),
            _ => Err(FailureClass::Unknown),
        }
    }
}

impl Publisher for SimPublisher {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        let world = &self.world;
        let fail = |class| PublishError::new(class, "simulated fault");
        let (no, fault, connection) = {
            let mut shared = world.shared();
            let no = shared.checker.sent(self.life, message);
            let mut fault = CallFault::draw(&mut shared, world);
            match shared.cut_of(self.life) {
                Some(Cut::Broker | Cut::Messages) => fault.way = Way::Vanishes,
                Some(Cut::Refusals(class)) => fault.way = Way::Refused(class),
                _ => {}
            }
            (no, fault, shared.connection(self.life))
        };
        let Some(no) = no else {
            return Err(fail(FailureClass::Permanent));
        };
        let mut flight = Flight {
            publisher: self,
            no,
            answer: None,
        };
        let result = match fault.way {
            Way::Vanishes => Err(FailureClass::Unknown),
            Way::Ghost(late) => {
                let (world, life, message) = (world.clone(), self.life, message.clone());
                tokio::spawn(async move {
                    sleep(late).await;
                    let is_gone = fault.buffered && world.shared().connection(life) != connection;
                    if !is_gone {
                        let _answer = world.arrive(&message, no, fault.way);
                    }
                });
                Err(FailureClass::Unknown)
            }
            _ if fault.before.is_zero() => world.arrive(message, no, fault.way),
            _ => {
                let (answer, answered) = oneshot::channel();
                let (world, life, message) = (world.clone(), self.life, message.clone());
                let travel = async move {
                    sleep(fault.before).await;
                    let is_gone = fault.buffered && world.shared().connection(life) != connection;
                    let result = if is_gone {
                        Err(FailureClass::Unknown)
                    } else {
                        world.arrive(&message, no, fault.way)
                    };
                    let _ = answer.send(result);
                };
                let _guard = spawn_unless_dropped(travel, !fault.buffered);
                answered.await.unwrap_or(Err(FailureClass::Unknown))
            }
        };
        let wait = match result {
            Err(FailureClass::Unknown) => world.plan.broker.timeout,
            _ => fault.after,
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
        flight.answer = Some(result.map(drop));
        result.map_err(|class| {
            fail(match class {
                FailureClass::Permanent => class,
                class => world.wrong.class(class),
            })
        })
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        let is_silent = {
            let shared = self.world.shared();
            shared.broker_is_down || shared.cut_of(self.life) == Some(Cut::Broker)
        };
        if is_silent {
            sleep(self.world.plan.broker.timeout).await;
            return Err(PublishError::new(FailureClass::Unknown, "simulated fault"));
        }
        Ok(Vec::new())
    }

    async fn abandon(&self) {
        let slow = {
            let mut shared = self.world.shared();
            shared.reconnect(self.life);
            if shared.is_calm || shared.rng.bool() {
                Duration::ZERO
            } else {
                plan::ms(&mut shared.rng, 1..=1200)
            }
        };
        if !slow.is_zero() {
            sleep(slow).await;
        }
    }
}
