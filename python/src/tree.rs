//! Batches: trees of tensors, and of what stays on the host.

use std::fmt;
use std::sync::Arc;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::{Batch, DeviceTensor, Tensor};
use pyo3::prelude::*;

use crate::kind::{AnyDeviceTensor, HostTensor, Kind, each};
use crate::picture::Finish;

/// A key of a dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Name(Arc<str>),
    Number(i64),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Name(name) => write!(f, "{name:?}"),
            Key::Number(number) => write!(f, "{number}"),
        }
    }
}

/// A batch, with leaves of type `L`: on the host, or on a device.
pub(crate) enum Tree<L> {
    Leaf(L),
    /// Strings, `bytes` and other values, one for each sample.
    Objects(Vec<Py<PyAny>>),
    Texts(Vec<String>),
    Bytes(Vec<Vec<u8>>),
    /// What a `collate_fn` returned, as it is.
    Whole(Py<PyAny>),
    List(Vec<Tree<L>>),
    /// It stays a tuple.
    Tuple(Vec<Tree<L>>),
    /// A named tuple, of this class.
    Named(Py<PyAny>, Vec<Tree<L>>),
    Dict(Vec<(Key, Tree<L>)>),
    /// A list or a dict, of the class of this sample, the batch's first.
    Like(Py<PyAny>, Box<Tree<L>>),
}

/// A tensor on the host.
#[derive(Debug)]
pub(crate) struct HostLeaf {
    pub(crate) tensor: HostTensor,
    /// How Python sees its elements.
    pub(crate) kind: Kind,
    /// What the device makes of it, if it is pictures in bytes.
    pub(crate) finish: Option<Arc<Finish>>,
}

/// A tensor on a device.
#[derive(Debug)]
pub(crate) struct DeviceLeaf {
    pub(crate) tensor: AnyDeviceTensor,
    pub(crate) kind: Kind,
    pub(crate) finish: Option<Arc<Finish>>,
}

impl From<HostTensor> for HostLeaf {
    fn from(tensor: HostTensor) -> HostLeaf {
        HostLeaf {
            kind: tensor.kind(),
            tensor,
            finish: None,
        }
    }
}

impl<L> Tree<L> {
    /// The same tree, of other leaves.
    pub(crate) fn map<M>(self, f: &mut dyn FnMut(L) -> M) -> Tree<M> {
        fn all<L, M>(trees: Vec<Tree<L>>, f: &mut dyn FnMut(L) -> M) -> Vec<Tree<M>> {
            trees.into_iter().map(|tree| tree.map(f)).collect()
        }
        match self {
            Tree::Leaf(leaf) => Tree::Leaf(f(leaf)),
            Tree::Objects(objects) => Tree::Objects(objects),
            Tree::Texts(texts) => Tree::Texts(texts),
            Tree::Bytes(bytes) => Tree::Bytes(bytes),
            Tree::Whole(whole) => Tree::Whole(whole),
            Tree::List(trees) => Tree::List(all(trees, f)),
            Tree::Tuple(trees) => Tree::Tuple(all(trees, f)),
            Tree::Named(class, trees) => Tree::Named(class, all(trees, f)),
            Tree::Dict(entries) => {
                let entries = entries.into_iter();
                Tree::Dict(entries.map(|(key, tree)| (key, tree.map(f))).collect())
            }
            Tree::Like(sample, tree) => Tree::Like(sample, Box::new(tree.map(f))),
        }
    }
}

impl Batch for Tree<HostLeaf> {
    type OnDevice = Tree<DeviceLeaf>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        let mut leaves = Vec::new();
        collect(self, &mut leaves);
        leaves
            .into_iter()
            .for_each(|leaf| each!(&leaf.tensor, HostTensor, tensor => visit.add(tensor)));
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        self.map(&mut |leaf: HostLeaf| HostLeaf {
            tensor: each!(leaf.tensor, HostTensor, tensor => slab.tensor(tensor).into()),
            ..leaf
        })
    }

    fn upload(self, upload: &mut Upload) -> Tree<DeviceLeaf> {
        self.map(&mut |leaf: HostLeaf| DeviceLeaf {
            tensor: each!(leaf.tensor, HostTensor, tensor => upload.tensor(tensor).into()),
            kind: leaf.kind,
            finish: leaf.finish,
        })
    }
}

/// The leaves, in the order of `Tree::map`.
fn collect<'a, L>(tree: &'a Tree<L>, leaves: &mut Vec<&'a L>) {
    match tree {
        Tree::Leaf(leaf) => leaves.push(leaf),
        Tree::List(trees) | Tree::Tuple(trees) | Tree::Named(_, trees) => {
            trees.iter().for_each(|tree| collect(tree, leaves));
        }
        Tree::Dict(entries) => entries.iter().for_each(|(_, tree)| collect(tree, leaves)),
        Tree::Like(_, tree) => collect(tree, leaves),
        Tree::Objects(_) | Tree::Texts(_) | Tree::Bytes(_) | Tree::Whole(_) => {}
    }
}

/// A batch of the library's, which becomes a tree when it is handed over.
pub(crate) trait IntoTree: Batch {
    fn into_tree(self) -> Tree<HostLeaf>;

    fn device_tree(there: Self::OnDevice) -> Tree<DeviceLeaf>;
}

impl IntoTree for Tree<HostLeaf> {
    fn into_tree(self) -> Tree<HostLeaf> {
        self
    }

    fn device_tree(there: Tree<DeviceLeaf>) -> Tree<DeviceLeaf> {
        there
    }
}

macro_rules! tensors {
    ($($type:ty),*) => {$(
        impl IntoTree for Tensor<$type> {
            fn into_tree(self) -> Tree<HostLeaf> {
                Tree::Leaf(HostTensor::from(self).into())
            }

            fn device_tree(there: DeviceTensor<$type>) -> Tree<DeviceLeaf> {
                let kind = HostTensor::from(Tensor::<$type>::zeros(&[0])).kind();
                Tree::Leaf(DeviceLeaf { tensor: there.into(), kind, finish: None })
            }
        }
    )*};
}

tensors!(u8, u16, u32, i32, i64, half::f16, half::bf16, f32);

impl<A: IntoTree, B: IntoTree> IntoTree for (A, B) {
    fn into_tree(self) -> Tree<HostLeaf> {
        Tree::List(vec![self.0.into_tree(), self.1.into_tree()])
    }

    fn device_tree(there: Self::OnDevice) -> Tree<DeviceLeaf> {
        Tree::List(vec![A::device_tree(there.0), B::device_tree(there.1)])
    }
}
