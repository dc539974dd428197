//! Finds the handler of a message.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use outbox_core::codec;
use outbox_core::{EventDescriptor, Incoming, Message};

use super::consumer::{HandlerHealth, Shared};
use super::message::{Refused, Route, RoutedMessage};
use crate::handler::Registration;
use crate::interest::Interest;
use crate::upcast::Upcasters;

#[derive(Debug)]
pub(crate) struct Routes {
    handlers: HashMap<String, BTreeMap<u32, Arc<Registration>>>,
    /// Handlers of raw messages, the narrowest selection first.
    raw: Vec<(&'static EventDescriptor, Arc<Registration>)>,
    health: HashMap<&'static str, Arc<HandlerHealth>>,
    pub(crate) interest: Interest,
    fixed_subjects: HashMap<String, Vec<&'static str>>,
}

impl Routes {
    pub(crate) fn new(
        consumer: &'static str,
        handlers: &[Registration],
        linked: &[&'static EventDescriptor],
    ) -> Self {
        let mut routes = Self {
            handlers: HashMap::new(),
            raw: Vec::new(),
            health: HashMap::new(),
            interest: Interest::of(consumer, handlers, linked),
            fixed_subjects: HashMap::new(),
        };
        for handler in handlers.iter().filter(|handler| handler.consumer == consumer) {
            let handler = Arc::new(*handler);
            routes.health.entry(handler.handler).or_default();
            for event in handler.events {
                if event.is_selection() {
                    routes.raw.push((event, handler.clone()));
                    continue;
                }
                let versions = routes.handlers.entry(event.event_type()).or_default();
                versions.insert(event.version, handler.clone());
            }
        }
        routes
            .raw
            .sort_by_key(|(event, _)| (event.is_everything(), event.is_whole_aggregate()));
        let own = routes
            .interest
            .events
            .iter()
            .filter(|event| !event.is_selection());
        for event in linked.iter().chain(own) {
            let known = routes.fixed_subjects.entry(event.event_type()).or_default();
            known.extend(event.subject);
        }
        routes
    }

    pub(crate) fn routed(&self, shared: &Shared, incoming: &Incoming) -> RoutedMessage {
        let unreadable = |refused| RoutedMessage::new(Err(refused), Route::Unreadable, false);
        let message = match codec::decode(&incoming.headers, incoming.payload.clone()) {
            Ok(message) => message,
            Err(error) => return unreadable(error.into()),
        };
        // The subject of a retried dead letter is checked as well, because dead letters are stored
        // unchecked.
        let fixed = self.fixed_subjects.get(&message.event_type);
        if !(shared.belongs)(&message, &incoming.subject, fixed.map(Vec::as_slice)) {
            let event_type = message.event_type;
            return unreadable(Refused::Subject { event_type });
        }
        let route = self.route(&message, &shared.services.upcasters);
        let mut routed = RoutedMessage::new(Ok(Arc::new(message)), route, incoming.delivery_count > 1);
        routed.source = codec::source(&incoming.headers).unwrap_or_default().into();
        routed
    }

    pub(crate) fn health_of(&self, routed: &RoutedMessage) -> Option<Arc<HandlerHealth>> {
        self.health.get(routed.handler()?.handler).cloned()
    }

    fn route(&self, message: &Message, upcasters: &Upcasters) -> Route {
        let Some(versions) = self.handlers.get(&message.event_type) else {
            return self.raw_route(message);
        };
        if let Some(handler) = versions.get(&message.event_version) {
            return Route::Handler {
                handler: handler.clone(),
                upcast_to: None,
            };
        }
        let target = upcasters
            .reaches(&message.event_type, message.event_version, versions)
            .and_then(|version| Some((version, versions.get(&version)?)));
        match target {
            Some((version, handler)) => Route::Handler {
                handler: handler.clone(),
                upcast_to: Some(version),
            },
            None => Route::UnknownVersion,
        }
    }

    fn raw_route(&self, message: &Message) -> Route {
        let mut raw = self.raw.iter();
        let found = raw.find(|(event, _)| event.selects(&message.event_type));
        found.map_or(Route::NotWanted, |(_, handler)| Route::Handler {
            handler: handler.clone(),
            upcast_to: None,
        })
    }
}
