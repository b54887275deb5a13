//! The sentence that ends a table: what limits the loop, and which knob to turn.

use std::fmt;

use super::{Limit, Stats};

impl Stats {
    pub(super) fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((all, each)) = self.copying() {
            let (all, each) = (all / 1e9, each / 1e9);
            let more = match self.sizing.is_auto() {
                true => "",
                false => " Otherwise raise num_workers.",
            };
            return write!(
                f,
                "Copying rows limits the loop: {} workers copy {all:.1} GB/s, {each:.1} each while busy. If more of them copy no \
                 more, the host's memory is the limit: where rows are of a table, page-lock it in place (`Tensor::register`), and the device \
                 reads them where they lie.{more}",
                self.workers
            );
        }
        match self.sizing.is_auto() {
            true => f.write_str(&self.advice().replace("raise num_workers", MORE_CORES))?,
            false => f.write_str(self.advice())?,
        }
        let computes = [
            Limit::Sampling,
            Limit::Loading,
            Limit::Decoding,
            Limit::Collating,
        ];
        match cfg!(debug_assertions) && computes.contains(&self.limit()) {
            true => f.write_str(DEBUG_BUILD),
            false => Ok(()),
        }
    }

    fn advice(&self) -> &'static str {
        match self.limit() {
            Limit::Unknown if self.wall_time().is_zero() => {
                "Nothing was measured yet: iterate an epoch first."
            }
            Limit::Unknown if self.batches == 0 => {
                "Nothing was measured: there was no batch without an error."
            }
            Limit::Unknown => {
                "The loop is too short to tell what limits it: let it take more than 10 ms."
            }
            Limit::Consumer if self.workers == 0 || self.sizing.is_auto() => {
                "The training step limits the loop: the loader keeps up."
            }
            Limit::Consumer => {
                "The training step limits the loop: the loader keeps up, and fewer workers might do."
            }
            Limit::Sampling => {
                "The sampler limits the loop: raise num_workers, or make it cheaper (`Sampler::indices` is asked for several positions at \
                 once; the lists of a batch sampler can be made ahead, by `epochs`)."
            }
            Limit::Pulling => {
                "The iterable limits the loop: one worker at a time pulls its items, so do less in its `next` and more in the source's \
                 `load`, which all workers do, or pull larger items."
            }
            Limit::Loading if self.fetch_wait >= self.loading.total / 2 => {
                "Requests limit the loop: raise `with_in_flight` of the Staged data set, its `with_max_bytes` or `with_lookahead` if these \
                 are what is reached, or fetch less for a sample."
            }
            Limit::Loading => {
                "Loading limits the loop: raise num_workers, or make the data set's `get` cheaper."
            }
            Limit::Decoding if cfg!(feature = "turbojpeg") => {
                "Decoding limits the loop: raise num_workers, or have less to decode (smaller files; of JPEG files \
                 ImageTransform::with_scaled_decoding)."
            }
            Limit::Decoding => {
                "Decoding limits the loop: raise num_workers, or have less to decode (smaller files; of JPEG files \
                 ImageTransform::with_scaled_decoding, and the feature `turbojpeg` decodes them faster)."
            }
            Limit::DeviceDecoding => {
                "The device's decoder limits the loop: start the program with CUDA_DEVICE_MAX_CONNECTIONS=32 if the device trains meanwhile, let \
                 the workers decode more (Decode::Both, a smaller device_share), or have less to decode (smaller files)."
            }
            Limit::Collating => {
                "Collating limits the loop: raise num_workers, or make the collate_fn cheaper (where there is none: have samples \
                 fill their row in place)."
            }
            Limit::Pinning if self.workers == 0 => {
                "Slabs limit the loop: raise the pinned budget, and drop batches sooner."
            }
            Limit::Pinning => {
                "Slabs limit the loop: raise prefetch or the pinned budget, and drop batches sooner."
            }
            Limit::Submission => {
                "Submissions to the device limit the loop: the copies are so small that starting one costs more. Raise batch_size, or depth, so that \
                 more are sent together."
            }
            Limit::Transfer => {
                "The link to the device limits the loop: send smaller elements (u8 instead of f32)."
            }
        }
    }
}

/// What is said where the number of workers was left to the loader.
const MORE_CORES: &str = "set num_workers above the number of cores if samples wait (for a disk, a server), or let the process have more cores";

