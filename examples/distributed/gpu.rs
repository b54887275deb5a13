//! The same model on a GPU, by kernels of its own, and gradients that NCCL sums.
//!
//! It needs NVRTC, which compiles the kernels, and NCCL (`pip install nvidia-cuda-nvrtc nvidia-nccl-cu13`, with their folders in LD_LIBRARY_PATH).

use std::ffi::c_char;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use cudarc::nccl::{Comm, Id, ReduceOp};
use cudarc::nvrtc;
use pinfeed::{BoxError, Device, DeviceTensor, Stream, interop};

use crate::args;
use crate::group::Group;
use crate::model::Shape;

const KERNELS: &str = r#"
// A block for each picture: what its probabilities are off, and its loss.
extern "C" __global__ void errors(const unsigned char *pixels, const long long *classes, const float *weights, float *off, float *sums,
                                  unsigned inputs, unsigned count)
{
    extern __shared__ float part[];
    const unsigned char *picture = pixels + (unsigned long long)blockIdx.x * inputs;
    float *own = off + (unsigned long long)blockIdx.x * count;
    for (unsigned of = 0; of < count; ++of) {
        const float *row = weights + (unsigned long long)of * (inputs + 1);
        float sum = 0;
        for (unsigned i = threadIdx.x; i < inputs; i += blockDim.x)
            sum += row[i] * picture[i];
        part[threadIdx.x] = sum;
        __syncthreads();
        for (unsigned half = blockDim.x / 2; half; half /= 2) {
            if (threadIdx.x < half)
                part[threadIdx.x] += part[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            own[of] = part[0] / 255 + row[inputs];
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    float most = own[0], sum = 0;
    for (unsigned of = 1; of < count; ++of)
        most = fmaxf(most, own[of]);
    for (unsigned of = 0; of < count; ++of)
        sum += own[of] = expf(own[of] - most);
    const long long class_of = classes[blockIdx.x];
    const bool is_one = class_of >= 0 && class_of < count;
    float *behind = sums + (unsigned long long)count * (inputs + 1);
    for (unsigned of = 0; of < count; ++of)
        own[of] /= sum;
    atomicAdd(behind, is_one ? -logf(fmaxf(own[class_of], 1e-37f)) : nanf("")); // a class that is none shows in the loss
    atomicAdd(behind + 1, 1.0f);
    if (is_one)
        own[class_of] -= 1;
}

// A thread for each weight: the sum of its gradients.
extern "C" __global__ void gradients(const unsigned char *pixels, const float *off, float *sums, unsigned inputs, unsigned count,
                                     unsigned rows)
{
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, of = at / (inputs + 1), i = at % (inputs + 1);
    if (of >= count)
        return;
    float sum = 0;
    for (unsigned row = 0; row < rows; ++row)
        sum += off[row * count + of] * (i == inputs ? 1 : pixels[(unsigned long long)row * inputs + i] / 255.0f);
    sums[at] = sum;
}

extern "C" __global__ void move(float *weights, const float *sums, unsigned length, float rate, unsigned inputs)
{
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < length)
        weights[at] -= rate / sqrtf(fmaxf(sums[length + 1], 1.0f) * inputs) * sums[at];
}
"#;

/// Threads of a block, a power of two.
const THREADS: u32 = 256;

/// A rank's GPU.
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    device: Device,
}

/// The GPU of a rank, by its number on its host. `None`: it computes on the CPU.
pub(crate) fn of(name: Option<&str>, local_rank: usize) -> Result<Option<Gpu>, BoxError> {
    match name {
        Some("cpu") => Ok(None),
        Some("cuda") => Gpu::open(local_rank).map(Some),
        None => match Device::cuda(local_rank) {
            Ok(_) => Gpu::open(local_rank).map(Some),
            Err(_) if local_rank == 0 || Device::cuda(0).is_err() => Ok(None),
            // (Half of the ranks on GPUs and half on the CPU would be a mistake.)
            Err(error) => Err(error.into()),
        },
        Some(other) => Err(args::misuse(format!(
            "--device wants cpu or cuda, not {other}"
        ))),
    }
}

impl Gpu {
    fn open(ordinal: usize) -> Result<Gpu, BoxError> {
        let context = CudaContext::new(ordinal)?;
        let device = interop::cudarc::device(&context)?; // the loader uses the same
        Ok(Gpu { context, device })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The model with these weights. All ranks call it together.
    pub(crate) fn model(
        &self,
        shape: Shape,
        weights: &[f32],
        group: &mut Group,
    ) -> Result<Model, BoxError> {
        let compute = self.context.new_stream()?;
        // Rank 0 makes a name for the group of ranks, by which the others find it.
        let mut name = [0u8; 128];
        if group.rank == 0 {
            name = Id::new().map_err(nccl)?.internal().map(|byte| byte as u8);
        }
        group.broadcast(&mut name)?;
        let id = Id::uninit(name.map(|byte| byte as c_char));
        let comm = Comm::from_rank(Arc::clone(&compute), group.rank, group.size, id);
        let comm = comm.map_err(nccl)?;
        let module = self.context.load_module(nvrtc::compile_ptx(KERNELS)?)?;
        Ok(Model {
            shape,
            comm,
            stream: interop::cudarc::stream(&self.device, &compute)?,
            errors: module.load_function("errors")?,
            gradients: module.load_function("gradients")?,
            step: module.load_function("move")?,
            weights: compute.clone_htod(weights)?,
            sums: compute.alloc_zeros(shape.sums())?,
            off: compute.alloc_zeros(1)?,
            compute,
        })
    }
}

fn nccl(error: cudarc::nccl::result::NcclError) -> String {
    format!("NCCL: {error:?}")
}

/// The model on a GPU.
pub(crate) struct Model {
    shape: Shape,
    comm: Comm,
    compute: Arc<CudaStream>,
    /// The same stream, as the loader knows it.
    stream: Stream,
    errors: CudaFunction,
    gradients: CudaFunction,
    step: CudaFunction,
    weights: CudaSlice<f32>,
    sums: CudaSlice<f32>,
    /// What the probabilities of a batch's pictures are off.
    off: CudaSlice<f32>,
}

impl Model {
    /// A step of all ranks. Returns the mean loss, and of how many samples.
    pub(crate) fn step(
        &mut self,
        pixels: &DeviceTensor<u8>,
        classes: &DeviceTensor<i64>,
        rate: f32,
    ) -> Result<(f32, f32), BoxError> {
        let Shape {
            inputs,
            classes: count,
        } = self.shape;
        let (rows, length) = (classes.len(), self.shape.weights());
        if self.off.len() < rows * count {
            self.off = self.compute.alloc_zeros(rows * count)?;
        }
        self.compute.memset_zeros(&mut self.sums)?;
        let (inputs, count) = (inputs as u32, count as u32);
        let (of_rows, of_length) = (rows as u32, length as u32);
        {
            // The stream waits for the batch's copy; the host does not.
            let (pixels, classes) = (pixels.on(&self.stream)?, classes.on(&self.stream)?);
            let (pixels, classes) = (pixels.address(), classes.address());
            let mut launch = self.compute.launch_builder(&self.errors);
            launch.arg(&pixels).arg(&classes).arg(&self.weights);
            launch
                .arg(&mut self.off)
                .arg(&mut self.sums)
                .arg(&inputs)
                .arg(&count);
            let blocks = LaunchConfig {
                grid_dim: (of_rows, 1, 1),
                block_dim: (THREADS, 1, 1),
                shared_mem_bytes: THREADS * size_of::<f32>() as u32,
            };
            // SAFETY: the batch has a block's picture and class for each of its rows, `off` room for `count` numbers of each, and `sums` two behind
            // the weights. All is on the loans' stream.
            unsafe { launch.launch(blocks) }?;
            let mut launch = self.compute.launch_builder(&self.gradients);
            launch.arg(&pixels).arg(&self.off).arg(&mut self.sums);
            launch.arg(&inputs).arg(&count).arg(&of_rows);
            // SAFETY: likewise; threads beyond the weights return at once.
            unsafe { launch.launch(LaunchConfig::for_num_elems(of_length)) }?;
        } // the loans end here, behind the kernels
        let summed = self
            .comm
            .all_reduce_in_place(&mut self.sums, &ReduceOp::Sum);
        summed.map_err(nccl)?;
        let mut launch = self.compute.launch_builder(&self.step);
        launch
            .arg(&mut self.weights)
            .arg(&self.sums)
            .arg(&of_length);
        launch.arg(&rate).arg(&inputs);
        // SAFETY: there are so many weights, and two sums more.
        unsafe { launch.launch(LaunchConfig::for_num_elems(of_length)) }?;
        // (A program that trains would look at the loss now and then: this waits for the GPU.)
        let behind = self.compute.clone_dtoh(&self.sums.slice(length..))?;
        self.compute.synchronize()?;
        let [loss, samples] = [behind[0], behind[1]];
        match loss.is_nan() {
            true => Err(
                format!("the loss is not a number: is a class beyond --classes {count}?").into(),
            ),
            false => Ok((loss / samples.max(1.0), samples)),
        }
    }

    pub(crate) fn weights(&self) -> Result<Vec<f32>, BoxError> {
        let weights = self.compute.clone_dtoh(&self.weights)?;
        self.compute.synchronize()?;
        Ok(weights)
    }
}
