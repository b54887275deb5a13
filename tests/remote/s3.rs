//! A real S3 server, `s3s-fs`, with objects that object_store's own client has put there: `ci/servers.sh` runs these tests, with
//! `PINFEED_S3S_FS` set to its binary.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use pinfeed::error::Temporary;
use pinfeed::store::{RemoteStore, Store, StoreError, StoreErrorKind};
use pinfeed::{DataLoader, from_fn};

use super::server::{KEY, SECRET, open_bucket};

/// The server, with an empty bucket `bucket`.
struct S3 {
    address: SocketAddr,
    process: Child,
    client: AmazonS3,
    runtime: tokio::runtime::Runtime,
    _root: tempfile::TempDir,
}

impl S3 {
    fn start() -> S3 {
        let binary = std::env::var_os("PINFEED_S3S_FS")
            .unwrap_or_else(|| panic!("PINFEED_S3S_FS names s3s-fs: ci/servers.sh sets it"));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bucket")).unwrap();
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut process = Command::new(binary);
        process.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        process
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(root.path());
        let process = process
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "s3s-fs does not listen"
            );
            thread::sleep(Duration::from_millis(20));
        }
        let client = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(format!("http://{address}"))
            .with_allow_http(true)
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET);
        S3 {
            address,
            process,
            client: client.build().unwrap(),
            runtime: tokio::runtime::Runtime::new().unwrap(),
            _root: root,
        }
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let payload = PutPayload::from(bytes.to_vec());
        let path = Path::parse(key).unwrap();
        let put = self.client.put(&path, payload);
        self.runtime.block_on(put).unwrap();
    }

    /// What object_store's own client reads.
    fn theirs(&self, key: &str) -> Vec<u8> {
        let path = Path::parse(key).unwrap();
        let read = async { self.client.get(&path).await?.bytes().await };
        self.runtime.block_on(read).unwrap().to_vec()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
#[ignore = "needs s3s-fs: ci/servers.sh"]
fn a_real_server_lists_and_reads_what_was_put() {
    let s3 = S3::start();
    let shards: Vec<Vec<u8>> = (0..5)
        .map(|shard| noise(300_000 + shard * 7, shard as u64))
        .collect();
    for (at, shard) in shards.iter().enumerate() {
        s3.put(&format!("train/shard {at}.tar"), shard);
    }
    s3.put("train2/other.tar", b"other");
    let store = open_bucket(s3.address, "train");
    let objects = store.list("").unwrap();
    assert_eq!(store.stats().requests, 1);
    assert_eq!(objects.len(), 5);
    for (at, object) in objects.iter().enumerate() {
        assert_eq!(object.key, format!("shard {at}.tar"));
        assert!(object.version.is_some(), "{object:?}");
        let theirs = s3.theirs(&format!("train/{}", object.key));
        assert_eq!(theirs, shards[at]);
        assert_eq!(store.read(object, 0..object.bytes).unwrap(), theirs);
        for range in [
            0..1,
            512..1_024,
            299_990..300_000,
            object.bytes - 1..object.bytes,
        ] {
            let part = &theirs[range.start as usize..range.end as usize];
            assert_eq!(store.read(object, range).unwrap(), part);
        }
        let looked = store.object(&object.key).unwrap();
        assert_eq!(looked.bytes, object.bytes);
        assert_eq!(store.read(&looked, 3..9).unwrap(), theirs[3..9]);
    }
    assert_eq!(open_bucket(s3.address, "").list("").unwrap().len(), 6);
    assert_eq!(open_bucket(s3.address, "").list("train").unwrap().len(), 5);
    assert_eq!(store.stats().retried, 0);
}

#[test]
#[ignore = "needs s3s-fs: ci/servers.sh"]
fn an_object_that_is_put_again_is_another_one() {
    let s3 = S3::start();
    s3.put("a", &noise(10_000, 1));
    let store = open_bucket(s3.address, "");
    let looked = store.object("a").unwrap();
    store.read(&looked, 0..100).unwrap();
    for bytes in [noise(10_000, 2), noise(9_000, 3)] {
        s3.put("a", &bytes);
        let error = store.read(&looked, 0..100).unwrap_err();
        let error = error.downcast_ref::<StoreError>().unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Changed, "{error}");
        assert!(
            error
                .to_string()
                .starts_with("s3://bucket/a: the object was changed"),
            "{error}"
        );
        assert_eq!(
            store.read(&store.object("a").unwrap(), 5..50).unwrap(),
            bytes[5..50]
        );
    }
}

