//! An epoch that says with each batch what it is. (`informed.rs` says how, on the host and on a device.)

/// An epoch that says what each batch is: [`Epoch::with_info`](super::Epoch::with_info) and
/// [`DeviceEpoch::with_info`](super::DeviceEpoch::with_info) make it.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
///     .batch_size(25)
///     .shuffle(true)
///     .pin_memory(&device)
///     .build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 1).with_info() {
///     let (numbers, info) = batch?;
///     println!("batch {}: samples {:?}", info.batch(), info.indices());
///     assert_eq!(numbers.len(), info.rows());
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
#[derive(Debug)]
pub struct WithInfo<E> {
    pub(super) epoch: E,
}

impl<E> WithInfo<E> {
    pub(super) fn new(epoch: E) -> WithInfo<E> {
        WithInfo { epoch }
    }
}
