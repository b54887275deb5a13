//! pinfeed's loop behind four functions of C, so that a network of PyTorch trains on its batches in the same process.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use pinfeed::image::{Decode, ImageFolder, ImageTransform};
use pinfeed::interop::raw::{stream_from_handle, stream_handle};
use pinfeed::ops::Normalize;
use pinfeed::{BoxError, DataLoader, Device, DeviceTensor, Stream, Tensor};

type Batch = (DeviceTensor<u8>, DeviceTensor<i64>);

pub struct Run {
    loader: Arc<DataLoader<(Tensor<u8>, Tensor<i64>)>>,
    batches: Box<dyn Iterator<Item = pinfeed::Result<Batch>>>,
    /// PyTorch's.
    stream: Stream,
    /// What the network reads: until the next batch is asked for.
    lent: Option<(DeviceTensor<f32>, DeviceTensor<i64>)>,
}

/// A batch, as addresses of device memory: `[rows, 224, 224, 3]` of `f32`, and labels of `i64`.
#[repr(C)]
pub struct Lent {
    images: u64,
    labels: u64,
    rows: u64,
}

/// What a run counted so far.
#[repr(C)]
pub struct Counted {
    batches: u64,
    waiting_ns: u64,
    device_decoded: u64,
    device_share: i64,
}

fn open(
    folder: &Path,
    workers: usize,
    decode: u32,
    share: f64,
    stream: Stream,
    device: &Device,
) -> Result<Run, BoxError> {
    let decode = match decode {
        0 => Decode::Cpu,
        1 => Decode::Device,
        _ => Decode::Both,
    };
    let pictures = ImageFolder::open(folder)?
        .with_transform(ImageTransform::train(224))
        .with_decode(decode);
    let loader = DataLoader::builder(pictures)
        .batch_size(256)
        .shuffle(true)
        .drop_last(true)
        .num_workers(workers)
        .pin_memory(device);
    let loader = match share >= 0.0 {
        true => loader.device_share(share).build()?,
        false => loader.build()?,
    };
    let loader = Arc::new(loader);
    let batches = loader
        .owned_epochs(0..)
        .prefetch_to_device(device, 2)
        .flatten();
    Ok(Run {
        batches: Box::new(batches),
        loader,
        stream,
        lent: None,
    })
}

impl Run {
    fn next(&mut self) -> Result<Lent, BoxError> {
        // A loan's end: the memory is used again behind what PyTorch's stream has by now.
        if let Some((images, labels)) = self.lent.take() {
            drop(images.on(&self.stream)?);
            drop(labels.on(&self.stream)?);
        }
        let (images, labels) = self
            .batches
            .next()
            .ok_or("epochs without end have ended")??;
        let images = images.normalize::<f32>(&Normalize::IMAGENET.with_channels_last(true))?;
        let lent = Lent {
            images: images.on(&self.stream)?.address(),
            labels: labels.on(&self.stream)?.address(),
            rows: labels.len() as u64,
        };
        self.lent = Some((images, labels));
        Ok(lent)
    }
}

/// A stream of the library's, as programs in Rust have one. It is never given back. Null after an error, which is printed.
#[unsafe(no_mangle)]
pub extern "C" fn pf_stream() -> *mut c_void {
    let stream = Device::cuda(0).and_then(|device| device.stream());
    match stream {
        Ok(stream) => stream_handle(Box::leak(Box::new(stream))).unwrap_or(ptr::null_mut()),
        Err(error) => {
            eprintln!("{error}");
            ptr::null_mut()
        }
    }
}

/// Begins a run over a folder. `decode`: 0 the CPU, 1 the device, 2 both; a negative `share` is measured. Null after an error, which is printed.
///
/// # Safety
///
/// `folder` must be a C string, and `stream` a stream of the device's primary context that outlives the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_open(
    folder: *const c_char,
    workers: usize,
    decode: u32,
    share: f64,
    stream: *mut c_void,
) -> *mut Run {
    let run = || -> Result<Run, BoxError> {
        // SAFETY: the caller's contract.
        let folder = unsafe { CStr::from_ptr(folder) }.to_str()?;
        let device = Device::cuda(0)?;
        // SAFETY: likewise.
        let stream = unsafe { stream_from_handle(&device, stream) };
        open(Path::new(folder), workers, decode, share, stream, &device)
    };
    match run() {
        Ok(run) => Box::into_raw(Box::new(run)),
        Err(error) => {
            eprintln!("{error}");
            ptr::null_mut()
        }
    }
}

/// The next batch; `rows` is 0 after an error, which is printed. What was lent before must not be read any more.
///
/// # Safety
///
/// `run` must be of [`pf_open`], and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_next(run: *mut Run) -> Lent {
    // SAFETY: the caller's contract.
    unsafe { &mut *run }.next().unwrap_or_else(|error| {
        eprintln!("{error}");
        Lent {
            images: 0,
            labels: 0,
            rows: 0,
        }
    })
}

/// # Safety
///
/// As [`pf_next`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_stats(run: *const Run) -> Counted {
    // SAFETY: the caller's contract.
    let stats = unsafe { &*run }.loader.total_stats();
    Counted {
        batches: stats.batches,
        waiting_ns: stats.consumer_wait.total.as_nanos() as u64,
        device_decoded: stats.decoder.decoded,
        device_share: stats.decoder.device_share.map_or(-1, i64::from),
    }
}

/// Ends a run.
///
/// # Safety
///
/// As [`pf_next`]; what PyTorch does with the last batch must be over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_close(run: *mut Run) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(run) });
}
