//! A sample as it lies in its shard: [`WebSample`].

use std::panic::RefUnwindSafe;
use std::str::FromStr;

use bytes::Bytes;

use super::error::{Cause, ShardError};

/// Where a sample's fields are: in an extent of an indexed shard, or read by themselves.
pub(super) trait Lies: Sync + RefUnwindSafe {
    fn key(&self) -> &str;

    /// The shard's key in its store.
    fn shard(&self) -> &str;

    /// Where the shard is, for errors.
    fn place(&self) -> &str;

    /// How many fields there are.
    fn count(&self) -> usize;

    /// The name and the contents of a field, in the order in which they lie in the shard.
    fn field(&self, at: usize) -> (&str, &[u8]);

    /// The contents of a field, which share what was read with it.
    fn shared(&self, at: usize) -> Bytes;
}

/// A sample of a shard: its key and its fields. The data set's function makes something of it ([`WebDatasetBuilder::build`],
/// [`WebDatasetBuilder::stream`]).
///
/// A field is named by what follows the first dot of its file's name, in lower case: `cls`, `seg.png`. Where a data set has one or the
/// other, give both, with a semicolon, as in Python's webdataset: `"jpg;jpeg;png"` is the first of these that the sample has.
///
/// [`WebDatasetBuilder::build`]: super::WebDatasetBuilder::build
/// [`WebDatasetBuilder::stream`]: super::WebDatasetBuilder::stream
///
/// # Examples
///
/// ```
/// use pinfeed::webdataset::WebDataset;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
/// let shards = WebDataset::open(&format!("{folder}/train-{{000000..000002}}.tar"))?;
/// let data = shards.build(|sample, _rng| {
///     let class: i64 = sample.number("cls")?;
///     let picture: &[u8] = sample.field("jpg;jpeg;png")?;
///     Ok((sample.key().to_owned(), picture.len(), class))
/// })?;
/// # assert_eq!(data.len(), 8);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Clone, Copy)]
pub struct WebSample<'a>(pub(super) &'a dyn Lies);

impl<'a> WebSample<'a> {
    /// The key: the name of the sample's files up to the first dot, with their folder.
    pub fn key(&self) -> &'a str {
        self.0.key()
    }

    /// The shard's key in its store.
    pub fn shard(&self) -> &'a str {
        self.0.shard()
    }

    /// The fields' names and contents, in the order in which they lie in the shard. If fields were chosen, it is those.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let sample = self.0;
        (0..sample.count()).map(move |at| sample.field(at))
    }

    /// The contents of a field, or `None` if the sample has none of that name. If fields were chosen, it has only those.
    pub fn get(&self, names: &str) -> Option<&'a [u8]> {
        Some(self.find(names)?.1)
    }

    /// The contents of a field.
    ///
    /// # Errors
    ///
    /// If the sample has none of that name, or it was not chosen.
    pub fn field(&self, names: &str) -> Result<&'a [u8], ShardError> {
        self.named(names).map(|(_, contents)| contents)
    }

    /// The contents of a field, without a copy: for what is decoded, or copied into the batch, as soon as the data set's function returns. They
    /// keep in memory what was read with them: of an indexed shard an extent of 8 MiB, which [`Blocked::with_max_bytes`] does not count once its
    /// other samples are done. Copy what stays longer ([`field`](WebSample::field)).
    ///
    /// # Errors
    ///
    /// Those of [`field`](WebSample::field).
    ///
    /// [`Blocked::with_max_bytes`]: crate::dataset::Blocked::with_max_bytes
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::image::{ImageTransform, LazyImage};
    /// use pinfeed::webdataset::WebDataset;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
    /// let shards = WebDataset::open(&format!("{folder}/train-{{000000..000002}}.tar"))?;
    /// let transform = ImageTransform::train(8);
    /// let data = shards.build(move |sample, rng| {
    ///     let picture = LazyImage::encoded(sample.shared("jpg;jpeg;png")?).with_path(sample.key());
    ///     Ok((picture.transform(&transform, rng), sample.number::<i64>("cls")?))
    /// })?;
    /// # assert_eq!(data.len(), 8);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn shared(&self, names: &str) -> Result<Bytes, ShardError> {
        let (name, _) = self.named(names)?;
        let mut fields = self.fields();
        let at = fields.position(|(has, _)| has == name);
        Ok(at.map_or_else(Bytes::new, |at| self.0.shared(at)))
    }

    /// The contents of a field, as text.
    ///
    /// # Errors
    ///
    /// If the sample has no such field, or it is not UTF-8.
    pub fn text(&self, names: &str) -> Result<&'a str, ShardError> {
        let (name, contents) = self.named(names)?;
        std::str::from_utf8(contents).map_err(|why| self.not(name, "UTF-8", why.to_string()))
    }

    /// The contents of a field, as a number in decimal digits, with white space around it or none: a class, as Python's webdataset writes
    /// it into `cls`.
    ///
    /// # Errors
    ///
    /// If the sample has no such field, or it is no number of this type.
    pub fn number<T: FromStr<Err: std::fmt::Display>>(&self, names: &str) -> Result<T, ShardError> {
        let (name, contents) = self.named(names)?;
        let text = std::str::from_utf8(contents).unwrap_or_default().trim();
        text.parse().map_err(|why: T::Err| {
            let begins: String = text.chars().take(24).collect();
            self.not(name, "such a number", format!("{begins:?}: {why}"))
        })
    }

    fn named(&self, names: &str) -> Result<(&'a str, &'a [u8]), ShardError> {
        self.find(names).ok_or_else(|| {
            let has = self.fields().map(|(name, _)| name.to_owned()).collect();
            let wanted = names.to_owned();
            self.fault(Cause::Lacks { wanted, has })
        })
    }

    fn find(&self, names: &str) -> Option<(&'a str, &'a [u8])> {
        let of = |name: &str| self.fields().find(|(has, _)| *has == name);
        names.split(';').find_map(of)
    }

    fn not(&self, field: &str, what: &'static str, why: String) -> ShardError {
        let field = field.to_owned();
        self.fault(Cause::Field { field, what, why })
    }

    fn fault(&self, cause: Cause) -> ShardError {
        ShardError::new(self.0.place(), Some(self.key()), cause)
    }
}

impl std::fmt::Debug for WebSample<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lengths = self.fields().map(|(name, contents)| (name, contents.len()));
        f.debug_struct("WebSample")
            .field("shard", &self.shard())
            .field("key", &self.key())
            .field("bytes", &std::collections::BTreeMap::from_iter(lengths))
            .finish()
    }
}
