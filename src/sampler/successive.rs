//! Draws by weight without replacement: an epoch's order, and the orders of the last few epochs.

use std::collections::VecDeque;

use crate::rng::{RngKey, SampleRng};
use crate::sync::{Arc, Mutex, OnceLock};

/// How many epochs' orders are kept: at a boundary there are two, and a program may go through several at once.
const KEPT: usize = 4;

/// Successive draws, each by weight among the samples that are left.
pub(super) struct Successive {
    /// The logarithms of the weights.
    logarithms: Vec<f64>,
    num_samples: usize,
    seed: u64,
    /// The orders of the epochs asked for last, the latest at the end. Nothing is computed under the lock: the
    /// first caller that asks for an epoch computes it, and callers that ask meanwhile wait for that epoch only.
    recent: Mutex<VecDeque<(u64, Order)>>,
}

type Order = Arc<OnceLock<Vec<u64>>>;

impl Successive {
    /// `num_samples` of the weights, at least, must be positive.
    pub(super) fn new(weights: &[f64], num_samples: usize, seed: u64) -> Successive {
        Successive {
            logarithms: weights.iter().map(|weight| weight.ln()).collect(),
            num_samples,
            seed,
            recent: Mutex::default(),
        }
    }

    /// Calls `read` with the epoch's order.
    pub(super) fn with_order<R>(&self, epoch: u64, read: impl FnOnce(&[u64]) -> R) -> R {
        let order = self.recent(epoch);
        read(order.get_or_init(|| self.compute(epoch)))
    }

    fn recent(&self, epoch: u64) -> Order {
        let mut recent = self.recent.lock();
        let found = recent.iter().position(|(kept, _)| *kept == epoch);
        let entry = found.and_then(|at| recent.remove(at)).unwrap_or_else(|| {
            recent.truncate(KEPT - 1);
            (epoch, Order::default())
        });
        let order = Arc::clone(&entry.1);
        recent.push_front(entry);
        order
    }

    /// The samples in the order of exponential variables, each with its weight for a rate. The least of several is the
    /// next to be drawn with a probability proportional to its rate, whatever came before: so says Efraimidis and
    /// Spirakis, "Weighted random sampling with a reservoir", 2006 (their keys `u^(1/w)`, as logarithms).
    fn compute(&self, epoch: u64) -> Vec<u64> {
        let keys = (0u64..)
            .zip(&self.logarithms)
            .filter_map(|(index, weight)| {
                if *weight == f64::NEG_INFINITY {
                    return None; // a weight of 0
                }
                let mut rng = SampleRng::for_sampler(RngKey {
                    seed: self.seed,
                    epoch,
                    position: index,
                });
                let exponential = -(1.0 - rng.f64()).ln();
                // As logarithms, all quotients of finite numbers are finite.
                Some((exponential.ln() - weight, index))
            });
        let mut keys: Vec<(f64, u64)> = keys.collect();
        let earlier = |one: &(f64, u64), other: &(f64, u64)| {
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        };
        if self.num_samples < keys.len() {
            keys.select_nth_unstable_by(self.num_samples, earlier);
            keys.truncate(self.num_samples);
        }
        keys.sort_unstable_by(earlier);
        keys.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_orders_are_kept_and_no_more() {
        let drawn = Successive::new(&[1.0; 50], 50, 3);
        let orders: Vec<Vec<u64>> = (0..10)
            .map(|epoch| drawn.with_order(epoch, <[u64]>::to_vec))
            .collect();
        let kept = || -> Vec<u64> {
            drawn
                .recent
                .lock()
                .iter()
                .map(|(epoch, _)| *epoch)
                .collect()
        };
        assert_eq!(kept(), [9, 8, 7, 6]);
        // What is asked for again is kept; what is gone comes out the same.
        assert_eq!(drawn.with_order(6, <[u64]>::to_vec), orders[6]);
        assert_eq!(drawn.with_order(0, <[u64]>::to_vec), orders[0]);
        assert_eq!(kept(), [0, 6, 9, 8]);
    }
}
