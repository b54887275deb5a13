//! Files that are forbidden, or shorter than they were listed, by the time that they are read: the error names the file and the row; all rows of
//! other files come once, and none of that one; and a file that can be read again costs nothing further.

use std::fs;
use std::path::Path;

use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Error, Tensor};
use pinfeed_parquet::{Numbers, Parquet, ParquetBuilder, ParquetError};

use crate::common::fixture;

/// So many files, of so many rows each, whose column `x` is the row's number.
const FILES: usize = 3;
const ROWS: i64 = 3_000;

const BROKEN: &str = "1.parquet";

fn contents(file: usize) -> Vec<u8> {
    fixture(["paged.parquet", "unpaged.parquet"][file % 2])
}

/// Where the files are, and what can happen to one of them.
trait Place {
    fn open(&self) -> ParquetBuilder;
    fn breaks(&self);
    fn mends(&self);
    /// Whether a data set from before that reads the file then.
    fn is_the_same_then(&self) -> bool;
    /// What an error says of it: where a row is read, and where the file is opened.
    fn says(&self) -> [&str; 2];
}

/// Of both ways to have numbers: rows of tensors, or what a function makes of a row.
fn loader(
    place: &dyn Place,
    by_function: bool,
    workers: usize,
    on_error: OnError,
) -> DataLoader<Tensor<i64>> {
    let builder = place.open().block_bytes(3_000);
    if by_function {
        let rows = builder.columns(["x"]);
        let rows = rows.build(|row, _| row.get::<i64>("x").map_err(Into::into));
        let builder = DataLoader::builder(rows.unwrap()).batch_size(400);
        let builder = builder.shuffle(true).seed(9).num_workers(workers);
        return builder.on_error(on_error).build().unwrap();
    }
    let numbers = builder.build_numbers(Numbers::<i64>::of(["x"])).unwrap();
    let builder = DataLoader::builder(numbers).batch_size(400);
    let builder = builder.shuffle(true).seed(9).num_workers(workers);
    builder.on_error(on_error).build().unwrap()
}

/// Each row of so many files once.
fn check_rows(loader: &DataLoader<Tensor<i64>>, files: usize, case: &str) {
    let batches = loader.epoch(0).map(|batch| batch.unwrap().to_vec());
    let mut rows: Vec<i64> = batches.flatten().collect();
    rows.sort_unstable();
    let expected = (0..files as i64 * ROWS).map(|at| at / files as i64);
    assert!(rows.into_iter().eq(expected), "{case}");
}

/// The file breaks while it is read: each row of the others comes once, and of its own rows those do that were read before.
fn check_in_the_middle(place: &dyn Place, loader: &DataLoader<Tensor<i64>>, case: &str) {
    let mut epoch = loader.epoch(1);
    let begun = epoch.by_ref().take(2).collect::<Vec<_>>();
    place.breaks();
    let mut times = vec![0; ROWS as usize];
    for batch in begun.into_iter().chain(epoch) {
        for row in batch.unwrap().to_vec() {
            times[row as usize] += 1;
        }
    }
    place.mends();
    let all = FILES - 1..=FILES;
    assert!(times.iter().all(|times| all.contains(times)), "{case}");
}

fn check(place: &dyn Place) {
    for (by_function, workers) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let case = format!("by_function {by_function}, {workers} workers");
        place.mends();
        let skips = OnError::Skip { at_most: u64::MAX };
        let (skips, fails) = (
            loader(place, by_function, workers, skips),
            loader(place, by_function, workers, OnError::Fail),
        );
        place.breaks();
        for epoch in 1..3 {
            check_rows(&skips, FILES - 1, &case);
            let skipped = skips.total_stats().bad.skipped;
            assert_eq!(skipped, epoch * ROWS as u64, "{case}");
        }
        let errors: Vec<Error> = fails.epoch(0).filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "{case}");
        for error in errors {
            let said = error.to_string();
            let [says, _] = place.says();
            assert!(matches!(error, Error::Sample(..)), "{case}: {said}");
            assert!(
                said.contains(BROKEN) && said.contains("row ") && said.contains(says),
                "{case}: {said}"
            );
            let fault = ParquetError::of(&error).unwrap();
            assert!(fault.file().ends_with(BROKEN), "{case}: {said}");
        }
        // It is what `build` finds, too.
        let refused = place.open().build(|_, _| Ok(())).unwrap_err().to_string();
        let [_, says] = place.says();
        assert!(
            refused.contains(BROKEN) && refused.contains(says),
            "{case}: {refused}"
        );
        place.mends();
        if place.is_the_same_then() {
            check_in_the_middle(place, &skips, &case);
            check_rows(&skips, FILES, &case);
            check_rows(&fails, FILES, &case);
        }
        check_rows(
            &loader(place, by_function, workers, OnError::Fail),
            FILES,
            &case,
        );
    }
}

/// A folder of files.
#[cfg(unix)]
struct Folder {
    root: tempfile::TempDir,
    is_forbidden: bool,
}

#[cfg(unix)]
impl Folder {
    fn new(is_forbidden: bool) -> Folder {
        let root = tempfile::tempdir().unwrap();
        for file in 0..FILES {
            let path = root.path().join(format!("{file}.parquet"));
            fs::write(path, contents(file)).unwrap();
        }
        Folder { root, is_forbidden }
    }
}

#[cfg(unix)]
impl Place for Folder {
    fn open(&self) -> ParquetBuilder {
        Parquet::open(self.root.path().to_str().unwrap()).unwrap()
    }

