//! cudarc's raw calls, without the library: what the link gives, and kernels that take a given time.
//!
//! Each call's answer is checked. All memory is waited for before it is freed.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use pinfeed::Stream;
use pinfeed::interop::raw::stream_handle;
use pinfeed::sampler::{RandomSampler, Sampler};

use crate::gather::{Direction, Link, Rows, Slab};
use crate::submit::BareCalls;
use crate::target::{LIMIT, SLABS};
use crate::window::{Measured, Window};
use crate::{BoxError, Outcome};

/// A context of cudarc's on the device, with a stream for copies each way and a kernel.
pub struct Bare {
    context: Arc<CudaContext>,
    to_device: Arc<CudaStream>,
    to_host: Arc<CudaStream>,
    spin: CudaFunction,
}

impl Bare {
    pub fn new(ordinal: usize) -> Outcome<Bare> {
        let context = CudaContext::new(ordinal)?;
        let module = context.load_module(Ptx::from_src(include_str!(
            "../../tests/conformance/kernels.ptx"
        )))?;
        Ok(Bare {
            to_device: context.new_stream()?,
            to_host: context.new_stream()?,
            spin: module.load_function("fill_slowly")?,
            context,
        })
    }

    fn stream(&self, direction: Direction) -> &Arc<CudaStream> {
        match direction {
            Direction::ToDevice => &self.to_device,
            Direction::ToHost => &self.to_host,
        }
    }

    /// A stream of the library's as one of cudarc's. The library's must outlive it.
    pub fn wrap(&self, stream: &Stream) -> Outcome<Arc<CudaStream>> {
        let handle = stream_handle(stream).ok_or("a stream of the CPU has no handle")?;
        // SAFETY: the handle is of the same device's primary context, and the caller keeps the stream alive.
        Ok(unsafe { self.context.wrap_borrowed_stream(handle.cast()) })
    }

    /// An event whose waiter sleeps, so that waiting takes no core from those who load.
    pub fn event(&self) -> Outcome<CudaEvent> {
        let sleeping = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        Ok(self.context.new_event(Some(sleeping))?)
    }

    /// Launches a kernel that takes so long, and writes one word of `scratch`.
    pub fn spin(
        &self,
        stream: &Arc<CudaStream>,
        scratch: &DeviceBlock<'_>,
        duration: Duration,
    ) -> Outcome {
        let (words, value, nanoseconds) = (1u64, 1u32, duration.as_nanos() as u64);
        let mut launch = stream.launch_builder(&self.spin);
        launch
            .arg(&scratch.address)
            .arg(&words)
            .arg(&value)
            .arg(&nanoseconds);
        let one = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel takes these four, and writes one word; a block has at least one.
        unsafe { launch.launch(one) }?;
        Ok(())
    }

