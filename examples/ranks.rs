//! Several processes train together: each loads its share of every global batch, and after an interruption they go on where they
//! were, on any number of ranks.
//!
//!     cargo build --release --example ranks
//!     mpirun -n 4 target/release/examples/ranks     # or: srun -n 4 target/release/examples/ranks
//!
//! The launcher tells each process its rank, and `World::from_env` reads it. Each rank prints the samples of its batches: together,
//! they are those that one process alone prints. `ci/launchers.sh` compares them, also when all processes are killed on the way.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use pinfeed::loader::{LoaderState, World};
use pinfeed::{BoxError, DataLoader, Tensor, from_fn};

const HELP: &str = "\
Prints which samples each rank loads, as one of the processes that mpirun, srun or torchrun started.

cargo run --release --example ranks -- [OPTIONS]

  --samples N        samples of the data set (default: 1000)
  --global-batch N   samples per step of all ranks together (default: 12)
  --epochs N         (default: 1)
  --save FOLDER      writes where the run stands after each step, into a file for each rank
  --resume FILE      goes on from one of these files
  --pause-ms N       how long a step of training takes (default: 0)
  --help             this text";

struct Options {
    samples: usize,
    global_batch: usize,
    epochs: usize,
    save: Option<PathBuf>,
    resume: Option<PathBuf>,
    pause: Duration,
}

impl Options {
    fn take(mut options: args::Options) -> Result<Options, BoxError> {
        let pause_ms = options.value("--pause-ms", "a whole number, such as 100")?;
        let taken = Options {
            samples: options.positive("--samples")?.unwrap_or(1_000),
            global_batch: options.positive("--global-batch")?.unwrap_or(12),
            epochs: options.positive("--epochs")?.unwrap_or(1),
            save: options.path("--save")?,
            resume: options.path("--resume")?,
            pause: Duration::from_millis(pause_ms.unwrap_or(0)),
        };
        options.finish()?;
        Ok(taken)
    }
}

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(options: args::Options) -> Result<(), BoxError> {
    let options = Options::take(options)?;
    let world = World::from_env()?;
    say(format!("{world}, GPU {} of this host", world.local_rank()))?;
    let ranks = world.data_ranks();
    if !options.global_batch.is_multiple_of(ranks) {
        let what = format!("--global-batch wants a multiple of {ranks}, the number of ranks");
        return Err(args::misuse(what));
    }

    let numbers = from_fn(options.samples, |index, _rng| Ok(index));
    let loader: DataLoader<Tensor<i64>> = DataLoader::builder(numbers)
        .batch_size(options.global_batch / ranks)
        .shuffle(true)
        .seed(17) // the same on all ranks, as everything else
        .num_workers(2)
        .world(world)
        .build()?;
    let state = match &options.resume {
        Some(file) => read(file)?,
        None => LoaderState::default(),
    };

    for epoch in loader.resume(0..options.epochs as u64, &state)? {
        for batch in epoch.with_info() {
            let (samples, info) = batch?;
            let (epoch, batch, position) = (info.epoch(), info.batch(), info.position());
            let mut line = format!("{world}, epoch {epoch}, batch {batch}, position {position}:");
            for sample in samples.as_slice() {
                line += &format!(" {sample}");
            }
            say(line)?;
            thread::sleep(options.pause); // train here, and share the gradients
            if let Some(folder) = &options.save {
                save(folder, &world, &loader.state())?;
            }
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<LoaderState, BoxError> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.parse()?)
}

/// Replaces this rank's file by a whole one, so that whoever is killed here leaves the old one or the new one.
///
/// A training whose ranks wait for each other in each step needs only one file: the state is the same on all of them.
fn save(folder: &Path, world: &World, state: &LoaderState) -> io::Result<()> {
    let file = folder.join(format!("rank-{}", world.rank()));
    let new = file.with_extension("new");
    fs::write(&new, format!("{state}\n"))?;
    fs::rename(new, file)
}

/// Prints a line by one call of the system, lest several processes mix theirs.
fn say(mut line: String) -> io::Result<()> {
    line.push('\n');
    io::stdout().write_all(line.as_bytes())
}
