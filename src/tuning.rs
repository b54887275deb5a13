//! The numbers that speed and memory hang on, in one table.
//!
//! Each names its unit and has three entries: what it is; *Measured*, what was measured on which machine, or *Chosen*, the
//! reason where no figure was kept; and *Elsewhere*, what it means on a smaller or another machine. To change one, measure
//! it (benches/README.md says how) and write the figures here.
//!
//! Where no machine is named, it is the one of docs/performance.md: one NVIDIA H200 behind PCIe 5 x16, whose link carries
//! 55.4 GB/s, and 16 cores of a Xeon with 300 MB of last-level cache, in a virtual machine.
//!
//! Numbers that define what comes out (formats, alignments, the rounds of a random order) are not tuning: they stay with the
//! code that they define.

#![cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "some are for CUDA devices only")
)]

// ---- Scheduling: how much a worker takes at once.

/// How long the run of samples that a worker claims at once should take.
///
/// Measured: `tiny` with 4 workers makes 741,000 to 878,000 batches/s by runs, 95,000 batch by batch. (Both sides of the change
/// that made whole batches on one thread.) No other lengths were kept.
/// Elsewhere: it is a time, so run lengths adapt to the machine. Slow samples are claimed one by one whatever it is.
pub(crate) const RUN_NS: u64 = 100_000;

/// How many batches that take microseconds may be loaded ahead, where nobody set `prefetch`.
///
/// Chosen: waking a worker takes as long as making dozens of batches of 32 scalars.
/// Elsewhere: such batches are not page-locked and small, so 64 of them are little memory on any machine.
pub(crate) const MOST_BATCHES_AHEAD: usize = 64;

/// Runs of at most so many samples are timed sample by sample. In longer ones, the first sample's split between loading and
/// collating stands for all.
///
/// Chosen: runs are long where each sample is too short to be timed.
/// Elsewhere: only the split that `Stats` shows depends on it.
pub(crate) const TIMED_RUN_SAMPLES: usize = 4;

/// Of so many batches that one thread makes from end to end, one is timed sample by sample.
///
/// Chosen: with fewer clocks, `tiny` gained (one of several changes, which together made 10,800 instructions a batch of 37,700).
/// Elsewhere: only the split that `Stats` shows depends on it.
pub(crate) const BATCHES_PER_TIMED_ONE: u64 = 16;

/// How many indices a worker asks the sampler for at once.
///
/// Measured: with 64, of the 11,000 instructions of a batch of 32 scalars 2,100 are its order (`tiny`, callgrind): positions
/// are permuted side by side, by AVX2 where the processor has it.
/// Elsewhere: it is 512 bytes of stack. Shorter batches ask for what they have.
pub(crate) const INDICES_AT_ONCE: usize = 64;

/// The size of a worker's stack.
///
/// Measured: a sample that is an array of 224 x 224 x 3 floats (600 KB) lies on the stack a dozen times over in a build without
/// optimization: more than the 2 MiB that threads have by default.
/// Elsewhere: it is address space and not memory. Where that is limited (`ulimit -v`), too many workers are an error when the
/// loader is built.
pub(crate) const WORKER_STACK_BYTES: usize = 16 << 20;

// ---- Loading beside the link: how slabs are filled while the device reads others.

/// From so many bytes in 10 ns on, by one worker, loading counts as copying.
///
/// Measured: 16 writers at once still reach 29 each; what computes its rows does not come near 25.
/// Elsewhere: where a core copies more slowly than that, no loading counts as copying: all workers load, and as many slabs are
/// used as `prefetch` says.
pub(crate) const COPYING_BYTES_PER_10_NS: u64 = 25;

/// How many workers load where loading is copying: more do not copy faster, and take memory bandwidth from the link.
///
/// Measured: rows of 600 KB, by non-temporal stores: 8 writers fed the link at 51 GB/s, 10 at 49, 16 at 46; into slabs that
/// stay in the cache 8 at 46, 10 at 53.
/// Elsewhere: no effect with fewer workers. Another number of memory channels would want another number.
pub(crate) const COPYING_WORKERS: usize = 10;

/// The share of the last-level cache that the slabs of an epoch may take together, so that the device reads them there.
///
/// Measured: 0.3 (90 MB): 53.1 to 53.5 GB/s with rows of 150 KB, 53.0 to 53.3 with rows of 600 KB; 0.25 and 0.5 among what gave
/// 48 to 53 and 45 to 51. A bare loop of 8 threads: slabs of 735 MB together 37.4 GB/s, 147 MB 55.3, 45 MB 54.2, 18 MB 49.
/// Elsewhere: a small cache makes small parts, but none below [`LEAST_PART_BYTES`]. Where four of these do not fit the cache
/// either, batches are still cut, and the device reads most of their bytes from memory, as it does without parts.
pub(crate) const RESIDENT_CACHE_SHARE: f64 = 0.3;

