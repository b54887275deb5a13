//! Objects of a bucket, or of a web server.

mod attempts;
mod client;
mod engine;
mod failure;
mod pace;
mod requests;
mod version;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta};
use tokio::time::timeout;

use self::attempts::{Limits, Shared};
use self::client::{Client, Protocol, date};
use self::engine::Engine;
use self::failure::{Failure, Miss, Request, plain};
use self::requests::{page, read};
use self::version::version;
use super::error::{StoreError, StoreErrorKind};
use super::{Object, Store, length_of};
use crate::error::BoxError;
use crate::sync::{Arc, AtomicBool, AtomicU64, Instant, Ordering};

/// Objects of S3, Google Cloud Storage, Azure or a web server, as a [`Store`] (feature `object-store`).
///
/// It is the crate [object_store](https://docs.rs/object_store) with calls that block, on four threads of its own, which are there from the
/// first request on. The [module](super) lists the URLs, and where credentials come from.
///
/// # What a request may take
///
/// | limit | default | what it bounds |
/// | --- | --- | --- |
/// | [`with_attempts`](RemoteStore::with_attempts) | 10 | how often a request is made |
/// | [`with_silence`](RemoteStore::with_silence) | 30 s | how long the server may send nothing; then the request is made again |
/// | [`with_timeout`](RemoteStore::with_timeout) | 5 min | a call of [`read`](Store::read) or [`object`](Store::object), or a page of [`list`](Store::list), with all attempts |
///
/// A request is made again if the connection or its name fails, the server sends too little or nothing, or says that it may answer
/// later (408, 425, 429, 500, 502, 503, 504). It waits 100 ms, and twice as long with each attempt, up to 20 s; with `Retry-After`, not
/// less than that says. All callers together make 100 such requests at once, then ten a second and one for each that succeeds: so a server
/// that is down is not asked more often by more callers, who wait for their turn up to their timeout. Until a server has answered for the
/// first time, whatever it said, there are four attempts: the URL may be wrong.
///
/// When the limits are reached, the error is [`Temporary`](crate::error::Temporary), so
/// [`Builder::retry`](crate::loader::Builder::retry) makes the whole call again, if it is set.
///
/// The loader's own [`timeout`](crate::loader::Builder::timeout) should be longer than the store's, whose error says more.
///
/// # Changes
///
/// A read asks for the version that was listed (`If-Match`, with its ETag), and compares what the server says of the object that it
/// sends: the ETag, or without one the time of the last change (whole seconds), and the size. What is another object is an error of the kind
/// [`Changed`](StoreErrorKind::Changed), and no bytes of it are returned.
///
/// An object may be written again without another version if its ETag is weak (`W/"…"`), or if it has none and was changed less than a
/// minute before it was listed, by the server's clock. Its version then begins with `W/`, and [`DiskCache`](super::DiskCache) does not keep
/// it.
///
/// # Keys
///
/// A key with empty names (`a//b`), `.` or `..` in it cannot be read, and a listing that has one is an error. The empty objects by which
/// some programs show a folder (`train/`) are left out.
///
/// # Forks, and dropping
///
/// A forked child makes connections and threads of its own. Dropping a store waits for nothing.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// use pinfeed::store::{RemoteStore, Store};
///
/// let store = RemoteStore::open("s3://bucket/train")?.with_timeout(Duration::from_secs(60));
/// let shards = store.list("")?; // once
/// let head = store.read(&shards[0], 0..512)?;
/// println!("{}: {:?}", store.locate(&shards[0].key), head);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct RemoteStore {
    /// As it is shown, without a slash at its end.
    url: String,
    /// What is before each key, without a slash at its end.
    prefix: String,
    /// What the client is made of.
    endpoint: String,
    /// They may be secret.
    options: Vec<(String, String)>,
    /// A hash of server and account.
    origin: String,
    shared: Arc<Shared>,
    engine: Engine,
}

/// How much should be on its way.
const AHEAD_BYTES: u64 = 256 << 20;

