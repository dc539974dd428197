//! The event types linked into this program, registered by the derive. Event types of unused crates
//! are not linked.
//!
//! Invariant: one (aggregate, name, version) is one Rust type.

use std::collections::BTreeMap;

use crate::event::EventDescriptor;

/// One Rust type's registration by the derive.
#[doc(hidden)]
#[derive(Debug)]
pub struct CatalogueEntry {
    /// The type's descriptors.
    pub descriptors: &'static [EventDescriptor],
    /// The type's [`SENSITIVE`](crate::DomainEvent::SENSITIVE).
    pub sensitive: &'static [&'static str],
}

inventory::collect!(CatalogueEntry);

/// This program's event types, sorted.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    descriptors: Vec<&'static EventDescriptor>,
}

impl Catalogue {
    /// Collects the linked event types.
    ///
    /// # Errors
    ///
    /// [`CatalogueError::Duplicate`] if two types have the same (aggregate, name, version).
    pub fn linked() -> Result<Self, CatalogueError> {
        Self::from_descriptors(
            inventory::iter::<CatalogueEntry>
                .into_iter()
                .flat_map(|entry| entry.descriptors),
        )
    }

    /// Collects given descriptors.
    ///
    /// # Errors
    ///
    /// As [`Self::linked`].
    pub fn from_descriptors(
        descriptors: impl IntoIterator<Item = &'static EventDescriptor>,
    ) -> Result<Self, CatalogueError> {
        let mut by_key = BTreeMap::new();
        for descriptor in descriptors {
            let key = (descriptor.aggregate, descriptor.name, descriptor.version);
            if let Some(first) = by_key.insert(key, descriptor) {
                let (first, second) = if (first.file, first.line) <= (descriptor.file, descriptor.line) {
                    (first, descriptor)
                } else {
                    (descriptor, first)
                };
                return Err(CatalogueError::Duplicate { first, second });
            }
        }
        Ok(Self {
            descriptors: by_key.into_values().collect(),
        })
    }

    /// Event types by aggregate, name and version.
    pub fn iter(&self) -> impl Iterator<Item = &'static EventDescriptor> + '_ {
        self.descriptors.iter().copied()
    }
}

/// Conflicting event types.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// Two types for one event.
    #[error(
        "event `{}` version {} is described twice: {} ({}:{}) and {} ({}:{}); give one of them another `name` or `version`",
        first.event_type(), first.version, first.rust_type, first.file, first.line, second.rust_type, second.file, second.line
    )]
    Duplicate {
        /// First type by file and line.
        first: &'static EventDescriptor,
        /// The other type.
        second: &'static EventDescriptor,
    },
}
