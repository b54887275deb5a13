//! What makes no sense is refused, with what to do instead.

use std::time::Duration;

use super::{Builder, Sharding};
use crate::error::{Error, Result};
use crate::pipeline::{BadShare, OnError, Workers};
use crate::system::room::check_room;

impl<D, C> Builder<D, C> {
    /// Refuses what makes no sense. Returns the batch size of this rank.
    pub(in crate::loader) fn check(&self) -> Result<usize> {
        self.check_batch_sampler()?;
        let batch_size = self.own_batch_size()?;
        if self.prefetch == Some(0) {
            return Err(Error::option(
                "prefetch",
                "is 0: at least one batch is loaded ahead; use num_workers(0) to load when asked",
            ));
        }
        if self.prefetch.is_some() && self.num_workers == Workers::Fixed(0) {
            return Err(Error::option(
                "prefetch",
                "needs workers: with num_workers(0) batches are loaded when asked",
            ));
        }
        self.check_ahead()?;
        self.check_bad_share()?;
        match self.timeout {
            Some(Duration::ZERO) => {
                return Err(Error::option(
                    "timeout",
                    "is 0: no sample is loaded in no time; leave it out to wait for as long as it takes",
                ));
            }
            Some(_) if self.num_workers == Workers::Fixed(0) => {
                return Err(Error::option(
                    "timeout",
                    "needs workers: with num_workers(0) a sample that hangs hangs the caller's own thread, which cannot be left alone",
                ));
            }
            _ => {}
        }
        if self.shuffle && self.sampler.is_some() {
            return Err(Error::option(
                "sampler",
                "excludes shuffle: the sampler is the order; leave shuffle out",
            ));
        }
        if let Some(bytes) = self.min_slab_bytes {
            check_room(1, bytes).map_err(|no_room| {
                let reason = format!(
                    "is {no_room}: every slab would be that large, so name the size of the largest batch"
                );
                Error::option("min_slab_bytes", reason)
            })?;
        }
        if self.names_no_device {
            return Err(Error::option(
                "pin_memory",
                "names no device, because the list is empty: name one (Device::available() is the CPU where there is no GPU), or leave \
                 pin_memory out, for batches in pageable memory",
            ));
        }
        let needs_device = [
            ("strict_pinning", self.strict),
            ("pin_by_copy", self.by_copy),
            ("min_slab_bytes", self.min_slab_bytes.is_some()),
        ];
        match needs_device
            .iter()
            .find(|(_, set)| *set && self.devices.is_empty())
        {
            Some((option, _)) => Err(Error::option(option, "needs pin_memory(&device)")),
            None => Ok(batch_size),
        }
    }

    /// A batch sampler says all of what these say.
    fn check_bad_share(&self) -> Result<()> {
        let Some(BadShare { most, .. }) = self.bad_share else {
            return Ok(());
        };
        if !(0.0..=1.0).contains(&most) {
            return Err(Error::option(
                "bad_share_at_most",
                format!("is {most}: a share is a number from 0 (none) to 1 (all), so 1 % is 0.01"),
            ));
        }
        match self.on_error {
            OnError::Fail => Err(Error::option(
                "bad_share_at_most",
                "needs on_error: without it, each bad sample is an error; set OnError::Replace or OnError::Skip, or leave it out",
            )),
            _ => Ok(()),
        }
    }

    fn check_batch_sampler(&self) -> Result<()> {
        if self.batch_sampler.is_none() {
            return match self.on_empty {
                None => Ok(()),
                Some(_) => Err(Error::option(
                    "on_empty",
                    "needs batch_sampler: only its lists can be empty; leave it out",
                )),
            };
        }
        let excluded = [
            ("batch_size", self.batch_size.is_some()),
            ("global_batch_size", self.global_batch_size.is_some()),
            ("shuffle", self.shuffle),
            ("sampler", self.sampler.is_some()),
        ];
        if let Some((option, _)) = excluded.iter().find(|(_, is_set)| *is_set) {
            return Err(Error::option(
                "batch_sampler",
                format!(
                    "excludes {option}: it says which samples each batch has, and in which order; leave {option} out"
                ),
            ));
        }
        match self.sharding {
            None | Some(Sharding::Slices) => Ok(()),
            Some(Sharding::Strided { .. } | Sharding::Interleaved) => Err(Error::option(
                "sharding",
                "is for batches of one size: with batch_sampler, ranks share whole lists, so leave it out",
            )),
        }
    }

    fn own_batch_size(&self) -> Result<usize> {
        // Those of a rank share its batches.
        let devices = self.devices.len().max(1);
        let ranks = self.world.data_ranks().saturating_mul(devices);
        let (option, batch_size) = match (self.batch_size, self.global_batch_size) {
            (Some(_), Some(_)) => {
                return Err(Error::option(
                    "global_batch_size",
                    "excludes batch_size, which is that of each rank: leave one of them out",
                ));
            }
            (_, Some(global)) if !global.is_multiple_of(ranks) => {
                return Err(Error::option(
                    "global_batch_size",
                    match devices {
                        1 => format!("is {global}, which {ranks} ranks cannot share evenly"),
                        _ => format!(
                            "is {global}, which {ranks} devices on all ranks cannot share evenly"
                        ),
                    },
                ));
            }
            (_, Some(global)) => ("global_batch_size", global / ranks),
            (own, None) => ("batch_size", own.unwrap_or(1)),
        };
        match batch_size {
            0 => Err(Error::option(
                option,
                "is 0: a batch has at least one sample",
            )),
            batch_size => Ok(batch_size),
        }
    }

    /// What is loaded ahead, and how it comes.
    fn check_ahead(&self) -> Result<()> {
        match self.max_bytes {
            Some(0) => {
                return Err(Error::option(
                    "max_bytes_in_flight",
                    "is 0: at least one batch is in flight, whatever its size",
                ));
            }
            Some(_) if self.num_workers == Workers::Fixed(0) => {
                return Err(Error::option(
                    "max_bytes_in_flight",
                    "needs workers: with num_workers(0) batches are loaded when asked, one at a time",
                ));
            }
            _ => {}
        }
        if !self.in_order && self.world.size() > self.world.data_ranks() {
            return Err(Error::option(
                "in_order",
                "is false, but several ranks are to see the same batches (World::replicated), and each would get them in an order of its \
                 own: leave it out",
            ));
        }
        Ok(())
    }
}