/// What a [`RemoteStore`] has asked for: [`RemoteStore::stats`].
///
/// # Examples
///
/// ```
/// use pinfeed::store::RemoteStore;
///
/// let store = RemoteStore::open("https://example.org/data")?;
/// assert_eq!(store.stats().requests, 0);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RemoteStats {
    /// How many requests were made, those that were made again among them. A page of a listing is one.
    pub requests: u64,
    /// How many of those were made because the one before had failed.
    pub retried: u64,
    /// How many bytes of objects were read and returned.
    pub bytes: u64,
}

impl RemoteStore {
    /// Opens a bucket or a folder in it, or a folder of a web server. Nothing is asked of a server yet.
    ///
    /// # Errors
    ///
    /// If the URL is of no such kind, or the environment has a setting that is wrong.
    pub fn open(url: &str) -> Result<RemoteStore, StoreError> {
        RemoteStore::open_with(url, [("", ""); 0])
    }

    /// Opens a store as [`open`](RemoteStore::open) does, with settings that come before those of the environment: for a second server, or
    /// credentials that the program has from elsewhere. Their names are those of the variables, in lower case, as in
    /// [`AmazonS3ConfigKey`](https://docs.rs/object_store/0.14/object_store/aws/enum.AmazonS3ConfigKey.html), `GoogleConfigKey`,
    /// `AzureConfigKey` and, for web servers, `ClientConfigKey`. `timeout` is [`with_timeout`](RemoteStore::with_timeout)'s alone.
    ///
    /// # Errors
    ///
    /// If the URL is of no such kind, or a setting is wrong.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::store::RemoteStore;
    ///
    /// let options = [
    ///     ("aws_endpoint", "https://minio.example.org:9000"),
    ///     ("aws_access_key_id", "reader"),
    ///     ("aws_secret_access_key", "not in a log"),
    /// ];
    /// let store = RemoteStore::open_with("s3://bucket/train", options)?;
    /// assert_eq!(format!("{store:?}"), r#"RemoteStore("s3://bucket/train")"#);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn open_with<K: Into<String>, V: Into<String>>(
        url: &str,
        options: impl IntoIterator<Item = (K, V)>,
    ) -> Result<RemoteStore, StoreError> {
        match super::url::Place::of(url)? {
            super::url::Place::Remote { scheme, rest } => {
                let options = options.into_iter();
                let options = options.map(|(key, value)| (key.into(), value.into()));
                RemoteStore::of_place(scheme, &rest, options.collect())
            }
            super::url::Place::Folder(path) => Err(StoreError::new(
                path.display().to_string(),
                StoreErrorKind::Other,
                "it is a folder of this machine: LocalFiles opens it",
            )),
        }
    }

    pub(super) fn of_place(
        scheme: &'static str,
        rest: &str,
        options: Vec<(String, String)>,
    ) -> Result<RemoteStore, StoreError> {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            // (It is not repeated: what is before the @ may be a password.)
            let what = "a URL has no place for a name and a password: credentials come from the environment, or by open_with";
            return Err(StoreError::new(
                format!("{scheme}://…@…"),
                StoreErrorKind::Other,
                what,
            ));
        }
        let path = path.trim_matches('/');
        let protocol = match scheme {
            "s3" => Protocol::S3,
            "gs" => Protocol::Google,
            "az" => Protocol::Azure,
            _ => Protocol::Http,
        };
        let mut url = format!("{scheme}://{host}");
        let mut endpoint = url.clone();
        if !path.is_empty() {
            url = format!("{url}/{path}");
        }
        let mut prefix = path.to_owned();
        if protocol == Protocol::Http {
            if let Some((shown, _)) = url.split_once(['?', '#']) {
                // (Nor is this: a signature is a password.)
                let what =
                    "the URL of a folder has no question, and no `#`: keys are put behind it";
                return Err(StoreError::new(
                    format!("{shown}?…"),
                    StoreErrorKind::Other,
                    what,
                ));
            }
            endpoint = url.clone();
            prefix.clear();
        } else {
            Path::parse(path).map_err(|error| {
                StoreError::new(&*url, StoreErrorKind::Other, error.to_string())
            })?;
        }
        let mut store = RemoteStore {
            url,
            prefix,
            endpoint,
            options,
            origin: String::new(),
            shared: Arc::new(Shared {
                protocol,
                limits: Limits {
                    attempts: 10,
                    silence: Duration::from_secs(30),
                    timeout: Duration::from_secs(300),
                },
                opened: Instant::now(),
                was_answered: AtomicBool::new(false),
                requests: AtomicU64::new(0),
                retried: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
            }),
            engine: Engine::new(),
        };
        store.origin = store.client()?.origin;
        Ok(store)
    }

    /// Sets how often a request is made, 1 at least: 10 by default.
    ///
    /// # Panics
    ///
    /// If `attempts` is 0.
    pub fn with_attempts(self, attempts: u32) -> RemoteStore {
        assert!(attempts > 0, "a request is made once at least");
        self.with_limits(|limits| limits.attempts = attempts)
    }

    /// Sets how long the server may send nothing before a request is made again: 30 s by default. It is longer than the server takes for
    /// the first byte.
    pub fn with_silence(self, silence: Duration) -> RemoteStore {
        self.with_limits(|limits| limits.silence = silence)
    }

    /// Sets how long a call may take with all its attempts: 5 minutes by default. (For a listing, each page of 1,000 keys.)
    pub fn with_timeout(self, timeout: Duration) -> RemoteStore {
        self.with_limits(|limits| limits.timeout = timeout)
    }

    fn with_limits(self, set: impl FnOnce(&mut Limits)) -> RemoteStore {
        let shared = &*self.shared;
        let mut limits = shared.limits;
        set(&mut limits);
        let same = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
        let shared = Arc::new(Shared {
            protocol: shared.protocol,
            limits,
            opened: shared.opened,
            was_answered: AtomicBool::new(shared.was_answered.load(Ordering::Relaxed)),
            requests: same(&shared.requests),
            retried: same(&shared.retried),
            bytes: same(&shared.bytes),
        });
        RemoteStore { shared, ..self }
    }

    /// Returns what was asked for so far.
    pub fn stats(&self) -> RemoteStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RemoteStats {
            requests: count(&self.shared.requests),
            retried: count(&self.shared.retried),
            bytes: count(&self.shared.bytes),
        }
    }

    fn client(&self) -> Result<Client, StoreError> {
        self.engine.client(|| {
            let protocol = self.shared.protocol;
            Client::new(protocol, &self.endpoint, &self.options).map_err(|error| {
                let mut what = plain(&error.to_string());
                for (key, value) in self.options.iter().filter(|(_, value)| !value.is_empty()) {
                    what = what.replace(value, &format!("[{key}]"));
                }
                StoreError::new(&*self.url, StoreErrorKind::Other, what)
            })
        })
    }

    /// The path of a key in the bucket.
    fn path(&self, key: &str) -> Result<Path, BoxError> {
        let refused = |why: &str| {
            let what = format!("{key:?} is no key of an object: {why}");
            StoreError::new(&*self.url, StoreErrorKind::Other, what)
        };
        if key.is_empty() || key.starts_with('/') || key.ends_with('/') {
            return Err(refused("it is empty, or begins or ends with a slash").into());
        }
        let whole = match &*self.prefix {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        };
        Ok(Path::parse(whole).map_err(|error| refused(&error.to_string()))?)
    }

    /// Makes a request until it succeeds, or the limits are reached.
    fn call<T, A, F>(&self, place: String, request: Request, attempt: A) -> Result<T, BoxError>
    where
        T: Send + 'static,
        A: Fn(Client, Limits) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Miss>> + Send,
    {
        let client = self.client()?;
        let (shared, pace) = (Arc::clone(&self.shared), self.engine.pace());
        let called = self.engine.run(async move {
            let once = || attempt(client.clone(), shared.limits);
            shared.tried(&pace, &place, request, once).await
        });
        match called {
            Ok(outcome) => outcome,
            Err(error) => Err(error.into()),
        }
    }
}

