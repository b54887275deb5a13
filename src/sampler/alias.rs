//! Draws by weight in constant time: the alias method.

/// Weights as columns of equal height, each shared by at most two samples: a draw picks a column, and then one of the
/// two (Walker, 1977; built as Vose does, "A linear algorithm for generating random numbers with a given distribution",
/// 1991).
#[derive(Debug)]
pub(super) struct AliasTable {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// The share of the column's own sample, in 2⁻⁶⁴.
    own: u64,
    /// The sample that has the rest.
    alias: u64,
}

impl AliasTable {
    /// `weights`: finite, not negative, at least one above 0.
    pub(super) fn new(weights: &[f64]) -> AliasTable {
        // Divided by the largest first, for a sum of finite numbers need not be finite.
        let (heaviest, most) = (0u64..)
            .zip(weights.iter().copied())
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .unwrap_or((0, 1.0));
        let sum: f64 = weights.iter().map(|weight| weight / most).sum();
        let height = |weight: f64| weight / most * (weights.len() as f64 / sum);
        let mut heights: Vec<f64> = weights.iter().map(|weight| height(*weight)).collect();

        let mut columns: Vec<Column> = (0..weights.len() as u64)
            .map(|alias| Column { own: 0, alias })
            .collect();
        let (mut low, mut high): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&at| heights[at] < 1.0);
        while let (Some(&filled), Some(&giver)) = (low.last(), high.last()) {
            low.pop();
            columns[filled] = Column {
                own: (heights[filled] * 2f64.powi(64)) as u64,
                alias: giver as u64,
            };
            heights[giver] -= 1.0 - heights[filled];
            if heights[giver] < 1.0 {
                high.pop();
                low.push(giver);
            }
        }
        // What is left has a full column, up to rounding, and is its own alias. A weight of 0 must not get one.
        for left in low {
            if weights[left] == 0.0 {
                columns[left].alias = heaviest;
            }
        }
        AliasTable { columns }
    }

    /// Draws a sample with 64 random bits: their product with the number of columns is the column, and in its lower
    /// half, the place in the column. No probability is off by more than 2⁻⁶⁴ for each column, beside the rounding of
    /// weights.
    pub(super) fn draw(&self, bits: u64) -> u64 {
        let product = u128::from(bits) * self.columns.len() as u128;
        let (column, place) = ((product >> 64) as u64, product as u64);
        let Column { own, alias } = self.columns[column as usize];
        if place < own { column } else { alias }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the table makes of the weights, exactly: the share of each sample in all draws.
    fn shares(table: &AliasTable) -> Vec<f64> {
        let columns = table.columns.len();
        let mut shares = vec![0.0; columns];
        for (at, column) in table.columns.iter().enumerate() {
            let own = column.own as f64 / 2f64.powi(64);
            shares[at] += own / columns as f64;
            shares[column.alias as usize] += (1.0 - own) / columns as f64;
        }
        shares
    }

    fn agrees(weights: &[f64]) {
        let most = weights.iter().copied().fold(0.0, f64::max);
        let sum: f64 = weights.iter().map(|weight| weight / most).sum();
        for (share, weight) in shares(&AliasTable::new(weights)).into_iter().zip(weights) {
            let expected = weight / most / sum;
            assert!((share - expected).abs() < 1e-12, "{weights:?}: {share}");
            assert!(*weight > 0.0 || share == 0.0, "{weights:?}: {share}");
        }
    }

    proptest! {
        #[test]
        fn each_sample_has_its_share(mut weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1.0f64, 0.0..1e-9, 0.0..1e300], 1..200)) {
            weights[0] = f64::max(weights[0], 1e-3);
            agrees(&weights);
        }
    }

    #[test]
    fn extreme_weights_keep_their_shares() {
        agrees(&[1.0]);
        agrees(&[f64::MAX; 7]);
        agrees(&[f64::MIN_POSITIVE / 8.0, f64::MIN_POSITIVE / 8.0]);
        agrees(&[0.0, f64::MAX, 0.0, f64::MIN_POSITIVE]);
        agrees(&[0.1; 1_000]);
    }

    #[test]
    fn the_ends_of_the_random_bits_are_the_ends_of_the_table() {
        let table = AliasTable::new(&[1.0, 1.0, 1.0]);
        assert_eq!((table.draw(0), table.draw(u64::MAX)), (0, 2));
    }
}
