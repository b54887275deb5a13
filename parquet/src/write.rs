//! Columns of numbers as rows of a tensor.

use crate::plan::Batch;
use crate::value::{Misfit, Value};

/// How many rows are written at once: they stay in the cache while all of their columns are.
const AT_ONCE: usize = 256;

/// Writes these columns of a batch where its rows lie in `values`, one row behind the other; there is at least one column. It calls `bad` with the
/// row in its batch and the column of each value that does not fit, whose place is left as it was. If that returns an error, nothing more is written.
pub(crate) fn write_rows<T: Value, E>(
    batch: &Batch,
    columns: &[usize],
    values: &mut [T],
    mut bad: impl FnMut(usize, usize, Misfit) -> Result<(), E>,
) -> Result<(), E> {
    let width = columns.len();
    let from = (batch.first * width).min(values.len());
    let to = (from + batch.rows * width).min(values.len());
    let values = values[from..to].chunks_mut(AT_ONCE * width);
    for (first, values) in (0..batch.rows).step_by(AT_ONCE).zip(values) {
        for (at, column) in columns.iter().enumerate() {
            let (mut first, mut values) = (first, &mut *values);
            // (It stops at a value that does not fit.)
            while let Err((row, misfit)) =
                T::write(&batch.columns[*column], first, at, width, values)
            {
                bad(row, *column, misfit)?;
                values = &mut values[(row + 1 - first) * width..];
                first = row + 1;
            }
        }
    }
    Ok(())
}