/// What is said of a program that was built without optimisation, as far as the library knows.
const DEBUG_BUILD: &str =
    " (This is a debug build, whose samples take many times as long: measure with --release.)";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{made, ms, timed};
    use super::super::{DecoderStats, TransferStats, UnpinnedStats};
    use super::*;
    use crate::pipeline::WorkerSizing;

    #[test]
    fn the_last_sentence_names_what_limits_and_the_knob() {
        let stats = Stats {
            batches: 10,
            made: made(10),
            samples: 100,
            workers: 4,
            loading: timed(ms(4_000)),
            collating: timed(ms(100)),
            step: ms(100),
            consumer_wait: timed(ms(900)),
            ..Stats::default()
        };
        assert_eq!(stats.limit(), Limit::Loading);
        assert!(
            stats
                .to_string()
                .contains("raise num_workers, or make the data set's `get` cheaper.")
        );
        let fed = Stats {
            consumer_wait: timed(Duration::from_micros(1)),
            ..stats.clone()
        };
        assert_eq!(fed.limit(), Limit::Consumer);
        assert!(!stats.to_string().contains("decoding"));
        let lazy = Stats {
            decoding: timed(ms(5_000)),
            ..stats.clone()
        };
        assert_eq!(lazy.limit(), Limit::Decoding);
        // One thread drives a device's decoder: more workers do not help.
        let by_device = Stats {
            decoder: DecoderStats {
                decoding: ms(1_500),
                ..DecoderStats::default()
            },
            ..lazy.clone()
        };
        assert_eq!(by_device.limit(), Limit::DeviceDecoding);
        let table = by_device.to_string();
        assert!(
            table.contains("\ndecoder (the device's)          1500.0       150.000"),
            "{table}"
        );
        assert!(
            table.contains("Decode::Both")
                && table.contains("CONNECTIONS=32")
                && !table.contains("num_workers"),
            "{table}"
        );
        let table = lazy.to_string();
        assert!(
            table.contains("\ndecoding (all workers)          5000.0       500.000\n"),
            "{table}"
        );
        assert_eq!(table.contains("turbojpeg"), !cfg!(feature = "turbojpeg"));
        assert!(table.contains("\nDecoding limits the loop: raise num_workers"));
    }

    #[test]
    fn small_copies_are_told_from_a_link_that_is_full() {
        let sent = |bytes: u64| Stats {
            batches: 10,
            transfers: TransferStats {
                count: 10,
                bytes: 10 * bytes,
                total: ms(900),
                ..TransferStats::default()
            },
            consumer_wait: timed(ms(900)),
            step: ms(100),
            ..Stats::default()
        };
        let [small, large] = [8 << 10, 38 << 20].map(sent);
        assert_eq!(
            (small.limit(), large.limit()),
            (Limit::Submission, Limit::Transfer)
        );
        assert!(
            small.to_string().contains("Raise batch_size, or depth"),
            "{small}"
        );
        assert!(
            large.to_string().contains("send smaller elements"),
            "{large}"
        );
    }

    /// No advice that `build` would refuse, or that changes nothing.
    #[test]
    fn the_advice_is_for_the_loop_at_hand() {
        let fed = Stats {
            batches: 10,
            step: ms(100),
            unpinned: UnpinnedStats {
                count: 3,
                ..UnpinnedStats::default()
            },
            ..Stats::default()
        };
        let [without, with] = [0, 4].map(|workers| {
            Stats {
                workers,
                ..fed.clone()
            }
            .to_string()
        });
        assert!(with.contains("raise prefetch"), "{with}");
        assert!(!without.contains("prefetch"), "{without}"); // it needs workers
        assert!(with.contains("fewer workers"), "{with}");
        assert!(!without.contains("fewer workers"), "{without}");

        let auto = Stats {
            workers: 4,
            sizing: WorkerSizing::AllCores,
            ..fed.clone()
        };
        let starved = Stats {
            loading: timed(ms(100)),
            consumer_wait: timed(ms(100)),
            ..auto.clone()
        };
        let (auto, starved) = (auto.to_string(), starved.to_string());
        assert!(auto.contains(" 4 workers: all cores)\n"), "{auto}");
        assert!(!auto.contains("fewer workers"), "{auto}");
        assert!(
            starved.contains("let the process have more cores"),
            "{starved}"
        );
        assert!(!starved.contains("raise num_workers"), "{starved}");

        let slabs = Stats {
            slab_wait: timed(ms(100)),
            consumer_wait: timed(ms(100)),
            ..fed.clone()
        };
        assert_eq!(slabs.limit(), Limit::Pinning);
        assert!(!slabs.to_string().contains("prefetch"), "{slabs}");

        let failed = Stats {
            consumer_wait: timed(ms(100)),
            ..Stats::default()
        };
        assert_eq!(failed.limit(), Limit::Unknown);
        assert!(
            failed
                .to_string()
                .ends_with("there was no batch without an error.")
        );
        assert!(
            Stats::default()
                .to_string()
                .ends_with("iterate an epoch first.")
        );
    }

    /// A stage of each kind, and what is said of it.
    #[test]
    fn each_stage_has_its_advice() {
        let of = |stage: fn(&mut Stats) -> &mut Duration| {
            let mut stats = Stats {
                batches: 10,
                made: made(12),
                workers: 2,
                consumer_wait: timed(ms(1_000)),
                collating: timed(ms(1)),
                ..Stats::default()
            };
            *stage(&mut stats) = ms(2_000);
            stats
        };
        let sampling = of(|stats| &mut stats.sampling);
        assert_eq!(sampling.limit(), Limit::Sampling);
        let said = sampling.to_string();
        assert!(
            said.contains("\nsampling                        2000.0       166.667\n")
                && said.contains("Sampler::indices"),
            "{said}"
        );
        assert!(
            said.contains("\nmade and not given out: 2 batches more"),
            "{said}"
        );
        let pulling = of(|stats| &mut stats.pulling);
        assert_eq!(pulling.limit(), Limit::Pulling);
        let said = pulling.to_string();
        assert!(
            said.contains("\npulling (one at a time) ") && said.contains("`load`"),
            "{said}"
        );
        assert!(!said.contains("\nsampling"), "{said}");
        // What a Staged data set waits for is not made faster by workers.
        let mut staged = of(|stats| &mut stats.loading.total);
        assert!(staged.to_string().contains("num_workers"));
        staged.fetch_wait = ms(1_800);
        assert_eq!(staged.limit(), Limit::Loading);
        let said = staged.to_string();
        assert!(
            said.contains("`with_in_flight`") && !said.contains("num_workers"),
            "{said}"
        );
        // No advice for pictures that it does nothing for.
        let decoding = of(|stats| &mut stats.decoding.total).to_string();
        assert!(decoding.contains("of JPEG files"), "{decoding}");
    }

    #[test]
    fn nothing_is_said_of_a_loop_that_is_too_short() {
        let short = Stats {
            batches: 1,
            loading: timed(Duration::from_micros(900)),
            consumer_wait: timed(ms(1)),
            ..Stats::default()
        };
        assert_eq!(short.limit(), Limit::Unknown);
        let said = short.to_string();
        assert!(
            said.contains("too short") && !said.contains("limits the loop:"),
            "{said}"
        );
    }

    /// Four devices: each link is busy for half of the time, and the workers for all of it.
    #[test]
    fn links_of_several_devices_are_not_one_link() {
        let device = Stats {
            epochs: 1,
            batches: 10,
            samples: 2_560,
            made: made(10),
            workers: 16,
            collating: timed(ms(3_900)),
            transfers: TransferStats {
                count: 10,
                bytes: 16_000_000_000,
                total: ms(500),
                ..TransferStats::default()
            },
            consumer_wait: timed(ms(900)),
            step: ms(100),
            ..Stats::default()
        };
        let all = Stats {
            workers: 16,
            ..Stats::side_by_side(&[0; 4].map(|_| device.clone()))
        };
        assert_eq!(all.limit(), Limit::Collating);
        let said = all.to_string();
        assert!(
            said.contains("16 workers copy 64.0 GB/s, 4.1 each")
                && said.contains("Tensor::register"),
            "{said}"
        );
        // Samples that are computed are no rows that are copied.
        let computed = Stats {
            transfers: TransferStats {
                bytes: 1_000_000_000,
                ..all.transfers.clone()
            },
            ..all
        };
        assert!(computed.to_string().contains("Collating limits the loop"));
    }
}
