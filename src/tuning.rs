//! The numbers that determine speed and memory use, in one table.
//!
//! Each comment names the unit and has three parts: what the number is; *Measured*, what was measured and on which
//! machine, or *Chosen*, the reason where there is no figure; and *Elsewhere*, its effect on a smaller or different
//! machine. To change a number, measure it (benches/README.md says how) and write the figures here.
//!
//! Where no machine is named, it is the one of docs/performance.md: one NVIDIA H200 on PCIe 5 x16, whose link carries
//! 55.4 GB/s, and 16 cores of a Xeon with 300 MB of last-level cache, in a virtual machine.
//!
//! Numbers that define results (formats, alignments, the rounds of a random order) are not tuning: they are beside the
//! code that they define.

#![cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "some are for CUDA devices only")
)]

// What only nvJPEG needs is a table of its own.
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) mod nvjpeg;

use std::time::Duration;

// ---- Scheduling: how much a worker takes at once.

/// How long a run of samples that a worker claims at once should take.
///
/// Measured: `tiny` with 4 workers makes 741,000 to 878,000 batches/s in runs, 95,000 batch by batch. (Before and after
/// the change that made whole batches on one thread.) No other lengths were recorded.
/// Elsewhere: it is a time, so run lengths adapt to the machine. Slow samples are claimed one by one in any case.
///
/// In a build with debug assertions it is four times as long: without optimization a batch of a few numbers takes 40 to 60 us, and on a slow machine
/// such a build (and with it the tests) would take other paths than a program does. (Unit tests say themselves how long
/// tasks take, and under the model checker no time passes.)
pub(crate) const RUN_NS: u64 = match cfg!(debug_assertions) && !cfg!(any(test, shuttle)) {
    true => 400_000,
    false => 100_000,
};

/// How long a run takes for each device, where workers load for several: all of them meet at one lock.
///
/// Measured: rows of 150 KB to two devices, 32 workers, as a share of what two loaders reach at once: 0.86 to 0.94 with runs of 100 us,
/// 0.81 to 1.02 with 200, 0.96 to 1.02 with 300.
/// Elsewhere: with more workers for each device than ten, longer runs would serve better.
pub(crate) const RUN_NS_PER_DEVICE: u64 = 150_000;

/// Small page-locked batches that take no longer are made by one worker each, if as many may be ahead as keep all workers busy.
///
/// Chosen: a batch of 1024 rows of 84 bytes takes 25 to 40 us on one thread, and up to 260 where several share it.
/// Elsewhere: it is a time; on a slower machine, larger batches are shared.
pub(crate) const WHOLE_NS: u64 = 4 * RUN_NS;

/// How many batches may be loaded ahead if they take microseconds and `prefetch` is not set.
///
/// Chosen: waking a worker takes as long as making dozens of batches of 32 scalars.
/// Elsewhere: such batches are small, so 64 of them take little memory on any machine. (Page-locked ones take
/// [`MOST_RUNS_AHEAD`] slabs of twice [`RUN_SLAB_BYTES`] at most.)
pub(crate) const MOST_BATCHES_AHEAD: usize = 64;

/// Runs of at most this many samples are timed sample by sample. In longer ones, the first sample's split between
/// loading and collating stands for all.
///
/// Chosen: in long runs, each sample is too short to be timed.
/// Elsewhere: it affects only the split that `Stats` shows.
pub(crate) const TIMED_RUN_SAMPLES: usize = 4;

/// When one thread makes whole batches, one in this many is timed sample by sample.
///
/// Chosen: fewer clock readings made `tiny` faster (one of several changes, which together took a batch from 37,700 to
/// 10,800 instructions).
/// Elsewhere: it affects only the split that `Stats` shows.
pub(crate) const BATCHES_PER_TIMED_ONE: u64 = 16;

/// Copies to the device of fewer bytes are measured by events only at the beginning of an epoch ([`FULLY_TIMED_UPLOADS`]), and then one in
/// so many ([`UPLOADS_PER_TIMED_ONE`]).
///
/// Chosen: measuring takes up to five of the driver's calls, of 0.1 us each (shared figures of the driver: recording 0.11 us, a query
/// 0.12), and 1 MiB travels in 20 us.
/// Elsewhere: on a slower link, measuring costs less of the copy's own time.
pub(crate) const TIMED_UPLOAD_BYTES: usize = 1 << 20;

