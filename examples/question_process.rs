//! Does page-locked memory outlive the process? Why does `strace` show no `mlock`? (Linux.)
//!
//!     cargo run --release --example question_process
//!
//! A child process page-locks memory and is killed; another ends by itself, and gives nothing back. The system's counts before, meanwhile
//! and after are the answer.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs, io, thread};

use pinfeed::{BoxError, Device, Tensor};

const HELP: &str = "\
Page-locks memory in child processes, ends them, and prints what the system has before, meanwhile and after.

cargo run --release --example question_process -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --megabytes N       how much a child locks, in millions of bytes (default: 512)
  --help              this text";

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<(), BoxError> {
    let (is_child, megabytes) = (
        options.flag("--child"),
        options.positive("--megabytes")?.unwrap_or(512),
    );
    let device = options.device()?;
    options.finish()?;
    if is_child {
        return child(&device, megabytes);
    }
    let name = device.name();
    drop(device);
    let wanted = megabytes as f64;
    println!("MB                     locked by mlock  pinned by drivers  available");
    let (mut is_released, mut is_seen) = (true, false);
    for how in ["it was killed", "it ended by itself"] {
        let before = System::now("before")?;
        let (mut process, said) = start(&name, megabytes)?;
        let meanwhile = System::now("a child holds it")?;
        println!("  the child: {said}");
        is_seen |= !said.ends_with(" VmLck 0 MB");
        if how == "it was killed" {
            process.kill()?;
        }
        drop(process.stdin.take()); // the other one ends by itself
        process.wait()?;
        thread::sleep(Duration::from_millis(500));
        let after = System::now(how)?;
        // Others use this machine, too: half of what the child locked is enough to tell.
        let held = |system: &System| match name.as_str() {
            "cpu" => system.locked - before.locked,
            _ => before.available - system.available,
        };
        is_released &= held(&meanwhile) > wanted / 2.0 && held(&after) < wanted / 2.0;
    }
    let outlives = match is_released {
        true => "No. The system takes it back when the process ends, killed or not.",
        false => {
            "The counts do not tell: nothing was locked (see above), or other programs took or freed memory meanwhile."
        }
    };
    let unseen = match (name.as_str(), is_seen) {
        ("cpu", true) => {
            "There is one: the CPU device calls mlock, and VmLck counts it. On a GPU, CUDA's driver locks the pages."
        }
        ("cpu", false) => "It was refused: see `ulimit -l`. The CPU device works without.",
        (_, true) => "It should show some: VmLck counts memory that mlock locked, see above.",
        (_, false) => {
            "CUDA's driver locks the pages, by calls to its devices (ioctl), and VmLck, which counts what mlock locked, is 0."
        }
    };
    println!("\nDoes it outlive the process? {outlives}\nWhy does strace show no mlock? {unseen}");
    Ok(())
}

/// Locks, says what it has, and waits for its end.
fn child(device: &Device, megabytes: usize) -> Result<(), BoxError> {
    let held = Tensor::<u8>::zeros(&[megabytes * 1_000_000]).pin(device)?;
    let locked = device.memory().pinned_bytes as f64 / 1e6;
    println!(
        "Device::memory() says {locked:.0} MB page-locked, /proc/self/status says VmLck {:.0} MB",
        megabytes_of("/proc/self/status", "VmLck:")?
    );
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(held);
    Ok(())
}

fn start(device: &str, megabytes: usize) -> Result<(Child, String), BoxError> {
    let mut command = Command::new(env::current_exe()?);
    command.args([
        "--child",
        "--device",
        device,
        "--megabytes",
        &megabytes.to_string(),
    ]);
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let output = process.stdout.take().ok_or("the child has no output")?;
    BufReader::new(output).read_line(&mut said)?;
    match said.trim() {
        "" => Err(format!(
            "the child could not lock {megabytes} MB: {}",
            process.wait()?
        )
        .into()),
        said => Ok((process, said.to_owned())),
    }
}

/// What the system says, in MB.
struct System {
    locked: f64,
    available: f64,
}

impl System {
    fn now(when: &str) -> Result<System, BoxError> {
        let locked = megabytes_of("/proc/meminfo", "Mlocked:")?;
        let available = megabytes_of("/proc/meminfo", "MemAvailable:")?;
        // In pages, since Linux 5.7; of what a driver allocates itself, it says nothing.
        let pages = |key| number("/proc/vmstat", key);
        let pinned = pages("nr_foll_pin_acquired ")
            .and_then(|taken| Ok(taken - pages("nr_foll_pin_released ")?));
        let pinned = pinned.map_or("unknown".to_owned(), |pages| {
            format!("{:.0}", pages * 4.096e-3)
        });
        println!("{when:<22} {locked:>15.0} {pinned:>18} {available:>10.0}");
        Ok(System { locked, available })
    }
}

/// Such a line, of kilobytes, in MB.
fn megabytes_of(file: &str, key: &str) -> Result<f64, BoxError> {
    Ok(number(file, key)? * 1.024e-3)
}

/// The number in the line that begins so.
fn number(file: &str, key: &str) -> Result<f64, BoxError> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("{file}: {error}; this program wants Linux"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number
        .ok_or_else(|| format!("{file} has no line {key}"))?
        .parse()?)
}