    pub fn device_block(&self, bytes: usize) -> Outcome<DeviceBlock<'_>> {
        self.context.bind_to_thread()?;
        // SAFETY: a plain allocation.
        let address = unsafe { result::malloc_sync(bytes.max(4)) }?;
        Ok(DeviceBlock {
            bare: self,
            address,
        })
    }

    /// Page-locked memory from the driver, touched.
    pub fn pinned_block(&self, bytes: usize) -> Outcome<PinnedBlock<'_>> {
        self.context.bind_to_thread()?;
        // SAFETY: a plain allocation.
        let base = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: the allocation is that long, and nobody else's.
        unsafe { ptr::write_bytes(base.cast::<u8>(), 1, bytes) };
        Ok(PinnedBlock { bare: self, base })
    }

    /// GB/s of copies between page-locked and device memory, as many of them under way as there are slots.
    pub fn pinned_rate(
        &self,
        direction: Direction,
        bytes: usize,
        slots: usize,
        duration: Duration,
    ) -> Outcome<f64> {
        let memory: Vec<_> = (0..slots)
            .map(|_| self.pinned_block(bytes))
            .collect::<Outcome<_>>()?;
        let hosts: Vec<_> = memory.iter().map(|block| block.base).collect();
        Ok(self.rates(&[direction], &hosts, bytes, duration)?[0])
    }

    /// GB/s of copies between pageable, touched memory and device memory, one at a time.
    pub fn pageable_rate(
        &self,
        direction: Direction,
        bytes: usize,
        duration: Duration,
    ) -> Outcome<f64> {
        let mut memory = vec![1u8; bytes];
        let host = memory.as_mut_ptr().cast();
        Ok(self.rates(&[direction], &[host], bytes, duration)?[0])
    }

    /// GB/s that the device's memory gives plain copies within it, one behind the other.
    pub fn within_rate(&self, bytes: usize, duration: Duration) -> Outcome<f64> {
        let (from, to) = (self.device_block(bytes)?, self.device_block(bytes)?);
        let stream = &self.to_device;
        let copy = || -> Outcome {
            // SAFETY: both sides are that long, and live until the stream was waited for.
            let copied = unsafe {
                sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, stream.cu_stream())
            };
            Ok(copied.result()?)
        };
        let run = || -> Outcome<f64> {
            copy()?;
            stream.synchronize()?;
            let (begun, mut copies) = (Instant::now(), 0u32);
            while copies == 0 || begun.elapsed() < duration {
                for _ in 0..32 {
                    copy()?;
                }
                copies += 32;
                stream.synchronize()?;
            }
            Ok(f64::from(copies) * bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
        };
        let rate = run();
        stream.synchronize()?; // also where a call failed: the memory goes now
        rate
    }

    /// GB/s to the device and back at once, between page-locked and device memory.
    pub fn both_ways(&self, bytes: usize, duration: Duration) -> Outcome<(f64, f64)> {
        let memory = [
            self.pinned_block(bytes)?,
            self.pinned_block(bytes)?,
            self.pinned_block(bytes)?,
            self.pinned_block(bytes)?,
        ];
        let hosts = memory.each_ref().map(|block| block.base);
        let ways = [Direction::ToDevice, Direction::ToHost];
        let rates = self.rates(&ways, &hosts, bytes, duration)?;
        Ok((rates[0], rates[1]))
    }

    /// GB/s of each direction, side by side: the slots, an equal share for each direction, are gone round; each has
    /// one copy under way.
    fn rates(
        &self,
        directions: &[Direction],
        hosts: &[*mut c_void],
        bytes: usize,
        duration: Duration,
    ) -> Outcome<Vec<f64>> {
        let mut slots = Vec::new();
        for (index, &host) in hosts.iter().enumerate() {
            slots.push(Slot {
                host,
                device: self.device_block(bytes)?,
                direction: directions[index % directions.len()],
                done: self.context.new_event(None)?,
            });
        }
        let run = || -> Outcome<Vec<f64>> {
            for slot in slots.iter().chain(&slots) {
                self.copy(slot, bytes)?;
            }
            self.synchronize()?;
            let (begun, mut rounds) = (Instant::now(), 0u32);
            while rounds == 0 || begun.elapsed() < duration {
                for slot in &slots {
                    slot.done.synchronize()?;
                    self.copy(slot, bytes)?;
                }
                rounds += 1;
            }
            let mut rates = Vec::new();
            for &direction in directions {
                self.stream(direction).synchronize()?;
                let copies = slots.iter().filter(|slot| slot.direction == direction);
                let moved = f64::from(rounds) * copies.count() as f64 * bytes as f64;
                rates.push(moved / begun.elapsed().as_secs_f64() / 1e9);
            }
            Ok(rates)
        };
        let rates = run();
        // Also where a call failed: the memory goes now.
        self.synchronize()?;
        rates
    }

    fn copy(&self, slot: &Slot<'_>, bytes: usize) -> Outcome {
        self.context.bind_to_thread()?;
        let stream = self.stream(slot.direction);
        let (host, there, raw) = (slot.host, slot.device.address, stream.cu_stream());
        // SAFETY: both sides are that long, and live until the streams were waited for.
        unsafe {
            match slot.direction {
                Direction::ToDevice => sys::cuMemcpyHtoDAsync_v2(there, host, bytes, raw),
                Direction::ToHost => sys::cuMemcpyDtoHAsync_v2(host, there, bytes, raw),
            }
        }
        .result()?;
        slot.done.record(stream)?;
        Ok(())
    }

    fn synchronize(&self) -> Outcome {
        self.to_device.synchronize()?;
        self.to_host.synchronize()?;
        Ok(())
    }

    /// How long it takes to page-lock memory that was touched, and to let go of it.
    pub fn register_time(&self, memory: &mut [u8]) -> Outcome<(Duration, Duration)> {
        self.context.bind_to_thread()?;
        let base: *mut c_void = memory.as_mut_ptr().cast();
        let begun = Instant::now();
        // SAFETY: the memory is the caller's and alive; it is unregistered below.
        unsafe { sys::cuMemHostRegister_v2(base, memory.len(), 1) }.result()?;
        let registered = begun.elapsed();
        let begun = Instant::now();
        // SAFETY: it was just registered, and no copy uses it.
        unsafe { sys::cuMemHostUnregister(base) }.result()?;
        Ok((registered, begun.elapsed()))
    }

    /// How long the driver takes to allocate page-locked memory, and to free it.
    pub fn host_alloc_time(&self, bytes: usize) -> Outcome<(Duration, Duration)> {
        self.context.bind_to_thread()?;
        let begun = Instant::now();
        // SAFETY: a plain allocation, freed below.
        let base = unsafe { result::malloc_host(bytes, 0) }?;
        let allocated = begun.elapsed();
        let begun = Instant::now();
        // SAFETY: it was just allocated, and no copy uses it.
        unsafe { result::free_host(base) }?;
        Ok((allocated, begun.elapsed()))
    }
}