/// How many of an epoch's small copies to the device are all measured, and one in how many of the others is.
///
/// Chosen: short epochs are measured as a whole; in long ones, measuring costs a sixteenth.
/// Elsewhere: they affect only what `Stats` shows.
pub(crate) const FULLY_TIMED_UPLOADS: u64 = 64;
pub(crate) const UPLOADS_PER_TIMED_ONE: u64 = 16;

/// When rows of a table in memory are copied in random order, the lines of the row so many places ahead are fetched.
///
/// Measured: a bare loop over 400 MB on a Xeon with 260 MB of last-level cache, ns a row with 0, 4, 8, 12, 16 and 32 ahead: rows of 80
/// bytes (80 MB) 14.4, 12.8, 13.1, 13.3, 13.6, 16.3; of 256 bytes 51.3, 46.6, 35.8, 37.6, 38.4, 46.7; of 1 KiB 153, 142, 138, 142, 153,
/// 150; of 4 KiB 514, 470, 484, 489, 503, 492. Numbers of 4 bytes gain nothing (2.0, 1.9), and are not fetched ahead.
/// Elsewhere: slower memory would want more.
pub(crate) const ROWS_AHEAD: usize = 8;

/// How much of such a row is fetched ahead. The processor sees by itself how a longer one goes on.
///
/// Measured: in the same loop with 8 ahead, 128 and 512 bytes: rows of 256 bytes 39.8 and 35.8 ns, of 1 KiB 148 and 138; rows of 4 KiB
/// whole 535 ns, 512 bytes of them 484.
/// Elsewhere: it is eight lines, which every processor can have under way.
pub(crate) const FETCHED_ROW_BYTES: usize = 512;

/// How many bytes of page-locked batches that take microseconds share a slab, at most; twice as many if [`TASKS_IN_RUN`] need them.
///
/// Chosen: large enough for the longest runs of batches of a few KB, and small beside a core's cache.
/// Elsewhere: batches of more than half as many bytes have a slab each, as all have that take longer.
pub(crate) const RUN_SLAB_BYTES: usize = 256 << 10;

/// A worker makes this many page-locked batches in a run, although they take longer than [`RUN_NS`], but no more than take twice as long. And
/// this many may be ahead for each run.
///
/// Measured: neighbours in a slab are one copy. The table of 84 bytes a row, sent ahead in batches of 1024 (an H200, medians of three or four
/// turns, thousand batches/s): 2, 4 and 8 workers 51, 82 and 117; with two at most, in slabs of 256 KiB, 45, 84 and 94
/// (`docs/performance.md`).
/// Elsewhere: what a copy costs the driver is the same, however fast the link is.
pub(crate) const TASKS_IN_RUN: usize = 4;

/// How many such slabs may be ahead, where `prefetch` is not set.
///
/// Chosen: two for each of eight workers; more workers would wait for the lock.
/// Elsewhere: they take 8 MiB at most. (So do those of a larger `prefetch`, which are smaller.)
pub(crate) const MOST_RUNS_AHEAD: usize = 16;

/// How many small batches that are ready are sent to a device together.
///
/// Chosen: a submission costs as much as making three or four batches of 32 rows; of 16, its share is small.
/// Elsewhere: the driver's calls cost a few microseconds on any machine.
pub(crate) const MOST_SENT_TOGETHER: usize = 16;

/// How many bytes these have on the device, at most: they share device memory, which is free when all of them were dropped.
///
/// Chosen: a copy of 1 MiB takes 20 us, beside which a submission of its own costs little.
/// Elsewhere: on a slower link, copies take longer, and nothing is lost.
pub(crate) const SENT_TOGETHER_BYTES: usize = 1 << 20;

/// A batch of so many bytes, or one in parts, is sent by a worker that sleeps, if there is one, instead of the consumer. (Model-checked batches are
/// of a few bytes.)
///
/// Chosen: a copy of 4 MiB takes 80 us at 50 GB/s, as long as waking a thread. To send 38 MB in five parts takes some 25 calls of the driver
/// (counted), of up to 10 us (measured, an H200's host, 2026-11-28).
/// Elsewhere: on a slower link, smaller ones would do.
pub(crate) const LEFT_TO_WORKERS_BYTES: usize = if cfg!(shuttle) { 1 } else { 4 << 20 };

/// One batch of so many is sent alone, so that how long it is processed can be measured.
///
/// Chosen: it costs one submission more.
/// Elsewhere: it does not depend on the machine.
pub(crate) const ONE_ALONE_OF: u64 = 64;

