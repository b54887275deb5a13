//! Pictures in columns of bytes: a feature.

use arrow_buffer::Buffer;
use pinfeed::image::LazyImage;

use crate::column::{Content, Values};
use crate::error::ParquetError;
use crate::row::Row;
use crate::value::Misfit;

impl Row<'_> {
    /// A picture, not decoded yet, in a column of bytes, or in a structure of `bytes` and `path`, as the Hugging Face hub has them. It shares
    /// the memory of its page, and is called by its `path`, or else by file and row, in errors.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Row::get); and if there is a path and there are no bytes: the file was not packed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::DataLoader;
    /// use pinfeed::image::ImageTransform;
    /// use pinfeed_parquet::Parquet;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hub/images.parquet");
    /// let train = ImageTransform::train(8);
    /// let data = Parquet::open(file)?.columns(["image", "label"]).build(move |row, rng| {
    ///     Ok((row.image("image")?.transform(&train, rng), row.get::<i64>("label")?))
    /// })?;
    /// let loader = DataLoader::builder(data).batch_size(4).shuffle(true).num_workers(2).build()?;
    /// for batch in loader.epoch(0) {
    ///     let (pictures, labels) = batch?;
    ///     assert_eq!(pictures.shape()[1..], [8, 8, 3]);
    /// #   let _ = labels;
    /// }
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn image(&self, column: &str) -> Result<LazyImage, ParquetError> {
        let inside = [column, ".bytes"].concat();
        let is_structure = self.inner.names.contains(&inside);
        let (bytes, path) = match is_structure {
            true => (inside.as_str(), Some([column, ".path"].concat())),
            false => (column, None),
        };
        let path = path.filter(|path| self.inner.names.contains(path));
        let path = path
            .map(|path| self.get::<Option<String>>(&path))
            .transpose()?
            .flatten();
        let cell = self.cell(bytes)?;
        let shared = match cell.content() {
            Content::Value(values, at) => shared_bytes(values, at).ok_or(Misfit::Type("bytes")),
            Content::Null => Err(match &path {
                Some(path) => Misfit::Unpacked(path.clone()),
                None => Misfit::Null,
            }),
            Content::List(list) => Err(Misfit::List(list.len())),
        };
        let shared = shared.map_err(|misfit| self.misfit(bytes, misfit))?;
        let path = path.unwrap_or_else(|| format!("{} (row {})", self.file(), self.number()));
        Ok(LazyImage::encoded(shared).with_path(path))
    }
}

/// The bytes of a value, sharing the page that they lie in.
fn shared_bytes(values: &Values, at: usize) -> Option<Shared> {
    let (views, buffers) = match values {
        Values::Text(texts) => (texts.views(), texts.data_buffers()),
        Values::Bytes(bytes) => (bytes.views(), bytes.data_buffers()),
        _ => return values.bytes(at).map(|bytes| Shared(Buffer::from(bytes))),
    };
    // (A view: the length, the first four bytes, which page, and where in it. One of at most 12 bytes has these instead.)
    let view = *views.get(at)?;
    let (length, page, offset) = (view as u32, (view >> 64) as u32, (view >> 96) as u32);
    let bytes = match length {
        0..=12 => Buffer::from(values.bytes(at)?),
        _ => {
            let page = buffers.get(page as usize)?;
            page.slice_with_length(offset as usize, length as usize)
        }
    };
    Some(Shared(bytes))
}

/// Bytes of a page, which stays in memory as long as they are there.
struct Shared(Buffer);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
