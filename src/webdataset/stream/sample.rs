//! A sample that was read by itself: [`StreamedSample`].

use std::fmt;

use bytes::Bytes;

use crate::sync::Arc;
use crate::webdataset::sample::Lies;

/// A sample of a [`WebStream`](super::WebStream) as it was read, before the data set's function makes something of it: an item, of which
/// windows and batches are made. Clones share its bytes.
#[derive(Clone)]
pub struct StreamedSample(Arc<Inner>);

struct Inner {
    shard: Arc<str>,
    place: Arc<str>,
    key: String,
    fields: Vec<(String, Bytes)>,
}

impl StreamedSample {
    pub(super) fn new(
        shard: &Arc<str>,
        place: &Arc<str>,
        key: String,
        fields: Vec<(String, Vec<u8>)>,
    ) -> StreamedSample {
        let fields = fields.into_iter();
        let fields = fields.map(|(name, bytes)| (name, Bytes::from(bytes)));
        StreamedSample(Arc::new(Inner {
            shard: Arc::clone(shard),
            place: Arc::clone(place),
            key,
            fields: fields.collect(),
        }))
    }

    /// How much memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let fields = self.0.fields.iter();
        let of_fields = fields.map(|(name, bytes)| name.len() + bytes.len() + 64);
        self.0.key.len() + 128 + of_fields.sum::<usize>()
    }
}

impl Lies for StreamedSample {
    fn key(&self) -> &str {
        &self.0.key
    }

    fn shard(&self) -> &str {
        &self.0.shard
    }

    fn place(&self) -> &str {
        &self.0.place
    }

    fn count(&self) -> usize {
        self.0.fields.len()
    }

    fn field(&self, at: usize) -> (&str, &[u8]) {
        let field = self.0.fields.get(at);
        field.map_or(("", &[]), |(name, bytes)| (name, bytes))
    }

    fn shared(&self, at: usize) -> Bytes {
        let field = self.0.fields.get(at);
        field.map_or_else(Bytes::new, |(_, bytes)| bytes.clone())
    }
}

impl fmt::Debug for StreamedSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::webdataset::WebSample(self).fmt(f)
    }
}