/// How many indices a worker asks the sampler for at once.
///
/// Measured (callgrind): a worker's 133,000 instructions for a batch of 1,024 rows of a table on a device are 98,000 with 256 instead of 64, because keys
/// are made and clocks read for each request. Of 32 scalars (`tiny`, no workers), 15,430 are 15,470. Positions are permuted side by side, with AVX2 where
/// the processor has it.
/// Elsewhere: it takes 2 KiB of stack, twice. Shorter batches ask for fewer.
pub(crate) const INDICES_AT_ONCE: usize = 256;

/// How many samples a data set is told of at once, and how many rows of blocks that are tables are found and copied at once.
///
/// Measured (`parquet/benches/rows`, rows of 40 bytes in order, 16 cores): with 64, 2 workers got 21 million rows/s and 8 got 8, in line for the
/// locks of announcing and finding; with 512, 48 and 40.
/// Elsewhere: it takes 4 KiB of stack.
pub(crate) const ROWS_AT_ONCE: usize = 512;

/// The size of a worker's stack.
///
/// Measured: in a build without optimization, a sample that is an array of 224 x 224 x 3 floats (600 KB) is on the
/// stack a dozen times: more than the default of 2 MiB per thread.
/// Elsewhere: it is address space, not memory. Where address space is limited (`ulimit -v`), too many workers are an
/// error when the loader is built.
pub(crate) const WORKER_STACK_BYTES: usize = 16 << 20;

/// How many workers [`Workers::Auto`](crate::loader::Workers::Auto) has at most where batches take microseconds.
///
/// Measured: `tiny` on 32 cores, batches/s with 1, 2, 4, 8 and 16 workers: 238,000, 393,000, 565,000, 369,000 and 246,000; on two cores
/// with 1, 2, 4 and 16: 328,000, 386,000, 382,000 and 362,000.
/// Elsewhere: a slower lock would want fewer.
pub(crate) const TINY_WORKERS: usize = 4;

/// After how many batches of an epoch, behind the first one, [`Workers::Auto`](crate::loader::Workers::Auto) decides how many
/// workers go on.
///
/// Chosen: enough to see what a batch takes, and few enough to be over soon; all workers load until then.
/// Elsewhere: the same. Shorter epochs are loaded by all. Under the model checker, epochs are short, and its clock jumps: any number may
/// do.
pub(crate) const BATCHES_WATCHED: u64 = if cfg!(shuttle) { 1 } else { 8 };

/// How long the program waits for a batch before the log says for what; and again after as long.
///
/// Chosen: no batch that comes at all takes as long, unless samples take seconds; and a user who watches a loop that stands still
/// wants to know why before long.
/// Elsewhere: the same. Under the model checker, whose clock jumps, nothing is logged.
pub(crate) const WATCHDOG: Option<Duration> = if cfg!(shuttle) {
    None
} else {
    Some(Duration::from_secs(30))
};

/// How many busy workers such a line names.
///
/// Chosen: they are a few words each, and often all hang on the same thing.
/// Elsewhere: the others are counted.
pub(crate) const WORKERS_IN_A_LINE: usize = 8;

// ---- Loading beside the link: how slabs are filled while the device reads others.

/// Loading counts as copying if a worker produces at least this many bytes in 10 ns. Of rows of tensors, which are only copied, it is enough if
/// all workers together produce as much as [`COPYING_WORKERS`] of them would: many share the host's memory.
///
/// Measured: each of 16 writers at once still reaches 29; code that computes its rows does not come near 25. With 40 and 64 workers for four
/// H200s of one host (2026-11-28), each reached 18 and 10.
/// Elsewhere: if a core copies more slowly than that, no loading counts as copying: all workers load, and `prefetch`
/// determines the number of slabs.
pub(crate) const COPYING_BYTES_PER_10_NS: u64 = 25;

/// How many workers load when loading is copying. More do not copy faster, and take memory bandwidth from the link.
///
/// Measured: rows of 600 KB, by non-temporal stores: 8 writers fed the link at 51 GB/s, 10 at 49, 16 at 46; into slabs that
/// stay in the cache 8 at 46, 10 at 53. Workers beyond that must not fill in parked samples either: if they did, two loaders on two
/// devices fell from 97 to 103 GB/s together to 83 to 90 (16 workers each), and one from 95.5 % of its link to 94.2.
/// Elsewhere: no effect with fewer workers. Another number of memory channels would need another value.
pub(crate) const COPYING_WORKERS: usize = 10;

