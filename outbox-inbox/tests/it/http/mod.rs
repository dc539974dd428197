//! The layer for HTTP requests, over real sockets.

mod failure;
mod keys;
mod processes;
mod replay;
mod rights;
mod shop;
