//! How often a request is made, and how long that may take.

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::client::{ANSWER, Answer, Protocol};
use super::failure::{Failure, Miss, Request, seconds};
use super::pace::{Pace, back_off};
use crate::error::BoxError;
use crate::store::error::{StoreError, StoreErrorKind};
use crate::sync::log;
use crate::sync::{Arc, AtomicBool, AtomicU64, Instant, Mutex, Ordering};

/// What requests need.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) protocol: Protocol,
    pub(super) limits: Limits,
    pub(super) opened: Instant,
    /// A server has answered once.
    pub(super) was_answered: AtomicBool,
    pub(super) requests: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) attempts: u32,
    pub(super) silence: Duration,
    pub(super) timeout: Duration,
}

/// How many attempts there are as long as no server has answered.
const FIRST_ATTEMPTS: u32 = 4;

impl Shared {
    /// Makes a request until it succeeds, or the limits are reached.
    pub(super) async fn tried<T, F>(
        &self,
        pace: &Mutex<Pace>,
        place: &str,
        request: Request,
        once: impl Fn() -> F,
    ) -> Result<T, BoxError>
    where
        F: Future<Output = Result<T, Miss>>,
    {
        let began = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.retried
                .fetch_add(u64::from(attempts > 1), Ordering::Relaxed);
            let answer = Arc::new(Mutex::new(Answer::default()));
            let left = self.limits.timeout.saturating_sub(began.elapsed());
            let attempt = ANSWER.scope(Arc::clone(&answer), once());
            let outcome = timeout(left, attempt).await;
            let answer = answer.lock().clone();
            if answer.status.is_some() && answer.asked_for_credentials.is_none() {
                self.was_answered.store(true, Ordering::Relaxed);
            }
            let mut failure = match outcome {
                Ok(Ok(value)) => {
                    pace.lock().succeeded();
                    return Ok(value);
                }
                Ok(Err(Miss::Theirs(error))) => {
                    Failure::of(&error, &answer, self.protocol, request)
                }
                Ok(Err(Miss::Ours(failure))) => failure,
                Err(_) => Failure::temporary("it was not done in time"),
            };
            let had_credentials = self.was_answered.load(Ordering::Relaxed);
            if failure.kind == StoreErrorKind::Denied && answer.status.is_none() && had_credentials
            {
                // It could be asked for them before.
                failure.is_temporary = true;
            }
            let error = |what: String| StoreError::new(place, failure.kind, what);
            if !failure.is_temporary {
                return Err(error(failure.what).into());
            }
            let is_new = !self.was_answered.load(Ordering::Relaxed);
            let first = if is_new { FIRST_ATTEMPTS } else { u32::MAX };
            let asked = failure.retry_after.unwrap_or_default();
            let wait = back_off(attempts).max(asked);
            let left = self.limits.timeout.saturating_sub(began.elapsed());
            let why = if attempts >= self.limits.attempts {
                String::new()
            } else if attempts >= first {
                "; no server of this name has answered yet: check the URL and the endpoint"
                    .to_owned()
            } else if wait >= left && !asked.is_zero() {
                format!("; the server asks to wait {} more", seconds(asked))
            } else {
                let turn = pace.lock().turn(self.opened.elapsed(), left);
                match turn.map(|turn| turn.max(wait)) {
                    Some(wait) if wait < left => {
                        log::debug!(
                            "{place}: {}; attempt {} follows in {}",
                            failure.what,
                            attempts + 1,
                            seconds(wait)
                        );
                        sleep(wait).await;
                        continue;
                    }
                    _ => "; its time is over".to_owned(),
                }
            };
            let attempts = match attempts {
                1 => "one attempt".to_owned(),
                several => format!("{several} attempts"),
            };
            let what = format!(
                "{}, after {attempts} in {}{why}",
                failure.what,
                seconds(began.elapsed())
            );
            return Err(error(what).temporary());
        }
    }
}