/// The share of the last-level cache that the slabs of an epoch may take together, so that the device reads them from
/// the cache.
///
/// Measured: 0.3 (90 MB): 53.1 to 53.5 GB/s with rows of 150 KB, 53.0 to 53.3 with rows of 600 KB; 0.25 and 0.5 were
/// among the settings that gave 48 to 53 and 45 to 51. A bare loop of 8 threads: slabs of 735 MB together 37.4 GB/s,
/// 147 MB 55.3, 45 MB 54.2, 18 MB 49.
/// Elsewhere: a small cache makes small parts, but none below [`LEAST_PART_BYTES`]. If not even four of these fit the
/// cache, batches are still cut, and the device reads most of their bytes from memory, as it does without parts.
pub(crate) const RESIDENT_CACHE_SHARE: f64 = 0.3;

/// The smallest part that a batch is cut into.
///
/// Measured: a copy of 8 MiB runs at 98 % of the link's rate; one of 1 MiB at 72 %, one of 16 MiB at 98 %.
/// Elsewhere: smaller copies keep a slower link busy; parts are then larger than necessary.
pub(crate) const LEAST_PART_BYTES: usize = 8 << 20;

/// How many slabs of parts are filled in turn, if the cache is large enough.
///
/// Measured: six of a sixth each: 53 GB/s, as above; fewer and larger ones, or more and smaller ones, 45 to 53.
/// Elsewhere: if the cache does not hold six parts of the smallest size, there are as many as it holds, but at least
/// [`FEWEST_SLABS_IN_TURN`].
pub(crate) const SLABS_IN_TURN: usize = 6;

/// The fewest slabs of parts that are filled in turn.
///
/// Chosen: with fewer, workers would wait for the link or the link for them.
/// Elsewhere: see [`RESIDENT_CACHE_SHARE`].
pub(crate) const FEWEST_SLABS_IN_TURN: usize = 4;

/// How many batches may be in flight to the device in addition to those that are open, by default.
///
/// Chosen: one copy is in flight while the next batch is made; back-to-back copies already run at the link's rate.
/// Elsewhere: the same. If steps vary in length, the program sets more.
pub(crate) const DEFAULT_DEPTH_BATCHES: usize = 1;

/// Rows of registered memory of at least this many bytes are gathered by the device; shorter ones are copied on the
/// host.
///
/// Measured: one `cuMemcpyBatchAsync` of 256 rows takes at least 115 us, so 0.45 us per row whatever its size; rows of
/// 150 KB reach 98 % of the link. The limit itself was chosen: at that cost, rows of 16 KiB arrive at 36 GB/s at best.
/// Elsewhere: on drivers before 12.8 a kernel gathers them (88 % of the link); for devices that cannot read host
/// addresses, each row is a copy (26.8 GB/s).
pub(crate) const GATHERED_ROW_BYTES: usize = 16 << 10;

/// Rows of at least this many bytes are written with non-temporal stores if the epoch's slabs outgrow the last-level
/// cache.
///
/// Measured: rows of 600 KB: 43.9 -> 46.0 GB/s with 16 workers, 48.0 -> 52.2 with 8. The limit itself was chosen: one page.
/// Elsewhere: processors other than x86-64 have ordinary stores only.
pub(crate) const STREAMED_ROW_BYTES: usize = 4 << 10;

// ---- Large copies of host memory, by the device's helper threads.

/// Copies of at least this many bytes are split between threads.
///
/// Measured: waking a sleeping thread takes up to 0.2 ms, in which one thread copies 1.0 to 1.5 MB (5 to 7.5 GB/s).
/// Elsewhere: where threads wake up faster, smaller copies could be split as well; these take at most 1 ms.
pub(crate) const SPLIT_COPY_BYTES: usize = 4 << 20;

/// Copies of at least this many bytes are written with non-temporal stores.
///
/// Measured: 8 threads wrote page-locked memory at 78 GB/s instead of 50; on a machine with two cores, 512 MB in parts
/// of 4 MiB: one thread 17.5 GB/s instead of 10.7, two 22.1 instead of 15.1. The limit itself was chosen: smaller
/// copies stay in the cache, where the reader finds them.
/// Elsewhere: processors other than x86-64 have ordinary stores only.
pub(crate) const STREAMED_COPY_BYTES: usize = 1 << 20;

