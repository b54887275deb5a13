//! Stochastic gradient descent with momentum, and the learning rate schedule.

use std::f64::consts::PI;

use candle_core::{Result, Tensor, Var};

const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 2e-5;

/// PyTorch's `SGD`. (candle's has no momentum.)
pub struct Sgd {
    parameters: Vec<Parameter>,
}

struct Parameter {
    variable: Var,
    weight_decay: f64,
    velocity: Option<Tensor>,
}

impl Sgd {
    /// Weight decay applies to the weights, but not to the parameters of normalisations.
    pub fn new(weights: &[Var], norms: &[Var]) -> Self {
        let parameter = |variable: &Var, weight_decay| Parameter {
            variable: variable.clone(),
            weight_decay,
            velocity: None,
        };
        let weights = weights.iter().map(|var| parameter(var, WEIGHT_DECAY));
        let norms = norms.iter().map(|var| parameter(var, 0.0));
        Self {
            parameters: weights.chain(norms).collect(),
        }
    }

    pub fn step(&mut self, loss: &Tensor, learning_rate: f64) -> Result<()> {
        let gradients = loss.backward()?;
        for parameter in &mut self.parameters {
            let Some(gradient) = gradients.get(&parameter.variable) else {
                continue;
            };
            let weight = parameter.variable.as_detached_tensor();
            let mut change = gradient.detach();
            if parameter.weight_decay > 0.0 {
                change = (change + (&weight * parameter.weight_decay)?)?;
            }
            if let Some(velocity) = &parameter.velocity {
                change = (change + (velocity * MOMENTUM)?)?;
            }
            parameter
                .variable
                .set(&(weight - (&change * learning_rate)?)?)?;
            parameter.velocity = Some(change);
        }
        Ok(())
    }
}

/// Over the first five epochs (or half of them, if there are fewer than ten) the rate rises from a hundredth of the
/// maximum to the maximum. Then it falls to 0 along half a cosine. The reference changes it per epoch; this one per
/// step.
pub struct Schedule {
    highest: f64,
    rise: f64,
    steps: f64,
    step: f64,
}

impl Schedule {
    pub fn new(highest: f64, epochs: usize, steps_per_epoch: usize) -> Self {
        let rise = (epochs as f64 / 2.0).min(5.0);
        Self {
            highest,
            rise: rise * steps_per_epoch as f64,
            steps: (epochs * steps_per_epoch) as f64,
            step: 0.0,
        }
    }

    /// The learning rate of the next step.
    pub fn next(&mut self) -> f64 {
        let step = self.step;
        self.step += 1.0;
        if step < self.rise {
            self.highest * (0.01 + 0.99 * step / self.rise)
        } else {
            let fallen = (step - self.rise) / (self.steps - self.rise);
            self.highest * (0.5 + 0.5 * (PI * fallen).cos())
        }
    }
}
