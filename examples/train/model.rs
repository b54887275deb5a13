//! A small convolutional network and its training, with candle.

use std::f64::consts::PI;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, loss};

use crate::rng::Rng;

/// The network takes images of `SIDE` x `SIDE` pixels.
pub const SIDE: usize = 32;
const EPSILON: f64 = 1e-3;

const LAYERS: [Layer; 4] = [
    Layer {
        channels: 16,
        kernel: 4,
        stride: 2,
    },
    Layer {
        channels: 32,
        kernel: 4,
        stride: 2,
    },
    Layer {
        channels: 32,
        kernel: 3,
        stride: 1,
    },
    Layer {
        channels: 64,
        kernel: 3,
        stride: 1,
    },
];

struct Layer {
    channels: usize,
    kernel: usize,
    stride: usize,
}

pub struct Network {
    convolutions: Vec<Convolution>,
    classify: Linear,
    variables: Vec<Var>,
}

impl Network {
    pub fn new(classes: usize, seed: u64, device: &Device) -> Result<Self> {
        let mut init = Init::new(seed, device);
        let (mut side, mut channels) = (SIDE, 3);
        let mut convolutions = Vec::new();
        for layer in LAYERS {
            convolutions.push(Convolution::new(&mut init, side, channels, &layer)?);
            (side, channels) = (side / layer.stride, layer.channels);
        }
        let weight = init.uniform(&[classes, channels], 1.0 / channels as f32)?;
        let bias = init.constant(classes, 0.0)?;
        Ok(Self {
            convolutions,
            classify: Linear::new(weight, Some(bias)),
            variables: init.variables,
        })
    }

    /// Takes a batch of images as the loader makes it, `[N, H, W, 3]` bytes, and returns one
    /// number per image and class, the highest for the likeliest class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = normalise(images)?;
        for convolution in &self.convolutions {
            x = convolution.forward(&x)?;
        }
        self.classify.forward(&x.max(1)?)
    }

    /// Counts the images whose likeliest class is the right one.
    pub fn correct(&self, images: &Tensor, labels: &Tensor) -> Result<usize> {
        let classes = self
            .forward(images)?
            .argmax(D::Minus1)?
            .to_dtype(labels.dtype())?;
        let correct = classes.eq(labels)?.to_dtype(DType::U32)?.sum_all()?;
        Ok(correct.to_scalar::<u32>()? as usize)
    }
}

/// Turns the bytes `[N, H, W, 3]` into numbers around 0, `[N, pixels, 3]`.
fn normalise(images: &Tensor) -> Result<Tensor> {
    let pixels = images.flatten(1, 2)?.to_dtype(DType::F32)?;
    // The mean colour of an image says nothing of the shape in it.
    standardise(&pixels.broadcast_sub(&pixels.mean_keepdim(1)?)?)
}

/// Convolution, normalisation and ReLU, of `[N, pixels, channels]`.
///
/// The pixels below each position of the kernel are gathered, and one matrix product does the
/// rest. Backwards on the CPU, that takes a third of the time of `candle_nn::Conv2d`, and images
/// keep the order in which they were decoded, with the channels last.
struct Convolution {
    /// For each position of the kernel, the pixels below it.
    patches: Tensor,
    patch: usize,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor,
}

impl Convolution {
    fn new(init: &mut Init, side: usize, channels: usize, layer: &Layer) -> Result<Self> {
        let &Layer {
            channels: out,
            kernel,
            stride,
        } = layer;
        // One pixel of padding on each side.
        let inside = |i: usize| i.checked_sub(1).filter(|i| *i < side);
        let mut patches = Vec::new();
        for (top, left) in grid(side / stride) {
            for (y, x) in grid(kernel) {
                patches.push(
                    match (inside(top * stride + y), inside(left * stride + x)) {
                        (Some(y), Some(x)) => (y * side + x) as u32,
                        _ => u32::MAX, // gathers a zero
                    },
                );
            }
        }
        let patch = kernel * kernel * channels;
        Ok(Self {
            patches: Tensor::new(patches, init.device)?,
            patch,
            weight: init.uniform(&[patch, out], 6.0 / patch as f32)?,
            scale: init.constant(out, 1.0)?,
            bias: init.constant(out, 0.0)?,
        })
    }
}

