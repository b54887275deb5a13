//! How files become a data set: [`ParquetBuilder`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::Type;
use parquet::file::metadata::ParquetMetaData;
use pinfeed::sampler::Blocks;
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, Error, Result, SampleRng};

use crate::dataset::{Inner, Parquet};
use crate::error::{Cause, ParquetError};
use crate::filter::{Filter, Known, Scalar};
use crate::find::{self, Named};
use crate::footer::{self, said};
use crate::kind::{self, Kind, Leaf, leaves};
use crate::parallel::{Cores, decode_in_parallel, in_parallel};
use crate::plan::{Chosen, File, Group, Wanted, bytes_of, read};
use crate::row::Row;

/// How many blocks there are where files are small: eight for each that is open, as `BlockSampler` wants for its usual 384.
const USUAL_BLOCKS: u64 = 8 * 384;

/// How large a block is where files are large: 384 that are open, and one more, take 3 GiB, of the 4 GiB that `Blocked` has by default.
const USUAL_BYTES: u64 = 8 << 20;

/// A block that takes more than this is worth a line in the log.
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
    /// A condition on a folder's column (`year=2024/`) leaves out its files, which are not looked at. For others, a row group is left out
    /// or taken by its statistics, if these decide. If they do not, `build` reads the condition's columns of the row group, and no others,
    /// because a data set knows how many samples it has: that is one pass over these columns, and 4 bytes for each row that is taken of
    /// such a row group. All cores decode them, with 1 GiB of row groups at most in memory, or one that is larger.
    pub fn filter(mut self, filter: Filter) -> ParquetBuilder {
        self.filters.push(filter);
        self
    }

    /// How much memory a block takes, about: what is read, and what it is once it is decoded. A row group that takes more is read in parts,
    /// where it has a page index. Default: 8 MiB, so that the 384 blocks that are open at a time take 3 GiB; less where all files together
    /// take less than 24 GiB, so that there are 3,072 blocks all the same (384 that are open at a time, eight times over), but 64 KiB at
    /// least.
    ///
    /// Parts begin where pages of the largest column do, and a page is 1 MiB or 20,000 rows by most writers' defaults. They are larger
    /// where pages of other columns have many more rows, because each part reads all pages that it has rows of: at most 1.5 times its
    /// share. A row group without a page index is read whole, whatever this says.
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

    pub(crate) fn names_columns(&self) -> bool {
        self.columns.is_some()
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
        let (folders, objects) = self.folders(store, objects)?;
        let with_statistics = !self.filters.is_empty();
        let opened = in_parallel(&objects, |object| {
            Opened::new(store, object, footer::read(store, object, with_statistics)?)
        })?;
        let mut columns = self.chosen(&opened, &folders)?;
        let mut files = self.files(objects, opened, &mut columns, &folders)?;
        let mut groups = self.groups(&files, &folders)?;
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
        let bytes = groups.iter().map(Group::whole_bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        let usual = (bytes / USUAL_BLOCKS).clamp(64 << 10, USUAL_BYTES);
        let block_bytes = self.block_bytes.unwrap_or(usual);
        self.find_pages(&mut files, &mut groups, block_bytes)?;
        let parts = groups
            .iter()
            .map(|group| group.cut(&files[group.file], &columns.leaves, block_bytes));
        let parts: Vec<Vec<u64>> = parts.collect();
        warn_of_large(&files, &columns.leaves, &groups, &parts);
        let blocks = Arc::new(Blocks::from_sizes(parts.concat())?);
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
        let names = columns.names();
        let place = |name: &String| names.iter().position(|of| of == name);
        Ok(Inner {
            store: self.store,
            files,
            groups,
            starts,
            blocks,
            asked: columns.asked.iter().filter_map(place).collect(),
            names,
            leaves: columns.leaves,
            said: format!("{block_bytes} {:?}", self.filters),
        })
    }

    /// What the names of the files' folders say, and the files that the conditions on that leave.
    fn folders(
        &self,
        store: &dyn Store,
        mut objects: Vec<Object>,
    ) -> Result<(Folders, Vec<Object>), BoxError> {
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
        let mut conditions = Vec::new();
        for filter in &self.filters {
            let Some(at) = names.iter().position(|name| name == filter.column()) else {
                continue;
            };
            let leaf = find::leaf(&names[at], values.iter().map(|values| &values[at]));
            if let (Some(what), Some(object)) = (filter.misfit(&leaf), objects.first()) {
                let what = format!("it comes from the folders' names; {what}");
                let fault = ParquetError::new(&store.locate(&object.key), Cause::Misfit(what));
                return Err(fault.at(filter.column()).into());
            }
            conditions.push((at, filter));
        }
        let is_kept = |values: &Vec<Scalar>| {
            let mut conditions = conditions.iter();
            conditions.all(|(at, filter)| filter.is_met_by(&values[*at]))
        };
        let kept: Vec<bool> = values.iter().map(is_kept).collect();
        let mut each = kept.iter();
        objects.retain(|_| each.next().copied().unwrap_or(true));
        let mut each = kept.iter();
        values.retain(|_| each.next().copied().unwrap_or(true));
        Ok((Folders { names, values }, objects))
    }

    /// Which columns are read, and what they are called.
    fn chosen(&self, opened: &[Opened], folders: &Folders) -> Result<Columns, BoxError> {
        let Some(first) = opened.first() else {
            return Ok(Columns::default());
        };
        let is_taken = |leaf: &&Leaf| !matches!(leaf.kind, Kind::Refused(..));
        let Some(names) = &self.columns else {
            let leaves = first.leaves.iter().filter(is_taken).cloned().collect();
            let own = |name: &&String| !first.leaves.iter().any(|leaf| leaf.path == **name);
            let partitions = folders.names.iter().filter(own).cloned().collect();
            let mut columns = Columns {
                leaves,
                partitions,
                asked: Vec::new(),
            };
            columns.asked = columns.names();
            return Ok(columns);
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
                    return Err(first.refusal(leaf, instead).into());
                }
                if !columns.asked.contains(&leaf.path) {
                    columns.asked.push(leaf.path.clone());
                    columns.leaves.push((*leaf).clone());
                }
            }
            if found.is_empty() && folders.names.contains(name) && !columns.asked.contains(name) {
                columns.asked.push(name.clone());
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
            let mut refused = Vec::new();
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
                if let (Kind::Null, Kind::Refused(_, instead)) = (&leaf.kind, &own.kind) {
                    if self.columns.is_some() {
                        return Err(file.refusal(own, instead).into());
                    }
                    refused.push(leaf.path.clone()); // as if the first file had the type
                } else if leaf.kind == Kind::Null {
                    (*leaf, *first) = (own.clone(), &file.place);
                }
            }
            known.retain(|(leaf, _)| !refused.contains(&leaf.path));
            columns.asked.retain(|name| !refused.contains(name));
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
    fn groups(&self, files: &[File], folders: &Folders) -> Result<Vec<Group>, BoxError> {
        let mut groups = Vec::new();
        let mut unknown = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let schema = leaves(file.reader.schema());
            let mut conditions = Vec::new();
            let mut read = Vec::new();
            for filter in &self.filters {
                let of_file = |fault: ParquetError| fault.at(filter.column());
                match find_leaf(&schema, filter.column(), &file.place)? {
                    Some((leaf, of)) => {
                        if let Some(what) = filter.misfit(of) {
                            let fault = ParquetError::new(&file.place, Cause::Misfit(what));
                            return Err(of_file(fault).into());
                        }
                        // (Two conditions may be on one column, which is read once.)
                        let place = read.iter().position(|of| *of == leaf);
                        let place = place.unwrap_or_else(|| {
                            read.push(leaf);
                            read.len() - 1
                        });
                        conditions.push(Condition {
                            filter,
                            leaf,
                            place,
                        });
                    }
                    None if folders.names.iter().any(|name| name == filter.column()) => {}
                    None => {
                        let has = schema.into_iter().map(|leaf| leaf.path).collect();
                        let fault = ParquetError::new(&file.place, Cause::NoColumn { has });
                        return Err(of_file(fault).into());
                    }
                }
            }
            let conditions: Arc<[Condition<'_>]> = conditions.into();
            let chosen = Chosen::new(&file.reader, read);
            let mut row = 0;
            for (row_group, metadata) in file.reader.metadata().row_groups().iter().enumerate() {
                let group = Group::new(at, row_group, row, metadata);
                row += group.rows;
                let known = conditions.iter().map(|of| {
                    let statistics = metadata.column(of.leaf).statistics();
                    let kind = &schema[of.leaf].kind;
                    of.filter.known(statistics, group.rows, kind)
                });
                match known.fold(Known::AllMeetIt, Known::and) {
                    Known::AllMeetIt if group.rows > 0 => groups.push(group),
                    Known::Unknown if group.rows > 0 => {
                        let columns = chosen.leaves.iter().map(|leaf| (*leaf, &schema[*leaf]));
                        let (stored, decoded) = bytes_of(metadata, columns);
                        unknown.push(Open {
                            group: groups.len(),
                            chosen: chosen.clone(),
                            conditions: Arc::clone(&conditions),
                            bytes: stored.saturating_add(decoded),
                        });
                        groups.push(group);
                    }
                    _ => {}
                }
            }
        }
        let kept = decode_in_parallel(
            &unknown,
            |open| open.bytes,
            |open, cores| {
                let group = &groups[open.group];
                self.kept(&files[group.file], group, open, cores)
            },
        )?;
        let places: Vec<usize> = unknown.into_iter().map(|open| open.group).collect();
        for (at, kept) in places.into_iter().zip(kept) {
            let group = &mut groups[at];
            group.kept = (kept.len() as u64 != group.rows).then(|| kept.into());
        }
        groups.retain(|group| group.samples() > 0);
        Ok(groups)
    }

    /// Reads which rows meet the conditions.
    fn kept(
        &self,
        file: &File,
        group: &Group,
        open: &Open<'_>,
        cores: &Cores,
    ) -> Result<Vec<u32>, BoxError> {
        let rows = u32::try_from(group.rows)?;
        let wanted = Wanted {
            chosen: &open.chosen,
            row_group: group.row_group,
            selection: None,
            rows: rows as usize,
        };
        let mut kept = Vec::new();
        read(&*self.store, file, wanted, Some(cores), |batch| {
            let meets = |row: &usize| {
                let mut conditions = open.conditions.iter();
                conditions.all(|of| of.filter.is_met(&batch.columns[of.place], *row))
            };
            // (There are no more than `rows`.)
            kept.extend(
                (0..batch.rows)
                    .filter(meets)
                    .map(|row| (batch.first + row) as u32),
            );
            Ok(())
        })?;
        Ok(kept)
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
            if group.whole_bytes() > block_bytes && group.has_index {
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
    /// Those that were asked for, in that order.
    asked: Vec<String>,
}

/// A condition on a column of a file.
struct Condition<'a> {
    filter: &'a Filter,
    /// Which of the file's columns.
    leaf: usize,
    /// Where it is among those that are read for conditions.
    place: usize,
}

/// A row group whose statistics leave open which rows meet the conditions.
struct Open<'a> {
    group: usize,
    chosen: Chosen,
    conditions: Arc<[Condition<'a>]>,
    /// How much is read and decoded.
    bytes: u64,
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
        let columns = metadata.file_metadata().schema_descr_ptr();
        let is_of_96_bits = |leaf: usize| {
            leaf < columns.num_columns() && columns.column(leaf).physical_type() == Type::INT96
        };
        let schema = parquet_to_arrow_schema(&columns, None);
        let reader = schema.and_then(|schema| {
            let schema = kind::decoded(&schema, is_of_96_bits);
            let options = ArrowReaderOptions::new().with_schema(schema.into());
            ArrowReaderMetadata::try_new(metadata.into(), options)
        });
        reader.map_err(|fault| ParquetError::new(place, Cause::Footer(said(&fault))).into())
    }

    /// A column, and where it is.
    fn leaf(&self, path: &str) -> Result<(usize, &Leaf), ParquetError> {
        find_leaf(&self.leaves, path, &self.place)?.ok_or_else(|| {
            let has = self.leaves.iter().map(|leaf| leaf.path.clone()).collect();
            ParquetError::new(&self.place, Cause::NoColumn { has }).at(path)
        })
    }

    /// Why a column cannot be chosen.
    fn refusal(&self, leaf: &Leaf, instead: &'static str) -> ParquetError {
        let kind = leaf.type_name();
        ParquetError::new(&self.place, Cause::Unsupported { kind, instead }).at(&leaf.path)
    }
}