/// The smallest part that a batch is cut into.
///
/// Measured: a copy of 8 MiB runs at 98 % of the link's rate; one of 1 MiB at 72 %, one of 16 MiB at 98 %.
/// Elsewhere: a slower link is kept busy by smaller copies; parts are then larger than they need be.
pub(crate) const LEAST_PART_BYTES: usize = 8 << 20;

/// How many slabs of parts are filled in turn, where the cache is large enough.
///
/// Measured: six of a sixth each: 53 GB/s, as above; fewer and larger ones, or more and smaller, 45 to 53.
/// Elsewhere: where the cache does not hold six parts of the smallest size, there are as many as it holds, but no fewer than
/// [`FEWEST_SLABS_IN_TURN`].
pub(crate) const SLABS_IN_TURN: usize = 6;

/// The fewest slabs of parts that are filled in turn.
///
/// Chosen: with fewer, workers would wait for the link or the link for them.
/// Elsewhere: see [`RESIDENT_CACHE_SHARE`].
pub(crate) const FEWEST_SLABS_IN_TURN: usize = 4;

/// How many batches may be on their way to the device beside those that are open, where nobody said.
///
/// Chosen: one copy is under way while the next batch is made; copies in a row already run at the link's rate.
/// Elsewhere: the same. Where steps vary in length, the program says more.
pub(crate) const DEFAULT_DEPTH_BATCHES: usize = 1;

/// Rows of registered memory of at least so many bytes are gathered by the device; shorter ones are copied on the host.
///
/// Measured: one `cuMemcpyBatchAsync` of 256 rows takes 115 us at best, so 0.45 us for a row whatever its size; rows of 150 KB
/// reach 98 % of the link. The limit itself was chosen: by that, rows of 16 KiB come at 36 GB/s at best.
/// Elsewhere: on drivers before 12.8 a kernel gathers them (88 % of the link); devices that do not read host addresses have a
/// copy for each row (26.8 GB/s).
pub(crate) const GATHERED_ROW_BYTES: usize = 16 << 10;

/// Rows of at least so many bytes are written by non-temporal stores, where the epoch's slabs outgrow the last-level cache.
///
/// Measured: rows of 600 KB: 43.9 -> 46.0 GB/s with 16 workers, 48.0 -> 52.2 with 8. The limit itself was chosen: one page.
/// Elsewhere: other processors than x86-64 have ordinary stores only.
pub(crate) const STREAMED_ROW_BYTES: usize = 4 << 10;

// ---- Large copies of host memory, by the device's helper threads.

/// Copies of at least so many bytes are split between threads.
///
/// Measured: waking a sleeping thread takes up to 0.2 ms, in which one thread copies 1.0 to 1.5 MB (5 to 7.5 GB/s).
/// Elsewhere: where threads wake up sooner, smaller copies could be split as well; these take 1 ms at most.
pub(crate) const SPLIT_COPY_BYTES: usize = 4 << 20;

/// Copies of at least so many bytes are written by non-temporal stores.
///
/// Measured: 8 threads wrote page-locked memory at 78 GB/s instead of 50; on a machine with two cores, 512 MB in parts of 4 MiB:
/// one thread 17.5 GB/s instead of 10.7, two 22.1 instead of 15.1. The limit itself was chosen: what is smaller stays in the
/// cache, where its reader finds it.
/// Elsewhere: other processors than x86-64 have ordinary stores only.
pub(crate) const STREAMED_COPY_BYTES: usize = 1 << 20;

/// How many threads copy together, the caller among them.
///
/// Measured: 8 copy at 50 GB/s where one reaches 12.7, and write page-locked memory faster than the link reads it; with more
/// than about 10 the link slows down (with 16 writing threads: 33.6 GB/s).
/// Elsewhere: no more than the process may run at once (`available_parallelism`).
pub(crate) const COPY_THREADS: usize = 8;

/// Into how many parts a copy is split for each of these threads.
///
/// Chosen: a thread that wakes up late leaves its share to the others.
/// Elsewhere: parts are whole pages, so small copies have fewer.
pub(crate) const PARTS_PER_COPY_THREAD: usize = 4;

/// How long the caller spins for the last of these threads before it sleeps.
///
/// Measured: waking a sleeping thread takes up to 0.2 ms; the threads end within one part of each other.
/// Elsewhere: where other threads want the core, it is lost to them for as long, once for each large copy.
pub(crate) const COPY_SPIN_MS: u64 = 1;

// ---- Staged copies: between pageable memory and a CUDA device, through slabs of the ring.

