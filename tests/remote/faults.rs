//! What [`RemoteStore`] makes of a server that fails: our own, on the loopback.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::error::Temporary;
use pinfeed::store::{Object, RemoteStore, Store, StoreError, StoreErrorKind};
use pinfeed::{BoxError, DataLoader, SampleRng};

use super::server::{Act, KEY, SECRET, Server, open_bucket};

const SHORT: Duration = Duration::from_millis(200);

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// A server with one object of 10,000 bytes, and that object.
fn one() -> (Server, Vec<u8>) {
    let bytes = numbers(10_000);
    (Server::new(&[("train/a.tar", &bytes)]), bytes)
}

/// The error, and whether it may go away.
fn told(error: BoxError) -> (StoreError, bool) {
    match error.downcast::<Temporary>() {
        Ok(temporary) => (*temporary.into_inner().downcast().unwrap(), true),
        Err(error) => (*error.downcast().unwrap(), false),
    }
}

#[test]
fn a_bucket_is_listed_once_and_read_in_ranges() {
    let (server, bytes) = one();
    server.put("train/b c/ä.tar", b"ab", "\"v1\"");
    server.put("train/b c", b"", "\"v1\""); // a folder's marker
    server.put("train2/c.tar", b"c", "\"v1\"");
    let store = server.bucket("train/");
    let objects = store.list("").unwrap();
    let keys: Vec<&str> = objects.iter().map(|object| &*object.key).collect();
    assert_eq!(keys, ["a.tar", "b c/ä.tar"]);
    assert_eq!(store.list("b c/").unwrap(), objects[1..]);
    assert_eq!(store.object("a.tar").unwrap(), objects[0]);
    assert_eq!(store.read(&objects[1], 0..2).unwrap(), b"ab");
    server.seen();
    assert_eq!(store.read(&objects[0], 0..10_000).unwrap(), bytes);
    assert_eq!(
        store.read(&objects[0], 17..4_000).unwrap(),
        bytes[17..4_000]
    );
    assert_eq!(
        store.read(&objects[0], 9_999..10_000).unwrap(),
        bytes[9_999..]
    );
    assert_eq!(store.read(&objects[0], 5..5).unwrap(), b"");
    let parts = store.read_many(&objects[0], &[9_000..9_100, 0..10, 5..20]);
    assert_eq!(
        parts.unwrap(),
        [&bytes[9_000..9_100], &bytes[..10], &bytes[5..20]]
    );
    let seen = server.seen();
    assert_eq!(seen.len(), 4, "{seen:?}");
    for request in seen {
        assert_eq!(request.method, "GET");
        assert_eq!(request.headers["if-match"], "\"v1\"");
    }
    assert!(store.read(&objects[0], 0..10_001).is_err());
    let stats = store.stats();
    assert_eq!((stats.requests, stats.retried), (8, 0));
    assert_eq!(store.locate("a.tar"), "s3://bucket/train/a.tar");
}

#[test]
fn a_web_server_takes_keys() {
    let (server, bytes) = one();
    let store = server.web();
    let object = store.object("train/a.tar").unwrap();
    assert_eq!(object.bytes, 10_000);
    assert_eq!(store.read(&object, 5..50).unwrap(), bytes[5..50]);
    server.then([Act::Refuse(405, "", "")]);
    let (error, _) = told(store.list("").unwrap_err());
    assert!(error.to_string().contains("by their keys"), "{error}");
    // One that knows no ranges gives whole objects.
    server.script(|_| Act::IgnoreRange);
    assert_eq!(store.read(&object, 0..10_000).unwrap(), bytes);
    let (error, is_temporary) = told(store.read(&object, 0..10).unwrap_err());
    assert!(error.to_string().contains("ignores ranges"), "{error}");
    assert!(!is_temporary);
}

#[test]
fn pages_of_a_listing_are_asked_for_again_one_by_one() {
    let server = Server::new(&[]);
    for key in 0..25 {
        server.put(&format!("{key:02}"), b"x", "\"v1\"");
    }
    server.page(10);
    server.then([
        Act::Answer,
        Act::Refuse(503, "", ""),
        Act::Reset,
        Act::CutAfter(100),
        Act::Answer,
        Act::Refuse(500, "", ""),
    ]);
    let store = server.bucket("");
    let objects = store.list("").unwrap();
    assert!(
        (0..25)
            .map(|key| format!("{key:02}"))
            .eq(objects.into_iter().map(|object| object.key))
    );
    assert_eq!(server.seen().len(), 7);
    assert_eq!(store.stats().retried, 4);
}

