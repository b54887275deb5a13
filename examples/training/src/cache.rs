//! Generated data sets, kept in a cache folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use std::{env, fs, process, thread};

use indicatif::ProgressBar;

use crate::{Result, at};

/// Returns the folder of a data set, which `draw` fills the first time.
pub fn cached(name: &str, draw: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache_folder();
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).map_err(at(&cache))?;
    // An interrupted run must not leave half a data set behind, and a second run must not read one that is still being
    // drawn. So the data set appears under its name only when it is complete.
    let nanos = SystemTime::UNIX_EPOCH.elapsed()?.as_nanos();
    let draft = cache.join(format!(".{name}-{}-{nanos}", process::id()));
    println!("Drawing shapes into {}", folder.display());
    let drawn = draw(&draft).and_then(|()| fs::rename(&draft, &folder).map_err(at(&folder)));
    if drawn.is_err() {
        // An error here would hide the cause.
        let _ = fs::remove_dir_all(&draft);
    }
    // If another run was first, its images are the same.
    if folder.is_dir() {
        Ok(folder)
    } else {
        drawn.map(|()| folder)
    }
}

fn cache_folder() -> PathBuf {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
}

/// Calls `draw` with each number below `count`, from all cores.
pub fn on_all_cores(count: u64, draw: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let bar = ProgressBar::new(count);
    let next = AtomicU64::new(0);
    let draw_some = || -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            draw(index)?;
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(draw_some)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("drawing panicked".into()))
        })
    })?;
    bar.finish_and_clear();
    Ok(())
}
