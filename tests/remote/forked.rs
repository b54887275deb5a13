//! A forked child makes connections of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pinfeed::store::Store;

use super::server::Server;

const ALONE: &str = "PINFEED_TEST_ALONE";

#[test]
fn a_child_reads_and_drops_what_its_parent_has_used() {
    // In a process that has no other test: a child finds the locks of the whole process as they were.
    if std::env::var_os(ALONE).is_none() {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "forked::a_child_reads_and_drops_what_its_parent_has_used";
        let ended = process
            .args(["--exact", test, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&ended.stdout).into_owned()
            + &String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() && printed.contains("1 passed"),
            "{printed}"
        );
        return;
    }
    let server = Server::new(&[("a", b"0123456789")]);
    for was_used in [false, true] {
        let store = server.bucket("");
        let object = store.object("a").unwrap();
        let other = server.bucket("");
        if was_used {
            other.read(&object, 0..1).unwrap();
        }
        let mut stores = Some((store, other));
        let child = || {
            let (store, other) = stores.take().unwrap();
            assert_eq!(store.read(&object, 2..5).unwrap(), b"234");
            assert_eq!(other.list("").unwrap().len(), 1);
            drop((store, other));
        };
        // SAFETY: the child ends by itself, and runs none of the parent's code after that.
        let process = unsafe { libc::fork() };
        if process == 0 {
            // SAFETY: it takes a number.
            unsafe { libc::alarm(60) };
            let is_ok = catch_unwind(AssertUnwindSafe(child)).is_ok();
            // SAFETY: likewise.
            unsafe { libc::_exit(i32::from(!is_ok)) }
        }
        let mut status = 0;
        // SAFETY: it writes one number.
        assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
        assert_eq!(status, 0);
        // The parent's go on.
        let (store, other) = stores.unwrap();
        assert_eq!(
            store.read(&object, 0..10).unwrap(),
            other.read(&object, 0..10).unwrap()
        );
    }
}
