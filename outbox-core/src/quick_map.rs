//! Hash maps and sets that are asked several times for each message.
//!
//! Their hash is quicker than that of the standard library. It is seeded per process, so nobody outside can choose keys that collide; unlike the standard
//! one it is no cryptographic function, so keep to the standard maps where a stranger sees how long an answer takes.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

pub(crate) type QuickMap<K, V> = HashMap<K, V, RandomState>;
pub(crate) type QuickSet<T> = HashSet<T, RandomState>;
