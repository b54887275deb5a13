//! The threads, and what each of them does. They join what the folders below do not know of each other.

pub(super) mod consumer;
pub(super) mod decoded;
pub(super) mod early;
pub(super) mod late;
pub(super) mod pin;
pub(super) mod pipeline;
pub(super) mod pull;
pub(super) mod run;
pub(super) mod sending;
pub(super) mod session;
pub(super) mod start;
pub(super) mod steps;
pub(super) mod watchdog;
pub(super) mod worker;
