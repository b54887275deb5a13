//! What limits a loop, and which of Python's options changes that.

use pinfeed::loader::{Limit, Stats};

/// The table, and a sentence.
pub(crate) fn shown(stats: &Stats) -> String {
    format!("{}{}", stats.table(), sentence(stats))
}

fn sentence(stats: &Stats) -> String {
    let more_workers = match stats.sizing.is_auto() {
        false => "raise num_workers",
        true => {
            "set num_workers above the number of cores if samples wait (for a disk, a server), or let the process have more cores"
        }
    };
    if let Some((all, each)) = stats.copying() {
        let (all, each) = (all / 1e9, each / 1e9);
        return format!(
            "Copying rows limits the loop: {} workers copy {all:.1} GB/s, {each:.1} each while busy. If more of them copy no more, the host's \
             memory is the limit: have smaller elements (uint8 instead of float32). Otherwise {more_workers}.",
            stats.workers
        );
    }
    match stats.limit() {
        Limit::Unknown if stats.wall_time().is_zero() => {
            "Nothing was measured yet: iterate the loader first.".into()
        }
        Limit::Unknown if stats.batches == 0 => {
            "Nothing was measured: there was no batch without an error.".into()
        }
        Limit::Unknown => {
            "The loop is too short to tell what limits it: let it take more than 10 ms.".into()
        }
        Limit::Consumer => "The training step limits the loop: the loader keeps up.".into(),
        Limit::Sampling => {
            format!("The sampler limits the loop: {more_workers}, or make it cheaper.")
        }
        Limit::Pulling => {
            "The iterable limits the loop: one worker at a time pulls its items, so do less in its `__next__`, or yield larger items."
                .into()
        }
        Limit::Loading => format!(
            "Loading limits the loop: {more_workers}, or do less for a sample. Where your own Python makes the samples, workers take turns with the \
             interpreter's lock: more of them help as far as it is released (by NumPy, files, decoders), and processes help beyond that (docs/python.md)."
        ),
        Limit::Decoding => format!(
            "Decoding limits the loop: {more_workers}, let a GPU decode as well (decode=\"both\"), or have smaller files."
        ),
        Limit::DeviceDecoding => {
            "The GPU's decoder limits the loop: start the program with CUDA_DEVICE_MAX_CONNECTIONS=32 if the GPU trains meanwhile, let the workers \
             decode more (decode=\"both\", a smaller device_share), or have smaller files."
                .into()
        }
        Limit::Collating => {
            format!("Collating limits the loop: {more_workers}, or make the collate_fn cheaper.")
        }
        Limit::Pinning => {
            "Page-locked memory limits the loop: raise prefetch, and let batches go sooner.".into()
        }
        Limit::Submission => {
            "Submissions to the GPU limit the loop: the copies are so small that starting one costs more. Raise batch_size, or depth.".into()
        }
        Limit::Transfer => {
            "The link to the GPU limits the loop: send smaller elements (uint8 instead of float32)."
                .into()
        }
        other => format!("{other:?} limits the loop."),
    }
}
