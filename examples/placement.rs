//! Where do a loader's threads run, and where does its page-locked memory lie? (Linux.)
//!
//!     cargo run --release --example placement -- --device cuda:0
//!
//! On a machine with several nodes (sockets, usually), a device is attached to one of them, and memory of that node is nearer to it.
//! `Affinity::Device` keeps workers, pin thread and slabs there. This program prints the device's node, and for each affinity where
//! threads and slabs are, and how fast batches arrive.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use pinfeed::dataset::TensorDataset;
use pinfeed::loader::{Affinity, Workers};
use pinfeed::{BoxError, DataLoader, Device, Tensor};

use args::DeviceName;

const HELP: &str = "\
Prints where a loader's threads run, where its page-locked memory lies, and how fast its batches arrive.

cargo run --release --example placement -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --workers N         worker threads (default: as many as the loader chooses)
  --cores N..         one more line: threads on these cores
  --help              this text";

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<(), BoxError> {
    let device: Option<DeviceName> = options.value("--device", "cpu or cuda:0")?;
    let workers = options.positive("--workers")?;
    let cores = options.values("--cores", "whole numbers, such as 0 1 2 3")?;
    options.finish()?;
    let device = match device {
        Some(DeviceName::Cpu) => Device::cpu(),
        Some(DeviceName::Cuda(ordinal)) => Device::cuda(ordinal)?,
        None => Device::cuda(0).unwrap_or_else(|error| {
            println!("using the CPU: {error}");
            Device::cpu()
        }),
    };
    println!("{}, {}", device.info()?.name, node_of(&device));
    println!("{}", own("Cpus_allowed_list").unwrap_or_default());
    let affinities = [
        Some(Affinity::Anywhere),
        Some(Affinity::Device),
        cores.map(Affinity::Cores),
    ];
    for affinity in affinities.into_iter().flatten() {
        let workers = workers.map_or(Workers::Auto, Workers::Fixed);
        measure(&device, workers, affinity)?;
        device.release_pinned(); // so that the next loader makes its own slabs
    }
    Ok(())
}

/// What the system says of the device's node.
fn node_of(device: &Device) -> String {
    let Ok(Some(address)) = device.info().map(|info| info.pci_address) else {
        return "on no bus".to_owned();
    };
    let folder = format!("/sys/bus/pci/devices/{}", address.to_ascii_lowercase());
    let read = |file: &str| fs::read_to_string(format!("{folder}/{file}")).unwrap_or_default();
    let (node, cores) = (read("numa_node"), read("local_cpulist"));
    let all = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let [node, cores, all] = [&node, &cores, &all].map(|text| text.trim());
    format!("{address}: node {node} of {all}, cores {cores}")
}

/// A line of what the system says of this process.
fn own(key: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(
        status
            .lines()
            .find(|line| line.starts_with(key))?
            .to_owned(),
    )
}

fn measure(device: &Device, workers: Workers, affinity: Affinity) -> Result<(), BoxError> {
    const ROW: usize = 150_528; // 224 x 224 x 3
    let rows = Tensor::from_vec(vec![7u8; 4_000 * ROW], &[4_000, ROW])?;
    println!("\n{affinity:?}");
    let loader = DataLoader::builder(TensorDataset::new(rows)?)
        .batch_size(64)
        .num_workers(workers)
        .pin_memory(device)
        .affinity(affinity)
        .build()?;
    println!("  placement: {}", loader.placement());
    for batch in loader.epoch(0) {
        batch?;
    }
    for (name, cores) in threads() {
        println!("  {name}: cores {cores}");
    }
    let batch = loader.epoch(1).next().ok_or("no batch")??;
    let address = batch.as_slice().as_ptr() as usize;
    println!("  a slab: {}", mapping(address).unwrap_or_default());
    drop(batch);
    for _ in 0..2 {
        let start = Instant::now();
        let mut bytes = 0;
        for epoch in loader.epochs(2..6).prefetch_to_device(device, 2) {
            for batch in epoch {
                bytes += batch?.len();
            }
        }
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("  {rate:.1} GB/s to the device");
    }
    println!(
        "  {} workers: {}",
        loader.stats().workers,
        loader.stats().sizing
    );
    Ok(())
}

/// The loader's threads, by name, with the cores that they may run on.
fn threads() -> BTreeMap<String, String> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let threads = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let value = |key: &str| {
            let mut lines = status.lines();
            let text = lines.find_map(|line| line.strip_prefix(key))?;
            Some(text.trim().to_owned())
        };
        Some((value("Name:")?, value("Cpus_allowed_list:")?))
    });
    threads
        .filter(|(name, _)| name.starts_with("pinfeed"))
        .collect()
}

/// The policy of the memory at this address, and how many of its pages lie on which node (`N0=`, `N1=`).
fn mapping(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/numa_maps").ok()?;
    let start = |line: &&str| usize::from_str_radix(line.split(' ').next()?, 16).ok();
    // The last mapping that begins at or before it.
    let below = maps
        .lines()
        .filter(|line| start(line).is_some_and(|start| start <= address));
    let line = below.max_by_key(start)?;
    let words = line.split(' ').skip(1);
    let words = words
        .filter(|word| word.starts_with('N') || word.starts_with("prefer") || *word == "default");
    Some(words.collect::<Vec<_>>().join(" "))
}
