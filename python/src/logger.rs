//! The library's log, on the standard error stream: warnings by default, or what `PINFEED_LOG` says.
//!
//! It is not Python's `logging`, which would need the interpreter where the library has none: in a worker, or in the end of a loader.

use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record};

use crate::errors::in_python;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        // (Other crates of the wheel log, too.)
        if self.enabled(record.metadata()) && record.target().starts_with("pinfeed") {
            let level = record.level().as_str().to_lowercase();
            let line = format!(
                "pinfeed: {level}: {}\n",
                in_python(record.args().to_string())
            );
            let _ = std::io::stderr().write_all(line.as_bytes()); // it may be closed
        }
    }

    fn flush(&self) {}
}

/// Begins to log. `PINFEED_LOG` is off, error, warn, info, debug or trace.
pub(crate) fn begin() {
    let level = std::env::var("PINFEED_LOG")
        .ok()
        .and_then(|level| level.parse().ok());
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Warn));
    }
}
