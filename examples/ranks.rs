//! Several processes train together: each loads its share of every global batch.
//!
//!     cargo build --release --example ranks
//!     mpirun -n 4 target/release/examples/ranks     # or: srun -n 4 target/release/examples/ranks
//!
//! The launcher tells each process its rank, and `World::from_env` reads it. Each rank prints the samples of its batches. Together
//! they are those that one process alone prints, whatever the number of ranks; `ci/launchers.sh` compares them.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::io::{self, Write};
use std::process::ExitCode;

use pinfeed::loader::World;
use pinfeed::{BoxError, DataLoader, Tensor, from_fn};

const HELP: &str = "\
Prints which samples each rank loads, as one of the processes that mpirun, srun or torchrun started.

cargo run --release --example ranks -- [OPTIONS]

  --samples N        samples of the data set (default: 1000)
  --global-batch N   samples per step of all ranks together (default: 60)
  --epochs N         (default: 1)
  --help             this text";

struct Options {
    samples: usize,
    global_batch: usize,
    epochs: usize,
}

impl Options {
    fn take(mut options: args::Options) -> Result<Options, BoxError> {
        let taken = Options {
            samples: options.positive("--samples")?.unwrap_or(1_000),
            global_batch: options.positive("--global-batch")?.unwrap_or(60),
            epochs: options.positive("--epochs")?.unwrap_or(1),
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
    if !options.global_batch.is_multiple_of(world.data_ranks()) {
        let ranks = world.data_ranks();
        let what = format!("--global-batch wants a multiple of {ranks}, the number of ranks");
        return Err(args::misuse(what));
    }

    let numbers = from_fn(options.samples as u64, |index, _rng| Ok(index));
    let loader: DataLoader<Tensor<i64>> = DataLoader::builder(numbers)
        .batch_size(options.global_batch / world.data_ranks())
        .shuffle(true)
        .seed(17) // the same on all ranks, as everything else
        .drop_last(true)
        .num_workers(2)
        .world(world)
        .build()?;

    for epoch in loader.epochs(0..options.epochs as u64) {
        let number = epoch.number();
        for (step, batch) in epoch.enumerate() {
            let samples = batch?; // train here, and share the gradients
            let mut line = format!("{world}, epoch {number}, batch {step}:");
            for sample in samples.as_slice() {
                line += &format!(" {sample}");
            }
            say(line)?;
        }
    }
    Ok(())
}

/// Prints a line by one call of the system, lest several processes mix theirs.
fn say(mut line: String) -> io::Result<()> {
    line.push('\n');
    io::stdout().write_all(line.as_bytes())
}
