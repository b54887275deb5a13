//! What the suite needs of a backend beyond the public surface: a kernel that takes its time.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use pinfeed::device::Hostile;
use pinfeed::{Device, Result, Stream};

/// A device under test.
pub struct Backend {
    pub device: Device,
    kind: Kind,
}

enum Kind {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(cuda::Kernels),
}

impl Backend {
    pub fn cpu() -> Result<Backend> {
        Ok(Backend {
            device: Device::cpu(),
            kind: Kind::Cpu,
        })
    }

    /// The CPU device with late copies and poisoned memory.
    pub fn hostile() -> Result<Backend> {
        let mut options = Hostile::default();
        options.seed = std::env::var("PINFEED_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(1);
        options.max_delay = Duration::from_millis(2);
        Ok(Backend {
            device: Device::hostile(options)?,
            kind: Kind::Cpu,
        })
    }

    #[cfg(feature = "cuda")]
    pub fn cuda() -> Result<Backend> {
        let device = Device::cuda(0)?;
        Ok(Backend {
            device,
            kind: Kind::Cuda(cuda::Kernels::load()),
        })
    }

    #[cfg(not(feature = "cuda"))]
    pub fn cuda() -> Result<Backend> {
        Err(Device::cuda(0).unwrap_err())
    }

    /// Two handles: of two GPUs where there are as many, and otherwise of one device.
    pub fn devices(&self) -> [Device; 2] {
        let first = self.device.clone();
        let second = match self.is_cuda() {
            true => Device::cuda(1).unwrap_or_else(|_| first.clone()),
            false => first.clone(),
        };
        [first, second]
    }

    /// Whether copies are asynchronous only from page-locked memory.
    pub fn is_cuda(&self) -> bool {
        !matches!(self.kind, Kind::Cpu)
    }

    /// Launches a kernel that runs for `duration` and then writes `value` to `words` 32-bit words at `address`.
    pub fn fill_slowly(
        &self,
        stream: &Stream,
        address: u64,
        words: usize,
        value: u32,
        duration: Duration,
    ) {
        match &self.kind {
            Kind::Cpu => stream
                .host_fn(move || {
                    std::thread::sleep(duration);
                    // SAFETY: the tests hand over memory of the CPU device that a loan keeps for this stream.
                    unsafe { std::slice::from_raw_parts_mut(address as *mut u32, words) }
                        .fill(value);
                })
                .unwrap(),
            #[cfg(feature = "cuda")]
            Kind::Cuda(kernels) => kernels.fill_slowly(stream, address, words, value, duration),
        }
    }

    /// Launches a kernel that runs until the gate's sender is gone, and then writes as above. On a GPU, where a kernel waits for nobody, it runs
    /// for `duration`.
    pub fn fill_behind(
        &self,
        gate: Receiver<()>,
        duration: Duration,
        stream: &Stream,
        address: u64,
        words: usize,
        value: u32,
    ) {
        if self.is_cuda() {
            return self.fill_slowly(stream, address, words, value, duration);
        }
        stream
            .host_fn(move || _ = gate.recv())
            .and_then(|()| {
                stream.host_fn(move || {
                    // SAFETY: as in `fill_slowly`.
                    unsafe { std::slice::from_raw_parts_mut(address as *mut u32, words) }
                        .fill(value);
                })
            })
            .unwrap();
    }

    /// Launches a kernel that runs for `duration` and then adds up `words` 32-bit words at `address` into `sum`.
    pub fn sum_slowly(
        &self,
        stream: &Stream,
        address: u64,
        words: usize,
        sum: u64,
        duration: Duration,
    ) {
        match &self.kind {
            Kind::Cpu => stream
                .host_fn(move || {
                    std::thread::sleep(duration);
                    // SAFETY: as in `fill_slowly`.
                    let words = unsafe { std::slice::from_raw_parts(address as *const u32, words) };
                    let total = words
                        .iter()
                        .fold(0u32, |total, word| total.wrapping_add(*word));
                    // SAFETY: likewise.
                    unsafe { *(sum as *mut u32) = total };
                })
                .unwrap(),
            #[cfg(feature = "cuda")]
            Kind::Cuda(kernels) => kernels.sum_slowly(stream, address, words, sum, duration),
        }
    }
}

/// Memory that another allocator made: on the CPU device a vector, on a GPU the driver's own. It holds 0xEE at first.
pub struct Foreign {
    pub address: u64,
    bytes: usize,
    is_cuda: bool,
}

impl Foreign {
    pub fn new(backend: &Backend, bytes: usize) -> Foreign {
        let is_cuda = backend.is_cuda();
        let address = match is_cuda {
            #[cfg(feature = "cuda")]
            true => cuda::allocate(bytes, 0xEE),
            _ => {
                let words = vec![u128::from_ne_bytes([0xEE; 16]); bytes.div_ceil(16)];
                Box::leak(words.into_boxed_slice()).as_mut_ptr() as u64
            }
        };
        Foreign {
            address,
            bytes,
            is_cuda,
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        match self.is_cuda {
            #[cfg(feature = "cuda")]
            true => cuda::free(self.address),
            _ => {
                let words = self.address as *mut u128;
                let words = std::ptr::slice_from_raw_parts_mut(words, self.bytes.div_ceil(16));
                // SAFETY: the box of `new`; the tests wait for all that used it.
                drop(unsafe { Box::from_raw(words) });
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::Arc;
    use std::time::Duration;

    use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    use cudarc::nvrtc::Ptx;
    use pinfeed::Stream;
    use pinfeed::interop::raw::stream_handle;

    pub struct Kernels {
        context: Arc<CudaContext>,
        fill: CudaFunction,
        sum: CudaFunction,
    }

    impl Kernels {
        pub fn load() -> Kernels {
            let context = CudaContext::new(0).unwrap();
            let module = context
                .load_module(Ptx::from_src(include_str!("kernels.ptx")))
                .unwrap();
            Kernels {
                fill: module.load_function("fill_slowly").unwrap(),
                sum: module.load_function("sum_slowly").unwrap(),
                context,
            }
        }

        fn stream(&self, stream: &Stream) -> Arc<CudaStream> {
            let handle = stream_handle(stream).unwrap();
            // SAFETY: the tests keep the stream for longer than this object.
            unsafe { self.context.wrap_borrowed_stream(handle.cast()) }
        }

        pub fn fill_slowly(
            &self,
            stream: &Stream,
            address: u64,
            words: usize,
            value: u32,
            duration: Duration,
        ) {
            let stream = self.stream(stream);
            let (words, nanoseconds) = (words as u64, duration.as_nanos() as u64);
            let mut launch = stream.launch_builder(&self.fill);
            launch
                .arg(&address)
                .arg(&words)
                .arg(&value)
                .arg(&nanoseconds);
            // SAFETY: the kernel takes these four, and writes memory that a loan keeps for this stream.
            unsafe { launch.launch(one_block()) }.unwrap();
        }

        pub fn sum_slowly(
            &self,
            stream: &Stream,
            address: u64,
            words: usize,
            sum: u64,
            duration: Duration,
        ) {
            let stream = self.stream(stream);
            let (words, nanoseconds) = (words as u64, duration.as_nanos() as u64);
            let mut launch = stream.launch_builder(&self.sum);
            launch.arg(&address).arg(&words).arg(&sum).arg(&nanoseconds);
            // SAFETY: the kernel takes these four, and touches memory that loans keep for this stream.
            unsafe { launch.launch(one_block()) }.unwrap();
        }
    }

    /// Memory of device 0, by the driver itself.
    pub fn allocate(bytes: usize, value: u8) -> u64 {
        let _current = CudaContext::new(0).unwrap();
        // SAFETY: the context is current.
        let address = unsafe { cudarc::driver::result::malloc_sync(bytes.max(1)) }.unwrap();
        // SAFETY: there are as many bytes, and nothing else uses them.
        unsafe { cudarc::driver::result::memset_d8_sync(address, value, bytes) }.unwrap();
        address
    }

    pub fn free(address: u64) {
        let _current = CudaContext::new(0).unwrap();
        // SAFETY: it is of `allocate`; freeing waits for what uses it.
        unsafe { cudarc::driver::result::free_sync(address) }.unwrap();
    }

    fn one_block() -> LaunchConfig {
        LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        }
    }
}