impl Store for RemoteStore {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        let folder = match prefix.strip_suffix('/').unwrap_or(prefix) {
            "" => Path::parse(&self.prefix)?,
            folder => self.path(folder)?,
        };
        let place = self.locate(prefix);
        let mut objects = Vec::new();
        let mut page_token = None;
        loop {
            let (folder, token) = (folder.clone(), page_token.take());
            let page = self.call(place.clone(), Request::List, move |client, limits| {
                page(client, folder.clone(), token.clone(), limits)
            })?;
            for meta in page.objects {
                objects.extend(self.listed(&meta, page.date)?);
            }
            page_token = page.next;
            if page_token.is_none() {
                break;
            }
        }
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(without_markers(objects))
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let path = self.path(key)?;
        let looked = self.call(self.locate(key), Request::Look, move |client, limits| {
            let path = path.clone();
            async move {
                let options = GetOptions {
                    head: true,
                    ..GetOptions::default()
                };
                let looked = timeout(limits.silence, client.objects.get_opts(&path, options));
                let looked = looked.await.map_err(|_| Failure::silence(limits.silence))?;
                Ok((looked?.meta, date()))
            }
        })?;
        let (meta, date) = looked;
        Ok(Object {
            key: key.to_owned(),
            bytes: meta.size,
            version: version(&meta, date),
        })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let place = self.locate(&object.key);
        let length = length_of(object, &range, || place.clone())?;
        let path = self.path(&object.key)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let (object, shared) = (Arc::new(object.clone()), Arc::clone(&self.shared));
        let bytes = self.call(place, Request::Read, move |client, limits| {
            read(
                client,
                path.clone(),
                Arc::clone(&object),
                range.clone(),
                limits,
            )
        })?;
        shared
            .bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// As many as are 256 MiB together, from 32 to 256: with 50 ms to the first byte, 5 GB/s where requests are of 1 MiB, or 5,000 requests
    /// a second where they are small.
    fn in_flight(&self, bytes: u64) -> usize {
        (AHEAD_BYTES / bytes.max(1)).clamp(32, 256) as usize
    }

