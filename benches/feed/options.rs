//! What there is to run, and what it can be told.

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Limits,
    Tensor,
    Devices,
    Tiny,
    Table,
    Roundtrip,
    Overlap,
    Jpeg,
    Train,
    Tails,
    Cold,
    Folder,
    Shards,
    Startup,
    Breakdown,
    Submit,
}

use Workload::{
    Breakdown, Cold, Devices, Folder, Jpeg, Limits, Overlap, Roundtrip, Shards, Startup, Submit,
    Table, Tails, Tensor, Tiny, Train,
};

pub const WORKLOADS: [(Workload, &str, &str); 16] = [
    (
        Limits,
        "limits",
        "bare copies by size, memcpy by threads, what page-locking costs",
    ),
    (
        Tensor,
        "tensor",
        "samples of 3x224x224 in memory, shuffled, to the device",
    ),
    (
        Devices,
        "devices",
        "the same to all devices at once: a loader for each, and one for all",
    ),
    (
        Tiny,
        "tiny",
        "scalars in batches of 32 on the host: the cost of a batch",
    ),
    (
        Table,
        "table",
        "rows of 20 f32 and a target in memory, shuffled: the cost of a row",
    ),
    (
        Roundtrip,
        "roundtrip",
        "one large batch to the device and back: pageable, pinned, reused",
    ),
    (
        Overlap,
        "overlap",
        "a fixed device step beside loading: what the loop loses to it",
    ),
    (
        Jpeg,
        "jpeg",
        "a class folder of JPEGs: decode, random resized crop, flip, to the device",
    ),
    (
        Train,
        "train",
        "a fixed device step fed by `jpeg`: how long the device has no work",
    ),
    (
        Tails,
        "tails",
        "samples that take much longer than others: waits, and idle workers",
    ),
    (
        Cold,
        "cold",
        "a class folder whose files are not in memory, with and without reading ahead",
    ),
    (
        Folder,
        "folder",
        "opening a class folder, saving its index, opening that",
    ),
    (
        Shards,
        "shards",
        "the JPEGs of a class folder: as files, in tar shards, in a bucket",
    ),
    (
        Startup,
        "startup",
        "opening a device and a data set; from an epoch's begin to its first batch",
    ),
    (
        Breakdown,
        "breakdown",
        "loading, transfer and processing per batch, with and without pinning",
    ),
    (
        Submit,
        "submit",
        "what the host pays to send a small batch, and to lend it to a stream",
    ),
];

/// An option: its name, its value (empty for a flag), who takes it (nobody: all), and what it does.
pub type Opt = (
    &'static str,
    &'static str,
    &'static [Workload],
    &'static str,
);

