//! Data-parallel training: one process for each GPU, started by torchrun, mpirun or srun. Each loads its share of every global batch from tar shards
//! in an object store, gradients are summed over all of them by NCCL, and after an interruption any number of ranks goes on where they were.
//!
//!     cargo build --release --example distributed --features webdataset,object-store
//!     torchrun --no-python --nproc-per-node 2 target/release/examples/distributed --checkpoint run.ckpt
//!     mpirun -n 2 target/release/examples/distributed --checkpoint run.ckpt
//!
//! On the CPU (`--device cpu`) ranks sum their gradients over TCP. The model is a softmax regression on pixels: small, so that all of it can be read here
//! (`model.rs`, `gpu.rs`). `group.rs` is how ranks talk, `checkpoint.rs` what is saved.

#![allow(unsafe_code)] // gpu.rs launches kernels

#[path = "../args/mod.rs"]
#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;
mod checkpoint;
#[path = "../colours/mod.rs"]
#[allow(dead_code)] // its model is another example's
mod colours;
mod gpu;
mod group;
mod model;
#[path = "../shards/mod.rs"]
mod shards;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::loader::{LoaderState, World};
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader, Tensor};

use checkpoint::Checkpoint;
use gpu::Gpu;
use group::Group;
use model::{Cpu, Shape};

const HELP: &str = "\
Trains a classifier of pictures in several processes, which torchrun, mpirun or srun started.

cargo run --release --example distributed --features webdataset,object-store -- [OPTIONS]

  --shards PATTERN   tar shards with a picture (ppm, png or jpg) and a class (cls) in each sample: of a folder, or a URL
                     such as s3://bucket/train-{000..146}.tar (default: eight small ones, written to the temporary folder)
  --valid PATTERN    shards that rank 0 looks at in the end (default: the last of the small ones)
  --classes N        (default: 3)
  --global-batch N   samples per step of all ranks together (default: 32)
  --epochs N         (default: 3)
  --workers N        of each rank (default: 2)
  --device NAME      cpu or cuda, which is the GPU of the rank's number on its host (default: cuda where there is one)
  --checkpoint FILE  goes on from this file if it is there, and writes it; on a disk that all ranks see
  --save-every N     steps between two checkpoints (default: 10)
  --trace FOLDER     writes epoch, position and samples' keys of each batch, into a file for each rank
  --pause-ms N       how much longer a step takes (default: 0)
  --master HOST:PORT where rank 0 listens (default: MASTER_ADDR and the port behind MASTER_PORT, or 127.0.0.1:29601)
  --help             this text";

/// Pictures are cut to so many pixels, from the middle.
const SIDE: usize = 28;

/// What ranks wait for each other, at most, until all have started.
const PATIENCE: Duration = Duration::from_secs(60);

const LEARNING_RATE: f32 = 0.5;

struct Options {
    shards: Option<String>,
    valid: Option<String>,
    classes: usize,
    global_batch: usize,
    epochs: u64,
    workers: usize,
    device: Option<String>,
    checkpoint: Option<PathBuf>,
    save_every: u64,
    trace: Option<PathBuf>,
    pause: Duration,
    master: Option<String>,
}

impl Options {
    fn take(mut options: args::Options) -> Result<Options, BoxError> {
        let pause_ms = options.value("--pause-ms", "a whole number, such as 100")?;
        let taken = Options {
            shards: options.value("--shards", "a pattern, such as data/train-{000..146}.tar")?,
            valid: options.value("--valid", "a pattern, such as data/valid-{000..001}.tar")?,
            classes: options.positive("--classes")?.unwrap_or(3),
            global_batch: options.positive("--global-batch")?.unwrap_or(32),
            epochs: options.positive("--epochs")?.unwrap_or(3) as u64,
            workers: options.positive("--workers")?.unwrap_or(2),
            device: options.value("--device", "cpu or cuda")?,
            checkpoint: options.path("--checkpoint")?,
            save_every: options.positive("--save-every")?.unwrap_or(10) as u64,
            trace: options.path("--trace")?,
            pause: Duration::from_millis(pause_ms.unwrap_or(0)),
            master: options.value("--master", "an address, such as node1:29601")?,
        };
        options.finish()?;
        Ok(taken)
    }
}