#[test]
fn what_comes_and_goes_is_tried_again() {
    let (server, bytes) = one();
    let store = server.bucket("train").with_silence(SHORT);
    let object = store.object("a.tar").unwrap();
    for act in [
        Act::Reset,
        Act::Hang,
        Act::HangAfter(100),
        Act::CutAfter(0),
        Act::CutAfter(5_000),
        Act::Refuse(429, "", ""),
        Act::Refuse(500, "", "<Error><Code>InternalError</Code></Error>"),
        Act::Refuse(503, "", "<Error><Code>SlowDown</Code></Error>"),
        Act::Refuse(
            400,
            "Content-Type: application/xml\r\n",
            "<Error><Code>RequestTimeout</Code></Error>",
        ),
        Act::TooMuch,
        Act::Late(Duration::from_millis(20)),
    ] {
        server.then([act.clone(), act.clone()]);
        let read = store.read(&object, 100..9_000);
        assert_eq!(read.unwrap(), bytes[100..9_000], "{act:?}");
    }
    assert_eq!(store.stats().retried, 20);
}

#[test]
fn nobody_asks_before_the_server_says() {
    let (server, _) = one();
    let store = server.bucket("train");
    let object = store.object("a.tar").unwrap();
    server.seen();
    server.then([Act::Refuse(503, "Retry-After: 1\r\n", "")]);
    store.read(&object, 0..10).unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    let between = seen[1].at - seen[0].at;
    assert!(between >= Duration::from_secs(1), "{between:?}");
    // What asks for more than the call may take is an error at once.
    let store = store.with_timeout(Duration::from_secs(100));
    server.script(|_| Act::Refuse(503, "Retry-After: 3600\r\n", ""));
    let (error, is_temporary) = told(store.read(&object, 0..10).unwrap_err());
    let text = error.to_string();
    assert!(text.contains("s3://bucket/train/a.tar: "), "{text}");
    assert!(text.contains("asks to wait 3600.0 s"), "{text}");
    assert!(is_temporary);
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn attempts_and_time_have_limits() {
    let (server, _) = one();
    let store = server.bucket("train").with_attempts(3);
    let object = store.object("a.tar").unwrap();
    server.seen();
    server.script(|_| Act::Refuse(503, "", "<Error><Code>SlowDown</Code></Error>"));
    let (error, is_temporary) = told(store.read(&object, 0..10).unwrap_err());
    let text = error.to_string();
    assert!(text.contains("(503 SlowDown), after 3 attempts"), "{text}");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(is_temporary);
    assert_eq!(server.seen().len(), 3);

    let store = store.with_timeout(Duration::from_millis(500));
    for act in [Act::Hang, Act::HangAfter(5), Act::Reset] {
        server.script(move |_| act.clone());
        let (error, is_temporary) = told(store.read(&object, 0..10).unwrap_err());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(is_temporary);
    }
    // And then it is used again.
    server.script(|_| Act::Answer);
    assert_eq!(store.read(&object, 0..10).unwrap().len(), 10);
    // Dropped with requests that hang on the server's side.
    server.script(|_| Act::Hang);
    assert!(store.read(&object, 0..10).is_err());
    drop(store);
}

#[test]
fn a_server_that_is_not_there_is_noticed_soon() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let store = open_bucket(address, "train");
    let (error, is_temporary) = told(store.list("").unwrap_err());
    let text = error.to_string();
    assert!(
        text.starts_with("s3://bucket/train: no connection (Connection refused"),
        "{text}"
    );
    assert!(text.contains("after 4 attempts"), "{text}");
    assert!(text.contains("check the URL and the endpoint"), "{text}");
    assert!(is_temporary);
}

