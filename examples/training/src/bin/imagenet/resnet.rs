//! ResNets (He and others, "Deep residual learning for image recognition", 2016), as in torchvision, with candle.

use std::mem;
use std::str::FromStr;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{BatchNorm, Linear, Module, ModuleT};

use training::net::{Convolution, Init, Patches};

#[derive(Clone, Copy)]
pub enum Arch {
    ResNet18,
    ResNet50,
}

impl FromStr for Arch {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        match name {
            "resnet18" => Ok(Self::ResNet18),
            "resnet50" => Ok(Self::ResNet50),
            _ => Err(()),
        }
    }
}

impl Arch {
    /// How many blocks each of the four stages has.
    fn blocks(self) -> [usize; 4] {
        match self {
            Self::ResNet18 => [2, 2, 2, 2],
            Self::ResNet50 => [3, 4, 6, 3],
        }
    }

    /// The convolutions of a block: channels, side of the kernel, and stride.
    fn convolutions(self, width: usize, stride: usize) -> Vec<(usize, usize, usize)> {
        match self {
            Self::ResNet18 => vec![(width, 3, stride), (width, 3, 1)],
            Self::ResNet50 => vec![(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)],
        }
    }
}

pub struct ResNet {
    stem: Normed,
    pool: Patches,
    blocks: Vec<Block>,
    classify: Linear,
    /// The parameters of normalisations. `weights` has all others.
    pub norms: Vec<Var>,
    pub weights: Vec<Var>,
}

impl ResNet {
    pub fn new(
        arch: Arch,
        width: usize,
        classes: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut init = Init::new(seed, device);
        let stem = Normed::new(&mut init, [3, width], 7, 2)?;
        let mut channels = width;
        let mut blocks = Vec::new();
        for (stage, count) in arch.blocks().into_iter().enumerate() {
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let convolutions = arch.convolutions(width << stage, stride);
                blocks.push(Block::new(&mut init, &mut channels, stride, &convolutions)?);
            }
        }
        let variables = mem::take(&mut init.variables);
        let (norms, mut weights): (Vec<_>, Vec<_>) =
            variables.into_iter().partition(|var| var.rank() == 1);
        let weight = init.uniform(&[classes, channels], 1.0 / channels as f32)?;
        let bias = init.constant(classes, 0.0)?;
        weights.extend(init.variables);
        Ok(Self {
            stem,
            pool: Patches::new(3, 2),
            blocks,
            classify: Linear::new(weight, Some(bias)),
            norms,
            weights,
        })
    }

    /// Takes normalised pictures, `[N, H, W, 3]`, and returns a score per picture and class.
    pub fn forward(&self, images: &Tensor, training: bool) -> Result<Tensor> {
        let x = self.stem.forward_t(images, training)?.relu()?;
        // No value is below 0, so the zeros around the picture are never the only maximum.
        let mut x = self.pool.forward(&x)?.max(3)?;
        for block in &self.blocks {
            x = block.forward_t(&x, training)?;
        }
        self.classify.forward(&x.flatten(1, 2)?.mean(1)?)
    }
}

/// A few convolutions, whose input is added to their result.
struct Block {
    path: Vec<Normed>,
    shortcut: Option<Normed>,
}

impl Block {
    fn new(
        init: &mut Init,
        channels: &mut usize,
        stride: usize,
        convolutions: &[(usize, usize, usize)],
    ) -> Result<Self> {
        let before = *channels;
        let mut path = Vec::new();
        for &(out, kernel, stride) in convolutions {
            path.push(Normed::new(init, [*channels, out], kernel, stride)?);
            *channels = out;
        }
        let shortcut = if stride == 1 && before == *channels {
            None
        } else {
            Some(Normed::new(init, [before, *channels], 1, stride)?)
        };
        Ok(Self { path, shortcut })
    }
}

impl ModuleT for Block {
    fn forward_t(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        let mut sum = match &self.shortcut {
            Some(shortcut) => shortcut.forward_t(x, training)?,
            None => x.clone(),
        };
        let mut y = x.clone();
        for (index, layer) in self.path.iter().enumerate() {
            let before = if index == 0 { y } else { y.relu()? };
            y = layer.forward_t(&before, training)?;
        }
        sum = (sum + y)?;
        sum.relu()
    }
}

/// A convolution and a batch normalisation.
struct Normed {
    convolution: Convolution,
    norm: BatchNorm,
}

impl Normed {
    fn new(init: &mut Init, channels: [usize; 2], kernel: usize, stride: usize) -> Result<Self> {
        let convolution = Convolution::new(init, channels, kernel, stride)?;
        let out = channels[1];
        let norm = BatchNorm::new(
            out,
            Tensor::zeros(out, DType::F32, init.device)?,
            Tensor::ones(out, DType::F32, init.device)?,
            init.constant(out, 1.0)?,
            init.constant(out, 0.0)?,
            1e-5,
        )?;
        Ok(Self { convolution, norm })
    }
}

impl ModuleT for Normed {
    fn forward_t(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        let x = self.convolution.forward(x)?;
        // candle normalises the second dimension.
        let flat = x.flatten_to(2)?;
        self.norm.forward_t(&flat, training)?.reshape(x.shape())
    }
}