#[test]
#[ignore = "needs s3s-fs: ci/servers.sh"]
fn a_real_server_refuses_what_is_wrong() {
    let s3 = S3::start();
    s3.put("a", b"a");
    let endpoint = format!("http://{}", s3.address);
    let open = |url: &str, key: &str, secret: &str| {
        let options = [
            ("aws_endpoint", &*endpoint),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", key),
            ("aws_secret_access_key", secret),
        ];
        RemoteStore::open_with(url, options).unwrap()
    };
    let refused = |store: &RemoteStore, kind| {
        let error = store.list("").unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(
            !text.contains(SECRET) && !text.contains("hunter2"),
            "{text}"
        );
        let error = error
            .downcast_ref::<StoreError>()
            .unwrap_or_else(|| panic!("{text}"));
        assert_eq!(error.kind(), kind, "{text}");
        assert_eq!(store.stats().requests, 1);
        text
    };
    let text = refused(&open("s3://bucket", KEY, "hunter2"), StoreErrorKind::Denied);
    assert!(text.contains("SignatureDoesNotMatch"), "{text}");
    refused(&open("s3://nowhere", KEY, SECRET), StoreErrorKind::NotFound);
    let store = open("s3://bucket", KEY, SECRET);
    let error = store.object("b").unwrap_err();
    assert_eq!(
        error.downcast_ref::<StoreError>().unwrap().kind(),
        StoreErrorKind::NotFound
    );
}

#[test]
#[ignore = "needs s3s-fs: ci/servers.sh"]
fn a_relay_that_cuts_connections_costs_time_only() {
    const PIECE: u64 = 100_000;
    let s3 = S3::start();
    let bytes = noise(40 * PIECE as usize, 9);
    s3.put("all.bin", &bytes);
    let relay = Relay::start(s3.address);
    let store = Arc::new(open_bucket(relay.address, ""));
    let object = store.list("").unwrap().remove(0);
    let (reads, of) = (Arc::clone(&store), object.clone());
    let pieces = from_fn(40, move |index, _| {
        reads.read(&of, index * PIECE..(index + 1) * PIECE)
    });
    let loader = DataLoader::builder(pieces)
        .batch_size(1)
        .num_workers(4)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let batches = loader.epoch(epoch).map(Result::unwrap);
        let got: Vec<u8> = batches
            .flat_map(|batch| batch.as_slice().to_vec())
            .collect();
        assert!(got == bytes, "epoch {epoch}");
    }
    assert!(relay.cut.load(Ordering::Relaxed) > 10);
    assert!(store.stats().retried > 10);
}

#[test]
#[ignore = "needs s3s-fs: ci/servers.sh"]
fn a_server_that_is_killed_is_an_error_that_may_go_away() {
    let mut s3 = S3::start();
    s3.put("a", &noise(1_000, 1));
    let store = open_bucket(s3.address, "").with_attempts(3);
    let object = store.object("a").unwrap();
    s3.process.kill().unwrap();
    s3.process.wait().unwrap();
    let error = store.read(&object, 0..10).unwrap_err();
    assert!(error.is::<Temporary>(), "{error}");
    assert!(error.to_string().contains("after 3 attempts"), "{error}");
}

/// What lies between a client and a server: of each connection it passes some bytes on, and closes it.
struct Relay {
    address: SocketAddr,
    cut: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&cut);
        let named = || thread::Builder::new().name("relay".to_owned());
        let accept = move || {
            for (at, client) in listener.incoming().enumerate() {
                // (It ends with the process.)
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let pass = [50_000, 150_000, 0, 400_000, 10, 250_000][at % 6];
                let (to, from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                named()
                    .spawn(move || relay(client, server, usize::MAX))
                    .unwrap();
                let count = Arc::clone(&count);
                let back = move || {
                    relay(from, to, pass);
                    count.fetch_add(1, Ordering::Relaxed);
                };
                named().spawn(back).unwrap();
            }
        };
        named().spawn(accept).unwrap();
        Relay { address, cut }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, most: usize) {
    let (mut buffer, mut left) = ([0; 4_096], most);
    while left > 0 {
        let part = buffer.len().min(left);
        match from.read(&mut buffer[..part]) {
            Ok(read @ 1..) if to.write_all(&buffer[..read]).is_ok() => left -= read,
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
