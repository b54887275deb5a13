//! How shards become a data set: [`WebDatasetBuilder`].

use std::path::{Path, PathBuf};

use super::braces;
use super::dali;
use super::dataset::{Inner, WebDataset};
use super::error::{Cause, ShardError};
use super::extent::{Shard, cut};
use super::fields::Fields;
use super::find;
use super::index::ShardIndex;
use super::kept;
use super::sample::WebSample;
use super::stream::{Shards, StreamedShard, WebStream};
use super::wids;
use crate::error::{BoxError, Error, Result};
use crate::rng::SampleRng;
use crate::sampler::Blocks;
use crate::store::{Object, Store};
use crate::sync::log;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Instant, Mutex, Ordering, spawn_scoped, thread};

/// How many shards are indexed at once: more than there are cores, because it waits for a disk or a network.
const AT_ONCE: usize = 16;

/// How many extents there are where shards are small: eight for each that is open, as `BlockSampler` wants for its usual 384.
const USUAL_EXTENTS: u64 = 8 * 384;

/// How much of a shard a stream reads at once: a store that takes 50 ms to begin sends about as much in that time.
const STREAMED_AT_ONCE: u64 = 4 << 20;

/// How large an index of others may be.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// What a data set is made of: shards, the fields that are read of them, and how an index is come by. [`WebDataset::builder`] and
/// [`WebDataset::open`] begin one.
///
/// # Examples
///
/// ```
/// use pinfeed::store::LocalFiles;
/// use pinfeed::webdataset::WebDataset;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
/// # let indexes = tempfile::tempdir()?;
/// # let indexes = indexes.path();
/// let data = WebDataset::builder(LocalFiles::open(folder)?, "train-{000000..000002}.tar")
///     .field("jpg;jpeg;png") // each sample has one of these,
///     .optional_field("txt") // and this one or not
///     .keep_index(indexes) // the next run reads no headers
///     .build(|sample, _rng| Ok((sample.field("jpg;jpeg;png")?.len(), sample.get("txt").is_some())))?;
/// assert_eq!(data.len(), 8);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[must_use = "it does nothing before `build`"]
pub struct WebDatasetBuilder {
    store: Arc<dyn Store>,
    shards: Named,
    fields: Fields,
    extent_bytes: Option<u64>,
    kept_in: Option<PathBuf>,
    dali: Option<String>,
}

/// Which shards there are.
enum Named {
    Pattern(String),
    /// By the index called this, which says how many samples each has.
    Wids(String, Vec<(String, u64)>),
}

impl WebDatasetBuilder {
    pub(super) fn of_pattern(store: Arc<dyn Store>, pattern: &str) -> WebDatasetBuilder {
        WebDatasetBuilder::new(store, Named::Pattern(pattern.to_owned()))
    }

    pub(super) fn of_wids(
        store: Arc<dyn Store>,
        index: &str,
    ) -> Result<WebDatasetBuilder, BoxError> {
        let bytes = read_whole(&*store, index)?;
        let shards = wids::parse(&bytes, index, &*store)?;
        Ok(WebDatasetBuilder::new(
            store,
            Named::Wids(index.to_owned(), shards),
        ))
    }

    fn new(store: Arc<dyn Store>, shards: Named) -> WebDatasetBuilder {
        WebDatasetBuilder {
            store,
            shards,
            fields: Fields::default(),
            extent_bytes: None,
            kept_in: None,
            dali: None,
        }
    }

    /// Reads this field, or the first of several that a sample has: `"jpg;jpeg;png"`. Each sample must have it. May be called several
    /// times.
    ///
    /// Default: all fields are read, and none is required. Once a field was chosen, only chosen ones are read, apart from what lies
    /// between them in the shard and is no longer than 1 MiB.
    pub fn field(mut self, names: &str) -> WebDatasetBuilder {
        self.fields.add(names, true);
        self
    }

    /// Reads this field of the samples that have it.
    pub fn optional_field(mut self, names: &str) -> WebDatasetBuilder {
        self.fields.add(names, false);
        self
    }

    /// Whether samples that lack a [`field`](WebDatasetBuilder::field) are left out, and counted in the log. Default: no, and `build`
    /// refuses the first; in a stream, each is an error.
    pub fn skip_incomplete(mut self, skip: bool) -> WebDatasetBuilder {
        self.fields.skip_incomplete = skip;
        self
    }

    /// How much of a shard is read at once, about. (Of a stream: [`stream`](WebDatasetBuilder::stream).) Default: 8 MiB; less where all
    /// shards together are smaller than 24 GiB, so that there are 3,072 extents all the same (384 that are open at a time, eight times
    /// over), but 64 KiB at least.
    ///
    /// Larger extents are fewer requests. Smaller ones mix better, and take less memory. It decides the order, so another size is refused
    /// where a run is resumed.
    pub fn extent_bytes(mut self, bytes: u64) -> WebDatasetBuilder {
        self.extent_bytes = Some(bytes);
        self
    }

