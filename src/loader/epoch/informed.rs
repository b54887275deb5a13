//! What an epoch does that says with each batch what it is: on the host, and on a device.

use std::iter::FusedIterator;
use std::time::Duration;

use super::Epoch;
use super::device::DeviceEpoch;
use super::with_info::WithInfo;
use crate::batch::Batch;
use crate::error::Result;
use crate::loader::info::BatchInfo;
use crate::loader::kind::Kind;
use crate::loader::stats::Stats;
use crate::loader::try_next::TryNext;

macro_rules! epochs {
    ($($epoch:ident: $batch:ty, |$inner:ident| $as_epoch:expr;)*) => {$(
        impl<B: Batch, K: Kind> WithInfo<$epoch<'_, B, K>> {
            /// Returns the number of this epoch.
            pub fn number(&self) -> u64 {
                self.epoch.number()
            }

            /// Returns where the run stands in this epoch, as the epoch's own `state`.
            pub fn state(&self) -> K::State {
                self.epoch.state()
            }

            /// Returns statistics of this epoch so far.
            pub fn stats(&self) -> Stats {
                self.epoch.stats()
            }

            /// Gives the next batch if it is there, as the epoch's own `try_next`.
            pub fn try_next(&mut self) -> TryNext<Result<($batch, BatchInfo)>> {
                let next = self.epoch.try_next();
                self.inform(next)
            }

            /// Waits for the next batch for at most `timeout`, as the epoch's own `next_timeout`.
            pub fn next_timeout(
                &mut self,
                timeout: Duration,
            ) -> TryNext<Result<($batch, BatchInfo)>> {
                let next = self.epoch.next_timeout(timeout);
                self.inform(next)
            }

            fn inner(&self) -> &Epoch<'_, B, K> {
                let $inner = &self.epoch;
                $as_epoch
            }

            fn inform(
                &self,
                next: TryNext<Result<$batch>>,
            ) -> TryNext<Result<($batch, BatchInfo)>> {
                next.map(|batch| Ok((batch?, self.inner().info())))
            }
        }

        impl<B: Batch, K: Kind> Iterator for WithInfo<$epoch<'_, B, K>> {
            type Item = Result<($batch, BatchInfo)>;

            fn next(&mut self) -> Option<Self::Item> {
                let batch = self.epoch.next()?;
                Some(batch.map(|batch| (batch, self.inner().info())))
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.epoch.size_hint()
            }
        }

        impl<B: Batch, K: Kind> FusedIterator for WithInfo<$epoch<'_, B, K>> {}
    )*};
}

epochs! {
    Epoch: B, |epoch| epoch;
    DeviceEpoch: B::OnDevice, |epoch| epoch.inner();
}

impl<B: Batch> ExactSizeIterator for WithInfo<Epoch<'_, B>> {}
impl<B: Batch> ExactSizeIterator for WithInfo<DeviceEpoch<'_, B>> {}
