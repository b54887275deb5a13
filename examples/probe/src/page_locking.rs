//! What it costs to page-lock memory, and after how many copies that has paid.

use std::time::Duration;

use pinfeed::{Device, Tensor};

use crate::Result;
use crate::driver::Bare;
use crate::effort::Effort;
use crate::report::{Figure, PageLocking};

const GIB: f64 = (1u64 << 30) as f64;

/// By bare calls of the driver.
pub fn by_driver(effort: &Effort, bare: &Bare) -> Result<Vec<PageLocking>> {
    let bytes = effort.locked_bytes;
    let mut memory = vec![1u8; bytes]; // touched
    Ok(vec![
        both(effort, "cuMemHostAlloc", || bare.host_alloc(bytes))?,
        both(
            effort,
            "cuMemHostRegister of memory that was touched",
            || bare.register(&mut memory),
        )?,
    ])
}

fn both(
    effort: &Effort,
    by: &'static str,
    mut locking: impl FnMut() -> Result<(Duration, Duration)>,
) -> Result<PageLocking> {
    let bytes = effort.locked_bytes;
    let mut unlock = Vec::new();
    let lock_ms_per_gib = effort.repeat(effort.windows, || {
        let (locked, unlocked) = locking()?;
        unlock.push(ms_per_gib(unlocked, bytes));
        Ok(ms_per_gib(locked, bytes))
    })?;
    Ok(PageLocking {
        by,
        bytes,
        lock_ms_per_gib,
        unlock_ms_per_gib: crate::effort::figure(unlock.split_off(1)), // without the one that does not count
        pays_after_copies: None,
    })
}

/// By the library's ring, on the CPU device: the system's `mlock`.
pub fn by_library(effort: &Effort, device: &Device) -> Result<Vec<PageLocking>> {
    let bytes = effort.locked_bytes;
    let source = Tensor::from_vec(vec![1u8; bytes], &[bytes])?;
    let lock_ms_per_gib = effort.repeat(effort.windows, || {
        device.release_pinned();
        let before = device.memory();
        drop(source.view().pin(device)?);
        let after = device.memory();
        if after.slabs_unlockable > before.slabs_unlockable {
            return Err(
                "the system refuses to lock so much memory (its limit is shown above)".into(),
            );
        }
        Ok(ms_per_gib(after.page_locking - before.page_locking, bytes))
    });
    device.release_pinned();
    Ok(vec![PageLocking {
        by: "the library's ring on the CPU device (fresh memory is touched, then mlock)",
        bytes,
        lock_ms_per_gib: lock_ms_per_gib?,
        unlock_ms_per_gib: None,
        pays_after_copies: None,
    }])
}

fn ms_per_gib(time: Duration, bytes: usize) -> f64 {
    time.as_secs_f64() * 1e3 * GIB / bytes as f64
}

/// How many copies must reuse the memory until locking and unlocking it has cost less than copying from pageable memory, at these
/// rates; `None` if page-locked copies are not faster.
pub fn pays_after(
    lock: &Figure,
    unlock: Option<&Figure>,
    pinned_gb_s: f64,
    pageable_gb_s: f64,
) -> Option<u64> {
    let cost_ms = lock.median + unlock.map_or(0.0, |unlock| unlock.median);
    let ms_per_gib = |gb_s: f64| GIB / 1e9 / gb_s * 1e3;
    let saved_ms = ms_per_gib(pageable_gb_s) - ms_per_gib(pinned_gb_s);
    (saved_ms > 0.0).then(|| (cost_ms / saved_ms).ceil().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(median: f64) -> Figure {
        Figure {
            median,
            least: median,
            most: median,
            repeats: 1,
        }
    }

    #[test]
    fn locking_pays_when_what_copies_save_exceeds_it() {
        // A GiB at 50 GB/s takes 21.5 ms, at 10 GB/s 107.4: each copy saves 85.9 ms.
        assert_eq!(pays_after(&ms(300.0), None, 50.0, 10.0), Some(4));
        assert_eq!(
            pays_after(&ms(300.0), Some(&ms(100.0)), 50.0, 10.0),
            Some(5)
        );
        assert_eq!(pays_after(&ms(1.0), None, 50.0, 10.0), Some(1));
        assert_eq!(pays_after(&ms(300.0), None, 10.0, 10.0), None);
        assert_eq!(pays_after(&ms(300.0), None, 9.0, 10.0), None);
    }
}
