//! WebDataset tar shards: as data sets with an index, [`WebDataset`], or as streams that read each from its front, [`WebStream`].
//!
//! Shards are those that Python's [webdataset](https://github.com/webdataset/webdataset) and img2dataset write, or `tar`: files of one
//! name, up to its first dot, that follow each other are a sample, and what follows the dot names the field. They lie in a folder or in
//! an object store ([`store`](crate::store)), and stay as they are.
//!
//! ```
//! use pinfeed::webdataset::WebDataset;
//! use pinfeed::DataLoader;
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
//! let shards = WebDataset::open(&format!("{folder}/train-{{000000..000002}}.tar"))?;
//! let data = shards.build(|sample, _rng| Ok((sample.key().to_owned(), sample.number::<i64>("cls")?)))?;
//! assert_eq!(data.len(), 8);
//! let loader = DataLoader::builder(data).batch_size(8).shuffle(true).build()?;
//! # let _ = loader;
//! # Ok::<(), pinfeed::BoxError>(())
//! ```
//!
//! # The index
//!
//! An index says where each sample lies. It is made in one pass over the headers of the shards, which skips what lies between them, and can
//! be kept ([`keep_index`](WebDatasetBuilder::keep_index)). Or it is DALI's ([`dali_index`](WebDatasetBuilder::dali_index)). Whatever it
//! is from, each sample's headers are compared with it when the sample is read, so an index of other shards is an error.
//!
//! # What webdataset does, and this refuses
//!
//! Names, fields and members that are skipped are as in webdataset 1.0.2. These are errors here, because there they lose samples without a
//! word: a shard that is cut off, or has no end; a header whose checksum is wrong; a second archive behind the end of the first;
//! members of one key that do not follow each other, which are two samples there. Links are skipped as they are there, with a warning in
//! the log.
//!
//! Sparse members (`tar --sparse`) are not read: with an index, `build` refuses the shard; in a stream, a sample that has one among the fields that
//! are asked for is an error in its place. Names that are not UTF-8 are refused, too.
//!
//! # Streams
//!
//! Compressed shards (`.tar.gz`, `.tar.zst`) can be read from their front only. A [`WebStream`] does so, as an
//! [`IterableDataset`](crate::iterable::IterableDataset): shards in another order in each epoch, four at a time on each rank, samples shuffled by
//! windows, and resumed exactly, also by [other ranks](crate::DataLoader::hand_over). Its order depends on the number of ranks, and
//! ranks have different numbers of batches; so take an index where there can be one.

mod braces;
mod builder;
mod dali;
mod dataset;
mod error;
mod extent;
mod fields;
mod find;
mod index;
mod kept;
mod members;
mod names;
mod sample;
mod stream;
mod wids;
mod window;

pub use builder::WebDatasetBuilder;
pub use dataset::WebDataset;
pub use error::ShardError;
pub use extent::Extent;
pub use sample::WebSample;
pub use stream::{StreamedSample, WebStream, WebStreamIter};
