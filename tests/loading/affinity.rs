//! Where a loader's threads run, and where its slabs lie.
#![cfg(all(target_os = "linux", not(miri)))]
#![allow(unsafe_code)] // it asks the system where threads and pages are

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::loader::{Affinity, Builder, Workers};
use pinfeed::{DataLoader, Dataset, Device, Error, Tensor, from_fn, iterable};

/// The cores that the calling thread may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: all bytes of a set may be zero, and the call writes no more than it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        set
    };
    // SAFETY: the numbers lie within the set.
    let is_set = |core: &usize| unsafe { libc::CPU_ISSET(*core, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(is_set).collect()
}

/// The node of the page.
fn node_of(pointer: *const u8) -> Option<usize> {
    let (mut status, none) = (-1, std::ptr::null::<libc::c_int>());
    let page = (pointer as usize & !4095) as *const u8;
    // SAFETY: without target nodes it moves nothing, and writes one status.
    let result =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, 1usize, &page, none, &mut status, 0) };
    (result == 0).then(|| usize::try_from(status).ok())?
}

/// Which cores those could use that loaded samples.
type Seen = Arc<Mutex<BTreeSet<Vec<usize>>>>;

fn samples() -> (Seen, impl Dataset<Sample = i64>) {
    let seen = Seen::default();
    let own = Arc::clone(&seen);
    let samples = from_fn(200, move |index, _| {
        own.lock().unwrap().insert(allowed());
        Ok(index as i64)
    });
    (seen, samples)
}

fn is_whole(loader: &DataLoader<Tensor<i64>>) {
    for epoch in 0..2 {
        let batches = loader.epoch(epoch).map(Result::unwrap);
        let all: Vec<i64> = batches.flat_map(|batch| batch.to_vec()).collect();
        assert!(all.into_iter().eq(0..200));
    }
}

/// A machine with two nodes, whose device `0000:3b:00.0` is near these cores.
fn machine(node: &str, cores: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("sys/devices/system/node/online", "0-1"),
        ("sys/bus/pci/devices/0000:3b:00.0/numa_node", node),
        ("sys/bus/pci/devices/0000:3b:00.0/local_cpulist", cores),
    ];
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
    root
}

fn near<D: Dataset, C>(builder: Builder<D, C>, device: &Device, root: &Path) -> Builder<D, C> {
    let builder = builder.batch_size(8).num_workers(3).pin_memory(device);
    builder
        .affinity(Affinity::Device)
        .machine(root, "0000:3B:00.0")
}

#[test]
fn workers_run_on_the_cores_that_are_named() {
    let own = allowed();
    let last = *own.last().unwrap();
    let (seen, samples) = samples();
    let builder = DataLoader::builder(samples).batch_size(8).num_workers(3);
    // Of these, the process may use one.
    let loader = builder
        .affinity(Affinity::Cores(vec![5_000, last, last]))
        .build()
        .unwrap();
    is_whole(&loader);
    assert_eq!(*seen.lock().unwrap(), [vec![last]].into());
    let placement = loader.placement();
    if own.len() > 1 {
        assert_eq!(placement.to_string(), format!("cores {last}"));
    }
    assert_eq!((placement.node, placement.problem), (None, None));
    assert_eq!(allowed(), own);
}

/// So many as there are cores for them.
#[test]
fn auto_counts_the_cores_that_workers_run_on() {
    let last = *allowed().last().unwrap();
    let (_, samples) = samples();
    let builder = DataLoader::builder(samples).num_workers(Workers::Auto);
    let loader = builder
        .affinity(Affinity::Cores(vec![last]))
        .build()
        .unwrap();
    is_whole(&loader);
    assert_eq!(loader.stats().workers, 1);
}

#[test]
fn a_stream_is_loaded_on_the_cores_that_are_named() {
    let last = *allowed().last().unwrap();
    let seen = Seen::default();
    let own = Arc::clone(&seen);
    let numbers = iterable::from_fn(move |_, _| {
        let own = Arc::clone(&own);
        Ok((0..100i64).map(move |number| {
            own.lock().unwrap().insert(allowed());
            Ok(number)
        }))
    });
    let builder = DataLoader::iterable(numbers).batch_size(8).num_workers(2);
    let loader = builder
        .affinity(Affinity::Cores(vec![last]))
        .build()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .map(|batch| batch.unwrap().len())
            .sum::<usize>(),
        100
    );
    assert_eq!(*seen.lock().unwrap(), [vec![last]].into());
    assert_eq!(loader.placement().problem, None);
}

/// The worker in the place of one that hangs runs there, too.
#[test]
fn a_new_worker_runs_where_the_one_before_did() {
    let last = *allowed().last().unwrap();
    let seen = Seen::default();
    let own = Arc::clone(&seen);
    let samples = from_fn(20, move |index, _| {
        match index {
            3 => std::thread::sleep(Duration::from_secs(2)),
            4.. => _ = own.lock().unwrap().insert(allowed()),
            _ => {}
        }
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples)
        .num_workers(1)
        .timeout(Duration::from_millis(200));
    let loader = builder
        .affinity(Affinity::Cores(vec![last]))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_err).count(), 1);
    assert_eq!(*seen.lock().unwrap(), [vec![last]].into());
}

