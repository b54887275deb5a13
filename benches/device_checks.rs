//! What the design relies on, measured on a device: does the link keep its rate beside writing threads, what stalls a
//! running kernel, does a copy start at once, and what does the library lose against a bare copy?
//!
//!     cargo bench --bench device_checks
//!
//! One JSON line per result. It needs a CUDA device.

#![allow(unsafe_code)] // it calls the driver

#[cfg(not(feature = "cuda"))]
fn main() {
    println!("device_checks needs the feature `cuda`");
}

#[cfg(feature = "cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    cuda::main()
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use cudarc::driver::{
        CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result, sys,
    };
    use cudarc::nvrtc::Ptx;
    use half::f16;
    use pinfeed::interop::raw::stream_handle;
    use pinfeed::ops::{MixupDraw, Normalize};
    use pinfeed::tensor::Float;
    use pinfeed::{Batch, Device, DeviceTensor, Stream, Tensor};

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    pub(super) fn main() -> Outcome {
        let device = match Device::cuda(0) {
            Ok(device) => device,
            Err(error) => {
                println!("device_checks needs a CUDA device: {error}");
                return Ok(());
            }
        };
        println!("{{\"device\":{:?}}}", device.info()?.name);
        let bare = Bare::new()?;
        for megabytes in [1, 16, 64, 256, 1000] {
            against_bare(&device, &bare, megabytes << 20)?;
        }
        for megabytes in [2, 4, 8, 16, 64, 256, 1000] {
            pageable(&device, megabytes << 20)?;
        }
        beside_writers(&bare)?;
        stalls(&device, &bare)?;
        beside_unlocking(&device, &bare)?;
        giving_up(&device, &bare)?;
        starts_at_once(&device, &bare)?;
        normalizes::<f32>(&device, "f32")?;
        normalizes::<f16>(&device, "f16")?;
        Ok(())
    }

    /// How long it takes to normalise a batch of pictures that is there, and to mix them on the way.
    fn normalizes<F: Float>(device: &Device, dtype: &str) -> Outcome {
        const SHAPE: [usize; 4] = [256, 224, 224, 3];
        let mixes = [
            ("none", MixupDraw::none()),
            ("mixup", MixupDraw::mixup(0.3)),
            ("cutmix", MixupDraw::cutmix([224, 224], 50..173, 61..184)),
        ];
        let orders = [false, true];
        for ((how, mix), channels_last) in mixes
            .iter()
            .flat_map(|mix| orders.map(|channels_last| (mix, channels_last)))
        {
            let normalize = Normalize::IMAGENET.with_channels_last(channels_last);
            let mut best = f64::INFINITY;
            // The first round takes device memory.
            for _ in 0..5 {
                let there: Vec<DeviceTensor<u8>> = (0..ROUNDS)
                    .map(|_| Tensor::zeros(&SHAPE).to_device(device, false))
                    .collect::<Result<_, _>>()?;
                let begun = Instant::now();
                let normalized: Vec<DeviceTensor<F>> = there
                    .into_iter()
                    .map(|pictures| pictures.normalize_mixed(&normalize, mix))
                    .collect::<Result<_, _>>()?;
                let stream = device.stream()?;
                for pictures in &normalized {
                    drop(pictures.on(&stream)?);
                }
                stream.synchronize()?;
                let us = begun.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
                best = best.min(us);
            }
            println!(
                "{{\"check\":\"normalize\",\"shape\":{SHAPE:?},\"dtype\":\"{dtype}\",\"channels_last\":{channels_last},\"mix\":\"{how}\",\"us\":{best:.1}}}"
            );
        }
        Ok(())
    }

    const ROUNDS: usize = 20;

    /// cudarc's raw calls, without the library.
    struct Bare {
        context: Arc<CudaContext>,
        stream: Arc<CudaStream>,
        spin: CudaFunction,
    }

    impl Bare {
        fn new() -> Result<Bare, Box<dyn std::error::Error>> {
            let context = CudaContext::new(0)?;
            let module = context.load_module(Ptx::from_src(include_str!(
                "../tests/conformance/kernels.ptx"
            )))?;
            Ok(Bare {
                stream: context.new_stream()?,
                spin: module.load_function("fill_slowly")?,
                context,
            })
        }

        /// A kernel that runs so long, on the stream.
        fn spin(&self, stream: &Arc<CudaStream>, word: u64, duration: Duration) -> Outcome {
            let (words, value, nanoseconds) = (1u64, 1u32, duration.as_nanos() as u64);
            let mut launch = stream.launch_builder(&self.spin);
            launch.arg(&word).arg(&words).arg(&value).arg(&nanoseconds);
            let one = LaunchConfig {
                grid_dim: (1, 1, 1),
                block_dim: (1, 1, 1),
                shared_mem_bytes: 0,
            };
            // SAFETY: the kernel takes these four, and writes one word that the caller owns.
            unsafe { launch.launch(one) }?;
            Ok(())
        }

        fn wrap(&self, stream: &Stream) -> Arc<CudaStream> {
            let handle = stream_handle(stream).unwrap_or_default();
            // SAFETY: the caller's stream lives as long as the wrapper.
            unsafe { self.context.wrap_borrowed_stream(handle.cast()) }
        }

        /// GB/s of plain copies between page-locked and device memory: to the device, and back.
        fn rates(
            &self,
            bytes: usize,
            repeats: usize,
        ) -> Result<(f64, f64), Box<dyn std::error::Error>> {
            self.context.bind_to_thread()?;
            // SAFETY: plain allocations and copies between them, each waited for before the memory goes.
            unsafe {
                let host = result::malloc_host(bytes, 0)?;
                std::ptr::write_bytes(host.cast::<u8>(), 1, bytes);
                let there = result::malloc_sync(bytes)?;
                let stream = self.stream.cu_stream();
                let mut rates = [0.0; 2];
                for (rate, to_device) in rates.iter_mut().zip([true, false]) {
                    for round in 0..repeats + 2 {
                        let start = Instant::now();
                        if to_device {
                            sys::cuMemcpyHtoDAsync_v2(there, host, bytes, stream).result()?;
                        } else {
                            sys::cuMemcpyDtoHAsync_v2(host, there, bytes, stream).result()?;
                        }
                        result::stream::synchronize(stream)?;
                        if round >= 2 {
                            *rate =
                                f64::max(*rate, bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
                        }
                    }
                }
                result::free_sync(there)?;
                result::free_host(host)?;
                Ok((rates[0], rates[1]))
            }
        }
    }

    fn against_bare(device: &Device, bare: &Bare, bytes: usize) -> Outcome {
        let repeats = 12;
        let (bare_to, bare_back) = bare.rates(bytes, repeats)?;
        let source = Tensor::from_vec(vec![3u8; bytes], &[bytes])?.pin(device)?;
        let (mut to, mut back) = (0.0f64, 0.0f64);
        for round in 0..repeats + 2 {
            let start = Instant::now();
            let there = source.view().to_device(device, false)?;
            let to_rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
            let start = Instant::now();
            let host = there.to_host(false)?.wait()?;
            let back_rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
            assert!(
                host.as_slice().iter().step_by(997).all(|byte| *byte == 3),
                "a corrupted byte"
            );
            if round >= 2 {
                (to, back) = (to.max(to_rate), back.max(back_rate));
            }
        }
        println!(
            "{{\"check\":\"against_bare\",\"bytes\":{bytes},\"h2d_gb_s\":{to:.2},\"bare_h2d_gb_s\":{bare_to:.2},\
             \"h2d_share\":{:.4},\"d2h_gb_s\":{back:.2},\"bare_d2h_gb_s\":{bare_back:.2},\"d2h_share\":{:.4}}}",
            to / bare_to,
            back / bare_back
        );
        device.release_pinned();
        Ok(())
    }

    /// Round trips from pageable memory, and back into memory that was used before, and into fresh memory.
    fn pageable(device: &Device, bytes: usize) -> Outcome {
        let source = Tensor::from_vec(vec![3u8; bytes], &[bytes])?;
        let mut used = Some(Tensor::from_vec(vec![1u8; bytes], &[bytes])?);
        let mut rates = [const { Vec::new() }; 3];
        for round in 0..12 {
            let mut rate = |index: usize, start: Instant| {
                if round >= 2 {
                    rates[index].push(bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
                }
            };
            let start = Instant::now();
            let there = source.view().to_device(device, false)?;
            rate(0, start);
            let target = used.take().ok_or("no target")?;
            let start = Instant::now();
            let back = there.copy_to_host(target, false)?.wait()?;
            rate(1, start);
            assert!(back.as_slice() == source.as_slice(), "a corrupted byte");
            used = Some(back);
            let fresh = Tensor::zeros(&[bytes]);
            let start = Instant::now();
            let back = there.copy_to_host(fresh, false)?.wait()?;
            rate(2, start);
            drop(back);
        }
        let [to, back, fresh] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let memory = device.memory();
        println!(
            "{{\"check\":\"pageable\",\"bytes\":{bytes},\"h2d_gb_s\":{to:.2},\"d2h_gb_s\":{back:.2},\
             \"d2h_fresh_gb_s\":{fresh:.2},\"slabs_made\":{},\"pinned_bytes\":{},\"unstaged\":{}}}",
            memory.slabs_made, memory.pinned_bytes, memory.unstaged
        );
        Ok(())
    }

    /// The link's rate while threads write host memory as workers write slabs.
    fn beside_writers(bare: &Bare) -> Outcome {
        let bytes = 256 << 20;
        let alone = bare.rates(bytes, 10)?;
        for threads in [4, 8, 16] {
            let stop = AtomicBool::new(false);
            let rates = std::thread::scope(|scope| -> Result<_, Box<dyn std::error::Error>> {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let (source, mut target) = (vec![1u8; 32 << 20], vec![0u8; 32 << 20]);
                        while !stop.load(Ordering::Relaxed) {
                            target.copy_from_slice(&source);
                            std::hint::black_box(&mut target);
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(100));
                let rates = bare.rates(bytes, 10);
                stop.store(true, Ordering::Relaxed);
                rates
            })?;
            println!(
                "{{\"check\":\"beside_writers\",\"threads\":{threads},\"h2d_gb_s\":{:.2},\"alone_h2d_gb_s\":{:.2},\
                 \"d2h_gb_s\":{:.2},\"alone_d2h_gb_s\":{:.2}}}",
                rates.0, alone.0, rates.1, alone.1
            );
        }
        Ok(())
    }

    /// How long memory calls take while a 200 ms kernel runs, and whether they wait for it.
    ///
    /// Each is prepared and undone without a kernel beside it, so that its own time is what is seen.
    fn stalls(device: &Device, bare: &Bare) -> Outcome {
        const KERNEL: Duration = Duration::from_millis(200);
        const BYTES: usize = 64 << 20;
        let stream = device.stream()?;
        let wrapped = bare.wrap(&stream);
        let mut word: DeviceTensor<u32> = Tensor::<u32>::zeros(&[1]).to_device(device, false)?;
        bare.context.bind_to_thread()?;
        let mut memory = vec![1u8; BYTES];
        let host: *mut std::ffi::c_void = memory.as_mut_ptr().cast();
        let (mut pinned, mut there) = (std::ptr::null_mut(), 0);
        for call in [
            "register",
            "unregister",
            "host_alloc",
            "host_free",
            "device_alloc",
            "device_free",
        ] {
            // Each call makes what the next of its pair takes back, and nothing else uses it.
            #[allow(clippy::undocumented_unsafe_blocks)]
            let mut run = |call: &str| -> Outcome {
                match call {
                    "register" => unsafe { sys::cuMemHostRegister_v2(host, BYTES, 1) }.result()?,
                    "unregister" => unsafe { sys::cuMemHostUnregister(host) }.result()?,
                    "host_alloc" => pinned = unsafe { result::malloc_host(BYTES, 0) }?,
                    "host_free" => unsafe { result::free_host(pinned) }?,
                    "device_alloc" => there = unsafe { result::malloc_sync(BYTES) }?,
                    _ => unsafe { result::free_sync(there) }?,
                }
                Ok(())
            };
            let pairs = [
                ("register", "unregister"),
                ("host_alloc", "host_free"),
                ("device_alloc", "device_free"),
            ];
            let undo = pairs
                .iter()
                .find_map(|(make, free)| (*make == call).then_some(*free));
            let make = pairs
                .iter()
                .find_map(|(make, free)| (*free == call).then_some(*make));
            let mut times = [0.0; 2];
            for (time, beside) in times.iter_mut().zip([false, true]) {
                make.map_or(Ok(()), &mut run)?;
                if beside {
                    let loan = word.on_mut(&stream)?;
                    bare.spin(&wrapped, loan.address(), KERNEL)?;
                }
                let start = Instant::now();
                run(call)?;
                *time = start.elapsed().as_secs_f64() * 1e3;
                stream.synchronize()?;
                undo.map_or(Ok(()), &mut run)?;
            }
            println!(
                "{{\"check\":\"stalls\",\"call\":\"{call}\",\"bytes\":{BYTES},\"alone_ms\":{:.3},\
                 \"beside_a_200_ms_kernel_ms\":{:.3}}}",
                times[0], times[1]
            );
        }
        Ok(())
    }

    /// Whether copies are held up while a thread of the program's unlocks memory, and so waits for a kernel of 200 ms. (The library
    /// unlocks none unasked, because they are.)
    fn beside_unlocking(device: &Device, bare: &Bare) -> Outcome {
        const KERNEL: Duration = Duration::from_millis(200);
        let stream = device.stream()?;
        let wrapped = bare.wrap(&stream);
        let mut word: DeviceTensor<u32> = Tensor::<u32>::zeros(&[1]).to_device(device, false)?;
        let own = Tensor::<u8>::zeros(&[1 << 20]).pin(device)?;
        drop(own.view().to_device(device, false)?); // its memory is there from now on
        let mut memory = vec![1u8; 64 << 20];
        let (host, bytes) = (memory.as_mut_ptr() as usize, memory.len());
        bare.context.bind_to_thread()?;
        // SAFETY: the memory is ours, and is unregistered below, before it goes.
        unsafe { sys::cuMemHostRegister_v2(host as *mut _, bytes, 1) }.result()?;
        let loan = word.on_mut(&stream)?;
        bare.spin(&wrapped, loan.address(), KERNEL)?;
        let (submitted, arrived, unlocked) =
            std::thread::scope(|scope| -> Result<_, Box<dyn std::error::Error>> {
                let unlocks = scope.spawn(|| {
                    let start = Instant::now();
                    bare.context.bind_to_thread()?;
                    // SAFETY: it was registered above, and nothing uses it.
                    unsafe { sys::cuMemHostUnregister(host as *mut _) }.result()?;
                    Ok::<_, cudarc::driver::DriverError>(start.elapsed())
                });
                std::thread::sleep(Duration::from_millis(20));
                let start = Instant::now();
                let there = own.view().to_device(device, true)?;
                let submitted = start.elapsed();
                there.synchronize()?;
                let arrived = start.elapsed();
                let unlocked = unlocks.join().map_err(|_| "the thread panicked")??;
                Ok((submitted, arrived, unlocked))
            })?;
        drop(loan);
        stream.synchronize()?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{{\"check\":\"beside_unlocking\",\"submitted_ms\":{:.3},\"arrived_ms\":{:.3},\"unlocked_ms\":{:.1}}}",
            ms(submitted),
            ms(arrived),
            ms(unlocked)
        );
        Ok(())
    }

    /// Whether a program is held up by a kernel of 200 ms where it lets go of page-locked memory: slabs beyond a lowered budget, and
    /// registered memory whose last holder is a copy. And how long it takes to ask for them.
    fn giving_up(device: &Device, bare: &Bare) -> Outcome {
        const KERNEL: Duration = Duration::from_millis(200);
        const BYTES: usize = 64 << 20;
        let stream = device.stream()?;
        let wrapped = bare.wrap(&stream);
        let mut word: DeviceTensor<u32> = Tensor::<u32>::zeros(&[1]).to_device(device, false)?;
        let own = Tensor::<u8>::zeros(&[1 << 20]).pin(device)?;
        let surplus = Tensor::<u8>::zeros(&[BYTES]).pin(device)?;
        let registered = Tensor::<u8>::zeros(&[BYTES]).register(device)?;
        drop(own.view().to_device(device, false)?);
        device.release_pinned();
        let budget = device.memory().pinned_budget_bytes;
        let loan = word.on_mut(&stream)?;
        bare.spin(&wrapped, loan.address(), KERNEL)?;
        let start = Instant::now();
        device.set_pinned_budget_bytes(2 << 20);
        drop(surplus);
        drop(registered.to_device(device, true)?);
        own.view().to_device(device, true)?.synchronize()?;
        let memory = device.memory();
        let gone_on = start.elapsed();
        let start = Instant::now();
        let bytes = device.release_pinned();
        let asked = start.elapsed();
        drop(loan);
        stream.synchronize()?;
        device.set_pinned_budget_bytes(budget);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{{\"check\":\"giving_up\",\"gone_on_ms\":{:.3},\"idle_bytes\":{},\"parked_bytes\":{},\"asked_ms\":{:.1},\"bytes\":{bytes}}}",
            ms(gone_on),
            memory.pinned_idle_bytes,
            memory.parked_bytes,
            ms(asked)
        );
        Ok(())
    }

    /// How long an upload through the library takes while a 50 ms kernel runs on another stream, in memory that was
    /// used before.
    fn starts_at_once(device: &Device, bare: &Bare) -> Outcome {
        let stream = device.stream()?;
        let wrapped = bare.wrap(&stream);
        let source = Tensor::<u8>::zeros(&[16 << 20]).pin(device)?;
        let upload = || -> Result<Duration, pinfeed::Error> {
            let start = Instant::now();
            source.view().to_device(device, false)?;
            Ok(start.elapsed())
        };
        for _ in 0..4 {
            upload()?;
        }
        let alone = upload()?;
        let mut word: DeviceTensor<u32> = Tensor::<u32>::zeros(&[1]).to_device(device, false)?;
        let loan = word.on_mut(&stream)?;
        bare.spin(&wrapped, loan.address(), Duration::from_millis(50))?;
        drop(loan);
        let beside = upload()?;
        println!(
            "{{\"check\":\"starts_at_once\",\"alone_ms\":{:.3},\"behind_a_50_ms_kernel_ms\":{:.3}}}",
            alone.as_secs_f64() * 1e3,
            beside.as_secs_f64() * 1e3
        );
        stream.synchronize()?;
        Ok(())
    }
}
