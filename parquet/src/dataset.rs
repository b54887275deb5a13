//! Files as a data set: [`Parquet`].

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use pinfeed::dataset::{BlockSource, Blocked, Fingerprint, IntoDataset};
use pinfeed::sampler::Blocks;
use pinfeed::store::Store;
use pinfeed::{BoxError, Result, SampleRng};

use crate::builder::{ParquetBuilder, of_source};
use crate::find::{self, Named};
use crate::hub;
use crate::kind::Leaf;
use crate::plan::{Batch, File, Group};
use crate::row::Row;

type Read<T> = dyn Fn(Row<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync;

/// The rows of Parquet files.
///
/// Row groups are read at once, or parts of large ones, and shuffled by these: it is a [`BlockSource`].
/// [`DataLoader::builder`](pinfeed::DataLoader::builder) takes it as it is; for the number of requests in flight and their memory, put it into a
/// [`Blocked`]. It knows its length, has one order over all files, and is resumed exactly, on other numbers of ranks, too. Clones share the
/// footers.
///
/// A row group is decoded once, by the thread that has fetched it; a worker takes rows out of it.
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed_parquet::Parquet;
///
/// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
/// let files = Parquet::open(file)?; // or "folder/", "train-*.parquet", "s3://bucket/train/"
/// let data = files.columns(["a", "id"]).build(|row, _rng| {
///     Ok((row.get::<f32>("a")?, row.get::<i64>("id")?))
/// })?;
/// let loader = DataLoader::builder(data).batch_size(4).shuffle(true).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (a, ids) = batch?;
///     assert_eq!(a.shape(), ids.shape());
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct Parquet<T> {
    inner: Arc<Inner>,
    read: Arc<Read<T>>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) files: Vec<File>,
    pub(crate) groups: Vec<Group>,
    /// The index of each group's first sample, and the number of samples.
    pub(crate) starts: Vec<u64>,
    pub(crate) blocks: Arc<Blocks>,
    /// The columns: those of the files, and then those of their folders.
    pub(crate) names: Vec<String>,
    pub(crate) leaves: Vec<Leaf>,
    /// Where those columns are that were asked for, in that order.
    pub(crate) asked: Vec<usize>,
    /// What was set that decides which samples there are, and their order.
    pub(crate) said: String,
}

impl Inner {
    /// Which group has the sample at `index`, and its number in there.
    fn locate(&self, index: u64) -> Option<(usize, u64)> {
        let behind = self.starts.partition_point(|start| *start <= index);
        let group = behind.checked_sub(1)?;
        self.groups.get(group)?;
        Some((group, index - self.starts[group]))
    }

    /// Which columns these names stand for: that of a structure, for all of its fields.
    pub(crate) fn columns_of(&self, names: &[String]) -> Vec<usize> {
        let of_name = |name: &String| {
            let is_of = |own: &String| {
                let rest = own.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let own = self.names.iter().enumerate();
            let own = own.filter(|(_, own)| is_of(own));
            own.map(|(at, _)| at).collect::<Vec<_>>()
        };
        names.iter().flat_map(of_name).collect()
    }

    /// [`BlockSource::block_bytes`].
    pub(crate) fn block_bytes(&self, samples: &Range<u64>) -> usize {
        let Some((group, samples)) = self.within(samples) else {
            return 0;
        };
        let group = &self.groups[group];
        let bytes = group.bytes(&self.files[group.file], &self.leaves, &samples);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// As many as the store wants of blocks of this size ([`Store::in_flight`]).
    pub(crate) fn in_flight(&self) -> usize {
        let bytes = self.groups.iter().map(|group| group.stored);
        let bytes = bytes.fold(0, u64::saturating_add);
        self.store.in_flight(bytes / self.blocks.len().max(1))
    }

    pub(crate) fn describe(&self, index: u64) -> Option<String> {
        let (group, sample) = self.locate(index)?;
        let group = &self.groups[group];
        let row = group.row + group.row_of(sample);
        let key = &self.files[group.file].object.key;
        Some(format!("{key}: row {row}"))
    }

    /// Of the files' names, lengths and numbers of samples, of the filters, and of the size of blocks.
    pub(crate) fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add(self.said.as_bytes());
        print.add_number(self.blocks.len());
        for (file, (key, samples)) in self.files.iter().zip(self.samples_of_files()) {
            print.add(key.as_bytes());
            print.add_number(file.object.bytes);
            print.add_number(samples);
        }
        print.finish()
    }

    /// The files' keys in their store, and how many samples each has.
    pub(crate) fn samples_of_files(&self) -> impl Iterator<Item = (&str, u64)> {
        let mut samples = vec![0; self.files.len()];
        for group in &self.groups {
            samples[group.file] += group.samples();
        }
        let keys = self.files.iter().map(|file| file.object.key.as_str());
        keys.zip(samples)
    }

    pub(crate) fn no_row(&self, index: u64) -> BoxError {
        let len = self.blocks.samples();
        format!("there is no sample {index}: the files have {len}").into()
    }

    pub(crate) fn within(&self, samples: &Range<u64>) -> Option<(usize, Range<u64>)> {
        let (group, first) = self.locate(samples.start)?;
        let count = samples.end.checked_sub(samples.start)?;
        (first + count <= self.groups[group].samples()).then(|| (group, first..first + count))
    }
}

/// Rows that were read at once, decoded.
pub struct Rows {
    batches: Vec<Batch>,
    /// Their indices.
    samples: Range<u64>,
    /// Which row group they are of, and the number of the first among its samples.
    group: usize,
    first: u64,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows")
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

impl Parquet<()> {
    /// Begins a data set of what a path or URL names: a file (`train.parquet`), a folder with all `.parquet`, `.parq` and `.pq` in it and below
    /// (`train/`), or files by a pattern (`train-*.parquet`, `s3://bucket/**/part-*.parquet`), in which `*` and `?` stand for parts of a name,
    /// and `**` for any folders. [`store::open`](pinfeed::store::open) says which stores there are.
    ///
    /// Files come in the order of their names. In a folder, names that begin with `_` or `.` are left out, as pyarrow and Spark do. Below it, folders
    /// called `year=2024` make a column: of whole numbers if all of its values are, or else of text.
    ///
    /// # Errors
    ///
    /// If the folder or store cannot be opened.
    pub fn open(url: &str) -> Result<ParquetBuilder> {
        let (store, named) = find::open(url).map_err(of_source)?;
        Ok(ParquetBuilder::new(store, named))
    }