/// The column of this name, and where it is among those of a file.
fn find_leaf<'a>(
    leaves: &'a [Leaf],
    path: &str,
    place: &str,
) -> Result<Option<(usize, &'a Leaf)>, ParquetError> {
    let mut found = leaves.iter().enumerate();
    let mut found = found.by_ref().filter(|(_, leaf)| leaf.path == path);
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(ParquetError::new(place, Cause::TwoColumns).at(path)),
        (found, _) => Ok(found),
    }
}

/// Says what large blocks cost: row groups that are read whole, and parts of others whose pages are long.
fn warn_of_large(files: &[File], leaves: &[Leaf], groups: &[Group], parts: &[Vec<u64>]) {
    let mut large = Vec::new();
    for (group, parts) in groups.iter().zip(parts) {
        let mut first = 0;
        for samples in parts {
            let bytes = group.bytes(&files[group.file], leaves, &(first..first + samples));
            first += samples;
            if bytes > LARGE {
                large.push((bytes, group));
            }
        }
    }
    let Some((bytes, group)) = large.iter().max_by_key(|(bytes, _)| *bytes) else {
        return;
    };
    let what = match group.has_index {
        false => {
            "it has no page index, so no part of it can be read. Write the files with smaller row groups (pyarrow: `row_group_size=`, in rows), or with a page index (`write_page_index=True`)"
        }
        true => {
            "its pages are that long, or `block_bytes` that large. Write the files with shorter pages (pyarrow: `max_rows_per_page=`, `data_page_size=`), or with smaller row groups (`row_group_size=`, in rows)"
        }
    };
    log::warn!(
        "{}: a block of row group {} takes {} MiB while it is open, as {} of {} blocks take more than {} MiB: {what}. Of as many as are open at a time, each rank holds its share",
        files[group.file].place,
        group.row_group,
        bytes >> 20,
        large.len(),
        parts.iter().map(Vec::len).sum::<usize>(),
        LARGE >> 20
    );
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
