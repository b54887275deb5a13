//! Where pictures are decoded.

/// Where pictures are decoded, in epochs that go to a device ([`Epoch::prefetch_to_device`](crate::loader::Epoch::prefetch_to_device)). In
/// other epochs, the CPU decodes them.
///
/// # Examples
///
/// ```no_run
/// use pinfeed::image::{Decode, ImageFolder, ImageTransform};
/// use pinfeed::{DataLoader, Device};
///
/// let device = Device::cuda(0)?;
/// let train = ImageFolder::open("imagenet/train")?
///     .with_transform(ImageTransform::train(224))
///     .with_decode(Decode::Device);
/// let loader = DataLoader::builder(train).batch_size(256).num_workers(2).pin_memory(&device).build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
///     let (pixels, labels) = batch?; // on the device
/// }
/// println!("{:?}", loader.stats().decoder.left_to_cpu);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Decode {
    /// The loader's workers.
    #[default]
    Cpu,
    /// The device that the batch goes to: the decoder of a GPU. Pictures that it does not take (JPEG that is not baseline, other formats,
    /// transforms that resize twice with a rotation or an erasure in between, or by a filter that only the CPU has) are decoded by the
    /// workers, into the same batch. Crops, flips, colours, rotation, erasing and RandAugment give the same bytes as on the CPU.
    ///
    /// An H200's decoder gives the very bytes that the feature `turbojpeg` does; those of the default decoder differ a little.
    ///
    /// The loader must pin its memory for this very device ([`pin_memory`](crate::loader::Builder::pin_memory), and not
    /// [`pin_by_copy`](crate::loader::Builder::pin_by_copy)), and make the batches itself, without a
    /// [`collate_fn`](crate::loader::Builder::collate_fn), which reads samples on the host. Otherwise the CPU decodes.
    ///
    /// A batch is given out when all of its pictures are decoded, and [`Batch::upload`](crate::Batch::upload) runs then, on the thread that
    /// asks for the batch. Until that, the batch keeps its page-locked memory.
    ///
    /// While the GPU is busy with other work, its decoder is slower, and slows that work (docs/performance.md has figures). A program that
    /// trains beside it needs more connections to the device than the driver's eight: nvJPEG has 20 streams, and a step that shares a
    /// connection with them waits for them, and they for it. So [`Device::cuda`](crate::Device::cuda) asks for 32, if it is called before
    /// the program has other threads and other users of CUDA. If it is not set when the decoder opens, a warning is logged: then set
    /// `CUDA_DEVICE_MAX_CONNECTIONS=32` before the program starts.
    ///
    /// nvJPEG takes most of a second to open, which begins when the loader is built: build it before the model. (Dropping the last handle
    /// of a device meanwhile waits for it.) The decoder has up to 512 MiB of device memory while it is open, which count in no budget
    /// ([`MemoryStats::decoder_bytes`](crate::device::MemoryStats::decoder_bytes)). The files of pictures that are not decoded yet lie in
    /// their rows of the batch. Those that are larger than their row lie in ordinary memory, and are not among the
    /// [bytes in flight](crate::loader::Builder::max_bytes_in_flight); there are no more of them than rows in the loader's slabs, which are
    /// (`prefetch` + `depth` + 2) batches. If the decoder hangs, it costs each batch that is sent there the loader's
    /// [`timeout`](crate::loader::Builder::timeout).
    ///
    /// A data set of the program's own that gets its samples from an [`ImageFolder`](super::ImageFolder) does not say that it has pictures.
    /// There, the decoder opens with the first sample, and the first batches of the first epoch may be decoded by the CPU.
    ///
    /// A GPU decodes by nvJPEG, which is loaded when there are pictures for it: from where the environment variable `PINFEED_NVJPEG` says
    /// (the library, or its folder), or else where the system's loader finds `libnvjpeg.so.13` or `.12`, or in CUDA's toolkit. If there is
    /// none, or it fails, each batch is [`Error::Decoder`](crate::Error::Decoder). A GPU without a hardware decoder (or whose container
    /// lacks the driver capability `video`) decodes by kernels, which a warning and
    /// [`DecoderStats::by_kernels`](crate::loader::DecoderStats::by_kernels) say; `PINFEED_NVJPEG_BACKEND=hardware` in the environment
    /// makes that an error, and `gpu_hybrid` has kernels decode in any case. (A share that was measured with the hardware is kept when a
    /// run goes on with kernels.) Kernels are slower, compete with training for the GPU, and are best given many pictures at once: a call
    /// takes 22 ms for 64 pictures and 26 for 160 (an H100), which is as many as their memory allows for files of 110 KB. So with small
    /// batches, send more of them ahead ([`prefetch_to_device`](crate::loader::Epoch::prefetch_to_device)'s `depth`).
    ///
    /// Single pictures that the decoder refuses are the CPU's, and [`DecoderStats::left_to_cpu`](crate::loader::DecoderStats::left_to_cpu) counts them.
    /// The CPU device has a stand-in, which decodes as the CPU does.
    Device,
    /// Both: the device a share of the pictures, and the workers the others. It is for where neither keeps up alone, or where a step of the
    /// training is slower the more its GPU decodes. All that is said of [`Device`](Decode::Device) holds for the device's share.
    ///
    /// Where a picture is decoded follows from the seed, the epoch, its place in the order, and the share. The share is what
    /// [`Builder::device_share`](crate::loader::Builder::device_share) says, or is measured in the loader's first batches: until the
    /// decoder is open, workers decode all; then the device is given half, and the share is corrected every 8 batches until it stays the
    /// same (after 64 at the latest). It comes to what lets decoder and workers end together, or to less if the program needs less. Then it
    /// is fixed: [`DecoderStats::device_share`](crate::loader::DecoderStats::device_share) says what it is, and a state that is saved later has it, so
    /// that the run goes on with it. Each rank measures its own. Where the ranks' states are to be equal, or a run is to be the same from
    /// its first batch when it is begun again, give the share.
    Both,
}
