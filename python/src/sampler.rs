//! Orders: the library's samplers, under torch's names.

use std::sync::Arc;

use pinfeed::sampler::{
    RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler,
};
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// An order of a data set's samples.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Sampler")]
pub(crate) struct PySampler(Arc<dyn Sampler>);

impl PySampler {
    pub(crate) fn shared(&self) -> Arc<dyn Sampler> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl PySampler {
    /// These indices, in this order, in each epoch.
    #[staticmethod]
    fn listed(indices: Vec<u64>) -> PySampler {
        PySampler(Arc::new(indices))
    }

    #[staticmethod]
    fn sequential(len: u64) -> PySampler {
        PySampler(Arc::new(SequentialSampler::new(len)))
    }

    #[staticmethod]
    fn random(len: u64, seed: u64, replacement: bool, num_samples: Option<u64>) -> PySampler {
        let mut sampler = RandomSampler::with_seed(len, seed);
        if replacement {
            sampler = sampler.with_replacement();
        }
        if let Some(num_samples) = num_samples {
            sampler = sampler.with_num_samples(num_samples);
        }
        PySampler(Arc::new(sampler))
    }

    #[staticmethod]
    fn subset(py: Python<'_>, indices: Vec<u64>, seed: u64) -> PyResult<PySampler> {
        let sampler = SubsetRandomSampler::new(indices, seed).or_raise(py)?;
        Ok(PySampler(Arc::new(sampler)))
    }

    #[staticmethod]
    fn weighted(
        py: Python<'_>,
        weights: Vec<f64>,
        num_samples: u64,
        replacement: bool,
        seed: u64,
    ) -> PyResult<PySampler> {
        let mut sampler = WeightedRandomSampler::new(&weights, num_samples, seed).or_raise(py)?;
        if !replacement {
            sampler = sampler.without_replacement().or_raise(py)?;
        }
        Ok(PySampler(Arc::new(sampler)))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// The indices of an epoch.
    fn indices(&self, epoch: u64) -> Vec<u64> {
        let len = usize::try_from(self.0.len()).unwrap_or(usize::MAX);
        let mut indices = vec![0; len];
        self.0.indices(epoch, 0, &mut indices);
        indices
    }
}