#[test]
fn an_object_that_changes_between_two_reads_is_an_error_that_says_so() {
    let (server, bytes) = one();
    let store = server.bucket("train");
    let object = store.list("").unwrap().remove(0);
    store.read(&object, 0..100).unwrap();
    let changed = |range, says: &str| {
        let (error, is_temporary) = told(store.read(&object, range).unwrap_err());
        let text = error.to_string();
        assert_eq!(error.kind(), StoreErrorKind::Changed, "{text}");
        assert!(text.starts_with("s3://bucket/train/a.tar: "), "{text}");
        assert!(text.contains(says), "{text}");
        assert!(!is_temporary);
    };
    server.put("train/a.tar", &bytes, "\"v2\"");
    changed(100..200, "ETag is another one");
    // A server that does not know conditions.
    server.script(|_| Act::IgnoreCondition);
    changed(100..200, "its version was \"v1\", and is \"v2\"");
    changed(0..10_000, "its version was \"v1\", and is \"v2\"");
    server.put("train/a.tar", &bytes[..5_000], "\"v1\"");
    changed(100..200, "it had 10000 bytes and has 5000");
    changed(0..10_000, "it had 10000 bytes and has 5000");
    changed(4_000..6_000, "it had 10000 bytes and has 5000");
    changed(6_000..7_000, "shorter");
    // No ETag: the time of the change, and the size.
    let undated = Object {
        version: Some("modified 5".to_owned()),
        bytes: 5_000,
        ..object.clone()
    };
    let (error, _) = told(store.read(&undated, 0..10).unwrap_err());
    assert!(error.to_string().contains("modified 784111777"), "{error}");
    // And a range that is another one.
    server.put("train/a.tar", &bytes, "\"v1\"");
    server.script(|_| Act::WrongRange);
    let (error, is_temporary) = told(store.read(&object, 0..10).unwrap_err());
    assert!(error.to_string().contains("got 1..11"), "{error}");
    assert!(!is_temporary);
}

#[test]
fn what_is_refused_says_what_to_check() {
    let (server, _) = one();
    let store = server.bucket("train");
    let object = store.object("a.tar").unwrap();
    let (error, is_temporary) = told(store.object("b.tar").unwrap_err());
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    assert!(
        error
            .to_string()
            .contains("s3://bucket/train/b.tar: there is no such object (404"),
        "{error}"
    );
    assert!(!is_temporary);
    for (status, headers, body, kind, says) in [
        (
            404,
            "",
            "<Error><Code>NoSuchBucket</Code></Error>",
            StoreErrorKind::NotFound,
            "no such bucket (404 NoSuchBucket)",
        ),
        (
            403,
            "",
            "<Error><Code>AccessDenied</Code></Error>",
            StoreErrorKind::Denied,
            "s3:GetObject",
        ),
        (
            403,
            "",
            "<Error><Code>InvalidAccessKeyId</Code></Error>",
            StoreErrorKind::Denied,
            "AWS_ACCESS_KEY_ID",
        ),
        (
            301,
            "x-amz-bucket-region: eu-west-3\r\n",
            "",
            StoreErrorKind::Other,
            "AWS_REGION=eu-west-3",
        ),
        (
            418,
            "",
            "",
            StoreErrorKind::Other,
            "refuses the request (418)",
        ),
    ] {
        server.seen();
        server.script(move |_| Act::Refuse(status, headers, body));
        let (error, is_temporary) = told(store.read(&object, 0..5).unwrap_err());
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!is_temporary);
        assert_eq!(server.seen().len(), 1, "{error}");
    }
    for key in ["", "/a", "a/", "a//b", "../a"] {
        let (error, _) = told(store.object(key).unwrap_err());
        assert!(error.to_string().contains("no key of an object"), "{error}");
    }
}

