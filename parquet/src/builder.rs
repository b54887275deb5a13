//! How files become a data set: [`ParquetBuilder`].

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::ParquetMetaData;
use pinfeed::sampler::Blocks;
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, Error, Result, SampleRng};

use crate::dataset::{Inner, Parquet};
use crate::error::{Cause, ParquetError};
use crate::filter::{Filter, Known, Scalar};
use crate::find::{self, Named};
use crate::footer::{self, said};
use crate::kind::{Kind, Leaf, leaves, with_views};
use crate::plan::{Chosen, File, Group, read};
use crate::row::Row;

/// How many files are looked at at once: more than there are cores, because it waits for a disk or a network.
const AT_ONCE: usize = 16;

/// How many blocks there are where files are small: eight for each that is open, as `BlockSampler` wants for its usual 384.
const USUAL_BLOCKS: u64 = 8 * 384;

/// A row group that is read whole, and takes more than this, is worth a line in the log.
const LARGE: u64 = 256 << 20;

/// What a data set is made of: files, the columns that are read of them, and which rows. [`Parquet::open`], [`Parquet::builder`] and
/// [`Parquet::hub`] begin one.
///
/// # Examples
///
/// ```
/// use pinfeed_parquet::{Filter, Parquet};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/partitioned");
/// let data = Parquet::open(folder)?
///     .columns(["x", "lang"]) // nothing else is read
///     .filter(Filter::equals("lang", "de"))
///     .filter(Filter::within("year", 2024..))
///     .build(|row, _rng| Ok((row.get::<i64>("x")?, row.get::<i64>("year")?)))?;
/// assert!(data.len() > 0);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[must_use = "it does nothing before `build`"]
pub struct ParquetBuilder {
    store: Arc<dyn Store>,
    named: Named,
    columns: Option<Vec<String>>,
    filters: Vec<Filter>,
    pub(crate) block_bytes: Option<u64>,
}

impl ParquetBuilder {
    pub(crate) fn new(store: Arc<dyn Store>, named: Named) -> ParquetBuilder {
        ParquetBuilder {
            store,
            named,
            columns: None,
            filters: Vec::new(),
            block_bytes: None,
        }
    }

    /// Reads these columns. A field in a structure is named `structure.field`, also where the structures are elements of a list; the name of a
    /// structure stands for all of its fields. May be called several times.
    ///
    /// Default: all columns that have a type which is taken. Choose: what is not chosen is not read from the file.
    pub fn columns<C: Into<String>>(
        mut self,
        columns: impl IntoIterator<Item = C>,
    ) -> ParquetBuilder {
        let chosen = self.columns.get_or_insert_default();
        chosen.extend(columns.into_iter().map(Into::into));
        self
    }

    /// Takes the rows that meet this condition, and all others that were set.
    ///
    /// A condition on a folder's column (`year=2024/`) leaves out its files, which are not looked at. For others, a row group is left out or taken by
    /// its statistics, if these decide. If they do not, `build` reads the condition's columns of the row group, and no others, because a data
    /// set knows how many samples it has: that is one pass over these columns, and 4 bytes for each row that is taken of such a row group.
    pub fn filter(mut self, filter: Filter) -> ParquetBuilder {
        self.filters.push(filter);
        self
    }

    /// How much of a row group is read at once, about, where it has a page index. Default: 8 MiB; less where all files together are smaller
    /// than 24 GiB, so that there are 3,072 blocks all the same (384 that are open at a time, eight times over), but 64 KiB at least.
    ///
    /// Parts begin where pages of the largest column do, and a page is 1 MiB by most writers' defaults. A row group without a page
    /// index is read whole, whatever this says.
    ///
    /// Larger blocks are fewer requests. Smaller ones mix better, and take less memory. It decides the order, so another size is refused
    /// where a run is resumed.
    pub fn block_bytes(mut self, bytes: u64) -> ParquetBuilder {
        self.block_bytes = Some(bytes);
        self
    }

