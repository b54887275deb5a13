//! What is saved: where the data stands, which is the same for any number of ranks, and the weights.

use std::path::Path;
use std::{fs, io};

use pinfeed::BoxError;
use pinfeed::loader::LoaderState;

use crate::model::Shape;

/// A line of text, which is the loader's state, and behind it the weights, as little-endian `f32`.
pub(crate) struct Checkpoint {
    pub(crate) state: LoaderState,
    pub(crate) weights: Vec<f32>,
}

impl Checkpoint {
    /// `None`: there is no such file.
    pub(crate) fn read(file: &Path) -> Result<Option<Checkpoint>, BoxError> {
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", file.display()).into()),
        };
        let broken = || format!("{} is no checkpoint of this program", file.display());
        let end = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or_else(broken)?;
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        let line = std::str::from_utf8(line).map_err(|_| broken())?;
        let state = line.parse();
        let state = state.map_err(|error| format!("{}: {error}", file.display()))?;
        let (numbers, left) = rest.as_chunks::<4>();
        if !left.is_empty() {
            return Err(broken().into());
        }
        let weights = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Ok(Some(Checkpoint {
            state,
            weights: weights.collect(),
        }))
    }

    /// Replaces the file as a whole: a run that is killed here leaves the old one or the new one.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let mut bytes = format!("{}\n", self.state).into_bytes();
        bytes.extend(self.weights.iter().flat_map(|weight| weight.to_le_bytes()));
        let new = file.with_extension("new");
        fs::write(&new, bytes)?;
        fs::rename(new, file)
    }

    pub(crate) fn weights_of(&self, shape: Shape) -> Result<Vec<f32>, BoxError> {
        if self.weights.len() != shape.weights() {
            let (found, wanted) = (self.weights.len(), shape.weights());
            let what = format!("the checkpoint has {found} weights, and the model {wanted}");
            return Err(format!("{what}: is --classes what it was?").into());
        }
        Ok(self.weights.clone())
    }
}