#[test]
fn workers_and_slabs_are_on_the_devices_node() {
    let first = allowed()[0];
    let root = machine("0", &format!("{first},6000-6100"));
    let device = Device::cpu();
    let (seen, samples) = samples();
    let loader = near(DataLoader::builder(samples), &device, root.path())
        .build()
        .unwrap();
    is_whole(&loader);
    assert_eq!(*seen.lock().unwrap(), [vec![first]].into());
    let placement = loader.placement();
    assert_eq!(placement.node, Some(0));
    if allowed().len() > 1 {
        assert_eq!(placement.cores, Some(vec![first]));
    }
    // (A container may forbid to choose a node.)
    if placement.problem.is_none() {
        let batch = loader.epoch(2).next().unwrap().unwrap();
        assert!(batch.is_pinned());
        let node = node_of(batch.as_slice().as_ptr().cast());
        assert!(node.is_none_or(|node| node == 0), "{node:?}");
    }
}

/// The process keeps what it may use; the loader says so.
#[test]
fn cores_that_the_process_may_not_use_are_not_taken() {
    let own = allowed();
    let root = machine("0", "6000-6100");
    let device = Device::cpu();
    let (seen, samples) = samples();
    let loader = near(DataLoader::builder(samples), &device, root.path())
        .build()
        .unwrap();
    is_whole(&loader);
    assert_eq!(*seen.lock().unwrap(), [own].into());
    let placement = loader.placement();
    assert_eq!((placement.cores, placement.node), (None, None));
    let problem = placement.problem.unwrap();
    assert!(problem.contains("6000-6100"), "{problem}");
}

/// A node that is not there (here: a device whose files name a node that the machine does not have) is no error of a batch.
#[test]
fn memory_that_cannot_be_had_is_taken_elsewhere() {
    if Path::new("/sys/devices/system/node/node1").exists() {
        return;
    }
    let first = allowed()[0];
    let root = machine("1", &first.to_string());
    let device = Device::cpu();
    let (_, samples) = samples();
    let builder = near(DataLoader::builder(samples), &device, root.path());
    let loader = builder.strict_pinning(true).build().unwrap();
    is_whole(&loader);
    let placement = loader.placement();
    assert_eq!(placement.node, Some(1));
    assert!(placement.problem.unwrap().contains("node 1"));
}

/// One node, or a device of which the system does not say where it is.
#[test]
fn nothing_changes_where_there_is_nothing_to_choose() {
    let own = allowed();
    let device = Device::cpu();
    let alone = machine("0", "0");
    std::fs::write(alone.path().join("sys/devices/system/node/online"), "0\n").unwrap();
    let unknown = machine("-1", "0");
    let empty = tempfile::tempdir().unwrap();
    for root in [&alone, &unknown, &empty] {
        let (seen, samples) = samples();
        let loader = near(DataLoader::builder(samples), &device, root.path())
            .build()
            .unwrap();
        is_whole(&loader);
        assert_eq!(*seen.lock().unwrap(), [own.clone()].into());
        assert_eq!(loader.placement().to_string(), "anywhere");
    }
    // The CPU device is attached to no node.
    let (seen, samples) = samples();
    let builder = DataLoader::builder(samples)
        .num_workers(2)
        .pin_memory(&device);
    let loader = builder.affinity(Affinity::Device).build().unwrap();
    is_whole(&loader);
    assert_eq!(*seen.lock().unwrap(), [own].into());
    assert_eq!(loader.placement(), pinfeed::loader::Placement::default());
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (affinity, word) in [
        (Affinity::Cores(Vec::new()), "names no core"),
        (Affinity::Device, "pin_memory"),
    ] {
        let (_, samples) = samples();
        let error = DataLoader::builder(samples)
            .affinity(affinity)
            .build()
            .unwrap_err();
        assert!(
            matches!(
                &error,
                Error::InvalidOption {
                    option: "affinity",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// A process that is bound to one core by others stays there.
#[test]
fn a_bound_process_stays_where_it_is() {
    const NAME: &str = "affinity::a_bound_process_stays_where_it_is";
    const IS_BOUND: &str = "PINFEED_TEST_IS_BOUND";
    if std::env::var_os(IS_BOUND).is_none() {
        // (The first of those that this process may use.)
        let bound = "exec taskset -c $(taskset -cp $$ | sed 's/.*: *//; s/[,-].*//')";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{bound} \"$0\" --exact {NAME}")]);
        let program = std::env::current_exe().unwrap();
        let ended = shell.arg(program).env(IS_BOUND, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{ended:?}");
        assert!(said.contains("1 passed"), "there is no test {NAME}: {said}");
        return;
    }
    let own = allowed();
    assert_eq!(own.len(), 1);
    let root = machine("0", "0-6100");
    let device = Device::cpu();
    for of_device in [false, true] {
        let (seen, samples) = samples();
        let builder = DataLoader::builder(samples);
        let builder = match of_device {
            true => near(builder, &device, root.path()),
            false => builder
                .num_workers(3)
                .affinity(Affinity::Cores((0..6_000).collect())),
        };
        is_whole(&builder.build().unwrap());
        assert_eq!(*seen.lock().unwrap(), [own.clone()].into());
    }
}

/// A thread that launches kernels must not wait for a core that a worker has.
#[test]
fn workers_come_behind_the_threads_of_the_program() -> pinfeed::Result<()> {
    // SAFETY: it takes and returns numbers. (0 is the calling thread.)
    let own = || i64::from(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    let program = own();
    for workers in [0, 2] {
        let asked = from_fn(8, move |_, _| Ok(own()));
        let loader = DataLoader::builder(asked).num_workers(workers).build()?;
        for batch in &loader {
            let behind = batch?.as_slice()[0] - program;
            // (19 is the last there is, for a program that is there already.)
            assert_eq!(behind, if workers == 0 { 0 } else { 5.min(19 - program) });
        }
    }
    assert_eq!(own(), program);
    Ok(())
}
