//! What a [`DiskCache`] keeps of servers: only what is certain to be what was asked for.

use std::path::Path;

use pinfeed::store::{DiskCache, RemoteStore, Store, StoreErrorKind};
use tempfile::TempDir;

use super::server::{Act, Server};

const MIB: u64 = 1 << 20;

fn bytes(seed: u8, count: u64) -> Vec<u8> {
    let byte = |at: u64| (at % 251) as u8 ^ seed;
    (0..count).map(byte).collect()
}

fn cache(store: RemoteStore, folder: &Path) -> DiskCache {
    DiskCache::open(store, folder, 100 << 20).unwrap()
}

/// Two servers have a bucket of one name, with objects of one name, length and ETag.
#[test]
fn servers_and_accounts_share_no_pages() {
    let folder = TempDir::new().unwrap();
    for (seed, prefix) in [(1, "train"), (2, "train"), (3, "")] {
        let own = bytes(seed, 3_000);
        let server = Server::new(&[("train/a", &own)]);
        let cache = cache(server.bucket(prefix), folder.path());
        for _ in 0..2 {
            let object = &cache.list("").unwrap()[0];
            assert!(cache.read(object, 10..2_000).unwrap() == own[10..2_000]);
        }
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.requests), (1, 1), "{seed}");
    }
    let of = |account: &str| {
        let options = [
            ("azure_storage_account_name", account),
            ("azure_storage_account_key", "a2V5"),
        ];
        let store = RemoteStore::open_with("az://bucket/train", options).unwrap();
        (store.locate("a"), store.origin())
    };
    let (ours, theirs) = (of("ours"), of("theirs"));
    assert_eq!(ours.0, theirs.0);
    assert_ne!(ours.1, theirs.1);
    assert_eq!(ours, of("ours"));
}

/// A weak ETag says that two contents mean about the same; a time, that nothing was changed in another second.
#[test]
fn a_version_that_may_have_two_contents_is_not_kept() {
    let folder = TempDir::new().unwrap();
    let server = Server::new(&[]);
    let changed = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (tag, date, is_kept) in [
        ("\"v1\"", changed, true),
        ("W/\"v1\"", "Sun, 06 Nov 1994 12:00:00 GMT", false),
        ("", "Sun, 06 Nov 1994 08:50:36 GMT", false),
        ("", "Sun, 06 Nov 1994 08:50:37 GMT", true),
    ] {
        server.date(date);
        server.put("a", &bytes(1, 3_000), tag);
        let cache = cache(server.web(), folder.path());
        let object = cache.object("a").unwrap();
        assert!(cache.read(&object, 0..3_000).unwrap() == bytes(1, 3_000));
        server.put("a", &bytes(2, 3_000), tag); // in the same second
        let now = bytes(if is_kept { 1 } else { 2 }, 3_000);
        assert!(
            cache.read(&object, 0..3_000).unwrap() == now,
            "{tag} {date}"
        );
        let unversioned = if is_kept { 0 } else { 2 };
        assert_eq!(cache.stats().unversioned, unversioned, "{tag} {date}");
        assert_eq!(cache.stats().failures, 0);
    }
}

/// It sends whole objects only: a read of all of an object succeeds, whatever part of it is there.
#[test]
fn a_server_without_ranges_answers_with_a_cache_what_it_answers_without() {
    let own = bytes(1, 3 * MIB + 7);
    let folder = TempDir::new().unwrap();
    let server = Server::new(&[("a", &own)]);
    let first = cache(server.web(), folder.path());
    let object = first.object("a").unwrap();
    first.read(&object, MIB..MIB + 1).unwrap(); // it has ranges, for now
    server.script(|_| Act::IgnoreRange);
    assert!(first.read(&object, 0..own.len() as u64).unwrap() == own);
    let stats = first.stats();
    assert_eq!(stats.failures, 0, "{stats:?}");
    // What fails without a cache fails with it, and says why.
    let error = first.read(&object, 0..10).unwrap_err().to_string();
    assert!(error.contains("ignores ranges"), "{error}");
    server.put("a", &own, "\"v2\"");
    server.script(|_| Act::Answer);
    let error = first.read(&object, 0..10).unwrap_err();
    let error = error.downcast::<pinfeed::store::StoreError>().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Changed);
}
