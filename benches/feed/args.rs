//! The command line.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use pinfeed::device::Way;

use crate::Outcome;
pub use crate::options::Workload;
use crate::options::{OPTIONS, WORKLOADS};
use crate::{devices, shards, table};
use Workload::{Cold, Devices, Roundtrip, Shards, Submit, Table, Tails, Tensor};

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

/// Who decodes pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoder {
    Cpu,
    Device,
    Both,
}

impl FromStr for Decoder {
    type Err = String;

    fn from_str(name: &str) -> Result<Decoder, String> {
        match name {
            "cpu" => Ok(Decoder::Cpu),
            "device" | "both" if !cfg!(feature = "nvjpeg") => {
                Err("the device decodes with the feature `nvjpeg` only".into())
            }
            "device" => Ok(Decoder::Device),
            "both" => Ok(Decoder::Both),
            _ => Err(format!("`{name}` is neither cpu, device nor both")),
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
    pub decode: Decoder,
    pub bare_decoder: Option<f64>,
    pub share: Option<f64>,
    pub timeline: Option<PathBuf>,
    prefetch: Option<usize>,
    pub pin: Option<bool>,
    pub flat: bool,
    pub frames: usize,
    pub pairs: usize,
    step_ms: Option<f64>,
    pub pause: Duration,
    pub max_mb: usize,
    pub server: Option<PathBuf>,
    pub servers: usize,
    pub latency: Duration,
    pub in_flight: Option<usize>,
    pub blocks_ahead: Option<usize>,
    pub stats: bool,
    pub extent_kb: Option<u64>,
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
            decode: Decoder::Cpu,
            bare_decoder: None,
            share: None,
            timeline: None,
            prefetch: None,
            pin: None,
            flat: false,
            frames: 10,
            pairs: 7,
            step_ms: None,
            pause: Duration::ZERO,
            max_mb: 1024,
            server: None,
            servers: 1,
            latency: Duration::from_millis(50),
            in_flight: None,
            blocks_ahead: None,
            stats: false,
            extent_kb: None,
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
                    Table => table::VARIANTS,
                    Tails => &["uniform", "percent", "stuck"],
                    Roundtrip => &["pageable", "pin_each", "reused", "view"],
                    Cold => &["read", "paced", "decode"],
                    Submit => &["upload", "loan"],
                    Shards => shards::VARIANTS,
                    Devices => devices::VARIANTS,
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
            "--decode" => self.decode = value.parse()?,
            "--timeline" => self.timeline = Some(value.into()),
            "--share" => self.share = Some(one(value)?),
            "--bare-decoder" => self.bare_decoder = Some(positive_number(value)?),
            "--prefetch" => self.prefetch = Some(positive_one(value)?),
            "--pin" => self.pin = Some(true),
            "--no-pin" => self.pin = Some(false),
            "--flat" => self.flat = true,
            "--frames" => self.frames = positive_one(value)?,
            "--pairs" => self.pairs = positive_one(value)?,
            "--pause-ms" => self.pause = Duration::from_secs_f64(positive_number(value)? / 1e3),
            "--step-ms" => self.step_ms = Some(positive_number(value)?),
            "--server" => self.server = Some(value.into()),
            "--latency-ms" => self.latency = Duration::from_secs_f64(positive_number(value)? / 1e3),
            "--servers" => self.servers = positive_one(value)?,
            "--in-flight" => self.in_flight = Some(positive_one(value)?),
            "--blocks-ahead" => self.blocks_ahead = Some(one(value)?),
            "--stats" => self.stats = true,
            "--extent-kb" => self.extent_kb = Some(positive_one(value)? as u64),
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
        self.batch_sizes_of(&[default])
    }

    /// The same, of a workload that has several.
    pub fn batch_sizes_of(&self, default: &[usize]) -> Vec<usize> {
        self.batch_sizes.clone().unwrap_or_else(|| default.to_vec())
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
