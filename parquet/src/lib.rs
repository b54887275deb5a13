//! Parquet files as data sets of [pinfeed]: [`Parquet`].
//!
//! Files are those that pyarrow, Python's `datasets`, Spark, DuckDB and Polars write. They lie in a folder, in an object store
//! ([`store`](pinfeed::store)), or in the cache of the Hugging Face hub's programs, and stay as they are: nothing is converted, and nothing is
//! downloaded that an epoch does not use.
//!
//! ```
//! use pinfeed::DataLoader;
//! use pinfeed_parquet::Parquet;
//!
//! # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
//! let data = Parquet::open(file)?.columns(["tokens", "id"]).build(|row, _rng| {
//!     Ok((row.get::<pinfeed::Ragged<i32>>("tokens")?, row.get::<i64>("id")?))
//! })?;
//! let loader = DataLoader::builder(data).batch_size(4).shuffle(true).build()?;
//! # let _ = loader;
//! # Ok::<(), pinfeed::BoxError>(())
//! ```
//!
//! # What is read at once
//!
//! A row group: of the chosen columns only, with ranges that lie near each other in one request. If the file has a page index
//! (`write_page_index=True` in pyarrow; `datasets` and arrow-rs write one by default), a large row group is read in parts, which begin where
//! pages do. Without one, it is read whole: so many bytes are in memory for each block that is open.
//!
//! # Types
//!
//! [`Value`] says what a column can be taken for. Columns are numbers, `bool`, text, bytes, decimals of up to 38 digits, dates, times and
//! timestamps, in lists and structures and maps of any depth; dictionaries are no types, but a way to store. Intervals and longer
//! decimals are refused, with the column's name and type, where they are chosen. A column with no values at all, which has the type
//! `null`, is like any other in other files. Timestamps of 96 bits, as Spark and Impala write them, are read in microseconds: digits behind these are left
//! out, and years may be any (in nanoseconds, 64 bits hold 1677 to 2262).
//!
//! Files of one data set have the same type for a column: `build` names the first file that has another, the column, and both types.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod column;
mod dataset;
mod error;
mod filter;
mod find;
mod footer;
mod hub;
mod kind;
mod numbers;
mod parallel;
#[cfg(feature = "image")]
mod picture;
mod plan;
mod row;
mod table;
mod value;
mod write;

pub use builder::ParquetBuilder;
pub use dataset::{Parquet, Rows};
pub use error::ParquetError;
pub use filter::{Filter, Scalar};
pub use numbers::{NumberFields, NumberRows, Numbers, ParquetNumbers};
pub use row::Row;
pub use value::Value;