    /// Begins a data set of files in a store, by a pattern as [`open`](Parquet::open) takes it: a folder is empty or ends with a slash.
    pub fn builder(store: impl Store, pattern: &str) -> ParquetBuilder {
        ParquetBuilder::new(Arc::new(store), Named::Pattern(pattern.to_owned()))
    }

    /// Begins a data set of a split of a data set of the Hugging Face hub, which was downloaded: `Parquet::hub("ylecun/mnist", "train")`.
    ///
    /// It is looked for where Python's `datasets` and `hf download` keep it: in `HF_HUB_CACHE`, in `HF_HOME/hub`, or in
    /// `~/.cache/huggingface/hub`. The name may end with a revision: `"org/name@refs/convert/parquet"`, which is the hub's own Parquet of data
    /// sets in other formats. Default: `main`, as it was when it was downloaded last.
    ///
    /// A file belongs to the split that it is called (`data/train-00000-of-00012.parquet`, `train.parquet`), or that its folder is
    /// (`default/train/0000.parquet`). If there is none, names that have it as a word are taken (`squad-train.parquet`), unless they are
    /// several (`train_sft`, `train_gen`), and the words that `datasets` knows for it: `training`; `valid`, `val` and `dev` for
    /// `validation`; `testing`,
    /// `eval` and `evaluation` for `test`. Where no name has any of these, all files are `train`. What a data set's README says of its files is
    /// not read: where it says something else, [`open`](Parquet::open) the files by a pattern.
    ///
    /// The hub makes Parquet of only the first 5 GB of some data sets, in folders called `partial-train`: these are taken, and a line in
    /// the log says so.
    ///
    /// # Errors
    ///
    /// If it is not there, not complete (`-of-00012`), has no such split, or several that it may be, or several configurations. Nothing is
    /// downloaded: the error has the command that does it.
    pub fn hub(name: &str, split: &str) -> Result<ParquetBuilder> {
        Parquet::of_hub(name, None, split)
    }

    /// The same, of one of several configurations: those are folders (`en/train-00000-of-00001.parquet`).
    ///
    /// # Errors
    ///
    /// Those of [`hub`](Parquet::hub).
    pub fn hub_config(name: &str, config: &str, split: &str) -> Result<ParquetBuilder> {
        Parquet::of_hub(name, Some(config), split)
    }

    fn of_hub(name: &str, config: Option<&str>, split: &str) -> Result<ParquetBuilder> {
        let (store, keys) = hub::find(name, config, split).map_err(of_source)?;
        Ok(ParquetBuilder::new(store, Named::Keys(keys)))
    }
}

impl<T> Parquet<T> {
    pub(crate) fn new<F>(inner: Inner, read: F) -> Parquet<T>
    where
        F: Fn(Row<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        Parquet {
            inner: Arc::new(inner),
            read: Arc::new(read),
        }
    }

