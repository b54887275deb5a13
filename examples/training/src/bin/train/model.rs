//! A small convolutional network, with candle.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{Linear, Module};

use training::net::{Init, Layer, normalise};

/// The network takes images of `SIDE` x `SIDE` pixels.
pub const SIDE: usize = 32;

/// Channels, side of the kernel, and stride of each layer.
const LAYERS: [(usize, usize, usize); 4] = [(16, 4, 2), (32, 4, 2), (32, 3, 1), (64, 3, 1)];

pub struct Network {
    layers: Vec<Layer>,
    classify: Linear,
    pub variables: Vec<Var>,
}

impl Network {
    pub fn new(classes: usize, seed: u64, device: &Device) -> Result<Self> {
        let mut init = Init::new(seed, device);
        let mut channels = 3;
        let mut layers = Vec::new();
        for (out, kernel, stride) in LAYERS {
            layers.push(Layer::new(&mut init, [channels, out], kernel, stride)?);
            channels = out;
        }
        let weight = init.uniform(&[classes, channels], 1.0 / channels as f32)?;
        let bias = init.constant(classes, 0.0)?;
        Ok(Self {
            layers,
            classify: Linear::new(weight, Some(bias)),
            variables: init.variables,
        })
    }

    /// Takes a batch of images as the loader makes it, `[N, H, W, 3]` bytes, and returns a score per image and class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = normalise(images)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.classify.forward(&x.flatten(1, 2)?.max(1)?)
    }

    /// Counts the images whose highest score is that of the right class.
    pub fn correct(&self, images: &Tensor, labels: &Tensor) -> Result<usize> {
        let classes = self
            .forward(images)?
            .argmax(D::Minus1)?
            .to_dtype(labels.dtype())?;
        let correct = classes.eq(labels)?.to_dtype(DType::U32)?.sum_all()?;
        Ok(correct.to_scalar::<u32>()? as usize)
    }
}
