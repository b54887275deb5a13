//! Training on two devices of one machine: each has a thread, and all steps are taken together. The weights are those that one device
//! finds with batches of twice the size.
#![allow(clippy::unwrap_used)] // a panic of one thread ends the program

use std::error::Error;
use std::sync::{Barrier, Mutex};
use std::thread;

use pinfeed::loader::DeviceEpochs;
use pinfeed::{DataLoader, Device, DeviceTensor, Tensor, from_fn};

type Batch = (Tensor<f32>, Tensor<f32>);

fn loader(devices: &[Device]) -> pinfeed::Result<DataLoader<Batch>> {
    let samples = from_fn(512, |_, rng| {
        let x = rng.f32();
        Ok((x, 3.0 * x - 1.0))
    });
    DataLoader::builder(samples)
        .global_batch_size(32)
        .shuffle(true)
        .seed(17)
        .drop_last(true)
        .num_workers(2)
        .pin_memory(devices)
        .build()
}

/// The sums of the gradients over a batch, and how many samples it has.
fn gradients([w, b]: [f32; 2], (x, y): &(DeviceTensor<f32>, DeviceTensor<f32>)) -> pinfeed::Result<[f32; 3]> {
    let (x, y) = (x.to_host(true)?.wait()?, y.to_host(true)?.wait()?);
    let mut sums = [0.0; 3];
    for (x, y) in x.as_slice().iter().zip(y.as_slice()) {
        let error = w * x + b - y;
        sums = [sums[0] + error * x, sums[1] + error, sums[2] + 1.0];
    }
    Ok(sums)
}

/// What all devices share: their gradients, and when all of them are there.
struct AllReduce {
    sums: Mutex<[f32; 3]>,
    barrier: Barrier,
}

fn train(epochs: DeviceEpochs<'_, Batch, std::ops::Range<u64>>, all: &AllReduce) -> pinfeed::Result<[f32; 2]> {
    let mut weights = [0.0; 2];
    for epoch in epochs {
        for batch in epoch {
            let own = gradients(weights, &batch?)?;
            if all.barrier.wait().is_leader() {
                *all.sums.lock().unwrap() = [0.0; 3];
            }
            all.barrier.wait();
            all.sums.lock().unwrap().iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            all.barrier.wait();
            let [w, b, count] = *all.sums.lock().unwrap();
            weights = [weights[0] - 0.5 * w / count, weights[1] - 0.5 * b / count];
        }
    }
    Ok(weights)
}

fn on(devices: &[Device]) -> pinfeed::Result<Vec<[f32; 2]>> {
    let loader = loader(devices)?;
    let all = &AllReduce {
        sums: Mutex::default(),
        barrier: Barrier::new(devices.len()),
    };
    thread::scope(|scope| {
        let epochs = loader.epochs(0..40).split(devices, 2).into_iter();
        let threads: Vec<_> = epochs.map(|epochs| scope.spawn(|| train(epochs, all))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let two = on(&[Device::cpu(), Device::cpu()])?; // Device::cuda(0)?, Device::cuda(1)?
    let one = on(&[Device::cpu()])?;
    println!("two devices: {two:?}, one: {one:?}");
    for weights in two.iter().chain(&one) {
        assert!((weights[0] - one[0][0]).abs() < 1e-3 && (weights[1] - one[0][1]).abs() < 1e-3);
        assert!((weights[0] - 3.0).abs() < 0.05 && (weights[1] + 1.0).abs() < 0.05);
    }
    Ok(())
}