impl Bare {
    /// GB/s of copying shuffled rows of page-locked memory with one call of the driver a batch, and how many cores the
    /// process keeps busy with it; `None` where the driver is too old. The registered memory must be of this device.
    pub fn gather_rate(&self, rows: Rows<'_>, duration: Duration) -> Outcome<Option<(f64, f64)>> {
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        if version < 13_000 {
            return Ok(None);
        }
        self.context.bind_to_thread()?;
        let slots = (0..GATHERING)
            .map(|_| {
                Ok((
                    self.device_block(rows.batch * rows.row_bytes)?,
                    self.event()?,
                ))
            })
            .collect::<Outcome<Vec<_>>>()?;
        let order = RandomSampler::with_seed((rows.bytes.len() / rows.row_bytes) as u64, 0);
        let run = |batches: &mut u64, duration: Duration| -> Outcome<Measured> {
            let window = Window::begin();
            while window.begun().elapsed() < duration {
                let (target, done) = &slots[*batches as usize % GATHERING];
                done.synchronize()?;
                self.gather(rows, &order, *batches, target.address)?;
                done.record(&self.to_device)?;
                *batches += 1;
            }
            self.to_device.synchronize()?;
            Ok(window.end())
        };
        let mut batches = 0;
        let measured = run(&mut batches, duration / 10).and_then(|_| {
            batches = 0;
            run(&mut batches, duration)
        });
        // Also where a call failed: the memory goes now.
        self.synchronize()?;
        let measured = measured?;
        let bytes = batches as f64 * (rows.batch * rows.row_bytes) as f64;
        Ok(Some((
            bytes / measured.window_s / 1e9,
            measured.cpu_s.unwrap_or(f64::NAN) / measured.window_s,
        )))
    }

    fn gather(&self, rows: Rows<'_>, order: &RandomSampler, batch: u64, to: u64) -> Outcome {
        let mut indices = vec![0; rows.batch];
        let epoch_batches = order.len() / rows.batch as u64;
        let (epoch, batch) = (batch / epoch_batches, batch % epoch_batches);
        order.indices(epoch, batch * rows.batch as u64, &mut indices);
        let (base, row_bytes) = (rows.bytes.as_ptr() as u64, rows.row_bytes as u64);
        let mut from: Vec<u64> = indices
            .iter()
            .map(|index| base + index * row_bytes)
            .collect();
        let mut to: Vec<u64> = (0..rows.batch as u64)
            .map(|row| to + row * row_bytes)
            .collect();
        let mut sizes = vec![rows.row_bytes; rows.batch];
        // SAFETY: a plain structure, whose hints and flags are 0: there are none.
        let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut first = 0;
        // SAFETY: the rows lie in the slice, the targets in a block for as many; the lists are as long as each other, and
        // the driver has read them when it returns. Both memories live until the stream was waited for.
        unsafe {
            sys::cuMemcpyBatchAsync_v2(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                rows.batch,
                &mut attributes,
                &mut first,
                1,
                self.to_device.cu_stream(),
            )
        }
        .result()?;
        Ok(())
    }
}

