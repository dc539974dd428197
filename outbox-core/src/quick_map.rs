//! Fast hash maps and sets.
//!
//! The hash is not cryptographic: use the standard maps if an attacker chooses the keys and can
//! measure response times.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

pub(crate) type QuickMap<K, V> = HashMap<K, V, RandomState>;
pub(crate) type QuickSet<T> = HashSet<T, RandomState>;
