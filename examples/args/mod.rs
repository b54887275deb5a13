//! The command line. `--help` prints to standard output. A wrong argument is explained on standard error, with exit
//! code 2; all other errors have exit code 1.
#![allow(dead_code)] // each example uses only a part of it

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::{env, fmt, thread};

pub type BoxError = Box<dyn Error + Send + Sync>;
pub type Result<T, E = BoxError> = std::result::Result<T, E>;

/// Reads the command line and runs the example, or prints `help` if requested.
pub fn start(help: &str, run: impl FnOnce(Options) -> Result<()>) -> ExitCode {
    let mut options = Options::of_the_program();
    if options.flag("--help") || options.flag("-h") {
        println!("{help}");
        return ExitCode::SUCCESS;
    }
    let Err(error) = run(options) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {}", chain(&*error));
    if !error.is::<Misuse>() {
        return ExitCode::FAILURE;
    }
    let usage = help.lines().find(|line| line.starts_with("cargo run"));
    eprintln!(
        "\nusage: {}\n--help lists the options",
        usage.unwrap_or_default()
    );
    ExitCode::from(2)
}

/// An error with its whole chain of causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// An invalid command line, and what is wrong with it.
#[derive(Debug)]
pub struct Misuse(String);

pub fn misuse(what: String) -> BoxError {
    Box::new(Misuse(what))
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Misuse {}

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
    /// Takes them from the command line; `epochs` is the default without `--quick`.
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

/// The arguments that have not been taken yet.
pub struct Options(Vec<OsString>);

impl Options {
    /// `--option=value` is `--option value`.
    fn of_the_program() -> Options {
        let mut options = Vec::new();
        for argument in env::args_os().skip(1) {
            match argument.to_str().and_then(|text| text.split_once('=')) {
                Some((option, value)) if option.starts_with("--") => {
                    options.extend([option.into(), value.into()]);
                }
                _ => options.push(argument),
            }
        }
        Options(options)
    }

    /// Takes an option without a value.
    pub fn flag(&mut self, option: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|argument| argument != option);
        self.0.len() < before
    }

    /// Takes an option with a value. `wanted` describes valid values, for the error.
    pub fn value<T: FromStr>(&mut self, option: &str, wanted: &str) -> Result<Option<T>> {
        let value = self.raw(option)?;
        value.map(|value| parse(option, &value, wanted)).transpose()
    }

    /// Takes an option with one or more values.
    pub fn values<T: FromStr>(&mut self, option: &str, wanted: &str) -> Result<Option<Vec<T>>> {
        let Some(place) = self.0.iter().position(|argument| argument == option) else {
            return Ok(None);
        };
        let first = self.raw(option)?;
        let more = self.0[place..].iter().position(is_option);
        let end = more.map_or(self.0.len(), |more| place + more);
        let values = first.into_iter().chain(self.0.drain(place..end));
        let values: Vec<OsString> = values.collect();
        let values = values.iter().map(|value| parse(option, value, wanted));
        values.collect::<Result<_>>().map(Some)
    }

    pub fn positive(&mut self, option: &str) -> Result<Option<usize>> {
        let wanted = "a whole number above 0, such as 4";
        match self.value(option, wanted)? {
            Some(0) => Err(misuse(format!("{option} wants {wanted}, not 0"))),
            number => Ok(number),
        }
    }

    pub fn path(&mut self, option: &str) -> Result<Option<PathBuf>> {
        Ok(self.raw(option)?.map(PathBuf::from))
    }

    /// Takes `--device`: by default the first CUDA device, or the CPU where there is none.
    pub fn device(&mut self) -> Result<pinfeed::Device> {
        Ok(match self.value("--device", "cpu or cuda:0")? {
            Some(DeviceName::Cpu) => pinfeed::Device::cpu(),
            Some(DeviceName::Cuda(ordinal)) => pinfeed::Device::cuda(ordinal)?,
            None => pinfeed::Device::cuda(0).unwrap_or_else(|error| {
                println!("using the CPU: {error}\n");
                pinfeed::Device::cpu()
            }),
        })
    }

    /// Takes the first argument that is not an option. Take the options and their values first.
    pub fn argument(&mut self) -> Option<PathBuf> {
        let place = self.0.iter().position(|argument| !is_option(argument))?;
        Some(PathBuf::from(self.0.remove(place)))
    }

    /// Refuses remaining arguments.
    pub fn finish(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(left) if is_option(left) => {
                Err(misuse(format!("there is no option {}", left.display())))
            }
            Some(left) => Err(misuse(format!("unexpected argument {}", left.display()))),
        }
    }

    fn raw(&mut self, option: &str) -> Result<Option<OsString>> {
        let Some(place) = self.0.iter().position(|argument| argument == option) else {
            return Ok(None);
        };
        if self.0.get(place + 1).is_none_or(is_option) {
            return Err(misuse(format!("{option} wants a value")));
        }
        self.0.remove(place);
        let value = self.0.remove(place);
        if self.0.iter().any(|argument| argument == option) {
            return Err(misuse(format!("{option} is there twice")));
        }
        Ok(Some(value))
    }
}

fn is_option(argument: &OsString) -> bool {
    argument.to_string_lossy().starts_with("--")
}

fn parse<T: FromStr>(option: &str, value: &OsString, wanted: &str) -> Result<T> {
    let value = value.to_string_lossy();
    let wrong = |_| misuse(format!("{option} wants {wanted}, not {value:?}"));
    value.parse().map_err(wrong)
}
