//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::{env, fmt, thread};

use super::Result;

/// The options that all examples have.
pub struct Args {
    pub data: Option<PathBuf>,
    pub device: DeviceName,
    pub workers: usize,
    pub batch_size: usize,
    pub epochs: usize,
    pub pin: bool,
    pub seed: u64,
    pub json: bool,
    pub quick: bool,
}

impl Args {
    /// Takes them from the command line; `epochs` is for runs that are not `--quick`.
    pub fn take(options: &mut Options, batch_size: usize, epochs: usize) -> Result<Args> {
        let quick = options.flag("--quick");
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Args {
            data: options.path("--data")?,
            device: options
                .value("--device", "cpu or cuda:0")?
                .unwrap_or(DeviceName::Cpu),
            workers: options.positive("--workers")?.unwrap_or(cores.min(8)),
            batch_size: options.positive("--batch-size")?.unwrap_or(batch_size),
            epochs: options
                .positive("--epochs")?
                .unwrap_or(if quick { 2 } else { epochs }),
            pin: !options.flag("--no-pin"),
            seed: options
                .value("--seed", "a whole number, such as 7")?
                .unwrap_or(0),
            json: options.flag("--json"),
            quick,
        })
    }
}

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

/// What of the command line nobody has taken yet.
pub struct Options(Vec<OsString>);

impl Options {
    pub fn of_the_program() -> Options {
        Options(env::args_os().skip(1).collect())
    }

    /// Takes an option without a value.
    pub fn flag(&mut self, option: &str) -> bool {
        let place = self.0.iter().position(|arg| arg == option);
        place.map(|place| self.0.remove(place)).is_some()
    }

    /// Takes an option with a value, of which `wanted` tells what it has to be.
    pub fn value<T: FromStr>(&mut self, option: &str, wanted: &str) -> Result<Option<T>> {
        let Some(value) = self.raw(option)? else {
            return Ok(None);
        };
        let value = value.to_string_lossy();
        match value.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("{option} wants {wanted}, not {value:?}").into()),
        }
    }

    pub fn positive(&mut self, option: &str) -> Result<Option<usize>> {
        let wanted = "a whole number above 0, such as 4";
        match self.value(option, wanted)? {
            Some(0) => Err(format!("{option} wants {wanted}, not 0").into()),
            number => Ok(number),
        }
    }

    pub fn path(&mut self, option: &str) -> Result<Option<PathBuf>> {
        Ok(self.raw(option)?.map(PathBuf::from))
    }

    /// Refuses what is left.
    pub fn finish(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(option) => Err(format!(
                "there is no option {}; --help lists those there are",
                option.display()
            )
            .into()),
        }
    }

    fn raw(&mut self, option: &str) -> Result<Option<OsString>> {
        let Some(place) = self.0.iter().position(|arg| arg == option) else {
            return Ok(None);
        };
        if place + 1 == self.0.len() {
            return Err(format!("{option} wants a value; --help shows which").into());
        }
        self.0.remove(place);
        Ok(Some(self.0.remove(place)))
    }
}