/// How many threads copy together, including the caller.
///
/// Measured: 8 copy at 50 GB/s where one reaches 12.7, and write page-locked memory faster than the link reads it; with
/// more than about 10 the link slows down (with 16 writing threads: 33.6 GB/s).
/// Elsewhere: at most as many as the process can run at once (`available_parallelism`).
pub(crate) const COPY_THREADS: usize = 8;

/// The number of parts per thread that a copy is split into.
///
/// Chosen: if a thread wakes up late, the others take over its share.
/// Elsewhere: parts are whole pages, so small copies have fewer.
pub(crate) const PARTS_PER_COPY_THREAD: usize = 4;

/// How long the caller spins for the last of these threads before it sleeps.
///
/// Measured: waking a sleeping thread takes up to 0.2 ms; the threads finish within one part of each other.
/// Elsewhere: if other threads need the core, they lose it for this long, once per large copy.
pub(crate) const COPY_SPIN_MS: u64 = 1;

// ---- Staged copies: between pageable memory and a CUDA device, through slabs of the ring.

/// The size of a piece. It is doubled if the copy then still has a piece for each slab.
///
/// Measured: 16 copies of 2.4 MB each: 52 GB/s of 55. With larger pieces, the link idles before the first one and the
/// processor after the last. Compared with the driver's own path: 10 to 17 -> 42 to 44 GB/s to the device, 18 -> 49.5
/// back; doubled for large copies, 44 to 46 -> 45 to 50 and 49 -> 51.5.
/// Elsewhere: smaller pieces keep a slower link busy, and these cost it little.
pub(crate) const STAGED_PIECE_BYTES: usize = 2 << 20;

/// Copies of fewer pieces are left to the driver: nothing would overlap.
///
/// Chosen: follows from how staging works, on every machine.
pub(crate) const LEAST_STAGED_PIECES: usize = 2;

/// How many slabs a copy takes per thread: the thread fills one while the engine reads the other.
///
/// Chosen: follows from how staging works.
/// Elsewhere: if the budget has less room, a copy takes what it gets, down to [`LEAST_STAGING_SLABS`].
pub(crate) const STAGING_SLABS_PER_THREAD: usize = 2;

/// With fewer slabs, a copy is left to the driver: the processor and the engine would wait for each other.
///
/// Chosen: follows from how staging works, on every machine.
pub(crate) const LEAST_STAGING_SLABS: usize = 2;

/// How many copies at once get all the slabs that they want. While the slabs of this many are out, further copies get
/// [`LEAST_STAGING_SLABS`].
///
/// Chosen: so that many small copies in a row do not page-lock as much memory as they copy; three take 200 MB.
/// Elsewhere: a small budget sets a lower limit.
pub(crate) const FULLY_STAGED_COPIES: usize = 3;

/// Slabs that stage a copy are written with ordinary stores if together they take at most this share of the last-level
/// cache: the engine then reads them from there.
///
/// Measured: 35 -> 44 to 46 GB/s to the device.
/// Elsewhere: below 67 MB of cache (134 MB for large copies) they are written with non-temporal stores, as for the 35
/// GB/s here.
pub(crate) const STAGING_CACHE_SHARE: f64 = 0.5;

// ---- Waiting.

/// How long a wait that the program asked for spins before it sleeps.
///
/// Measured: waits that slept at once reached 49, 87, 84, 93 and 98 % of a bare copy of 1, 16, 64, 256 and 1000 MiB,
/// because waking a sleeping thread took about 0.2 ms; with spinning, 95 to 100 %. A gigabyte takes 18 ms.
/// Elsewhere: on a slower link, a wait for a large copy eventually sleeps, and is late by one wake-up.
pub(crate) const EVENT_SPIN_MS: u64 = 20;

// ---- Memory that is reused.

/// An idle block more than this many times as large as needed is not taken for device tensors, nor for slabs that
/// belong to no batch (downloads, pinned tensors, staged copies): it is kept for the batches that it was made for.
///
/// Chosen: at most as much is wasted as is used.
/// Elsewhere: the same. If the ring's budget has no room for a new block, any idle one serves.
pub(crate) const OVERSIZE_FACTOR: usize = 2;

/// Idle blocks of at most this many bytes serve any request that they are large enough for.
///
/// Chosen: blocks this small are not worth a separate allocation.
/// Elsewhere: the same.
pub(crate) const SMALL_BLOCK_BYTES: usize = 1 << 20;