impl Module for Convolution {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, out) = (x.dim(0)?, self.bias.dim(0)?);
        let patches = x
            .index_select(&self.patches, 1)?
            .reshape(((), self.patch))?;
        let sums = patches.matmul(&self.weight)?.reshape((batch, (), out))?;
        standardise(&sums)?
            .broadcast_mul(&self.scale)?
            .broadcast_add(&self.bias)?
            .relu()
    }
}

/// Every `(row, column)` of a square.
fn grid(side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..side * side).map(move |i| (i / side, i % side))
}

/// Gives each image of the batch a mean of 0 and a deviation of 1: unlike batch normalisation,
/// it is the same in training and in use.
fn standardise(x: &Tensor) -> Result<Tensor> {
    let flat = x.flatten_from(1)?;
    let centred = flat.broadcast_sub(&flat.mean_keepdim(1)?)?;
    let deviation = (centred.sqr()?.mean_keepdim(1)? + EPSILON)?.sqrt()?;
    centred.broadcast_div(&deviation)?.reshape(x.shape())
}

/// Makes the variables, from a seed: candle's own generator cannot be seeded on the CPU.
struct Init<'a> {
    rng: Rng,
    device: &'a Device,
    variables: Vec<Var>,
}

impl<'a> Init<'a> {
    fn new(seed: u64, device: &'a Device) -> Self {
        let rng = Rng::new([seed, 0, 0]);
        Self {
            rng,
            device,
            variables: Vec::new(),
        }
    }

    fn uniform(&mut self, shape: &[usize], square_of_bound: f32) -> Result<Tensor> {
        let bound = square_of_bound.sqrt();
        let count = shape.iter().product();
        let values = (0..count)
            .map(|_| self.rng.between(-bound, bound))
            .collect();
        self.variable(values, shape)
    }

    fn constant(&mut self, count: usize, value: f32) -> Result<Tensor> {
        self.variable(vec![value; count], &[count])
    }

    fn variable(&mut self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        let variable = Var::from_vec(values, shape, self.device)?;
        self.variables.push(variable.clone());
        Ok(variable.as_tensor().clone())
    }
}

/// Trains a network with AdamW on a one-cycle schedule.
pub struct Trainer {
    optimizer: AdamW,
    step: usize,
    steps: usize,
}

impl Trainer {
    /// `steps` is how many steps there will be in all: the learning rate falls towards the last.
    pub fn new(network: &Network, steps: usize) -> Result<Self> {
        let optimizer = AdamW::new(network.variables.clone(), ParamsAdamW::default())?;
        Ok(Self {
            optimizer,
            step: 0,
            steps,
        })
    }

    /// Learns from one batch, and returns the loss, which stays on the device.
    pub fn step(&mut self, network: &Network, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        // The larger the batch, the more its gradient can be trusted.
        let peak = 9e-4 * (labels.dim(0)? as f64).sqrt();
        self.optimizer.set_learning_rate(peak * self.schedule());
        self.step += 1;
        let loss = loss::cross_entropy(&network.forward(images)?, labels)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss.detach())
    }

    /// A linear rise from 0 to 1 over the first fifth of the steps, then half a cosine down to 0.
    fn schedule(&self) -> f64 {
        const RISE: f64 = 0.2;
        let progress = (self.step as f64 + 0.5) / self.steps as f64;
        if progress < RISE {
            progress / RISE
        } else {
            0.5 + 0.5 * (PI * (progress - RISE) / (1.0 - RISE)).cos()
        }
    }
}