pub const OPTIONS: &[Opt] = &[
    ("--device", "LIST", &[], "cpu, cuda:N (default: cpu)"),
    (
        "--workers",
        "LIST",
        &[
            Limits, Tensor, Devices, Tiny, Table, Overlap, Jpeg, Shards, Train, Tails, Cold,
            Startup, Breakdown,
        ],
        "threads that load (default: one per core; tiny: 0,4; table: 0,1,2,8; overlap: half the cores; train: 16,8,4, and 4,2 where the device decodes)",
    ),
    (
        "--batch-size",
        "LIST",
        &[
            Tensor, Devices, Tiny, Table, Overlap, Jpeg, Shards, Train, Tails, Cold, Startup,
            Breakdown, Submit,
        ],
        "samples per batch (default: 256; tiny: 32; table: 1024; submit: 32,12500)",
    ),
    (
        "--dtype",
        "LIST",
        &[Tensor, Devices],
        "u8, f32: the samples' element type (default: u8)",
    ),
    (
        "--seconds",
        "S",
        &[],
        "how long each result is measured (default: 5; table, submit: 2; train, tails: 10; overlap, per half of a pair: 2; limits: 0.2)",
    ),
    (
        "--data",
        "DIR",
        &[Jpeg, Shards, Train, Cold, Folder, Startup, Breakdown],
        "a class folder of images (default for jpeg, cold: one is drawn, once; folder: empty files)",
    ),
    ("--json", "", &[], "print nothing but JSON lines"),
    (
        "--samples",
        "N",
        &[
            Tensor, Devices, Tiny, Table, Jpeg, Shards, Train, Cold, Folder, Startup, Breakdown,
            Submit,
        ],
        "samples in the data set (default: 20000; tiny, table: 1000000; drawn JPEGs: 2000; folder: 100000; submit: for 1024 batches)",
    ),
    (
        "--variant",
        "LIST",
        &[
            Tensor, Table, Roundtrip, Tails, Cold, Shards, Startup, Submit, Devices,
        ],
        "tensor: loop, ahead, registered (default: loop, ahead); table: host, pinned, loop, ahead, resident, resident_loop, wide (default: the first three); roundtrip: pageable, pin_each, reused, view; \
         tails: uniform, percent, stuck; cold: read, paced, decode; shards: folder, tar, s3, serve (default: the first two); startup: tensor, jpeg; \
         submit: upload, loan; devices: loaders, split, auto, registered (default: the first two)",
    ),
    (
        "--registered",
        "",
        &[Tensor],
        "short for --variant registered: the data set is page-locked, epochs go to the device",
    ),
    (
        "--ahead",
        "",
        &[Tensor],
        "short for --variant ahead: epochs go to the device",
    ),
    (
        "--depth",
        "N",
        &[Tensor, Devices, Jpeg, Shards, Train],
        "how many batches are sent ahead (tensor: ahead, registered; default: 2)",
    ),
    (
        "--gather",
        "WAY",
        &[Tensor],
        "batch, kernel or rows: how the device gathers rows (registered; default: the driver's best)",
    ),
    (
        "--decode",
        "WHO",
        &[Jpeg, Shards, Startup, Train],
        "cpu, device, both: who decodes the pictures; the device takes the feature nvjpeg (default: cpu)",
    ),
    (
        "--share",
        "S",
        &[Jpeg, Train],
        "both: the share of the pictures that the device decodes, from 0 to 1 (default: measured)",
    ),
    (
        "--timeline",
        "FILE",
        &[Jpeg],
        "writes a timeline of the loader's threads, a page for a browser",
    ),
    (
        "--bare-decoder",
        "N",
        &[Jpeg],
        "images/s of a bare loop of the device's decoder, to compare with (benches/README.md says how to measure it)",
    ),
    (
        "--prefetch",
        "N",
        &[
            Tensor, Devices, Tiny, Table, Overlap, Jpeg, Shards, Train, Tails, Cold,
        ],
        "batches loaded ahead (default: the library's)",
    ),
    ("--pin", "", &[Tiny], "page-lock the batches"),
    (
        "--no-pin",
        "",
        &[Tensor, Jpeg],
        "leave the batches in pageable memory",
    ),
    (
        "--flat",
        "",
        &[Tiny],
        "cost of a batch, and memory, in epochs of 1 to 1,000,000 batches",
    ),
    (
        "--frames",
        "N",
        &[Roundtrip],
        "frames of 3x3840x2160 in the batch (default: 10)",
    ),
    (
        "--pairs",
        "N",
        &[Overlap, Devices, Shards],
        "how often all ways are measured, in turns (default: 7)",
    ),
    (
        "--step-ms",
        "MS",
        &[Overlap, Train, Breakdown],
        "how long the device works on a batch (default: 20; train: 54.6; breakdown: 2)",
    ),
    (
        "--pause-ms",
        "MS",
        &[Startup],
        "how long the program does something else between building the loader and its first epoch (default: 0)",
    ),
    (
        "--max-mb",
        "N",
        &[Limits],
        "the largest copy in MiB (default: 1024)",
    ),
    (
        "--server",
        "FILE",
        &[Shards],
        "the program s3s-fs (s3, serve); `ci/servers.sh` builds one",
    ),
    (
        "--servers",
        "N",
        &[Shards],
        "how many of them serve the bucket; one sends some 0.7 GB/s (s3, serve; default: 1)",
    ),
    (
        "--latency-ms",
        "MS",
        &[Shards],
        "how long the server's answers take to begin (s3, serve; default: 50)",
    ),
    (
        "--in-flight",
        "N",
        &[Shards],
        "requests in flight (tar, s3; default: the library's)",
    ),
    (
        "--blocks-ahead",
        "N",
        &[Shards],
        "extents fetched ahead (tar, s3; default: the library's)",
    ),
    (
        "--extent-kb",
        "N",
        &[Shards],
        "how much of a shard is read at once, in KiB (tar, s3; default: the library's)",
    ),
    (
        "--stats",
        "",
        &[Shards, Table, Devices],
        "print the loader's own statistics, too",
    ),
    ("--seed", "N", &[], "of order and data (default: 17)"),
    ("--help", "", &[], "this text"),
];
