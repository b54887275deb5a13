//! The command line.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use pinfeed::Way;

use crate::Outcome;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Limits,
    Tensor,
    Tiny,
    Roundtrip,
    Overlap,
    Jpeg,
    Train,
    Tails,
    Cold,
    Folder,
    Startup,
    Breakdown,
}

use Workload::{
    Breakdown, Cold, Folder, Jpeg, Limits, Overlap, Roundtrip, Startup, Tails, Tensor, Tiny, Train,
};

const WORKLOADS: [(Workload, &str, &str); 12] = [
    (
        Limits,
        "limits",
        "bare copies by size, memcpy by threads, what page-locking costs",
    ),
    (
        Tensor,
        "tensor",
        "samples of 3x224x224 in memory, shuffled, to the device",
    ),
    (
        Tiny,
        "tiny",
        "scalars in batches of 32 on the host: the cost of a batch",
    ),
    (
        Roundtrip,
        "roundtrip",
        "one large batch to the device and back: pageable, pinned, reused",
    ),
    (
        Overlap,
        "overlap",
        "a fixed device step beside loading: what the loop loses to it",
    ),
    (
        Jpeg,
        "jpeg",
        "a class folder of JPEGs: decode, random resized crop, flip, to the device",
    ),
    (
        Train,
        "train",
        "a fixed device step fed by `jpeg`: how long the device has no work",
    ),
    (
        Tails,
        "tails",
        "samples that take much longer than others: waits, and idle workers",
    ),
    (
        Cold,
        "cold",
        "a class folder whose files are not in memory, with and without reading ahead",
    ),
    (
        Folder,
        "folder",
        "opening a class folder, saving its index, opening that",
    ),
    (
        Startup,
        "startup",
        "opening a device and a data set; from an epoch's begin to its first batch",
    ),
    (
        Breakdown,
        "breakdown",
        "loading, transfer and processing per batch, with and without pinning",
    ),
];

/// An option: its name, its value (empty for a flag), who takes it (nobody: all), and what it does.
type Opt = (
    &'static str,
    &'static str,
    &'static [Workload],
    &'static str,
);

const OPTIONS: &[Opt] = &[
    ("--device", "LIST", &[], "cpu, cuda:N (default: cpu)"),
    (
        "--workers",
        "LIST",
        &[
            Limits, Tensor, Tiny, Overlap, Jpeg, Train, Tails, Cold, Startup, Breakdown,
        ],
        "threads that load (default: one per core; tiny: 0,4; overlap: half the cores; train: 16,8,4)",
    ),
    (
        "--batch-size",
        "LIST",
        &[
            Tensor, Tiny, Overlap, Jpeg, Train, Tails, Cold, Startup, Breakdown,
        ],
        "samples per batch (default: 256; tiny: 32)",
    ),
    (
        "--dtype",
        "LIST",
        &[Tensor],
        "u8, f32: the samples' element type (default: u8)",
    ),
    (
        "--seconds",
        "S",
        &[],
        "how long each result is measured (default: 5; train, tails: 10; overlap, per half of a pair: 2; limits: 0.2)",
    ),
    (
        "--data",
        "DIR",
        &[Jpeg, Train, Cold, Folder, Startup, Breakdown],
        "a class folder of images (default for jpeg, cold: one is drawn, once; folder: empty files)",
    ),
    ("--json", "", &[], "print nothing but JSON lines"),
    (
        "--samples",
        "N",
        &[Tensor, Tiny, Jpeg, Train, Cold, Folder, Startup, Breakdown],
        "samples in the data set (default: 20000; tiny: 1000000; drawn JPEGs: 2000; folder: 100000)",
    ),
    (
        "--variant",
        "LIST",
        &[Tensor, Roundtrip, Tails, Cold, Startup],
        "tensor: loop, ahead, registered (default: loop, ahead); roundtrip: pageable, pin_each, reused, view; \
         tails: uniform, percent, stuck; cold: read, paced, decode; startup: tensor, jpeg",
    ),
    (
        "--registered",
        "",
        &[Tensor],
        "short for --variant registered: the data set is page-locked, epochs go to the device",
    ),
    (
        "--ahead",
        "",
        &[Tensor],
        "short for --variant ahead: epochs go to the device",
    ),
    (
        "--depth",
        "N",
        &[Tensor],
        "how many batches are sent ahead (ahead, registered; default: 2)",
    ),
    (
        "--gather",
        "WAY",
        &[Tensor],
        "batch, kernel or rows: how the device gathers rows (registered; default: the driver's best)",
    ),
    (
        "--prefetch",
        "N",
        &[Tensor, Tiny, Overlap, Jpeg, Train, Tails, Cold],
        "batches loaded ahead (default: the library's)",
    ),
    ("--pin", "", &[Tiny], "page-lock the batches"),
    (
        "--no-pin",
        "",
        &[Tensor, Jpeg],
        "leave the batches in pageable memory",
    ),
    (
        "--flat",
        "",
        &[Tiny],
        "cost of a batch, and memory, in epochs of 1 to 1,000,000 batches",
    ),
    (
        "--frames",
        "N",
        &[Roundtrip],
        "frames of 3x3840x2160 in the batch (default: 10)",
    ),
    (
        "--pairs",
        "N",
        &[Overlap],
        "how often with and without loading (default: 7)",
    ),
    (
        "--step-ms",
        "MS",
        &[Overlap, Train, Breakdown],
        "how long the device works on a batch (default: 20; train: 54.6; breakdown: 2)",
    ),
    (
        "--max-mb",
        "N",
        &[Limits],
        "the largest copy in MiB (default: 1024)",
    ),
    ("--seed", "N", &[], "of order and data (default: 17)"),
    ("--help", "", &[], "this text"),
];