/// Pictures `[n, 28, 28, 3]`, their classes, and their keys as numbers.
type Batch = (Tensor<u8>, Tensor<i64>, Tensor<i64>);

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(options: args::Options) -> Result<(), BoxError> {
    let options = Options::take(options)?;
    let world = World::from_env()?;
    let ranks = world.data_ranks();
    if !options.global_batch.is_multiple_of(ranks) {
        let what = format!("--global-batch wants a multiple of {ranks}, the number of ranks");
        return Err(args::misuse(what));
    }
    let gpu = gpu::of(options.device.as_deref(), world.local_rank())?;
    let mut group = Group::join(&world, options.master.as_deref(), PATIENCE)?;

    // Rank 0 makes what is not there; the others wait for it, and then all read the same.
    let folder = std::env::temp_dir().join("pinfeed-distributed");
    if options.shards.is_none() && world.rank() == 0 && !folder.exists() {
        let new = folder.with_extension(std::process::id().to_string());
        shards::write(&new)?;
        fs::rename(&new, &folder)?;
    }
    let small = |shards: &str| format!("{}/shard-{shards}.tar", folder.display());
    let train = options
        .shards
        .clone()
        .unwrap_or_else(|| small("{000..006}"));
    let valid = match (&options.valid, &options.shards) {
        (None, None) => Some(small("007")),
        (valid, _) => valid.clone(),
    };
    group.barrier()?;
    let saved = match &options.checkpoint {
        Some(file) => Checkpoint::read(file)?,
        None => None,
    };
    // No rank writes a new one before all have read the old.
    group.barrier()?;

    let shape = Shape {
        inputs: SIDE * SIDE * 3,
        classes: options.classes,
    };
    let weights = match &saved {
        Some(saved) => saved.weights_of(shape)?,
        None => vec![0.0; shape.weights()],
    };
    let loader = DataLoader::builder(pictures(&train)?)
        .global_batch_size(options.global_batch)
        .shuffle(true)
        .seed(17) // the same on all ranks, as everything else
        .num_workers(options.workers)
        .world(world);
    let loader: DataLoader<Batch> = match &gpu {
        Some(gpu) => loader.pin_memory(gpu.device()).build()?,
        None => loader.build()?,
    };
    let state = saved.map_or_else(LoaderState::default, |saved| saved.state);
    let mut run = Run {
        options: &options,
        world: &world,
        shape,
        loader: &loader,
        trace: trace(&options, &world)?,
        steps: 0,
        since: Instant::now(),
        samples: 0.0,
    };
    let weights = match gpu {
        Some(gpu) => run.on_gpu(&gpu, &mut group, &weights, &state)?,
        None => run.on_cpu(&mut group, weights, &state)?,
    };

    // All ranks have the same weights, bit by bit, or something is wrong.
    group.agree(model::digest(&weights))?;
    if let Some(valid) = valid.filter(|_| world.rank() == 0) {
        let model = Cpu::new(shape, weights);
        let (mut right, mut all) = (0, 0);
        let loader: DataLoader<Batch> = DataLoader::builder(pictures(&valid)?)
            .batch_size(64)
            .build()?;
        for batch in loader.epoch(0) {
            let (pixels, classes, _) = batch?;
            right += model.right(&pixels, &classes);
            all += classes.len();
        }
        say(format!(
            "{right} of {all} pictures that were not trained on are recognised"
        ))?;
    }
    Ok(())
}

/// Pictures of 28 by 28 pixels, classes and keys, of shards in a folder or behind a URL.
fn pictures(place: &str) -> pinfeed::Result<WebDataset<(LazyImage, i64, i64)>> {
    let transform = ImageTransform::new().resize(SIDE).center_crop(SIDE);
    WebDataset::open(place)?
        .field("ppm;png;jpg;jpeg")
        .field("cls")
        .build(move |sample, rng| {
            let picture = LazyImage::encoded(sample.shared("ppm;png;jpg;jpeg")?);
            let picture = picture.with_path(sample.key());
            let key = sample
                .key()
                .rsplit('/')
                .next()
                .and_then(|key| key.parse().ok());
            let class: i64 = sample.number("cls")?;
            Ok((picture.transform(&transform, rng), class, key.unwrap_or(-1)))
        })
}