    /// The same rows, made into other samples: the files are not opened again. So a program can look at [`columns`](Parquet::columns) before it
    /// says what it makes of them, or train and evaluate on the same files.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed_parquet::Parquet;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
    /// let files = Parquet::open(file)?.columns(["a", "b", "id"]).build(|_, _| Ok(()))?;
    /// let numbers: Vec<String> = files.columns().filter(|(_, kind)| kind.starts_with("float")).map(|(name, _)| name.to_owned()).collect();
    /// let data = files.with_read(move |row, _rng| numbers.iter().map(|name| Ok(row.get::<f32>(name)?)).collect::<Result<Vec<_>, _>>());
    /// # let batch = pinfeed::DataLoader::builder(data).batch_size(4).build()?.epoch(0).next().unwrap()?;
    /// # assert_eq!(batch.shape()[0], 4);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn with_read<U, F>(&self, read: F) -> Parquet<U>
    where
        F: Fn(Row<'_>, &mut SampleRng) -> Result<U, BoxError> + Send + Sync + 'static,
    {
        Parquet {
            inner: Arc::clone(&self.inner),
            read: Arc::new(read),
        }
    }

    /// What the first file says of itself under a key, in its footer: `"huggingface"` has the features of a data set of the hub's, as JSON,
    /// `"pandas"` what pandas knows of its columns.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed_parquet::Parquet;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hub/images.parquet");
    /// let data = Parquet::open(file)?.columns(["label"]).build(|row, _rng| Ok(row.get::<i64>("label")?))?;
    /// assert!(data.metadata("huggingface").is_some_and(|json| json.contains("ClassLabel")));
    /// assert_eq!(data.metadata("pandas"), None);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn metadata(&self, key: &str) -> Option<&str> {
        let first = self.inner.files.first()?;
        let said = first.reader.metadata().file_metadata().key_value_metadata();
        let said = said?.iter().find(|said| said.key == key)?;
        said.value.as_deref()
    }

    /// The number of rows: of those that were filtered, if they were.
    pub fn len(&self) -> u64 {
        self.inner.blocks.samples()
    }

    /// Whether there are none: never, as [`build`](ParquetBuilder::build) refuses that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The files' keys in their store, and how many samples each has.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.inner.samples_of_files()
    }

    /// The columns that are read, and their types, as pyarrow names them.
    pub fn columns(&self) -> impl Iterator<Item = (&str, String)> {
        let Inner { names, leaves, .. } = &*self.inner;
        names.iter().enumerate().map(|(at, name)| {
            let of_folders = || "from the folders' names".to_owned();
            (
                name.as_str(),
                leaves.get(at).map_or_else(of_folders, Leaf::type_name),
            )
        })
    }
}

impl<T> Clone for Parquet<T> {
    fn clone(&self) -> Parquet<T> {
        Parquet {
            inner: Arc::clone(&self.inner),
            read: Arc::clone(&self.read),
        }
    }
}

impl<T> std::fmt::Debug for Parquet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parquet")
            .field("store", &self.inner.store)
            .field("files", &self.inner.files.len())
            .field("rows", &self.len())
            .field("blocks", &self.inner.blocks.len())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> BlockSource for Parquet<T> {
    type Block = Rows;
    type Sample = T;

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.inner.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        self.inner.block_bytes(&samples)
    }

    fn fetch(&self, _: u64, samples: Range<u64>) -> Result<Rows, BoxError> {
        let inner = &*self.inner;
        let Some((at, own)) = inner.within(&samples) else {
            return Err(inner.no_row(samples.start));
        };
        let group = &inner.groups[at];
        Ok(Rows {
            batches: group.fetch(&*inner.store, &inner.files[group.file], &own)?,
            samples,
            group: at,
            first: own.start,
        })
    }

    fn decode(&self, rows: &Rows, index: u64, rng: &mut SampleRng) -> Result<T, BoxError> {
        let behind = index.checked_sub(rows.samples.start);
        let row = behind.filter(|_| index < rows.samples.end).and_then(|at| {
            let of = rows
                .batches
                .partition_point(|batch| batch.first as u64 <= at);
            let batch = rows.batches.get(of.checked_sub(1)?)?;
            Some(Row {
                inner: &self.inner,
                group: self.inner.groups.get(rows.group)?,
                sample: rows.first + at,
                columns: &batch.columns,
                at: at as usize - batch.first,
                next: Cell::new(0),
            })
        });
        (self.read)(row.ok_or_else(|| self.inner.no_row(index))?, rng)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.inner.describe(index)
    }

    fn fingerprint(&self) -> u32 {
        self.inner.fingerprint()
    }
}

impl<T: Send + 'static> IntoDataset for Parquet<T> {
    type Dataset = Blocked<Parquet<T>>;

    fn into_dataset(self) -> Blocked<Parquet<T>> {
        Blocked::new(self)
    }
}
