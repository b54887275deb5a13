//! What is wrong with a shard, or with a sample of one.

use std::fmt;

use crate::error::{BoxError, causes};
use crate::store::Object;

/// Why a tar shard cannot be read, or a sample of it cannot be used. It names the shard, and the sample's key if there is one.
///
/// # Examples
///
/// Which shard to fetch again:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::webdataset::{ShardError, WebDataset};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.tar.gz");
/// # std::fs::write(&path, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3])?;
/// # let path = path.to_string_lossy();
/// let samples = WebDataset::open(&path)?.stream(|sample, _| Ok(sample.key().to_owned()))?; // it is cut off
/// let loader = DataLoader::iterable(samples).build()?;
/// for batch in loader.epoch(0) {
///     let Err(error) = batch else { continue };
///     let shard = ShardError::find(&error).map(ShardError::shard);
///     assert!(shard.is_some_and(|shard| shard.ends_with("train.tar.gz")));
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct ShardError(Box<Inner>);

struct Inner {
    shard: String,
    key: Option<String>,
    cause: Cause,
}

impl ShardError {
    pub(super) fn new(shard: &str, key: Option<&str>, cause: Cause) -> ShardError {
        ShardError(Box::new(Inner {
            shard: shard.to_owned(),
            key: key.map(str::to_owned),
            cause,
        }))
    }

    /// A store's error if that names the shard itself, or one of these.
    pub(super) fn of(shard: &str, object: &Object, cause: Cause) -> BoxError {
        match cause {
            Cause::Store(error) if error.to_string().contains(&object.key) => error,
            cause => ShardError::new(shard, None, cause).into(),
        }
    }

    /// Finds it: a batch's error, or a builder's, is a shard's if that is among its causes, however many errors lie between. `None` if it is no
    /// shard's, or a store's that names the object itself.
    pub fn find<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a ShardError> {
        causes(error).find_map(|error| error.downcast_ref())
    }

    /// Where the shard is: what its store's [`locate`](crate::store::Store::locate) says.
    pub fn shard(&self) -> &str {
        &self.0.shard
    }

    /// The sample's key in its shard, if the error is a sample's.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { shard, key, cause } = &*self.0;
        write!(f, "{shard}: ")?;
        if let Some(key) = key {
            write!(f, "sample {key:?}: ")?;
        }
        write!(f, "{cause}")
    }
}

/// The same as `{}`: `main` and `unwrap` print errors this way.
impl fmt::Debug for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for ShardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            // (`{}` includes it, but it says whether it may go away.)
            Cause::Store(error) => Some(&**error),
            Cause::Thread(error) => Some(error),
            _ => None,
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("{0}")]
    Store(BoxError),
    #[error("no thread could be started that reads it: {0}")]
    Thread(std::io::Error),
    #[error("the stream has no use for it any more")]
    Left,
    #[error("it has no bytes: it was not written, or not copied; write it again")]
    Empty,
    #[error(
        "it is compressed ({0}), so it can be read from its front only: by `stream`, which takes gzip and zstd, instead of `build`; or decompress the shards, whose pictures are compressed already"
    )]
    Compressed(&'static str),
    #[error(
        "it is compressed by {0}, which is not read: a stream takes gzip and zstd; decompress it, or compress it by one of these"
    )]
    Packed(&'static str),
    #[error(
        "its {how} data end early, behind byte {at} of the archive in it: it was not written or copied to its end; copy it again"
    )]
    EndsEarly { how: &'static str, at: u64 },
    #[error(
        "its {how} data are damaged, behind byte {at} of the archive in it ({why}): copy it again"
    )]
    Damaged {
        how: &'static str,
        at: u64,
        why: String,
    },
    #[error("it is no tar archive: {0}")]
    NoTar(String),
    #[error(
        "it is cut off at byte {bytes}, in {what}: it was not written or copied to its end; copy it again"
    )]
    CutOff { bytes: u64, what: String },
    #[error(
        "it is cut off at byte {bytes}: the blocks of zeros are missing that end a tar archive, so members may be missing, too; copy it again, or pack it again if its writer was not closed"
    )]
    NoEnd { bytes: u64 },
    #[error(
        "the header at byte {at} has a wrong checksum: the bytes are damaged, or the member before it ({before}) has another size than its header says; copy the shard again"
    )]
    Checksum { at: u64, before: String },
    #[error("the header at byte {at} is damaged: {what}; copy the shard again")]
    Header { at: u64, what: String },
    #[error(
        "its member {name:?} is sparse, which is not read: pack the shard again, without `--sparse`"
    )]
    Sparse { name: String },
    #[error(
        "its member {name:?} has a name that is not UTF-8: rename it, and pack the shard again"
    )]
    Name { name: String },
    #[error(
        "another archive follows the end of the first, at byte {at}, whose samples tar and webdataset skip without a word: join archives by `tar --concatenate`, or leave them two shards"
    )]
    Another { at: u64 },
    #[error(
        "two of its members are called {first:?} and {second:?}, which is one field: a field's name is what follows the first dot, in lower case; rename one"
    )]
    TwoFields { first: String, second: String },
    #[error(
        "two samples have this key: its members do not follow each other. Pack the shard with its members sorted by name (`tar --sort=name`)"
    )]
    TwoSamples,
    #[error("it has more than {0}: pack it as several shards")]
    TooMany(&'static str),
    #[error(
        "its field {field:?} has {bytes} bytes, and 4 GiB is the most that a sample's can have"
    )]
    TooLarge { field: String, bytes: u64 },
    #[error("it has no field {wanted:?}, but {}", Names(has))]
    Lacks { wanted: String, has: Vec<String> },
    #[error("it has no samples: {0}")]
    NoSamples(&'static str),
    #[error("its field {field:?} is not {what}: {why}")]
    Field {
        field: String,
        what: &'static str,
        why: String,
    },
    #[error(
        "what is at byte {at} is not what its index says ({what}): the index {index} is of another shard, or the shard was replaced; make the index again"
    )]
    Stale {
        at: u64,
        what: &'static str,
        index: String,
    },
    #[error("its index {index}, line {line}: {what}")]
    Dali {
        index: String,
        line: usize,
        what: String,
    },
    #[error(
        "it has {found} samples, and {index} says {expected}: one of them is of another version"
    )]
    Count {
        index: String,
        expected: u64,
        found: u64,
    },
    #[error("{0}")]
    Other(String),
}

/// What a sample has, in words.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{name:?}", if at == 0 { "" } else { ", " })?;
        }
        if self.0.len() > 8 {
            write!(f, " and {} more", self.0.len() - 8)?;
        }
        if self.0.is_empty() {
            f.write_str("none at all")?;
        }
        if self.0.iter().any(|name| name.contains('.')) {
            f.write_str(" (a field's name begins behind the first dot of the file's name)")?;
        }
        Ok(())
    }
}
