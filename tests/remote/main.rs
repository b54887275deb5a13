//! Objects of servers (feature `object-store`): a server of ours that fails in every way, and `s3s-fs`, a real one, which `ci/servers.sh` starts.

#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(unsafe_code)] // one forks

#[macro_use]
extern crate watch;

mod faults;
#[cfg(unix)]
mod forked;
mod s3;
mod server;