/// A device's name; opened by whoever measures on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    Cpu,
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceName, String> {
        match name.split_once(':') {
            None if name == "cpu" => Some(DeviceName::Cpu),
            None if name == "cuda" => Some(DeviceName::Cuda(0)),
            Some(("cuda", ordinal)) => ordinal.parse().map(DeviceName::Cuda).ok(),
            _ => None,
        }
        .ok_or_else(|| "no device; cpu, cuda:0, cuda:1, ... are".into())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// What was asked for; `None` where the workload has its own default.
#[derive(Debug)]
pub struct Args {
    pub workload: Workload,
    pub devices: Vec<DeviceName>,
    workers: Option<Vec<usize>>,
    batch_sizes: Option<Vec<usize>>,
    pub dtypes: Vec<String>,
    seconds: Option<f64>,
    pub data: Option<PathBuf>,
    pub json: bool,
    pub samples: Option<usize>,
    variants: Option<Vec<String>>,
    pub depth: usize,
    pub gather: Option<Way>,
    prefetch: Option<usize>,
    pub pin: Option<bool>,
    pub flat: bool,
    pub frames: usize,
    pub pairs: usize,
    step_ms: Option<f64>,
    pub max_mb: usize,
    pub seed: u64,
}

/// What the command line asks for.
pub enum Parsed {
    Run(Box<Args>),
    Help(String),
}

impl Args {
    /// Reads the arguments that follow the program's name.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Outcome<Parsed> {
        // cargo adds `--bench`.
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        let Some(name) = arguments.next() else {
            return Ok(Parsed::Help(help()));
        };
        if name == "--help" || name == "-h" {
            return Ok(Parsed::Help(help()));
        }
        let Some((workload, ..)) = WORKLOADS.iter().find(|(_, its, _)| *its == name) else {
            return Err(format!("`{name}` is no workload; --help lists them").into());
        };
        let mut args = Args {
            workload: *workload,
            devices: vec![DeviceName::Cpu],
            workers: None,
            batch_sizes: None,
            dtypes: vec!["u8".into()],
            seconds: None,
            data: None,
            json: false,
            samples: None,
            variants: None,
            depth: 2,
            gather: None,
            prefetch: None,
            pin: None,
            flat: false,
            frames: 10,
            pairs: 7,
            step_ms: None,
            max_mb: 1024,
            seed: 17,
        };
        while let Some(argument) = arguments.next() {
            let (option, attached) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            if option == "--help" || option == "-h" {
                return Ok(Parsed::Help(help()));
            }
            let Some((option, metavar, takers, _)) =
                OPTIONS.iter().find(|(name, ..)| *name == option)
            else {
                return Err(format!("`{option}` is no option; --help lists them").into());
            };
            if !takers.is_empty() && !takers.contains(workload) {
                return Err(format!("{option}: the workload `{name}` does not take it").into());
            }
            let value = match (metavar.is_empty(), attached) {
                (true, None) => String::new(),
                (true, Some(_)) => return Err(format!("{option}: takes no value").into()),
                (false, Some(value)) => value,
                (false, None) => arguments
                    .next()
                    .ok_or_else(|| format!("{option}: wants a value ({metavar})"))?,
            };
            args.set(option, &value)
                .map_err(|reason| format!("{option}: {reason}"))?;
        }
        Ok(Parsed::Run(Box::new(args)))
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "--device" => self.devices = list(value)?,
            "--workers" => self.workers = Some(list(value)?),
            "--batch-size" => self.batch_sizes = Some(positive(list(value)?)?),
            "--dtype" => self.dtypes = one_of(list(value)?, &["u8", "f32"])?,
            "--seconds" => self.seconds = Some(positive_number(value)?),
            "--data" => self.data = Some(value.into()),
            "--json" => self.json = true,
            "--samples" => self.samples = Some(positive_one(value)?),
            "--variant" => {
                let known: &[&str] = match self.workload {
                    Tensor => &["loop", "ahead", "registered"],
                    Tails => &["uniform", "percent", "stuck"],
                    Roundtrip => &["pageable", "pin_each", "reused", "view"],
                    Cold => &["read", "paced", "decode"],
                    _ => &["tensor", "jpeg"],
                };
                self.variants = Some(one_of(list(value)?, known)?);
            }
            "--registered" | "--ahead" => self
                .variants
                .get_or_insert_default()
                .push(option[2..].into()),
            "--depth" => self.depth = one(value)?,
            "--gather" => {
                self.gather = Some(match value {
                    "batch" => Way::Batch,
                    "kernel" => Way::Kernel,
                    "rows" => Way::Rows,
                    _ => return Err("batch, kernel or rows".into()),
                });
            }
            "--prefetch" => self.prefetch = Some(positive_one(value)?),
            "--pin" => self.pin = Some(true),
            "--no-pin" => self.pin = Some(false),
            "--flat" => self.flat = true,
            "--frames" => self.frames = positive_one(value)?,
            "--pairs" => self.pairs = positive_one(value)?,
            "--step-ms" => self.step_ms = Some(positive_number(value)?),
            "--max-mb" => self.max_mb = positive_one(value)?,
            "--seed" => self.seed = one(value)?,
            _ => return Err("is not read".into()),
        }
        Ok(())
    }

    /// The numbers of workers, or the workload's own.
    pub fn workers(&self, default: &[usize]) -> Vec<usize> {
        self.workers.clone().unwrap_or_else(|| default.to_vec())
    }

    /// The batch sizes, or the workload's own.
    pub fn batch_sizes(&self, default: usize) -> Vec<usize> {
        self.batch_sizes.clone().unwrap_or_else(|| vec![default])
    }

    /// How many batches so many workers load ahead, where that was said; without workers there is nothing ahead.
    pub fn prefetch(&self, workers: usize) -> Option<usize> {
        self.prefetch.filter(|_| workers > 0)
    }

    /// How long a result is measured.
    pub fn seconds(&self, default: f64) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(default))
    }

    /// How long the device works on a batch.
    pub fn step(&self, default_ms: f64) -> Duration {
        Duration::from_secs_f64(self.step_ms.unwrap_or(default_ms) / 1e3)
    }

    /// The variants that were asked for, in the order of `all`; by default the first `default` of them.
    pub fn variants(&self, all: &[&'static str], default: usize) -> Vec<&'static str> {
        match &self.variants {
            None => all[..default].to_vec(),
            Some(asked) => all
                .iter()
                .filter(|name| asked.iter().any(|asked| asked == *name))
                .copied()
                .collect(),
        }
    }
}

/// How many cores there are.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn help() -> String {
    let mut text = String::from(
        "How fast does pinfeed feed a device?\n\n\
         cargo bench --bench feed -- WORKLOAD [OPTIONS]\n\nWorkloads:\n",
    );
    for (_, name, summary) in WORKLOADS {
        let _ = writeln!(text, "  {name:<14}{summary}");
    }
    text.push_str("\nOptions (a LIST, `1,4,16`, gives one result for each):\n");
    for (name, metavar, takers, summary) in OPTIONS {
        let _ = write!(text, "  {:<18}{summary}", format!("{name} {metavar}"));
        if !takers.is_empty() && takers.len() < 5 {
            let names = WORKLOADS
                .iter()
                .filter(|(workload, ..)| takers.contains(workload))
                .map(|(_, name, _)| *name);
            let _ = write!(text, " [{}]", names.collect::<Vec<_>>().join(", "));
        }
        text.push('\n');
    }
    text.push_str(
        "\nKeys of a result: gb_s is in 10^9 bytes; limit_gb_s is what a bare loop reached in the same run, share is \
         gb_s of it;\nwait_* is the consumer's time in `next`; cpu_s are the CPU seconds of the whole process in the \
         window_s seconds that\nwere measured; what does not apply is null.",
    );
    text
}

fn one<T: FromStr>(value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is no whole number"))
}

fn positive_one(value: &str) -> Result<usize, String> {
    positive(vec![one(value)?]).map(|values| values[0])
}

fn positive(values: Vec<usize>) -> Result<Vec<usize>, String> {
    match values.contains(&0) {
        true => Err("must be at least 1".into()),
        false => Ok(values),
    }
}

fn positive_number(value: &str) -> Result<f64, String> {
    match value.parse() {
        Ok(number) if number > 0.0 && number < 1e6 => Ok(number),
        _ => Err(format!("`{value}` is no positive number")),
    }
}

fn list<T: FromStr>(value: &str) -> Result<Vec<T>, String>
where
    T::Err: fmt::Display,
{
    value
        .split(',')
        .map(|item| {
            let item = item.trim();
            item.parse().map_err(|error| format!("`{item}`: {error}"))
        })
        .collect()
}

fn one_of(values: Vec<String>, known: &[&str]) -> Result<Vec<String>, String> {
    match values.iter().find(|value| !known.contains(&value.as_str())) {
        Some(value) => Err(format!("`{value}` is none of {}", known.join(", "))),
        None => Ok(values),
    }
}