/// The size of a piece. It is doubled where a copy then still has a piece for each slab.
///
/// Measured: 16 copies of 2.4 MB each: 52 GB/s of 55. Larger pieces leave the link idle before the first and the processor after
/// the last. Instead of the driver's own way: 10 to 17 -> 42 to 44 GB/s to the device, 18 -> 49.5 back; doubled for large
/// copies, 44 to 46 -> 45 to 50 and 49 -> 51.5.
/// Elsewhere: a slower link is kept busy by smaller pieces, and loses little by these.
pub(crate) const STAGED_PIECE_BYTES: usize = 2 << 20;

/// Copies of fewer pieces are left to the driver: nothing would overlap.
///
/// Chosen: it follows from how staging works, on every machine.
pub(crate) const LEAST_STAGED_PIECES: usize = 2;

/// How many slabs a copy wants for each thread: while one is filled, the engine reads the other.
///
/// Chosen: it follows from how staging works.
/// Elsewhere: where the budget has less room, a copy takes what there is, down to [`LEAST_STAGING_SLABS`].
pub(crate) const STAGING_SLABS_PER_THREAD: usize = 2;

/// With fewer slabs, a copy is left to the driver: either the processor or the engine would wait for the other.
///
/// Chosen: it follows from how staging works, on every machine.
pub(crate) const LEAST_STAGING_SLABS: usize = 2;

/// How many copies at once get all the slabs that they want. While as many are out, further ones make do with
/// [`LEAST_STAGING_SLABS`].
///
/// Chosen: so that many small copies in a row do not page-lock as much memory as they are long; three take 200 MB.
/// Elsewhere: a small budget ends it sooner.
pub(crate) const FULLY_STAGED_COPIES: usize = 3;

/// Slabs that stage a copy are written by ordinary stores if all of them take at most this share of the last-level cache: the
/// engine then reads them there.
///
/// Measured: 35 -> 44 to 46 GB/s to the device.
/// Elsewhere: below 67 MB of cache (134 MB for large copies) they are written by non-temporal stores, as with 35 GB/s here.
pub(crate) const STAGING_CACHE_SHARE: f64 = 0.5;

// ---- Waiting.

/// How long a wait that the program asked for spins before it sleeps.
///
/// Measured: waits that slept at once reached 49, 87, 84, 93 and 98 % of a bare copy of 1, 16, 64, 256 and 1000 MiB, for waking
/// a sleeping thread took about 0.2 ms; with spinning, 95 to 100 %. A gigabyte takes 18 ms.
/// Elsewhere: on a slower link, a wait for a large copy sleeps in the end, and is late by one wake-up.
pub(crate) const EVENT_SPIN_MS: u64 = 20;

// ---- Memory that is used again.

/// An idle block that is more than so many times as large as needed is left to the batches that it was made for, by device
/// tensors and by slabs that are no batch's (downloads, pinned tensors, staged copies).
///
/// Chosen: no more is wasted than used.
/// Elsewhere: the same. Where the ring's budget has no room for a new block, any idle one serves.
pub(crate) const OVERSIZE_FACTOR: usize = 2;

/// Idle blocks of at most so many bytes serve whatever they are large enough for.
///
/// Chosen: so little is not worth a block of its own.
/// Elsewhere: the same.
pub(crate) const SMALL_BLOCK_BYTES: usize = 1 << 20;

/// By default, a budget is this part of the memory: the ring's of what the process may use, the pool's of the device's.
///
/// Chosen: a loader of pictures page-locks 116 MB, one with batches of 154 MB less than 1 GB; most machines that train have room
/// for several of them in a quarter.
/// Elsewhere: a small machine has a small budget. Batches that it has no room for go unpinned, and the log names the knob.
pub(crate) const BUDGET_DIVISOR: usize = 4;

// ---- Kernels.

/// How many blocks of [`BLOCK_THREADS`] gather rows over the link.
///
/// Measured: 49.0 GB/s, of 50.7 for the bare kernel: as many bytes are in flight as the link holds, and most of the device is
/// left to others.
/// Elsewhere: a slower link needs fewer; a device that runs fewer blocks at once runs them one after the other.
pub(crate) const GATHER_BLOCKS: u32 = 32;

/// How many threads a block has, of every kernel.
///
/// Chosen: every device since Volta runs several such blocks on one multiprocessor.
/// Elsewhere: the same.
pub(crate) const BLOCK_THREADS: u32 = 256;

/// The most blocks of a kernel over pictures or labels: each thread goes on with further ones.
///
/// Measured: 256 pictures of 224 x 224 are normalised to `f32` in 61 to 77 us.
/// Elsewhere: it is more than any device runs at once; a smaller one works them off in turn.
pub(crate) const MOST_BLOCKS: u64 = 4_096;

/// How many pixels, or numbers of labels' rows, a thread has before there are more blocks.
///
/// Chosen: four neighbouring bytes are one load, and four neighbouring numbers one store.
/// Elsewhere: the same.
pub(crate) const ITEMS_PER_THREAD: u64 = 4;
