//! The parts of small convolutional networks, with candle. Pictures are `[N, H, W, C]`, as they are decoded.

use std::cell::RefCell;
use std::f64::consts::PI;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

use crate::rng::Rng;

const EPSILON: f64 = 1e-3;

/// The pixels of pictures below a window at each of its positions; zeros outside the picture.
pub struct Patches {
    side: usize,
    stride: usize,
    /// The indices of these pixels, for pictures of the size that was seen last.
    known: RefCell<Option<([usize; 2], Tensor)>>,
}

impl Patches {
    pub fn new(side: usize, stride: usize) -> Self {
        Self {
            side,
            stride,
            known: RefCell::new(None),
        }
    }

    /// Turns `[N, height, width, C]` into `[N, H, W, side * side, C]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, height, width, channels) = x.dims4()?;
        let padding = (self.side - 1) / 2;
        let [rows, columns] =
            [height, width].map(|length| (length + 2 * padding - self.side) / self.stride + 1);
        let x = x.contiguous()?.flatten(1, 2)?;
        let patches = match (self.side, self.stride) {
            (1, 1) => x,
            _ => {
                let pixels = self.pixels([height, width], [rows, columns], x.device())?;
                x.index_select(&pixels, 1)?
            }
        };
        patches.reshape((batch, rows, columns, self.side * self.side, channels))
    }

    fn pixels(&self, size: [usize; 2], positions: [usize; 2], device: &Device) -> Result<Tensor> {
        let mut known = self.known.borrow_mut();
        if let Some((known, pixels)) = &*known
            && *known == size
        {
            return Ok(pixels.clone());
        }
        let padding = (self.side - 1) / 2;
        let inside = |i: usize, length| i.checked_sub(padding).filter(|i| *i < length);
        let [height, width] = size;
        let mut pixels = Vec::new();
        for (top, left) in grid(positions) {
            for (y, x) in grid([self.side; 2]) {
                let y = inside(top * self.stride + y, height);
                let x = inside(left * self.stride + x, width);
                pixels.push(match (y, x) {
                    (Some(y), Some(x)) => (y * width + x) as u32,
                    _ => u32::MAX, // gathers a zero
                });
            }
        }
        let pixels = Tensor::new(pixels, device)?;
        *known = Some((size, pixels.clone()));
        Ok(pixels)
    }
}

/// A convolution: gathers the pixels below each position of the kernel, and does the rest in one matrix product. On the
/// CPU, its backward pass takes a third of the time of `candle_nn::Conv2d`'s.
pub struct Convolution {
    patches: Patches,
    weight: Tensor,
}

impl Convolution {
    pub fn new(
        init: &mut Init,
        [channels, out]: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<Self> {
        let patch = kernel * kernel * channels;
        Ok(Self {
            patches: Patches::new(kernel, stride),
            weight: init.uniform(&[patch, out], 6.0 / patch as f32)?,
        })
    }
}

impl Module for Convolution {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let patches = self.patches.forward(x)?;
        let (batch, rows, columns, _, _) = patches.dims5()?;
        let sums = patches
            .reshape(((), self.weight.dim(0)?))?
            .matmul(&self.weight)?;
        sums.reshape((batch, rows, columns, ()))
    }
}

/// Convolution, normalisation and ReLU.
pub struct Layer {
    convolution: Convolution,
    scale: Tensor,
    bias: Tensor,
}

impl Layer {
    pub fn new(
        init: &mut Init,
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<Self> {
        Ok(Self {
            convolution: Convolution::new(init, channels, kernel, stride)?,
            scale: init.constant(channels[1], 1.0)?,
            bias: init.constant(channels[1], 0.0)?,
        })
    }
}

impl Module for Layer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        standardise(&self.convolution.forward(x)?)?
            .broadcast_mul(&self.scale)?
            .broadcast_add(&self.bias)?
            .relu()
    }
}

/// Every `(row, column)`.
fn grid([height, width]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> {
    (0..height * width).map(move |i| (i / width, i % width))
}

/// Turns bytes `[N, H, W, 3]` into numbers around 0.
pub fn normalise(images: &Tensor) -> Result<Tensor> {
    let pixels = images.flatten(1, 2)?.to_dtype(DType::F32)?;
    // The mean colour of an image says nothing about the shapes in it.
    let pixels = standardise(&pixels.broadcast_sub(&pixels.mean_keepdim(1)?)?)?;
    pixels.reshape(images.shape())
}

/// Gives each image of the batch a mean of 0 and a deviation of 1. Unlike batch normalisation, this is the same in
/// training and in inference.
fn standardise(x: &Tensor) -> Result<Tensor> {
    let flat = x.flatten_from(1)?;
    let centred = flat.broadcast_sub(&flat.mean_keepdim(1)?)?;
    let deviation = (centred.sqr()?.mean_keepdim(1)? + EPSILON)?.sqrt()?;
    centred.broadcast_div(&deviation)?.reshape(x.shape())
}

/// Turns each pixel into four with a quarter of its channels: `[N, H, W, 4 * C]` becomes `[N, 2 * H, 2 * W, C]`.
pub fn spread(x: &Tensor) -> Result<Tensor> {
    let (batch, height, width, channels) = x.dims4()?;
    x.reshape(&[batch, height, width, 2, 2, channels / 4][..])?
        .permute([0, 1, 3, 2, 4, 5])?
        .contiguous()?
        .reshape((batch, 2 * height, 2 * width, channels / 4))
}

/// Makes the variables, from a seed: candle's own generator cannot be seeded on the CPU.
pub struct Init<'a> {
    rng: Rng,
    pub device: &'a Device,
    pub variables: Vec<Var>,
}

impl<'a> Init<'a> {
    pub fn new(seed: u64, device: &'a Device) -> Self {
        let rng = Rng::new([seed, 0, 0]);
        Self {
            rng,
            device,
            variables: Vec::new(),
        }
    }

    pub fn uniform(&mut self, shape: &[usize], square_of_bound: f32) -> Result<Tensor> {
        let bound = square_of_bound.sqrt();
        let count = shape.iter().product();
        let values = (0..count)
            .map(|_| self.rng.between(-bound, bound))
            .collect();
        self.variable(values, shape)
    }

    pub fn constant(&mut self, count: usize, value: f32) -> Result<Tensor> {
        self.variable(vec![value; count], &[count])
    }

    fn variable(&mut self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        let variable = Var::from_vec(values, shape, self.device)?;
        self.variables.push(variable.clone());
        Ok(variable.as_tensor().clone())
    }
}

/// Trains variables with AdamW on a one-cycle schedule.
pub struct Trainer {
    optimizer: AdamW,
    peak: f64,
    step: usize,
    steps: usize,
}

impl Trainer {
    /// `steps` is the total number of steps: the learning rate falls towards the last.
    pub fn new(variables: &[Var], batch_size: usize, steps: usize) -> Result<Self> {
        Ok(Self {
            optimizer: AdamW::new(variables.to_vec(), ParamsAdamW::default())?,
            // The larger the batch, the more reliable its gradient.
            peak: 9e-4 * (batch_size as f64).sqrt(),
            step: 0,
            steps,
        })
    }

    /// Takes one step against the gradient of the loss.
    pub fn step(&mut self, loss: &Tensor) -> Result<()> {
        self.optimizer
            .set_learning_rate(self.peak * self.schedule());
        self.step += 1;
        self.optimizer.backward_step(loss)
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
