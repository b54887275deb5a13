//! What a stretch of time cost the process, and how long its consumer waited.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A stretch of time under way.
pub struct Window {
    begun: Instant,
    cpu_s: Option<f64>,
    threads: BTreeMap<String, f64>,
}

/// What it cost.
#[derive(Debug)]
pub struct Measured {
    pub window_s: f64,
    /// CPU seconds of all threads, in the program and in the system.
    pub cpu_s: Option<f64>,
    /// The most memory that the process held: in the window on Linux, since its start elsewhere.
    pub peak_rss_mb: Option<f64>,
    /// CPU seconds by the threads' names, on Linux; of threads that ended meanwhile, none.
    pub threads: BTreeMap<String, f64>,
}

impl Window {
    pub fn begin() -> Window {
        reset_peak();
        Window {
            threads: thread_seconds(),
            cpu_s: cpu_seconds(),
            begun: Instant::now(),
        }
    }

    pub fn begun(&self) -> Instant {
        self.begun
    }

    pub fn end(self) -> Measured {
        let window_s = self.begun.elapsed().as_secs_f64();
        let mut threads = thread_seconds();
        for (name, seconds) in &mut threads {
            *seconds -= self.threads.get(name).copied().unwrap_or(0.0);
        }
        Measured {
            threads,
            window_s,
            cpu_s: cpu_seconds().zip(self.cpu_s).map(|(now, then)| now - then),
            peak_rss_mb: status_mb("VmHWM:").or_else(max_rss_mb),
        }
    }
}

/// The memory that the process holds now.
pub fn rss_mb() -> Option<f64> {
    status_mb("VmRSS:")
}

/// Makes the system count the peak from here on, where it can; elsewhere the peak is that of the whole process.
fn reset_peak() {
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The CPU seconds of this process's threads, added up by their names without numbers.
fn thread_seconds() -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |file| std::fs::read_to_string(task.path().join(file));
        let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let name = name
            .trim()
            .trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        let nanoseconds = times
            .split(' ')
            .next()
            .and_then(|text| text.parse::<u64>().ok());
        *seconds.entry(name.to_owned()).or_insert(0.0) += nanoseconds.unwrap_or(0) as f64 / 1e9;
    }
    seconds
}

fn status_mb(key: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

#[cfg(unix)]
fn usage() -> Option<libc::rusage> {
    let mut usage = std::mem::MaybeUninit::zeroed();
    // SAFETY: it writes one `rusage`, for which all zeros are valid too.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: as above.
    (answer == 0).then(|| unsafe { usage.assume_init() })
}

#[cfg(unix)]
fn cpu_seconds() -> Option<f64> {
    let usage = usage()?;
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Some(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

#[cfg(unix)]
fn max_rss_mb() -> Option<f64> {
    // macOS counts bytes, all others KiB.
    let unit = if cfg!(target_vendor = "apple") {
        1.0
    } else {
        1024.0
    };
    usage().map(|usage| usage.ru_maxrss as f64 * unit / 1e6)
}

#[cfg(not(unix))]
fn cpu_seconds() -> Option<f64> {
    None
}

#[cfg(not(unix))]
fn max_rss_mb() -> Option<f64> {
    None
}

impl Measured {
    /// Adds a window that came later.
    pub fn add(&mut self, later: &Measured) {
        self.window_s += later.window_s;
        for (name, seconds) in &later.threads {
            *self.threads.entry(name.clone()).or_insert(0.0) += seconds;
        }
        self.cpu_s = self.cpu_s.zip(later.cpu_s).map(|(sum, cpu_s)| sum + cpu_s);
        self.peak_rss_mb = self
            .peak_rss_mb
            .zip(later.peak_rss_mb)
            .map(|(peak, later)| peak.max(later));
    }
}

/// How long something took, again and again.
#[derive(Debug, Default)]
pub struct Waits(Vec<Duration>);

impl Waits {
    pub fn push(&mut self, wait: Duration) {
        self.0.push(wait);
    }

    /// Leaves out the first ones.
    pub fn skip(&mut self, count: usize) {
        self.0.drain(..count.min(self.0.len()));
    }

    pub fn extend(&mut self, other: &Waits) {
        self.0.extend(&other.0);
    }

    /// The time that a share of them did not exceed; `None` if there are none.
    pub fn percentile_ms(&mut self, share: f64) -> Option<f64> {
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        let wait = self.0[(last as f64 * share).round() as usize];
        Some(wait.as_secs_f64() * 1e3)
    }
}

/// The middle of some numbers; NaN of none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => numbers[n / 2],
        n => (numbers[n / 2 - 1] + numbers[n / 2]) / 2.0,
    }
}