    fn locate(&self, key: &str) -> String {
        match key {
            "" => self.url.clone(),
            _ => format!("{}/{key}", self.url),
        }
    }

    fn origin(&self) -> String {
        self.origin.clone()
    }
}

impl RemoteStore {
    /// The object of an entry of a listing; `None` for the folder itself.
    fn listed(&self, meta: &ObjectMeta, date: Option<u64>) -> Result<Option<Object>, BoxError> {
        let path = meta.location.as_ref();
        let key = match &*self.prefix {
            "" => Some(path),
            prefix => path.strip_prefix(prefix).and_then(|rest| {
                if rest.is_empty() {
                    Some(rest)
                } else {
                    rest.strip_prefix('/')
                }
            }),
        };
        let Some(key) = key else {
            let what = format!("its list has {path:?}, which is not in it");
            return Err(StoreError::new(&*self.url, StoreErrorKind::Other, what).into());
        };
        Ok((!key.is_empty()).then(|| Object {
            key: key.to_owned(),
            bytes: meta.size,
            version: version(meta, date),
        }))
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({:?})", self.url)
    }
}

/// Leaves out the empty objects that stand for a folder: those that others are below.
fn without_markers(objects: Vec<Object>) -> Vec<Object> {
    let is_folder = |key: &str| {
        let folder = format!("{key}/");
        let next = objects.partition_point(|object| object.key < folder);
        objects
            .get(next)
            .is_some_and(|object| object.key.starts_with(&folder))
    };
    let stays: Vec<bool> = objects
        .iter()
        .map(|object| object.bytes > 0 || !is_folder(&object.key))
        .collect();
    let stays = objects.into_iter().zip(stays).filter(|(_, stays)| *stays);
    stays.map(|(object, _)| object).collect()
}