impl Bare {
    /// How long the calls take, in microseconds, that send this many bytes: those that a program would make that does no more.
    pub fn submit_times(&self, bytes: usize, duration: Duration) -> Outcome<BareCalls> {
        self.context.bind_to_thread()?;
        let slots = [(); SUBMITTING].map(|()| -> Outcome<_> {
            let spinning = || Ok::<_, BoxError>(self.context.new_event(None)?);
            Ok((
                self.pinned_block(bytes)?,
                self.device_block(bytes)?,
                [spinning()?, spinning()?],
                [self.event()?, self.event()?],
            ))
        });
        let slots = slots.into_iter().collect::<Outcome<Vec<_>>>()?;
        let consumer = self.context.new_stream()?;
        let (raw, other) = (self.to_device.cu_stream(), consumer.cu_stream());
        // Timed one by one, as the library's; each slot's last copy was waited for before.
        let run = |is_ordered: bool, sleeps: bool| -> Outcome<f64> {
            let (mut sum, mut batches, begun) = (Duration::ZERO, 0u32, Instant::now());
            while batches < 64 || begun.elapsed() < duration / 4 {
                let (host, there, spinning, sleeping) = &slots[batches as usize % SUBMITTING];
                let [copied, used] = if sleeps { sleeping } else { spinning };
                used.synchronize()?;
                copied.synchronize()?;
                let begun = Instant::now();
                // SAFETY: both blocks are that long, and live until the streams were waited for; the slot's last copy is done, and so
                // are its events.
                unsafe {
                    sys::cuMemcpyHtoDAsync_v2(there.address, host.base, bytes, raw).result()?;
                    sys::cuEventRecord(copied.cu_event(), raw).result()?;
                    if is_ordered {
                        sys::cuStreamWaitEvent(other, copied.cu_event(), 0).result()?;
                    }
                    sys::cuEventRecord(used.cu_event(), other).result()?;
                }
                sum += begun.elapsed();
                batches += 1;
            }
            self.synchronize()?;
            Ok(sum.as_secs_f64() * 1e6 / f64::from(batches))
        };
        let times = run(false, false).and_then(|_| {
            Ok([run(false, false)?, run(true, false)?, run(false, true)?]) // the first one warmed up
        });
        // Also where a call failed: the memory goes now.
        self.synchronize()?;
        consumer.synchronize()?;
        let [two_events, ordered, sleeping] = times?;
        Ok(BareCalls {
            two_events: Some(two_events),
            ordered: Some(ordered),
            sleeping: Some(sleeping),
            turn: Some(self.turn_time()?),
        })
    }

    /// How long it takes to make the context current on a thread that has none, to choose the relaxed capture mode, and to put both
    /// back, in microseconds.
    fn turn_time(&self) -> Outcome<f64> {
        const TURNS: u32 = 100_000;
        let context = &self.context;
        let turn = || -> Outcome {
            let mut current = ptr::null_mut();
            let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the context is alive, and is popped by the thread that pushed it; the others write one value each.
            unsafe {
                sys::cuCtxGetCurrent(&mut current).result()?;
                sys::cuCtxPushCurrent_v2(context.cu_ctx()).result()?;
                sys::cuThreadExchangeStreamCaptureMode(&mut mode).result()?;
                sys::cuThreadExchangeStreamCaptureMode(&mut mode).result()?;
                sys::cuCtxPopCurrent_v2(&mut current).result()?;
            }
            Ok(())
        };
        let turns = || -> Outcome<f64> {
            turn()?;
            let begun = Instant::now();
            (0..TURNS).try_for_each(|_| turn())?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS))
        };
        std::thread::scope(|scope| {
            let none_is_current = || turns().map_err(|error| error.to_string());
            let joined = scope.spawn(none_is_current).join();
            Ok(joined.map_err(|_| "a thread panicked")??)
        })
    }
}

