//! Files of arrays and of tokens, as tensors and data sets: `.npy`, `.npz`, safetensors, MNIST's IDX, CIFAR's binary files, CSV, and the
//! token files of nanoGPT and Megatron (feature `arrays`).
//!
//! | file | what reads it | what it becomes |
//! | --- | --- | --- |
//! | `.npy` (versions 1 to 3) | [`npy`](fn@npy) | an [`Array`] |
//! | `.npz` (stored or deflated) | [`npz`](fn@npz) | [`Arrays`], by name |
//! | safetensors | [`safetensors`](fn@safetensors) | [`Arrays`], by name |
//! | IDX, as MNIST has it (also `.gz`) | [`idx`](fn@idx) | an [`Array`] |
//! | CIFAR-10 and CIFAR-100, "binary version" | [`cifar10`], [`cifar100`] | tensors: `[n, 32, 32, 3]` and the labels |
//! | CSV with a line of names | [`csv`](fn@csv) | a [`CsvTable`], whose columns of numbers become tensors by name |
//! | tokens one behind the other (nanoGPT's `.bin`) | [`TokenFile::raw`] | [`Windows`], documents |
//! | Megatron's `.bin` and `.idx` | [`TokenFile::megatron`] | [`Windows`], documents |
//!
//! Tensors of equally many rows are a [`TensorDataset`](crate::TensorDataset), which shuffles, splits and resumes as any other.
//!
//! # Read or mapped
//!
//! Each of these functions takes a path, and then reads the file into memory: that is safe, and what a
//! program should begin with. Or it takes [`FileBytes`], which are read ([`FileBytes::read`]), memory-mapped ([`FileBytes::map`], which is
//! `unsafe`: the file must not change), or had from elsewhere ([`FileBytes::new`]), and page-locked if asked ([`FileBytes::register`]), so
//! that the device gathers rows from them.
//!
//! Numbers are used where they lie in the file. They are copied once, into memory, if the file has them compressed, in the other byte
//! order, or at an address where their type cannot begin ([`Array::is_in_place`]).
//!
//! # Errors
//!
//! Headers are not believed: a file that is cut off, or whose header says what is not there, is an error that names the file and what is
//! wrong, before memory is taken for it. The parsers are fuzzed (`ci/fuzz.sh`).
//!
//! # Examples
//!
//! ```
//! use pinfeed::{DataLoader, TensorDataset, arrays};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("table.safetensors");
//! # let header = r#"{"x":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},"y":{"dtype":"I64","shape":[4],"data_offsets":[32,64]}}"#;
//! # let header = format!("{header:<120}");
//! # let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! # file.extend(header.bytes());
//! # file.extend((0..8u8).flat_map(|x| f32::from(x).to_le_bytes()));
//! # file.extend((0..4i64).flat_map(i64::to_le_bytes));
//! # std::fs::write(&path, file)?;
//! let table = arrays::safetensors(path)?;
//! let table = TensorDataset::new((table.tensor::<f32>("x")?, table.tensor::<i64>("y")?))?;
//! let loader = DataLoader::builder(table).batch_size(2).shuffle(true).build()?;
//! for batch in &loader {
//!     let (x, y) = batch?;
//!     assert_eq!((&x.shape()[..], &y.shape()[..]), (&[2, 2][..], &[2][..]));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// `file.rs` has the bytes, `array.rs` what makes tensors of a part of them; each format has a file of its own, which only finds out where
// what lies. `cursor.rs` reads numbers of a header, `inflate.rs` decompresses.

mod array;
mod cifar;
mod csv;
mod cursor;
#[expect(unsafe_code, reason = "it maps files into memory")]
mod file;
mod idx;
mod inflate;
mod npy;
mod npz;
mod safetensors;
mod shown;
mod tokens;

pub use array::{Array, Arrays};
pub use cifar::{cifar10, cifar100};
pub use csv::{CsvTable, csv};
pub use file::{FileBytes, IntoFileBytes};
pub use idx::idx;
pub use npy::npy;
pub use npz::npz;
pub use safetensors::safetensors;
pub use tokens::{Token, TokenDocuments, TokenFile, WideWindows, Windows};