    /// Keeps the shards' indexes in this folder of the local machine, and reads them from there if they are of the same objects: of the
    /// same length and version (ETag, or time of change). Otherwise, or if one is damaged, it is made again, which is logged. It may be
    /// the folder of the shards. Several processes can use it at once.
    ///
    /// If an index cannot be written, a warning is logged, and the data set is built all the same.
    pub fn keep_index(mut self, folder: impl Into<PathBuf>) -> WebDatasetBuilder {
        self.kept_in = Some(folder.into());
        self
    }

    /// Reads the shards' indexes from files that NVIDIA DALI's `wds2idx` made (v1.2), by a pattern of as many names as there are shards,
    /// in the same store: `"index/train-{000000..000099}.idx"`.
    ///
    /// What they say is compared with the shards' headers where samples are read. (DALI's offsets are wrong for names of more than 100
    /// bytes in GNU's format.)
    pub fn dali_index(mut self, pattern: &str) -> WebDatasetBuilder {
        self.dali = Some(pattern.to_owned());
        self
    }

    /// Finds the shards, reads or makes their indexes, and makes the data set, whose samples are what `decode` makes of those in the
    /// shards. It runs on workers; draw random augmentation from its generator.
    ///
    /// The shards' folder is listed once. Without an index, each shard's headers are read, of 16 shards at once: one request for each
    /// member on a disk, and one for each 4 MiB of a store that takes long to answer.
    ///
    /// # Errors
    ///
    /// If the pattern is none, a shard or an index is missing or cannot be read, or a shard is no tar archive, compressed, damaged, cut
    /// off, or has sparse members; if members of one key do not follow each other; if a sample lacks a field, or no sample is left. The
    /// error is an [`Error::Source`], and that of a shard a [`ShardError`] in one, which names it.
    pub fn build<T, F>(self, decode: F) -> Result<WebDataset<T>>
    where
        F: Fn(WebSample<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        let inner = self.inner().map_err(Error::of_source)?;
        Ok(WebDataset::new(inner, decode))
    }

    /// Finds the shards, and makes a stream of them: without an index, each read from its front. They may be compressed, by gzip or
    /// Zstandard. Samples are what `decode` makes of those in the shards, as with [`build`](WebDatasetBuilder::build).
    ///
    /// The shards' folder is listed once, and no shard is read yet. A folder names all `.tar`, `.tar.gz`, `.tgz`, `.tar.zst` and `.tzst` in
    /// it.
    /// [`extent_bytes`](WebDatasetBuilder::extent_bytes) is how much is read at once, 4 MiB by default; it does not decide the order.
    ///
    /// # Errors
    ///
    /// If the pattern is none, a shard is missing, or the folder has none; if a shard is there twice, compressed and not
    /// ([`Error::Source`]). [`Error::InvalidOption`] for an index, of which a stream has no use. What is wrong with a shard's contents is
    /// an error when it is read ([`WebStream`]).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::webdataset::WebDataset;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
    /// let shards = WebDataset::open(&format!("{folder}/train.tar.gz"))?;
    /// let samples = shards.field("cls").stream(|sample, _rng| Ok(sample.number::<i64>("cls")?))?;
    /// let batch = pinfeed::DataLoader::iterable(samples).batch_size(3).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [0, 1, 2]);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn stream<T, F>(self, decode: F) -> Result<WebStream<T>>
    where
        F: Fn(WebSample<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        let shards = self.streamed().map_err(Error::of_source)?;
        Ok(WebStream::new(shards, decode))
    }

    fn streamed(self) -> Result<Shards, BoxError> {
        self.check()?;
        let index = (self.kept_in.is_some(), self.dali.is_some());
        if let (true, _) | (_, true) = index {
            let option = if index.0 { "keep_index" } else { "dali_index" };
            let reason = "a stream reads shards from their front, without an index: leave it out, or call `build`".to_owned();
            return Err(Error::option(option, reason).into());
        }
        let objects = self.objects(find::STREAMED)?;
        let expected = |at: usize| match &self.shards {
            Named::Pattern(_) => None,
            Named::Wids(index, shards) => {
                let (_, samples) = shards.get(at)?;
                Some((self.store.locate(index), *samples))
            }
        };
        let shard = |(at, object): (usize, Object)| StreamedShard {
            key: object.key.as_str().into(),
            place: self.store.locate(&object.key).into(),
            expected: expected(at),
            object,
        };
        let list: Vec<StreamedShard> = objects.into_iter().enumerate().map(shard).collect();
        if u32::try_from(list.len()).is_err() {
            return Err("there are more than 4,294,967,295 shards".into());
        }
        Ok(Shards {
            list,
            wanted: self.fields,
            range_bytes: self.extent_bytes.unwrap_or(STREAMED_AT_ONCE),
            store: self.store,
        })
    }