impl Bare {
    /// Batches/s of threads that each fill slabs and copy them, so many batches a slab.
    pub fn sending_rate(
        &self,
        threads: usize,
        together: usize,
        bytes: usize,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Outcome<f64> {
        let (next, sent, longest_ns) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        let all_ready = Barrier::new(threads);
        let send = || -> Result<(), String> {
            let link = PinnedLink::new(self, SLABS, bytes * together);
            all_ready.wait(); // also a thread that has none: the others wait for it
            let begun = Instant::now();
            let run = |mut link: PinnedLink<'_>| -> Outcome<usize> {
                let slabs = link.slabs();
                let mut made = 0;
                while made == 0 || begun.elapsed() < LIMIT {
                    let slab = made % SLABS;
                    link.finish(slab)?;
                    let Slab { base, bytes: all } = slabs[slab];
                    // SAFETY: the slab is that long and this thread's, and the copy of it that was under way is over.
                    let slab_bytes = unsafe { std::slice::from_raw_parts_mut(base, all) };
                    for batch in slab_bytes.chunks_exact_mut(bytes) {
                        fill(next.fetch_add(1, Ordering::Relaxed), batch);
                    }
                    link.start(slab)?;
                    made += 1;
                }
                Ok(made)
            };
            let made = link.and_then(run).map_err(|error| error.to_string())?;
            sent.fetch_add(made * together, Ordering::Relaxed);
            longest_ns.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
            Ok(())
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(send)).collect();
            all.into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        Ok(sent.into_inner() as f64 * 1e9 / longest_ns.into_inner() as f64)
    }
}

/// So many slots are gone round.
const SUBMITTING: usize = 4;

/// So many gathered batches are under way.
const GATHERING: usize = 3;

/// One copy under way, and its memory.
struct Slot<'a> {
    host: *mut c_void,
    device: DeviceBlock<'a>,
    direction: Direction,
    done: CudaEvent,
}

/// Device memory, freed on drop.
pub struct DeviceBlock<'a> {
    bare: &'a Bare,
    address: sys::CUdeviceptr,
}

impl Drop for DeviceBlock<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.bare.context.bind_to_thread() {
            eprintln!("note: device memory stays allocated: {error}");
            return;
        }
        // SAFETY: it came from `malloc_sync`; freeing waits for what uses it.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            eprintln!("note: device memory stays allocated: {error}");
        }
    }
}

/// Page-locked host memory, freed on drop.
pub struct PinnedBlock<'a> {
    bare: &'a Bare,
    base: *mut c_void,
}

impl Drop for PinnedBlock<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.bare.context.bind_to_thread() {
            eprintln!("note: host memory stays page-locked: {error}");
            return;
        }
        // SAFETY: it came from `malloc_host`; its users waited for their copies.
        if let Err(error) = unsafe { result::free_host(self.base) } {
            eprintln!("note: host memory stays page-locked: {error}");
        }
    }
}

/// Sends the slabs of the bare loop to the device, two copies at a time.
pub struct PinnedLink<'a> {
    bare: &'a Bare,
    bytes: usize,
    slabs: Vec<(PinnedBlock<'a>, Slot<'a>)>,
}

impl<'a> PinnedLink<'a> {
    pub fn new(bare: &'a Bare, slabs: usize, bytes: usize) -> Outcome<PinnedLink<'a>> {
        let slab = |_| -> Outcome<_> {
            let block = bare.pinned_block(bytes)?;
            let slot = Slot {
                host: block.base,
                device: bare.device_block(bytes)?,
                direction: Direction::ToDevice,
                done: bare.context.new_event(None)?,
            };
            Ok((block, slot))
        };
        Ok(PinnedLink {
            bare,
            bytes,
            slabs: (0..slabs).map(slab).collect::<Outcome<_>>()?,
        })
    }

    pub fn slabs(&self) -> Vec<Slab> {
        self.slabs
            .iter()
            .map(|(block, _)| Slab {
                base: block.base.cast(),
                bytes: self.bytes,
            })
            .collect()
    }
}

impl Link for PinnedLink<'_> {
    fn start(&mut self, slab: usize) -> Outcome {
        self.bare.copy(&self.slabs[slab].1, self.bytes)
    }

    fn finish(&mut self, slab: usize) -> Outcome {
        Ok(self.slabs[slab].1.done.synchronize()?)
    }

    fn ahead(&self) -> u64 {
        1
    }
}

impl Drop for PinnedLink<'_> {
    fn drop(&mut self) {
        // A copy may be under way where another call failed.
        if let Err(error) = self.bare.synchronize() {
            eprintln!("note: {error}");
        }
    }
}
