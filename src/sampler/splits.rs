//! Positions shared out in fixed proportions: which share a position belongs to, and how many of that share's came
//! before, in closed form.

use std::collections::VecDeque;

/// A tree of splits. A node's positions are those of its two children, of which the left has, of the first `n`, as many
/// as its proportion says, rounded to the nearest: so it is at most half a position off. The leaves are the shares.
///
/// The tree is Huffman's, for then the errors of a path sum up to little. A leaf of proportion `p` is off by at most
/// `(p/v₀ + p/v₁ + ..) / 2`, where `v₀ = p`, `v₁`, .. are the proportions on the path from the leaf to the root, without
/// the root. In a Huffman tree, a node's grandparent has no less than the node and its parent together: what the parent
/// is merged with is no smaller than either of the two that the parent was made of. So `v` grows as the Fibonacci numbers
/// do, and the bound is half the sum of their reciprocals, 1.68, whatever the number of shares and their proportions.
#[derive(Debug, Clone)]
pub(super) struct Splits {
    nodes: Vec<Node>,
    root: Child,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The proportion of the left child, in 2⁻⁶⁴.
    proportion: u64,
    children: [Child; 2],
}

#[derive(Debug, Clone, Copy)]
enum Child {
    Share(usize),
    Node(usize),
}

impl Node {
    /// How many of the first `n` positions are the left child's.
    fn left_of(&self, n: u128) -> u64 {
        ((n * u128::from(self.proportion) + (1 << 63)) >> 64) as u64
    }
}

impl Splits {
    /// `weights`: finite, not negative, at least one above 0. Those that are 0 get no positions.
    pub(super) fn new(weights: &[f64]) -> Splits {
        let most = weights.iter().copied().fold(0.0, f64::max); // the sum of finite numbers need not be finite
        let mut leaves: Vec<(f64, Child)> = (0..weights.len())
            .map(|share| (weights[share] / most, Child::Share(share)))
            .filter(|(weight, _)| *weight > 0.0)
            .collect();
        leaves.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Merged ones come about in ascending order too, so the least is at one of two fronts.
        let (mut leaves, mut merged) = (VecDeque::from(leaves), VecDeque::new());
        let mut nodes = Vec::new();
        loop {
            let (Some(left), right) = (
                least(&mut leaves, &mut merged),
                least(&mut leaves, &mut merged),
            ) else {
                unreachable!("one weight is above 0")
            };
            let Some(right) = right else {
                return Splits {
                    nodes,
                    root: left.1,
                };
            };
            let weight = left.0 + right.0;
            merged.push_back((weight, Child::Node(nodes.len())));
            nodes.push(Node {
                proportion: (left.0 / weight * 2f64.powi(64)) as u64,
                children: [left.1, right.1],
            });
        }
    }

    /// The share that a position belongs to, and how many positions of that share come before it.
    pub(super) fn find(&self, position: u64) -> (usize, u64) {
        let (mut rank, mut at) = (position, self.root);
        loop {
            let node = match at {
                Child::Share(share) => return (share, rank),
                Child::Node(node) => self.nodes[node],
            };
            let left = node.left_of(u128::from(rank));
            let is_left = node.left_of(u128::from(rank) + 1) > left;
            rank = if is_left { left } else { rank - left };
            at = node.children[usize::from(!is_left)];
        }
    }
}