    /// That what was said can be.
    fn check(&self) -> Result<(), BoxError> {
        if self.extent_bytes == Some(0) {
            let reason = "0 bytes hold no sample; the default follows from the shards".to_owned();
            return Err(Error::option("extent_bytes", reason).into());
        }
        self.fields.check()
    }

    fn inner(self) -> Result<Inner, BoxError> {
        self.check()?;
        let began = Instant::now();
        let objects = self.objects(find::INDEXED)?;
        let extent_bytes = self.extent_bytes.unwrap_or_else(|| usual_extent(&objects));
        let indexes = self
            .dali
            .as_deref()
            .map(|pattern| self.dali_names(pattern, objects.len()));
        let indexes = indexes.transpose()?;
        let made = in_parallel(objects, |at, object| {
            let dali = indexes.as_ref().map(|indexes| indexes[at].as_str());
            self.shard(object, dali, extent_bytes)
        })?;
        self.compare(&made)?;
        let (mut shards, mut starts, mut sizes, mut skipped) =
            (Vec::new(), vec![0], Vec::new(), (0, None));
        for made in made {
            sizes.extend(made.sizes);
            starts.push(starts[starts.len() - 1] + made.shard.index.len() as u64);
            skipped.0 += made.skipped.0;
            skipped.1 = skipped.1.or(made.skipped.1);
            shards.push(made.shard);
        }
        let samples = starts[shards.len()];
        if let (count @ 1.., Some(first)) = skipped {
            log::warn!(
                "{count} samples of {} lack a field and are left out; the first: {first}",
                count + samples
            );
        }
        if samples == 0 {
            let cause = Cause::NoSamples(
                "no member's name has a dot behind its key, or all samples lack a field",
            );
            return Err(ShardError::new(&shards[0].place, None, cause).into());
        }
        log::say!(
            Info,
            "{samples} samples in {} shards, indexed in {:.1?}",
            shards.len(),
            began.elapsed()
        );
        let blocks = Arc::new(Blocks::from_sizes(sizes)?);
        Ok(Inner {
            store: self.store,
            shards,
            starts,
            blocks,
            extent_bytes,
        })
    }

    /// The shards; in a folder, what is called so.
    fn objects(&self, called: &[&str]) -> Result<Vec<Object>, BoxError> {
        let store = &*self.store;
        let objects = match &self.shards {
            Named::Pattern(pattern) => find::find(store, pattern, called)?,
            Named::Wids(_, shards) => {
                let names: Vec<String> = shards.iter().map(|(name, _)| name.clone()).collect();
                find::named(store, &names)?
            }
        };
        match objects.is_empty() {
            true => Err("no shards are named".into()),
            false => Ok(objects),
        }
    }

    fn dali_names(&self, pattern: &str, shards: usize) -> Result<Vec<String>, BoxError> {
        let names = braces::expand(pattern)?;
        if names.len() != shards {
            let reason = format!(
                "{pattern:?} names {} indexes, and there are {shards} shards",
                names.len()
            );
            return Err(Error::option("dali_index", reason).into());
        }
        Ok(names)
    }

    /// Makes one shard ready.
    fn shard(
        &self,
        object: &Object,
        dali: Option<&str>,
        extent_bytes: u64,
    ) -> Result<Made, BoxError> {
        let place = self.store.locate(&object.key);
        let (full, origin) = self.index(object, dali)?;
        let (mut kept, mut skipped) = (Vec::with_capacity(full.len()), (0, None));
        for sample in 0..full.len() {
            match self.lack(&full, sample) {
                None => kept.push(sample),
                Some(cause) => {
                    let fault = ShardError::new(&place, Some(full.key(sample)), cause);
                    if !self.fields.skip_incomplete {
                        return Err(fault.into());
                    }
                    skipped.0 += 1;
                    skipped.1.get_or_insert(fault);
                }
            }
        }
        let sizes = cut(&full, &kept, extent_bytes);
        let mut rest = kept.iter().peekable();
        let index = full.filtered(
            |sample| rest.next_if(|kept| **kept == sample).is_some(),
            |name| self.fields.takes(name),
        );
        for sample in 0..index.len() {
            if let Some(field) = index
                .fields(sample)
                .find(|field| field.bytes > u64::from(u32::MAX))
            {
                let cause = Cause::TooLarge {
                    field: index.name(field).to_owned(),
                    bytes: field.bytes,
                };
                return Err(ShardError::new(&place, Some(index.key(sample)), cause).into());
            }
        }
        let found = full.len() as u64;
        let object = object.clone();
        let shard = Shard {
            object,
            place,
            index,
            origin,
        };
        Ok(Made {
            shard,
            sizes,
            found,
            skipped,
        })
    }

