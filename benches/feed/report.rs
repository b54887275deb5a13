//! Results: one line each, of a table or of JSON.

use serde_json::Value;

use crate::window::{Measured, Waits};

/// One result. What does not apply stays `None`, and is null in JSON.
#[derive(Debug, Default)]
pub struct Record {
    pub workload: &'static str,
    pub device: String,
    pub workers: Option<usize>,
    pub batch_size: Option<usize>,
    pub dtype: Option<&'static str>,
    pub samples_s: Option<f64>,
    pub batches_s: Option<f64>,
    pub gb_s: Option<f64>,
    /// What a bare loop reached in the same run.
    pub limit_gb_s: Option<f64>,
    pub first_batch_ms: Option<f64>,
    pub wait_p50_ms: Option<f64>,
    pub wait_p99_ms: Option<f64>,
    pub cpu_s: Option<f64>,
    pub window_s: Option<f64>,
    pub peak_rss_mb: Option<f64>,
    pub pinned_mb: Option<f64>,
    /// Keys that only some workloads have.
    extra: Vec<(&'static str, Value)>,
}

impl Record {
    pub fn new(workload: &'static str, device: impl ToString) -> Record {
        Record {
            workload,
            device: device.to_string(),
            ..Record::default()
        }
    }

    /// Adds a key of the workload's own.
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Record {
        self.extra.push((key, value.into()));
        self
    }

    /// Adds a number of the workload's own, rounded as all others are.
    pub fn with_number(self, key: &'static str, value: f64) -> Record {
        self.with(key, number(Some(value)))
    }

    /// Adds numbers of the workload's own.
    pub fn with_numbers(self, key: &'static str, values: &[f64]) -> Record {
        let values: Vec<Value> = values.iter().map(|&value| number(Some(value))).collect();
        self.with(key, values)
    }

    /// Takes over what a window cost; `cores` is how many it kept busy.
    pub fn measured(mut self, measured: &Measured) -> Record {
        self.window_s = Some(measured.window_s);
        self.cpu_s = measured.cpu_s;
        self.peak_rss_mb = measured.peak_rss_mb;
        let threads = measured.threads.iter().map(|(name, seconds)| {
            let cores = (seconds / measured.window_s * 1e3).round() / 1e3;
            (name.clone(), Value::from(cores))
        });
        let busy = threads.filter(|(_, cores)| cores.as_f64() > Some(0.0));
        let busy: serde_json::Map<String, Value> = busy.collect();
        if !busy.is_empty() {
            self = self.with("thread_cores", busy);
        }
        match measured.cpu_s {
            Some(cpu_s) => self.with_number("cores", cpu_s / measured.window_s),
            None => self,
        }
    }

    /// Takes over how long the consumer waited.
    pub fn waited(mut self, waits: &mut Waits) -> Record {
        self.wait_p50_ms = waits.percentile_ms(0.50);
        self.wait_p99_ms = waits.percentile_ms(0.99);
        self
    }

    fn share(&self) -> Option<f64> {
        Some(self.gb_s? / self.limit_gb_s?)
    }

    /// The keys that every result has, in their order.
    fn keys(&self) -> [(&'static str, Value); 17] {
        let share = self.share();
        [
            ("workload", self.workload.into()),
            ("device", self.device.clone().into()),
            ("workers", self.workers.into()),
            ("batch_size", self.batch_size.into()),
            ("dtype", self.dtype.into()),
            ("samples_s", number(self.samples_s)),
            ("batches_s", number(self.batches_s)),
            ("gb_s", number(self.gb_s)),
            ("limit_gb_s", number(self.limit_gb_s)),
            ("share", number(share)),
            ("first_batch_ms", number(self.first_batch_ms)),
            ("wait_p50_ms", number(self.wait_p50_ms)),
            ("wait_p99_ms", number(self.wait_p99_ms)),
            ("cpu_s", number(self.cpu_s)),
            ("window_s", number(self.window_s)),
            ("peak_rss_mb", number(self.peak_rss_mb)),
            ("pinned_mb", number(self.pinned_mb)),
        ]
    }

    fn json(&self) -> String {
        // By hand, because a map of serde_json sorts its keys.
        let pairs: Vec<String> = self
            .keys()
            .iter()
            .chain(&self.extra)
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// A number with five significant digits: more than any measurement has.
fn number(value: Option<f64>) -> Value {
    match value {
        Some(value) if value.is_finite() => format!("{value:.4e}")
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        _ => Value::Null,
    }
}

/// Prints results as they come.
pub struct Report {
    json: bool,
    began: bool,
}

/// The table's columns, by their keys, with their widths.
const COLUMNS: [(&str, usize); 15] = [
    ("device", 7),
    ("workers", 8),
    ("batch_size", 11),
    ("dtype", 6),
    ("samples_s", 11),
    ("batches_s", 11),
    ("gb_s", 9),
    ("limit_gb_s", 11),
    ("share", 8),
    ("first_batch_ms", 15),
    ("wait_p50_ms", 12),
    ("wait_p99_ms", 12),
    ("cpu_s", 8),
    ("peak_rss_mb", 12),
    ("pinned_mb", 10),
];

impl Report {
    pub fn new(json: bool) -> Report {
        Report { json, began: false }
    }

    pub fn print(&mut self, record: &Record) {
        if self.json {
            println!("{}", record.json());
            return;
        }
        if !self.began {
            let names = COLUMNS.map(|(name, width)| format!("{name:>width$}"));
            println!("{:<10}{}", "workload", names.concat());
            self.began = true;
        }
        let keys = record.keys();
        let cells = COLUMNS.map(|(name, width)| {
            let value = keys.iter().find(|(key, _)| *key == name);
            format!(
                "{:>width$}",
                value.map_or_else(|| "-".into(), |(_, value)| cell(value))
            )
        });
        let extra: Vec<String> = record
            .extra
            .iter()
            .map(|(key, value)| format!("{key}={}", cell(value)))
            .collect();
        println!(
            "{:<10}{}  {}",
            record.workload,
            cells.concat(),
            extra.join(" ")
        );
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().map(|float| (float, float.abs())) {
            Some(_) if number.is_u64() => number.to_string(),
            Some((float, 1000.0..)) => format!("{float:.0}"),
            Some((float, 1.0..)) => format!("{float:.2}"),
            Some((float, 0.01..)) => format!("{float:.3}"),
            _ => number.to_string(),
        },
        Value::Array(values) => {
            let cells: Vec<String> = values.iter().map(cell).collect();
            format!("[{}]", cells.join(","))
        }
        other => other.to_string(),
    }
}