/// A server may send back what was signed.
#[test]
fn credentials_are_in_no_error() {
    let (server, _) = one();
    let store = server.bucket("train");
    let object = store.object("a.tar").unwrap();
    let body = "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>THE-KEY-OF-THE-TEST</AWSAccessKeyId>\
        <StringToSign>the secret of the test</StringToSign></Error>";
    for status in [400, 403, 503] {
        server.script(move |_| Act::Refuse(status, "", body));
        let store = server.bucket("train").with_attempts(2);
        let error = store.read(&object, 0..5).unwrap_err();
        for text in [format!("{error}"), format!("{error:?} {store:?}")] {
            assert!(!text.contains(KEY) && !text.contains(SECRET), "{text}");
        }
        assert!(
            error.to_string().contains("SignatureDoesNotMatch"),
            "{error}"
        );
    }
    for url in [
        "https://me:hunter2@host/a",
        "s3://me:hunter2@bucket/a",
        "https://host/a?sig=hunter2",
    ] {
        let error = RemoteStore::open(url).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
    let options = [
        ("aws_secret_access_key", SECRET),
        ("aws_allow_http", SECRET),
    ];
    let error = RemoteStore::open_with("s3://bucket", options).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    let error = RemoteStore::open_with("s3://bucket", [("aws_color", "red")]).unwrap_err();
    assert!(error.to_string().contains("aws_color"), "{error}");
}

#[test]
fn a_thread_of_a_runtime_may_call() {
    let (server, _) = one();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = server.bucket("train");
    runtime.block_on(async move {
        assert_eq!(store.list("").unwrap().len(), 1);
        drop(store);
    });
}

/// Samples of 100 bytes of an object.
struct Parts {
    store: Arc<RemoteStore>,
    object: Object,
}

impl StagedDataset for Parts {
    type Raw = Vec<u8>;
    type Sample = u8;

    fn len(&self) -> u64 {
        self.object.bytes / 100
    }

    fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        self.store
            .read(&self.object, index * 100..index * 100 + 100)
    }

    fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<u8, BoxError> {
        Ok(raw[0])
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!(
            "{}, sample {index}",
            self.store.locate(&self.object.key)
        ))
    }
}

#[test]
fn a_loader_gets_through_all_of_that() {
    let (server, bytes) = one();
    let store = Arc::new(server.bucket("train").with_silence(SHORT));
    let object = store.object("a.tar").unwrap();
    let mut count = 0;
    server.script(move |_| {
        count += 1;
        match count % 7 {
            1 => Act::Reset,
            3 => Act::CutAfter(50),
            5 if count < 20 => Act::Hang,
            5 => Act::Refuse(503, "", ""),
            _ => Act::Answer,
        }
    });
    let parts = Staged::new(Parts {
        store: Arc::clone(&store),
        object: object.clone(),
    });
    let loader = DataLoader::builder(parts.with_in_flight(8))
        .batch_size(10)
        .num_workers(2);
    let loader = loader.build().unwrap();
    let right: Vec<u8> = bytes.iter().copied().step_by(100).collect();
    drop(loader.epoch(0).next()); // interrupted, and begun again
    for epoch in 0..2 {
        let batches: Vec<_> = loader.epoch(epoch).map(Result::unwrap).collect();
        let got: Vec<u8> = batches
            .iter()
            .flat_map(|batch| batch.as_slice().to_vec())
            .collect();
        assert_eq!(got, right);
    }
    // A sample that cannot be had is an error in its batch's place, and says where it is.
    server.script(|_| Act::Refuse(403, "", "<Error><Code>AccessDenied</Code></Error>"));
    let mut epoch = loader.epoch(2);
    let began = Instant::now();
    let error = epoch.next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("s3://bucket/train/a.tar, sample "),
        "{error}"
    );
    assert!(error.contains("AccessDenied"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// Class folders of a bucket: one listing, a request for each picture, and one more for a picture that did not come at first.
#[cfg(feature = "image")]
#[test]
fn pictures_lie_in_class_folders() {
    use pinfeed::image::StoredFolder;

    let picture = |shade: u8| [&b"P6 2 2 255\n"[..], &[shade; 12]].concat();
    let (ant, bee, old) = (picture(10), picture(20), picture(30));
    let objects = [
        ("data/train/ant/1.ppm", &*ant),
        ("data/train/bee/1.ppm", &*bee),
        ("data/train.old/cat/1.ppm", &*old),
    ];
    let server = Server::new(&objects);
    let train = StoredFolder::open(server.bucket("data"), "train").unwrap();
    assert_eq!(train.classes(), ["ant", "bee"]);
    assert!(train.keys().eq(["train/ant/1.ppm", "train/bee/1.ppm"]));
    assert_eq!(server.seen().len(), 1);

    let loader = DataLoader::builder(train)
        .batch_size(2)
        .num_workers(1)
        .build()
        .unwrap();
    server.then([Act::CutAfter(5)]);
    for _ in 0..2 {
        let (pictures, labels) = loader.epoch(0).next().unwrap().unwrap();
        assert_eq!(labels.as_slice(), [0, 1]);
        assert_eq!(pictures.row(1).to_vec(), [20; 12]);
    }
    assert_eq!(server.seen().len(), 5);
}