    /// What the sample lacks.
    fn lack(&self, index: &ShardIndex, sample: usize) -> Option<Cause> {
        let has = |name: &str| index.fields(sample).any(|field| index.name(field) == name);
        let wanted = self.fields.lacks(has)?;
        let has = index
            .fields(sample)
            .map(|field| index.name(field).to_owned())
            .collect();
        Some(Cause::Lacks { wanted, has })
    }

    /// The shard's index, and where it is from.
    fn index(&self, object: &Object, dali: Option<&str>) -> Result<(ShardIndex, String), BoxError> {
        let store = &*self.store;
        if let Some(name) = dali {
            let bytes = read_whole(store, name)?;
            let index = store.locate(name);
            let text = std::str::from_utf8(&bytes)
                .map_err(|error| format!("{index}: it is no text: {error}"))?;
            return Ok((
                dali::parse(text, &index, &store.locate(&object.key), object)?,
                index,
            ));
        }
        let Some(folder) = self.kept_in.as_deref() else {
            return Ok((
                ShardIndex::read(store, object)?,
                "made when the data set was built".to_owned(),
            ));
        };
        let origin = kept::path(folder, object).display().to_string();
        if let Some(index) = kept::load(folder, object)? {
            return Ok((index, origin));
        }
        let index = ShardIndex::read(store, object)?;
        keep(folder, object, &index);
        Ok((index, origin))
    }

    /// That shards have as many samples as wids' index says.
    fn compare(&self, made: &[Made]) -> Result<(), ShardError> {
        let Named::Wids(index, shards) = &self.shards else {
            return Ok(());
        };
        for (made, (_, expected)) in made.iter().zip(shards) {
            if made.found != *expected {
                let cause = Cause::Count {
                    index: self.store.locate(index),
                    expected: *expected,
                    found: made.found,
                };
                return Err(made.shard.fault(None, cause));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for WebDatasetBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shards = match &self.shards {
            Named::Pattern(pattern) => pattern,
            Named::Wids(index, _) => index,
        };
        f.debug_struct("WebDatasetBuilder")
            .field("store", &self.store)
            .field("shards", shards)
            .field("fields", &self.fields.texts())
            .field("extent_bytes", &self.extent_bytes)
            .finish_non_exhaustive()
    }
}

/// How large extents are if the program does not say: as large as requests should be, or small enough to mix.
fn usual_extent(objects: &[Object]) -> u64 {
    let bytes = objects
        .iter()
        .fold(0u64, |sum, object| sum.saturating_add(object.bytes));
    (bytes / USUAL_EXTENTS).clamp(64 << 10, 8 << 20)
}

/// A shard that is ready.
struct Made {
    shard: Shard,
    sizes: Vec<u64>,
    /// How many samples it has, with those that are left out.
    found: u64,
    skipped: (u64, Option<ShardError>),
}

fn keep(folder: &Path, object: &Object, index: &ShardIndex) {
    if let Err(error) = kept::save(folder, object, index) {
        log::warn!(
            "{}: its index is not kept, and will be made again: {error}",
            object.key
        );
    }
}

fn read_whole(store: &dyn Store, key: &str) -> Result<Vec<u8>, BoxError> {
    let object = store.object(key)?;
    if object.bytes > MAX_INDEX_BYTES {
        let place = store.locate(key);
        return Err(format!(
            "{place} has {} bytes, so it is no index of shards",
            object.bytes
        )
        .into());
    }
    store.read(&object, 0..object.bytes)
}

/// Does something to all, several at once, and returns the results in their order, or the first error in that order that came.
fn in_parallel<T: Send>(
    objects: Vec<Object>,
    make: impl Fn(usize, &Object) -> Result<T, BoxError> + Sync,
) -> Result<Vec<T>, BoxError> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Vec<Mutex<Option<Result<T, BoxError>>>> =
        objects.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(object) = objects.get(at) else { break };
            let made = make(at, object);
            failed.fetch_or(made.is_err(), Ordering::Relaxed);
            *results[at].lock() = Some(made);
        }
    };
    thread::scope(|scope| {
        let others = (1..AT_ONCE.min(objects.len())).map_while(|at| {
            // (Where there can be no more threads, those there are do it.)
            spawn_scoped(scope, format!("pinfeed-index-{at}"), work).ok()
        });
        let others: Vec<_> = others.collect();
        work();
        for other in others {
            if let Err(panic) = other.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    // (One that was not looked at comes behind one that failed, which ends the collection; or nobody failed.)
    results.into_iter().filter_map(Mutex::into_inner).collect()
}
