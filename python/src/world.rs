//! Ranks.

use pinfeed::loader::World;
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// (rank, number of ranks), as the launcher's variables say.
#[pyfunction]
pub(crate) fn world_from_env(py: Python<'_>) -> PyResult<(usize, usize)> {
    let world = World::from_env().or_raise(py)?;
    Ok((world.rank(), world.size()))
}
