//! Rows of tables in device memory, chosen by their numbers.

#[cfg(feature = "cuda")]
use std::ffi::CStr;

use super::Kernel;
#[cfg(feature = "cuda")]
use super::{Argument, Launch, ptx};
#[cfg(feature = "cuda")]
use crate::tuning::{BLOCK_THREADS, ITEMS_PER_THREAD};

/// How many columns one kernel takes.
pub(crate) const COLUMNS: usize = 8;

/// How many numbers may be arguments of the kernel.
pub(crate) const FEW_ROWS: usize = 256;

/// How many threads a block has: it takes as many units of a row, or of several rows.
const THREADS: u64 = 256;

/// How many units of a long row a block takes.
const PIECE_UNITS: u64 = 1_024;

/// A column of a table, which of its rows, and where they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChosenColumn<'a> {
    pub(crate) numbers: &'a [i64],
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) row_bytes: usize,
}

/// Rows of some columns.
pub(crate) struct Choosing {
    /// The numbers of all columns' rows, as arguments of the kernel. `None`: each column names its list.
    few: Option<Box<[i64; FEW_ROWS]>>,
    groups: u64,
    columns: Columns,
}

/// As the kernel takes them.
type Columns = [Column; COLUMNS];

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Column {
    /// The list of its rows' numbers, in memory that the device reads.
    numbers: u64,
    /// How many numbers that has.
    count: u64,
    from: u64,
    to: u64,
    /// In a row, of `1 << shift` bytes each.
    units: u64,
    /// The number of groups in this column and those before.
    end: u64,
    /// In a row.
    pieces: u64,
    /// In a group.
    rows: u32,
    shift: u32,
}

impl Choosing {
    /// Of at most [`COLUMNS`] columns, the rows of their numbers. The device must be able to read the lists, which must stay as they are
    /// until it has.
    pub(crate) fn listed(columns: &[ChosenColumn<'_>]) -> Choosing {
        Choosing::new(None, columns)
    }

    /// The same for columns that have one list of at most [`FEW_ROWS`] numbers, which are copied: the list is not read after this returns.
    pub(crate) fn few(columns: &[ChosenColumn<'_>]) -> Choosing {
        let mut few = Box::new([0; FEW_ROWS]);
        let numbers = columns.first().map_or(&[][..], |column| column.numbers);
        few[..numbers.len()].copy_from_slice(numbers);
        Choosing::new(Some(few), columns)
    }

    fn new(few: Option<Box<[i64; FEW_ROWS]>>, columns: &[ChosenColumn<'_>]) -> Choosing {
        assert!(columns.len() <= COLUMNS);
        let mut groups = 0;
        let mut all = Columns::default();
        for (column, chosen) in all.iter_mut().zip(columns) {
            let (bytes, count) = (chosen.row_bytes as u64, chosen.numbers.len() as u64);
            let shift = (chosen.from | chosen.to | bytes).trailing_zeros().min(4);
            let units = bytes >> shift;
            let (in_group, pieces) = (
                THREADS / units.clamp(1, THREADS),
                units.div_ceil(PIECE_UNITS),
            );
            groups += count.div_ceil(in_group) * pieces;
            *column = Column {
                numbers: chosen.numbers.as_ptr() as u64,
                count,
                from: chosen.from,
                to: chosen.to,
                units,
                end: groups,
                pieces: pieces.max(1),
                rows: in_group as u32,
                shift,
            };
        }
        // No group is behind the last column's.
        all[columns.len()..].fill(Column {
            end: groups,
            ..Column::default()
        });
        Choosing {
            few,
            groups,
            columns: all,
        }
    }

    /// Whether there is nothing to copy.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups == 0
    }
}

impl Kernel for Choosing {
    unsafe fn run(&self) {
        for column in &self.columns {
            let bytes = (column.units as usize) << column.shift;
            let numbers = match &self.few {
                Some(few) => few.as_ptr(),
                None => column.numbers as *const i64,
            };
            for row in 0..column.count as usize {
                // SAFETY: the caller's contract: there are as many numbers as rows.
                let number = unsafe { numbers.add(row).read() };
                let from = (column.from as usize).wrapping_add(number as usize * bytes);
                let to = (column.to as usize).wrapping_add(row * bytes);
                // SAFETY: likewise: both rows are valid, and nothing else uses the target's.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn launch(&self) -> Launch<'_> {
        let groups = Argument::new(&self.groups);
        let columns = Argument::new(&self.columns);
        let (function, arguments) = match &self.few {
            None => (c"pinfeed_rows", vec![groups, columns]),
            Some(few) => (
                c"pinfeed_few_rows",
                vec![Argument::new(&**few), groups, columns],
            ),
        };
        Launch {
            purpose: "gathering a table's rows",
            ptx: PTX,
            function,
            items: self
                .groups
                .saturating_mul(u64::from(BLOCK_THREADS) * ITEMS_PER_THREAD),
            arguments,
        }
    }
}

/// The kernels, made from rows.cu by `nvcc -ptx`.
#[cfg(feature = "cuda")]
const PTX: &CStr = ptx(concat!(include_str!("../cuda/rows.ptx"), "\0"));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// As the kernel finds its work: each unit of each row is one group's.
        #[test]
        fn groups_cover_each_unit_once(
            columns in proptest::collection::vec((0u64..3, 0usize..5_000, 0usize..400), 1..=COLUMNS),
        ) {
            let (mut to, list) = (1 << 20, [0; 400]);
            let chosen: Vec<ChosenColumn> = columns
                .iter()
                .map(|(offset, row_bytes, rows)| {
                    to += 1 << 30;
                    ChosenColumn { numbers: &list[..*rows], from: 64 + offset * 4, to, row_bytes: *row_bytes }
                })
                .collect();
            let choosing = Choosing::listed(&chosen);
            let mut seen: Vec<Vec<u32>> = choosing
                .columns
                .iter()
                .map(|column| vec![0; (column.count * column.units) as usize])
                .collect();
            for group in 0..choosing.groups {
                let (mut index, mut start) = (0, 0);
                for next in 1..COLUMNS {
                    if group >= choosing.columns[next - 1].end {
                        (index, start) = (next, choosing.columns[next - 1].end);
                    }
                }
                let column = &choosing.columns[index];
                let first = (group - start) / column.pieces * u64::from(column.rows);
                let unit = (group - start) % column.pieces * PIECE_UNITS;
                let count = u64::from(column.rows).min(column.count - first);
                let width = (column.units - unit).min(PIECE_UNITS);
                prop_assert!(count <= THREADS, "the numbers of a group fit");
                for row in first..first + count {
                    for at in unit..unit + width {
                        seen[index][(row * column.units + at) as usize] += 1;
                    }
                }
            }
            for (column, (seen, (_, row_bytes, _))) in choosing.columns.iter().zip(seen.iter().zip(&columns)) {
                prop_assert_eq!(column.units << column.shift, *row_bytes as u64);
                prop_assert_eq!((column.from | column.to | *row_bytes as u64) % (1 << column.shift), 0);
                prop_assert!(seen.iter().all(|times| *times == 1));
            }
        }
    }
}
