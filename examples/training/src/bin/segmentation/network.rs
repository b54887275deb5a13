//! A small fully convolutional network: down to an eighth of the picture's size, and up again.

use candle_core::{Device, Module, Result, Tensor, Var};

use training::net::{Convolution, Init, Layer, normalise, spread};

pub struct Network {
    down: [Layer; 3],
    middle: Layer,
    up: [Layer; 2],
    classify: Convolution,
    pub variables: Vec<Var>,
}

impl Network {
    pub fn new(classes: usize, seed: u64, device: &Device) -> Result<Self> {
        let init = &mut Init::new(seed, device);
        Ok(Self {
            down: [
                Layer::new(init, [3, 16], 4, 2)?,
                Layer::new(init, [16, 32], 4, 2)?,
                Layer::new(init, [32, 128], 4, 2)?,
            ],
            middle: Layer::new(init, [128, 128], 3, 1)?,
            up: [
                Layer::new(init, [32 + 32, 64], 3, 1)?,
                Layer::new(init, [16 + 16, 32], 3, 1)?,
            ],
            classify: Convolution::new(init, [32, 4 * classes], 1, 1)?,
            variables: std::mem::take(&mut init.variables),
        })
    }

    /// Takes pictures as the loader makes them, `[N, H, W, 3]` bytes, and returns a score per pixel and class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let half = self.down[0].forward(&normalise(images)?)?;
        let quarter = self.down[1].forward(&half)?;
        let eighth = self.down[2].forward(&quarter)?;
        let x = self.middle.forward(&eighth)?;
        // On the way up, each resolution also gets the features from the way down.
        let x = self.up[0].forward(&Tensor::cat(&[spread(&x)?, quarter], 3)?)?;
        let x = self.up[1].forward(&Tensor::cat(&[spread(&x)?, half], 3)?)?;
        spread(&self.classify.forward(&x)?)
    }
}
