//! Times in JSON: seconds, as a floating point number, which every reader understands. (Serde's own form of a `Duration` is two integers.)

use std::time::Duration;

use serde::Serializer;

pub(crate) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