/// Takes the least of two ascending queues.
fn least(
    leaves: &mut VecDeque<(f64, Child)>,
    merged: &mut VecDeque<(f64, Child)>,
) -> Option<(f64, Child)> {
    match (leaves.front(), merged.front()) {
        (Some(leaf), Some(node)) if leaf.0 <= node.0 => leaves.pop_front(),
        (_, Some(_)) => merged.pop_front(),
        _ => leaves.pop_front(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goes through the first positions; returns how far any share's count was ever off.
    fn farthest(weights: &[f64], positions: u64) -> f64 {
        let splits = Splits::new(weights);
        let sum: f64 = weights.iter().sum();
        let (mut counts, mut farthest) = (vec![0u64; weights.len()], 0f64);
        for position in 0..positions {
            let (share, rank) = splits.find(position);
            assert_eq!(rank, counts[share], "a share's ranks are consecutive");
            counts[share] += 1;
            for (count, weight) in counts.iter().zip(weights) {
                let expected = (position + 1) as f64 * weight / sum;
                farthest = farthest.max((*count as f64 - expected).abs());
            }
        }
        farthest
    }

    proptest! {
        #[test]
        fn no_share_is_ever_far_off(weights in prop::collection::vec(prop_oneof![0.0..1.0f64, 0.0..0.01, Just(0.0)], 1..20)) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            prop_assert!(farthest(&weights, 2_000) < 1.68 + 1e-6);
        }

        /// Weights each of which is as much as all smaller ones: the deepest trees.
        #[test]
        fn deep_trees_are_no_worse(depth in 2u32..20, ratio in 1.5..2.5f64) {
            let weights: Vec<f64> = (0..depth).map(|at| ratio.powi(at as i32)).collect();
            prop_assert!(farthest(&weights, 5_000) < 1.68 + 1e-6);
        }

        /// What the bound rests on.
        #[test]
        fn a_grandparent_is_as_heavy_as_child_and_grandchild(weights in prop::collection::vec(prop_oneof![0.01..1.0f64, 0.01..0.02], 1..20)) {
            let splits = Splits::new(&weights);
            let mut heavy = Vec::new(); // a node comes after its children
            for Node { children, .. } in &splits.nodes {
                let weight = |child: &Child, heavy: &[f64]| match child {
                    Child::Share(share) => weights[*share],
                    Child::Node(node) => heavy[*node],
                };
                let [left, right] = children.each_ref().map(|child| weight(child, &heavy));
                for (child, own) in children.iter().zip([left, right]) {
                    let Child::Node(node) = child else { continue };
                    for grandchild in &splits.nodes[*node].children {
                        prop_assert!(left + right >= own + weight(grandchild, &heavy) - 1e-9);
                    }
                }
                heavy.push(left + right);
            }
            prop_assert_eq!(heavy.len() + 1, weights.len());
        }

        /// However far the position, what is before it adds up.
        #[test]
        fn far_positions_are_as_near_ones(start in 0u64..1_000_000_000_000, weights in prop::collection::vec(0.01..1.0f64, 1..10)) {
            let splits = Splits::new(&weights);
            let sum: f64 = weights.iter().sum();
            let mut next: Vec<Option<u64>> = vec![None; weights.len()];
            for position in start..start + 500 {
                let (share, rank) = splits.find(position);
                prop_assert!(next[share].is_none_or(|expected| rank == expected));
                next[share] = Some(rank + 1);
                let expected = position as f64 * weights[share] / sum;
                prop_assert!((rank as f64 - expected).abs() < 1.7); // proportions are rounded, to 2⁻⁵³
            }
        }
    }

    #[test]
    fn two_shares_are_rounded_to_the_nearest() {
        assert!(farthest(&[3.0, 1.0], 10_000) <= 0.5);
        assert!(farthest(&[0.9, 0.1], 10_000) <= 0.5 + 1e-9);
    }

    #[test]
    fn extremes_are_positions_too() {
        let splits = Splits::new(&[f64::MAX, f64::MAX, 0.0]);
        let (share, rank) = splits.find(u64::MAX);
        assert!(share < 2 && rank == u64::MAX / 2, "{share} {rank}");
        assert_eq!(Splits::new(&[0.0, 5.0]).find(u64::MAX), (1, u64::MAX));
        assert_eq!(
            Splits::new(&[1.0, f64::MIN_POSITIVE]).find(1 << 60),
            (0, 1 << 60)
        );
    }
}
