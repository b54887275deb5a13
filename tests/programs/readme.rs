//! The README's own lines, between what they leave out. `main.rs` compares them.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::device::Loan;
use pinfeed::{BoxError, DataLoader, Padded, Stream, Tensor, from_fn};

/// The first block. It wants a GPU and ImageNet, and is compiled only.
#[allow(dead_code)]
#[rustfmt::skip]
fn train() -> Result<(), Box<dyn Error>> {
    use pinfeed::image::{ImageFolder, ImageTransform};
    use pinfeed::{DataLoader, Device};

    let device = Device::cuda(0)?;                            // Device::cpu() where there is no GPU
    let stream = device.stream()?;                            // or the program's own
    let train = ImageFolder::open("imagenet/train")?
        .with_transform(ImageTransform::train(224));          // decode, random resized crop, flip: fused

    let loader = DataLoader::builder(train)
        .batch_size(256).shuffle(true).seed(17).drop_last(true)
        .num_workers(16)
        .pin_memory(&device)
        .build()?;

    for epoch in loader.epochs(0..90).prefetch_to_device(&device, 2) { // two batches ahead, across epochs too
        for batch in epoch {                                           // copied while you train
            let (images, labels) = batch?;
            step(&stream, images.on(&stream)?, labels.on(&stream)?)?;  // the stream waits for the copy, the CPU does not
        }
    }
    println!("{}", loader.stats());                           // where the time went, and which knob to turn
    Ok(())
}

fn step(_: &Stream, images: Loan<'_, u8>, labels: Loan<'_, i64>) -> Result<(), pinfeed::Error> {
    drop((images, labels));
    Ok(())
}

/// The second block, a whole program.
#[rustfmt::skip]
mod anywhere {
    mod env_logger {
        pub fn init() {}
    }

    use pinfeed::Device;
    use pinfeed::prelude::*;

    pub
    fn main() -> Result<(), Box<dyn std::error::Error>> {
        env_logger::init();                                   // RUST_LOG=warn shows warnings
        let device = Device::available();                     // the first CUDA device, or the CPU
        let samples = from_fn(10_000, |index, rng| {
            let x: Vec<f32> = (0..64).map(|_| rng.f32()).collect(); // read a file here, decode it, augment it
            Ok((x, index as i64))
        });
        let loader = DataLoader::builder(samples).batch_size(100).shuffle(true).num_workers(2).pin_memory(&device).build()?;

        for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
            for batch in epoch {
                let (x, y) = batch?;                          // on the device: [100, 64] and [100]
                assert_eq!((&x.shape()[..], &y.shape()[..]), (&[100, 64][..], &[100][..]));
            }
        }
        println!("{}", loader.stats());
        Ok(())
    }
}

/// The block on cudarc. It wants a GPU, and is compiled only. (Those on candle are in examples/training/tests/candle.rs.)
#[cfg(feature = "cuda")]
#[allow(dead_code, unsafe_code)]
#[rustfmt::skip]
fn launch(ptx: cudarc::nvrtc::Ptx) -> Result<(), Box<dyn Error>> {
    let samples = from_fn(1_000, |index, _| Ok(([index as f32; 64], index as i64)));
    use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
    use pinfeed::interop;

    let context = CudaContext::new(0)?;
    let device = interop::cudarc::device(&context)?;
    let compute = context.new_stream()?;
    let stream = interop::cudarc::stream(&device, &compute)?; // the same stream, as the loader sees it
    let kernel = context.load_module(ptx)?.load_function("step")?;

    let loader = DataLoader::builder(samples).batch_size(100).num_workers(2).pin_memory(&device).build()?;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (x, _) = batch?;
        let x = x.on(&stream)?;                               // `compute` waits for the copy
        let (address, len) = (x.address(), x.len() as u32);
        let mut launch = compute.launch_builder(&kernel);
        launch.arg(&address).arg(&len);
        // SAFETY: the kernel takes an address and a length, reads that much, and is on the loan's stream.
        unsafe { launch.launch(LaunchConfig::for_num_elems(len)) }?;
    }                                                         // the loan ends: its memory is used again behind the kernel
    Ok(())
}