/// Training, from a state on.
struct Run<'a> {
    options: &'a Options,
    world: &'a World,
    shape: Shape,
    loader: &'a DataLoader<Batch>,
    trace: Option<File>,
    /// How many steps were made since the last line, and with how many samples of all ranks.
    steps: u64,
    since: Instant,
    samples: f32,
}

impl Run<'_> {
    fn on_cpu(
        &mut self,
        group: &mut Group,
        weights: Vec<f32>,
        state: &LoaderState,
    ) -> Result<Vec<f32>, BoxError> {
        let mut model = Cpu::new(self.shape, weights);
        for epoch in self.loader.resume(0..self.options.epochs, state)? {
            for batch in epoch.with_info() {
                let ((pixels, classes, keys), info) = batch?;
                let mut sums = model.gradient(&pixels, &classes)?;
                group.sum(&mut sums)?;
                model.step(&sums, LEARNING_RATE);
                self.traces(info.epoch(), info.position(), &keys)?;
                let means = self.shape.means(&sums);
                self.ends_step(info.epoch(), means, || Ok(model.weights().to_vec()))?;
            }
        }
        Ok(model.into_weights())
    }

    fn on_gpu(
        &mut self,
        gpu: &Gpu,
        group: &mut Group,
        weights: &[f32],
        state: &LoaderState,
    ) -> Result<Vec<f32>, BoxError> {
        let mut model = gpu.model(self.shape, weights, group)?;
        let epochs = self.loader.resume(0..self.options.epochs, state)?;
        for epoch in epochs.prefetch_to_device(gpu.device(), 2) {
            for batch in epoch.with_info() {
                let ((pixels, classes, keys), info) = batch?;
                let means = model.step(&pixels, &classes, LEARNING_RATE)?;
                if self.trace.is_some() {
                    let keys = keys.to_host(true)?.wait()?;
                    self.traces(info.epoch(), info.position(), &keys)?;
                }
                self.ends_step(info.epoch(), means, || model.weights())?;
            }
        }
        model.weights()
    }

    /// After a step of all ranks: it is reported, and now and then saved. `means`: the loss, and of how many samples.
    fn ends_step(
        &mut self,
        epoch: u64,
        (loss, samples): (f32, f32),
        weights: impl FnOnce() -> Result<Vec<f32>, BoxError>,
    ) -> Result<(), BoxError> {
        thread::sleep(self.options.pause);
        self.steps += 1;
        self.samples += samples;
        if !self.steps.is_multiple_of(self.options.save_every) || self.world.rank() != 0 {
            return Ok(());
        }
        let seconds = self.since.elapsed().as_secs_f32();
        let (ranks, rate) = (self.world.data_ranks(), self.samples / seconds);
        say(format!(
            "epoch {epoch}, {} steps of {ranks} ranks: loss {loss:.4}, {rate:.0} samples/s",
            self.steps
        ))?;
        (self.since, self.samples) = (Instant::now(), 0.0);
        if let Some(file) = &self.options.checkpoint {
            let state = self.loader.state();
            let weights = weights()?;
            Checkpoint { state, weights }.write(file)?;
        }
        Ok(())
    }

    fn traces(&mut self, epoch: u64, position: u64, keys: &Tensor<i64>) -> io::Result<()> {
        let Some(file) = &mut self.trace else {
            return Ok(());
        };
        let mut line = format!("{epoch} {position}");
        for key in keys.as_slice() {
            line += &format!(" {key}");
        }
        line.push('\n');
        file.write_all(line.as_bytes())
    }
}

/// The file into which this process writes what it trains on.
fn trace(options: &Options, world: &World) -> io::Result<Option<File>> {
    let Some(folder) = &options.trace else {
        return Ok(None);
    };
    fs::create_dir_all(folder)?;
    let name = format!("{}-{}", world.rank(), std::process::id());
    File::create(folder.join(name)).map(Some)
}

/// Prints a line by one call of the system, lest several processes mix theirs.
fn say(mut line: String) -> io::Result<()> {
    line.push('\n');
    io::stdout().write_all(line.as_bytes())
}
