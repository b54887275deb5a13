//! Objects of servers (feature `object-store`): a server of ours that fails in every way, and real ones (`s3s-fs`, moto, nginx), which
//! `ci/servers.sh` installs and the tests start; each as it is, and behind a proxy of ours that fails.

#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(unsafe_code)] // one forks

#[macro_use]
extern crate watch;

#[cfg(unix)]
mod cached;
mod faults;
#[cfg(unix)]
mod forked;
#[cfg(feature = "webdataset")]
mod proxy;
mod s3;
mod server;
#[cfg(feature = "webdataset")]
mod several;