/// A data set of files.
#[rustfmt::skip]
fn files() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths: Vec<PathBuf> = (0..6).map(|number| folder.path().join(format!("{number}.raw"))).collect();
    let labels: Vec<i64> = (0..6).collect();
    for (path, pixels) in paths.iter().zip([12, 12, 12, 12, 5, 12]) {
        fs::write(path, vec![7; pixels])?; // one is too short
    }

    let names = paths.clone();
    let samples = from_fn(paths.len(), move |index, rng| {
        let image = std::fs::read(&paths[index as usize])?;
        let flip = rng.bool(0.5); // the same whatever the number of workers
        Ok((decode(&image, flip)?, labels[index as usize]))
    })
    .describe(move |index| names[index as usize].display().to_string());

    let loader = DataLoader::builder(samples).batch_size(2).build()?;
    let mut errors = Vec::new();
    for batch in &loader {
        match batch {
            Ok((images, labels)) => assert_eq!((&images.shape()[..], labels.len()), (&[2, 2, 2, 3][..], 2)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let [error] = &errors[..] else {
        return Err(format!("one file is broken: {errors:?}").into());
    };
    println!("{error}");
    assert!(error.contains("4.raw") && error.contains("5 elements do not make the shape [2, 2, 3]"), "{error}");
    Ok(())
}

fn decode(bytes: &[u8], flip: bool) -> Result<Tensor<u8>, BoxError> {
    let mut pixels = bytes.to_vec();
    if flip {
        pixels.reverse();
    }
    Ok(Tensor::from_vec(pixels, &[2, 2, 3])?)
}

/// A data set of one's own.
#[rustfmt::skip]
fn recordings() -> Result<(), Box<dyn Error>> {
    use pinfeed::loader::OnError;
    use pinfeed::prelude::*;
    use pinfeed::BoxError;

    #[derive(pinfeed::Sample)]
    struct Clip {
        samples: Vec<f32>,
        speaker: i64,
    }

    struct Recordings {
        paths: Vec<PathBuf>,
    }

    impl Dataset for Recordings {
        type Sample = Clip;

        fn len(&self) -> u64 {
            self.paths.len() as u64
        }

        fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Clip, BoxError> {
            let bytes = std::fs::read(&self.paths[index as usize])?;
            let volume = rng.range(0.8..1.2) as f32;
            let samples = bytes.iter().take(16_000).map(|byte| volume * (f32::from(*byte) - 128.0));
            Ok(Clip { samples: samples.collect(), speaker: index as i64 % 4 })
        }

        fn describe(&self, index: u64) -> Option<String> {
            Some(self.paths[index as usize].display().to_string()) // for errors
        }
    }

    let folder = tempfile::tempdir()?;
    let paths: Vec<PathBuf> = (0..6).map(|number| folder.path().join(format!("{number}.raw"))).collect();
    for path in &paths {
        fs::write(path, vec![7; 20_000])?;
    }
    let loader = DataLoader::builder(Recordings { paths: paths.clone() }).batch_size(3).build()?;
    for batch in &loader {
        let batch: ClipBatch = batch?;
        assert_eq!((&batch.samples.shape()[..], &batch.speaker.shape()[..]), (&[3, 16_000][..], &[3][..]));
    }
    fs::remove_file(&paths[4])?;
    let error = loader.epoch(1).nth(1).and_then(Result::err).map_or_else(String::new, |error| error.to_string());
    let expected = format!("sample 4 ({}), row 1 of batch 1 in epoch 1, failed to load: ", paths[4].display());
    assert!(error.starts_with(&expected), "{error}");
    let skips = DataLoader::builder(Recordings { paths }).batch_size(3);
    let skips = skips.on_error(OnError::Skip { at_most: 100 }).build()?;
    let lengths: Vec<usize> = skips.epoch(0).map(|batch| Ok(batch?.speaker.len())).collect::<Result<_, Box<dyn Error>>>()?;
    assert_eq!(lengths, [3, 2]);
    assert!(skips.stats().to_string().contains("sample 4 ("));
    Ok(())
}

/// A stream of lines.
#[rustfmt::skip]
fn lines() -> Result<(), Box<dyn Error>> {
    use pinfeed::iterable::{self, IterableDataset};

    let folder = tempfile::tempdir()?;
    let files = ["a.txt", "b.txt"].map(|name| folder.path().join(name));
    std::fs::write(&files[0], "one two\nthree\n")?;
    std::fs::write(&files[1], "four five six")?;
    let lines = iterable::lines(files);                       // of several ranks, each reads its own files
    let tokens = lines.shuffle(1_000).map(|line, _rng| {
        let words = line.split_whitespace().map(|word| word.len() as i64); // a tokenizer of yours
        Ok(Padded::from(words.collect::<Vec<_>>()))
    });
    let loader = DataLoader::iterable(tokens).batch_size(32).num_workers(2).build()?;
    let mut lengths: Vec<i64> = Vec::new();
    for batch in loader.epoch(0) {
        lengths.extend(batch?.lengths.as_slice());
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [1, 2, 3]);
    Ok(())
}

/// The last block. It wants several GPUs, and is compiled only.
#[allow(dead_code)]
#[rustfmt::skip]
fn train_on_several(train: pinfeed::image::ImageFolder) -> Result<(), Box<dyn Error>> {
    use pinfeed::Device;
    use pinfeed::loader::{LoaderState, World};

    let world = World::from_env()?;                           // torchrun, srun, mpirun; one rank where none of them runs
    let device = Device::cuda(world.local_rank())?;
    let loader = DataLoader::builder(train)
        .global_batch_size(2048).shuffle(true).seed(17).drop_last(true)
        .world(world)
        .num_workers(16)
        .pin_memory(&device)
        .build()?;

    let state = match fs::read_to_string("run/loader.state") {
        Ok(saved) => saved.parse()?,
        Err(_) => LoaderState::default(),                     // the beginning
    };
    for epoch in loader.resume(0..90, &state)?.prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (images, labels) = batch?;
            drop((images, labels));
            fs::write("run/loader.state", loader.state().to_string())?; // beside the weights, now and then
        }
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    anywhere::main()?;
    files()?;
    recordings()?;
    lines()
}
