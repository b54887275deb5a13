//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, thread};

pub const HELP: &str = "\
Trains a small network to tell shapes apart, from JPEG files that pinfeed loads.

cargo run --release --example train -- [OPTIONS]

  --data DIR          images in DIR/train/<class>/ and DIR/val/<class>/
                      (default: shapes, drawn into a cache folder the first time)
  --device DEVICE     cpu or cuda:0 (default: cpu)
  --workers N         threads that load images (default: one per core, at most 8)
  --batch-size N      images per training step (default: 32)
  --epochs N          how often each image is seen (default: 10)
  --no-pin            load into pageable instead of page-locked memory
  --seed N            of the network, the order and the crops (default: 0)
  --json              end with the results as one line of JSON
  --quick             few images, 2 epochs: shows that all works, in seconds
  --help              this text";

#[derive(Clone, Copy)]
pub enum DeviceName {
    Cpu,
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(drop),
            _ => Err(()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

pub struct Args {
    pub data: Option<PathBuf>,
    pub device: DeviceName,
    pub workers: usize,
    pub batch_size: usize,
    epochs: Option<usize>,
    pub pin: bool,
    pub seed: u64,
    pub json: bool,
    pub quick: bool,
    pub help: bool,
}

impl Args {
    /// Reads the arguments that follow the program's name.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self {
            data: None,
            device: DeviceName::Cpu,
            workers: thread::available_parallelism()
                .map_or(1, usize::from)
                .min(8),
            batch_size: 32,
            epochs: None,
            pin: true,
            seed: 0,
            json: false,
            quick: false,
            help: false,
        };
        let mut args = args.into_iter();
        while let Some(option) = args.next() {
            let option = option.to_string_lossy().into_owned();
            let mut value = || {
                args.next()
                    .ok_or(format!("{option} wants a value; --help shows which"))
            };
            match option.as_str() {
                "--data" => parsed.data = Some(value()?.into()),
                "--device" => parsed.device = read(&option, value()?, "cpu or cuda:0")?,
                "--workers" => parsed.workers = positive(&option, value()?)?,
                "--batch-size" => parsed.batch_size = positive(&option, value()?)?,
                "--epochs" => parsed.epochs = Some(positive(&option, value()?)?),
                "--no-pin" => parsed.pin = false,
                "--seed" => parsed.seed = read(&option, value()?, "a whole number, such as 7")?,
                "--json" => parsed.json = true,
                "--quick" => parsed.quick = true,
                "--help" | "-h" => parsed.help = true,
                _ => {
                    return Err(format!(
                        "there is no option {option}; --help lists those there are"
                    ));
                }
            }
        }
        Ok(parsed)
    }

    pub fn epochs(&self) -> usize {
        self.epochs.unwrap_or(if self.quick { 2 } else { 10 })
    }
}

fn positive(option: &str, value: OsString) -> Result<usize, String> {
    let wanted = "a whole number above 0, such as 4";
    match read(option, value, wanted)? {
        0 => Err(format!("{option} wants {wanted}, not 0")),
        number => Ok(number),
    }
}

fn read<T: FromStr>(option: &str, value: OsString, wanted: &str) -> Result<T, String> {
    let value = value.to_string_lossy();
    value
        .parse()
        .map_err(|_| format!("{option} wants {wanted}, not {value:?}"))
}