    fn breaks(&self) {
        let path = self.root.path().join(BROKEN);
        match self.is_forbidden {
            true => permit(&path, 0o000),
            false => fs::write(path, &contents(1)[..20_000]).unwrap(),
        }
    }

    fn mends(&self) {
        let path = self.root.path().join(BROKEN);
        match self.is_forbidden {
            true => permit(&path, 0o644),
            false => fs::write(path, contents(1)).unwrap(),
        }
    }

    /// (A file that is written again is another one, whatever it has.)
    fn is_the_same_then(&self) -> bool {
        self.is_forbidden
    }

    fn says(&self) -> [&str; 2] {
        match self.is_forbidden {
            true => ["ermission denied", "ermission denied"],
            false => ["the file was changed after it was listed", "it is cut off"],
        }
    }
}

#[cfg(unix)]
fn permit(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;

    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_file_that_is_shorter_than_it_was_listed() {
    check(&Folder::new(false));
}

/// (To root, nothing is forbidden: it does this as another user.)
#[cfg(unix)]
#[test]
fn a_file_that_is_forbidden() {
    use std::os::unix::process::CommandExt;

    let folder = Folder::new(true);
    folder.breaks();
    if fs::read(folder.root.path().join(BROKEN)).is_err() {
        return check(&folder);
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "broken_objects::a_file_that_is_forbidden"]);
    match command.uid(65_534).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => {
            println!("another user may not run this program, so it is not tested: {error}")
        }
    }
}

/// Objects of a server.
#[cfg(feature = "object-store")]
mod served {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use pinfeed::store::{Store, StoreError, StoreErrorKind};

    use super::*;
    use crate::server::{Act, Server};

    #[derive(Clone, Copy, PartialEq)]
    enum Change {
        /// 403, whatever is asked of it.
        Forbidden,
        /// It has half of its bytes, and the same ETag.
        Shorter,
        /// It has half of its bytes, and another ETag.
        WrittenAgain,
    }

    struct Bucket {
        server: Server,
        change: Change,
        is_forbidden: Arc<AtomicBool>,
    }

    impl Bucket {
        fn new(change: Change) -> Bucket {
            let server = Server::new(&[]);
            for file in 0..FILES {
                server.put(&format!("{file}.parquet"), &contents(file), "\"v1\"");
            }
            let is_forbidden = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&is_forbidden);
            server.script(move |request| {
                let is_of_it = request.path.starts_with(&format!("bucket/{BROKEN}"));
                match is_of_it && seen.load(Ordering::SeqCst) {
                    true => Act::Refuse(403, "", "<Error><Code>AccessDenied</Code></Error>"),
                    false => Act::Answer,
                }
            });
            Bucket {
                server,
                change,
                is_forbidden,
            }
        }
    }

    impl Place for Bucket {
        fn open(&self) -> ParquetBuilder {
            Parquet::builder(self.server.bucket(""), "")
        }

        fn breaks(&self) {
            let whole = contents(1);
            let half = &whole[..whole.len() / 2];
            match self.change {
                Change::Forbidden => self.is_forbidden.store(true, Ordering::SeqCst),
                Change::Shorter => self.server.put(BROKEN, half, "\"v1\""),
                Change::WrittenAgain => self.server.put(BROKEN, half, "\"v2\""),
            }
        }

        fn mends(&self) {
            self.server.put(BROKEN, &contents(1), "\"v1\"");
            self.is_forbidden.store(false, Ordering::SeqCst);
        }

        fn is_the_same_then(&self) -> bool {
            true
        }

        fn says(&self) -> [&str; 2] {
            match self.change {
                Change::Forbidden => ["access is denied", "access is denied"],
                Change::Shorter => [
                    "the object was changed after it was listed",
                    "it is cut off",
                ],
                Change::WrittenAgain => ["its ETag is another one now", "it is cut off"],
            }
        }
    }

    #[test]
    fn an_object_that_is_forbidden() {
        let bucket = Bucket::new(Change::Forbidden);
        check(&bucket);
        bucket.breaks();
        let error = bucket.server.bucket("").object(BROKEN).unwrap_err();
        let kind = error.downcast_ref::<StoreError>().map(StoreError::kind);
        assert_eq!(kind, Some(StoreErrorKind::Denied), "{error}");
    }

    #[test]
    fn an_object_that_is_shorter_than_it_was_listed() {
        check(&Bucket::new(Change::Shorter));
    }

    #[test]
    fn an_object_that_was_written_again_and_is_shorter() {
        check(&Bucket::new(Change::WrittenAgain));
    }

    /// The listing is wrong from the beginning.
    #[test]
    fn an_object_whose_listing_says_more_than_it_has() {
        let bucket = Bucket::new(Change::Shorter);
        let bytes = contents(1).len() + 1_000;
        let listing = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Contents><Key>{BROKEN}</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified>\
             <ETag>&quot;v1&quot;</ETag><Size>{bytes}</Size></Contents></ListBucketResult>"
        );
        let listing: &str = Box::leak(listing.into_boxed_str());
        bucket
            .server
            .script(move |request| match request.path.contains("list-type=2") {
                true => Act::Refuse(200, "Content-Type: application/xml\r\n", listing),
                false => Act::Answer,
            });
        let refused = bucket.open().build(|_, _| Ok(())).unwrap_err().to_string();
        assert!(
            refused.contains(BROKEN) && refused.contains("it had 23679 bytes and has 22679"),
            "{refused}"
        );
    }
}