    /// Finds the files, reads their footers, and makes the data set, whose samples are what `read` makes of rows. It runs on workers; draw
    /// random augmentation from its generator.
    ///
    /// The folder is listed once, and the footers of 16 files are read at once: one request for each, two if a footer is longer than
    /// 64 KiB, and one more for a page index that is used.
    ///
    /// # Errors
    ///
    /// If no file is found, or one is not there, cannot be read, is no Parquet, encrypted, cut off, or damaged; if a chosen column is missing in a
    /// file, has another type there than in the first, or one that is not taken; if a filter does not fit its column's type; if no row is
    /// left. The error is an [`Error::Source`], and that of a file a [`ParquetError`] in one, which names it.
    pub fn build<T, F>(self, read: F) -> Result<Parquet<T>>
    where
        F: Fn(Row<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        let inner = self.inner().map_err(of_source)?;
        Ok(Parquet::new(inner, read))
    }

    pub(crate) fn inner(self) -> Result<Inner, BoxError> {
        if self.block_bytes == Some(0) {
            let reason = "0 bytes hold no row; the default follows from the files".to_owned();
            return Err(invalid("block_bytes", reason).into());
        }
        let began = Instant::now();
        let store = &*self.store;
        let objects = find::find(store, &self.named)?;
        let listed = objects.len();
        let (folders, objects) = self.folders(objects);
        let with_statistics = !self.filters.is_empty();
        let opened = in_parallel(&objects, |object| {
            Opened::new(store, object, footer::read(store, object, with_statistics)?)
        })?;
        let mut columns = self.chosen(&opened, &folders)?;
        let mut files = self.files(objects, opened, &mut columns, &folders)?;
        let mut groups = self.groups(&files, &columns)?;
        if groups.is_empty() {
            let filters = match self.filters.is_empty() {
                true => "they have none".to_owned(),
                false => format!("none meets {:?}", self.filters),
            };
            return Err(format!(
                "there are no rows in {listed} files of {}: {filters}",
                store.locate("")
            )
            .into());
        }
        groups
            .iter_mut()
            .for_each(|group| group.measure(&files[group.file], &columns.leaves));
        let stored = groups
            .iter()
            .fold(0u64, |sum, group| sum.saturating_add(group.stored));
        let usual = (stored / USUAL_BLOCKS).clamp(64 << 10, 8 << 20);
        let block_bytes = self.block_bytes.unwrap_or(usual);
        self.find_pages(&mut files, &mut groups, block_bytes)?;
        let sizes = groups
            .iter()
            .flat_map(|group| group.cut(&files[group.file], block_bytes));
        let blocks = Arc::new(Blocks::from_sizes(sizes.collect::<Vec<u64>>())?);
        let mut starts = vec![0];
        for group in &groups {
            starts.push(starts[starts.len() - 1] + group.samples());
        }
        log::info!(
            "{} rows in {} files, opened in {:.1?}",
            blocks.samples(),
            files.len(),
            began.elapsed()
        );
        warn_of_large(&files, &groups);
        Ok(Inner {
            store: self.store,
            files,
            groups,
            starts,
            blocks,
            names: columns.names(),
            leaves: columns.leaves,
            said: format!("{block_bytes} {:?}", self.filters),
        })
    }

    /// What the names of the files' folders say, and the files that the conditions on that leave.
    fn folders(&self, mut objects: Vec<Object>) -> (Folders, Vec<Object>) {
        let found: Vec<_> = objects
            .iter()
            .map(|object| find::partitions(&object.key))
            .collect();
        let names: BTreeSet<&String> = found.iter().flatten().map(|(name, _)| name).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        let mut values: Vec<Vec<Scalar>> = vec![Vec::new(); objects.len()];
        for name in &names {
            let of = |parts: &Vec<(String, Option<String>)>| {
                let part = parts.iter().find(|(of, _)| of == name);
                part.and_then(|(_, value)| value.clone())
            };
            let typed = find::typed(&found.iter().map(of).collect::<Vec<_>>());
            values
                .iter_mut()
                .zip(typed)
                .for_each(|(values, value)| values.push(value));
        }
        let conditions = self.filters.iter().filter_map(|filter| {
            let at = names.iter().position(|name| name == filter.column())?;
            Some((at, filter))
        });
        let conditions: Vec<(usize, &Filter)> = conditions.collect();
        let is_kept = |values: &Vec<Scalar>| {
            let mut conditions = conditions.iter();
            conditions.all(|(at, filter)| filter.is_met_by(&values[*at]))
        };
        let kept: Vec<bool> = values.iter().map(is_kept).collect();
        let mut each = kept.iter();
        objects.retain(|_| each.next().copied().unwrap_or(true));
        let mut each = kept.iter();
        values.retain(|_| each.next().copied().unwrap_or(true));
        (Folders { names, values }, objects)
    }

