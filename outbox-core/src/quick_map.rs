//! Hash maps and sets that are asked several times for each message.
//!
//! Their hash is quicker than that of the standard library, and weaker: it is no cryptographic function, and its seed is where the process lies in memory. Keys
//! do not collide by accident. Keep to the standard maps where a stranger chooses the keys and sees how long an answer takes.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

pub(crate) type QuickMap<K, V> = HashMap<K, V, RandomState>;
pub(crate) type QuickSet<T> = HashSet<T, RandomState>;
