//! Progress reports for a listing that takes long.

use std::time::{Duration, Instant};

/// How far the listing of a folder has come: see [`ImageFolder::open_with_progress`](crate::image::ImageFolder::open_with_progress).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListingProgress {
    /// How many class folders are listed.
    pub folders_done: usize,
    /// How many class folders there are.
    pub folders: usize,
    /// How many pictures were found so far, also in folders that are still being listed.
    pub files: usize,
}

/// When to report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The time before the first report.
    pub(super) first: Duration,
    pub(super) every: Duration,
}

impl Pace {
    pub(super) const USUAL: Pace = Pace {
        first: Duration::from_secs(2),
        every: Duration::from_secs(1),
    };

    /// Starts the clock.
    pub(super) fn begin(self) -> Clock {
        Clock {
            begun: Instant::now(),
            due: self.first,
            pace: self,
        }
    }
}

/// The time since the start, and the time of the next report.
#[derive(Debug)]
pub(super) struct Clock {
    begun: Instant,
    due: Duration,
    pace: Pace,
}

impl Clock {
    /// Whether a report is due. If so, the next one is scheduled from now.
    pub(super) fn is_due(&mut self) -> bool {
        self.is_due_after(self.elapsed())
    }

    fn is_due_after(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.due;
        if is_due {
            self.due = elapsed.saturating_add(self.pace.every);
        }
        is_due
    }

    /// The time until the next report.
    pub(super) fn remaining(&self) -> Duration {
        self.due.saturating_sub(self.elapsed())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether there was a report.
    pub(super) fn has_told(&self) -> bool {
        self.due > self.pace.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_after_two_seconds_and_then_once_a_second() {
        let mut clock = Pace::USUAL.begin();
        let mut told = Vec::new();
        // Called every 300 ms, with one late call.
        let looks = (0..20)
            .map(|look| look * 300)
            .filter(|ms| !(3000..4500).contains(ms));
        for ms in looks {
            assert_eq!(clock.has_told(), !told.is_empty());
            if clock.is_due_after(Duration::from_millis(ms)) {
                told.push(ms);
            }
        }
        assert_eq!(told, [2100, 4500, 5700]);
    }
}