    /// Which columns are read, and what they are called.
    fn chosen(&self, opened: &[Opened], folders: &Folders) -> Result<Columns, BoxError> {
        let Some(first) = opened.first() else {
            return Ok(Columns::default());
        };
        let mut seen = BTreeSet::new();
        if let Some(twice) = first.leaves.iter().find(|leaf| !seen.insert(&leaf.path)) {
            let fault = ParquetError::new(&first.place, Cause::TwoColumns);
            return Err(fault.at(&twice.path).into());
        }
        let is_taken = |leaf: &&Leaf| !matches!(leaf.kind, Kind::Refused(..));
        let Some(names) = &self.columns else {
            let leaves = first.leaves.iter().filter(is_taken).cloned().collect();
            let own = |name: &&String| !first.leaves.iter().any(|leaf| leaf.path == **name);
            let partitions = folders.names.iter().filter(own).cloned().collect();
            return Ok(Columns { leaves, partitions });
        };
        let mut columns = Columns::default();
        for name in names {
            let inside = |leaf: &&Leaf| {
                let rest = leaf.path.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let found: Vec<&Leaf> = first.leaves.iter().filter(inside).collect();
            for leaf in &found {
                if let Kind::Refused(_, instead) = leaf.kind {
                    let kind = leaf.type_name();
                    let fault =
                        ParquetError::new(&first.place, Cause::Unsupported { kind, instead });
                    return Err(fault.at(&leaf.path).into());
                }
                if !columns.leaves.iter().any(|chosen| chosen.path == leaf.path) {
                    columns.leaves.push((*leaf).clone());
                }
            }
            if found.is_empty() && !folders.names.contains(name) {
                let has = first.leaves.iter().map(|leaf| leaf.path.clone());
                let has = has.chain(folders.names.iter().cloned()).collect();
                let fault = ParquetError::new(&first.place, Cause::NoColumn { has });
                return Err(fault.at(name).into());
            }
        }
        // (They cost nothing.)
        let own = |name: &&String| !columns.leaves.iter().any(|leaf| leaf.path == **name);
        columns.partitions = folders.names.iter().filter(own).cloned().collect();
        Ok(columns)
    }

    /// Compares the files' columns with those that were chosen. One without any value in the first file has the type that it has in another.
    fn files(
        &self,
        objects: Vec<Object>,
        opened: Vec<Opened>,
        columns: &mut Columns,
        folders: &Folders,
    ) -> Result<Vec<File>, BoxError> {
        let mut known: Vec<(Leaf, &str)> = Vec::new();
        if let Some(first) = opened.first() {
            known.extend(
                columns
                    .leaves
                    .iter()
                    .map(|leaf| (leaf.clone(), first.place.as_str())),
            );
        }
        for file in &opened {
            for (leaf, first) in &mut known {
                let own = file.leaf(&leaf.path)?.1;
                if !own.is_like(leaf) {
                    let cause = Cause::OtherType {
                        found: own.type_name(),
                        expected: leaf.type_name(),
                        first: (*first).to_owned(),
                    };
                    return Err(ParquetError::new(&file.place, cause).at(&leaf.path).into());
                }
                if leaf.kind == Kind::Null {
                    (*leaf, *first) = (own.clone(), &file.place);
                }
            }
        }
        columns.leaves = known.into_iter().map(|(leaf, _)| leaf).collect();
        let at = |name: &String| folders.names.iter().position(|of| of == name);
        let partitions: Vec<usize> = columns.partitions.iter().filter_map(at).collect();
        let files = objects.into_iter().zip(opened).zip(&folders.values);
        let files = files.map(|((object, opened), values)| {
            let leaves = columns
                .leaves
                .iter()
                .map(|leaf| Ok(opened.leaf(&leaf.path)?.0));
            let leaves = leaves.collect::<Result<Vec<usize>, ParquetError>>()?;
            Ok(File {
                object,
                place: opened.place,
                chosen: Chosen::new(&opened.reader, leaves),
                reader: opened.reader,
                partitions: partitions.iter().map(|at| values[*at].clone()).collect(),
            })
        });
        files.collect()
    }

    /// The row groups that have samples, and which of their rows are some.
    fn groups(&self, files: &[File], columns: &Columns) -> Result<Vec<Group>, BoxError> {
        let mut groups = Vec::new();
        let mut unknown = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let schema = leaves(file.reader.schema());
            let mut conditions = Vec::new();
            for filter in &self.filters {
                if let Some(leaf) = schema.iter().position(|leaf| leaf.path == filter.column()) {
                    if let Some(what) = filter.misfit(&schema[leaf]) {
                        let fault = ParquetError::new(&file.place, Cause::Misfit(what));
                        return Err(fault.at(filter.column()).into());
                    }
                    conditions.push((filter, leaf));
                } else if !columns
                    .partitions
                    .iter()
                    .any(|name| name == filter.column())
                {
                    let has = schema.into_iter().map(|leaf| leaf.path).collect();
                    let fault = ParquetError::new(&file.place, Cause::NoColumn { has });
                    return Err(fault.at(filter.column()).into());
                }
            }
            let mut row = 0;
            for (row_group, metadata) in file.reader.metadata().row_groups().iter().enumerate() {
                let group = Group::new(at, row_group, row, metadata);
                row += group.rows;
                let known = conditions.iter().map(|(filter, leaf)| {
                    let statistics = metadata.column(*leaf).statistics();
                    filter.known(statistics, group.rows, &schema[*leaf].kind)
                });
                match known.fold(Known::AllMeetIt, Known::and) {
                    Known::AllMeetIt if group.rows > 0 => groups.push(group),
                    Known::Unknown if group.rows > 0 => {
                        let leaves = conditions.iter().map(|(_, leaf)| *leaf).collect();
                        unknown.push((groups.len(), Chosen::new(&file.reader, leaves)));
                        groups.push(group);
                    }
                    _ => {}
                }
            }
        }
        let kept = in_parallel(&unknown, |(at, chosen)| {
            let group = &groups[*at];
            self.kept(&files[group.file], group, chosen)
        })?;
        for ((at, _), kept) in unknown.into_iter().zip(kept) {
            let group = &mut groups[at];
            group.kept = (kept.len() as u64 != group.rows).then(|| kept.into());
        }
        groups.retain(|group| group.samples() > 0);
        Ok(groups)
    }