/// By default, a budget is the memory divided by this: the ring's is a part of what the process may use, the pool's of
/// the device's memory.
///
/// Chosen: a loader of images page-locks 116 MB, one with batches of 154 MB less than 1 GB; a quarter of the memory has
/// room for several of them on most machines used for training.
/// Elsewhere: a small machine has a small budget. Batches that do not fit it are unpinned, and the log names the
/// setting.
pub(crate) const BUDGET_DIVISOR: usize = 4;

// ---- Kernels.

/// How many blocks of [`BLOCK_THREADS`] gather rows over the link.
///
/// Measured: 49.0 GB/s, of 50.7 for the bare kernel: enough bytes are in flight to fill the link, and most of the
/// device is left to others.
/// Elsewhere: a slower link needs fewer; a device that cannot run as many at once runs them in turn.
pub(crate) const GATHER_BLOCKS: u32 = 32;

/// The number of threads per block, for every kernel.
///
/// Chosen: every device since Volta runs several such blocks on one multiprocessor.
/// Elsewhere: the same.
pub(crate) const BLOCK_THREADS: u32 = 256;

/// The maximum number of blocks of a kernel over pictures or labels; beyond it, each thread takes more items.
///
/// Measured: 256 pictures of 224 x 224 are normalised to `f32` in 61 to 77 us.
/// Elsewhere: it is more than any device runs at once; a smaller device runs them in turn.
pub(crate) const MOST_BLOCKS: u64 = 4_096;

/// How many pixels, or numbers of labels' rows, each thread takes before more blocks are launched.
///
/// Chosen: four neighbouring bytes are one load, and four neighbouring numbers one store.
/// Elsewhere: the same.
pub(crate) const ITEMS_PER_THREAD: u64 = 4;

/// The most pictures that a hardware decoder is given at once, and what stands in for one.
///
/// Chosen: on an H200 with seven engines, nvJPEG's bare loop made 19,900, 21,500, 21,200 and 21,000 pictures a second in calls of 32, 64,
/// 128 and 256.
/// Elsewhere: the same; two for each engine is the least.
pub(crate) const HARDWARE_CHUNK: usize = 64;

/// How much of a decoder's memory one picture may take: larger ones are the CPU's.
pub(crate) const DECODER_PICTURE_BYTES: usize = 56 << 20;

/// Of a batch whose pictures a device decodes, rows with pixels are copied to it. A gap between them is left out if it has at least this
/// many bytes; a smaller one is copied with them.
///
/// Chosen: enqueueing a copy from page-locked memory takes 2.7 us (traced on an H200's host), in which its link moves 150 KB.
/// Elsewhere: on a slower link, leaving out less would pay.
pub(crate) const PICTURE_GAP_BYTES: usize = 128 << 10;

/// Which share of the pictures, of 64, a device decodes beside the CPU before it was measured what is best.
///
/// Chosen: with less, the decoder's calls have few pictures, and it looks slower than it is.
pub(crate) const FIRST_DECODER_SHARE: u8 = 32;

/// By how much shares may differ, of 64, that are as good as equal.
///
/// Chosen: less than half of what [`WORKERS_BUSY`] leaves.
pub(crate) const LIKE_DECODER_SHARES: u8 = 4;

/// After how many batches that were measured the share is fixed, whatever the last ones say.
///
/// Chosen: eight measurements.
pub(crate) const MOST_BATCHES_MEASURED: u64 = 64;

/// How much of their time workers may be busy, if the device decodes no more than the program needs. The rest is for pictures that take
/// longer than most.
///
/// Chosen.
pub(crate) const WORKERS_BUSY: f64 = 0.85;

/// By how many steps of `nice` workers come behind the threads of the program, where there are fewer cores than threads that want one.
///
/// A thread that launches kernels has little to do, and a GPU waits for it; workers are batches ahead, and a loop that waits for them leaves
/// them its core.
///
/// Measured (an H200, four of its cores for all threads, 2026-11-28): set from outside, a ResNet-50 of PyTorch's with 4 workers and `Decode::Both`
/// reached 95.1 % of the step alone with 0, 97.7 % with 5 and 97.8 % with 15. Elsewhere: nothing changes where each thread has a core. Programs
/// of the same control group with the usual priority get three times a worker's share of a core that they share.
pub(crate) const WORKER_NICE: i32 = 5;

/// The longest side of a picture that a device's decoder is given.
pub(crate) const MOST_DECODED_SIDE: u32 = 16_384;