    /// Reads which rows meet the conditions.
    fn kept(&self, file: &File, group: &Group, chosen: &Chosen) -> Result<Vec<u32>, BoxError> {
        let rows = u32::try_from(group.rows)?;
        let schema = leaves(file.reader.schema());
        let columns = read(
            &*self.store,
            file,
            chosen,
            group.row_group,
            None,
            rows as usize,
        )?;
        let conditions: Vec<_> = self
            .filters
            .iter()
            .filter(|filter| schema.iter().any(|leaf| leaf.path == filter.column()))
            .zip(&columns)
            .collect();
        let meets = |row: &u32| {
            let mut conditions = conditions.iter();
            conditions.all(|(filter, column)| filter.is_met(column, *row as usize))
        };
        Ok((0..rows).filter(meets).collect())
    }

    /// Reads where the pages lie of row groups that are larger than a block, in the files that say it.
    fn find_pages(
        &self,
        files: &mut [File],
        groups: &mut [Group],
        block_bytes: u64,
    ) -> Result<(), BoxError> {
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); files.len()];
        for group in &mut *groups {
            let file = &files[group.file];
            let row_group = file.reader.metadata().row_group(group.row_group);
            let has_index = |leaf: &usize| row_group.column(*leaf).offset_index_range().is_some();
            if group.stored > block_bytes && file.chosen.leaves.iter().all(has_index) {
                group.has_pages = true;
                wanted[group.file].push(group.row_group);
            }
        }
        let wanted = wanted
            .into_iter()
            .enumerate()
            .filter(|(_, wanted)| !wanted.is_empty());
        let wanted: Vec<(usize, Vec<usize>)> = wanted.collect();
        let found = in_parallel(&wanted, |(at, row_groups)| {
            let file = &files[*at];
            let metadata = ParquetMetaData::clone(file.reader.metadata());
            let (store, leaves) = (&*self.store, &file.chosen.leaves);
            let metadata = footer::with_pages(store, &file.object, metadata, row_groups, leaves)?;
            Opened::reader(&file.place, metadata)
        })?;
        for ((at, _), reader) in wanted.into_iter().zip(found) {
            files[at].reader = reader;
        }
        Ok(())
    }
}

impl std::fmt::Debug for ParquetBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetBuilder")
            .field("store", &self.store)
            .field("files", &self.named)
            .field("columns", &self.columns)
            .field("filters", &self.filters)
            .field("block_bytes", &self.block_bytes)
            .finish()
    }
}

/// The columns that folders' names make, and their values for each file.
struct Folders {
    names: Vec<String>,
    values: Vec<Vec<Scalar>>,
}

/// The columns of a data set.
#[derive(Default)]
struct Columns {
    leaves: Vec<Leaf>,
    partitions: Vec<String>,
}

impl Columns {
    fn names(&self) -> Vec<String> {
        let leaves = self.leaves.iter().map(|leaf| leaf.path.clone());
        leaves.chain(self.partitions.iter().cloned()).collect()
    }
}

/// A file whose footer was read.
struct Opened {
    place: String,
    reader: ArrowReaderMetadata,
    leaves: Vec<Leaf>,
}

impl Opened {
    fn new(
        store: &dyn Store,
        object: &Object,
        metadata: ParquetMetaData,
    ) -> Result<Opened, BoxError> {
        let place = store.locate(&object.key);
        let reader = Opened::reader(&place, metadata)?;
        let leaves = leaves(reader.schema());
        Ok(Opened {
            place,
            reader,
            leaves,
        })
    }

    fn reader(place: &str, metadata: ParquetMetaData) -> Result<ArrowReaderMetadata, BoxError> {
        // (What pyarrow says in the footer of its own types is left out: a type is what Parquet says, whoever wrote the file.)
        let schema = parquet_to_arrow_schema(metadata.file_metadata().schema_descr(), None);
        let reader = schema.and_then(|schema| {
            let options = ArrowReaderOptions::new().with_schema(with_views(&schema).into());
            ArrowReaderMetadata::try_new(metadata.into(), options)
        });
        reader.map_err(|fault| ParquetError::new(place, Cause::Footer(said(&fault))).into())
    }

    /// A column, and where it is.
    fn leaf(&self, path: &str) -> Result<(usize, &Leaf), ParquetError> {
        let mut leaves = self.leaves.iter().enumerate();
        leaves.find(|(_, leaf)| leaf.path == path).ok_or_else(|| {
            let has = self.leaves.iter().map(|leaf| leaf.path.clone()).collect();
            ParquetError::new(&self.place, Cause::NoColumn { has }).at(path)
        })
    }
}

/// Says what large row groups cost that cannot be read in parts.
fn warn_of_large(files: &[File], groups: &[Group]) {
    let large = |group: &&Group| !group.has_pages && group.stored + group.decoded > LARGE;
    let count = groups.iter().filter(large).count();
    let largest = groups
        .iter()
        .filter(large)
        .max_by_key(|group| group.stored + group.decoded);
    if let Some(largest) = largest {
        log::warn!(
            "{}: row group {} is read whole, and takes {} MiB while it is open, as {} of {} row groups take more than {} MiB: they have no page index, so no part of one can be read. Of as many as are open at a time, each rank holds its share. Write the files with smaller row groups (pyarrow: `row_group_size=`, in rows), or with a page index (`write_page_index=True`)",
            files[largest.file].place,
            largest.row_group,
            (largest.stored + largest.decoded) >> 20,
            count,
            groups.len(),
            LARGE >> 20
        );
    }
}

pub(crate) fn of_source(error: BoxError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(other) => Error::Source(other),
    }
}

pub(crate) fn invalid(option: &'static str, reason: String) -> Error {
    Error::InvalidOption { option, reason }
}

/// Does something to all, several at once, and returns the results in their order, or the first error in that order that came.
pub(crate) fn in_parallel<I: Sync, T: Send>(
    items: &[I],
    make: impl Fn(&I) -> Result<T, BoxError> + Sync,
) -> Result<Vec<T>, BoxError> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Vec<Mutex<Option<Result<T, BoxError>>>> =
        items.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let made = make(item);
            failed.fetch_or(made.is_err(), Ordering::Relaxed);
            *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        }
    };
    thread::scope(|scope| {
        let others = (1..AT_ONCE.min(items.len())).map_while(|at| {
            // (Where there can be no more threads, those there are do it.)
            let named = thread::Builder::new().name(format!("pinfeed-footer-{at}"));
            named.spawn_scoped(scope, work).ok()
        });
        let others: Vec<_> = others.collect();
        work();
        for other in others {
            if let Err(panic) = other.join() {
                resume_unwind(panic);
            }
        }
    });
    // (One that was not looked at comes behind one that failed, which ends the collection; or none failed.)
    let made = results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    made.collect()
}
