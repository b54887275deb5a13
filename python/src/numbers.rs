//! Rows of numbers alone, as files have them: a sample is its numbers, one behind the other, without a name for each.

use std::sync::Arc;

use pinfeed::Sample;
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::tensor::Element;

use crate::kind::{AnyField, Kind, OfScalar, Scalar, each};
use crate::tree::{HostLeaf, Key, Tree};

/// What the rows of a data set have.
pub(crate) struct NumberFields {
    pub(crate) fields: Vec<NumberField>,
    /// A batch is a list of tensors, and not a dict.
    pub(crate) as_tuple: bool,
}

pub(crate) struct NumberField {
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    /// How many numbers are one array. `None`: it is a number, and no array.
    pub(crate) width: Option<usize>,
}

/// A row.
pub(crate) struct NumberRow {
    pub(crate) of: Arc<NumberFields>,
    pub(crate) numbers: Vec<Scalar>,
}

/// The fields of a batch.
pub(crate) struct Plan {
    of: Option<Arc<NumberFields>>,
    fields: Vec<AnyField>,
}

fn field<T: Element>(
    _: Option<T>,
    width: Option<usize>,
    layout: &mut Layout,
) -> Result<AnyField, CollateError>
where
    AnyField: From<Field<T>>,
{
    layout.field::<T>(width.as_slice()).map(AnyField::from)
}

fn write<T: OfScalar>(
    numbers: &[Scalar],
    field: &Field<T>,
    row: &mut Row<'_>,
) -> Result<(), CollateError> {
    let places = row.slice_mut(field)?;
    for (place, number) in places.iter_mut().zip(numbers) {
        *place =
            T::of(*number).ok_or_else(|| CollateError::Other("a number of another type".into()))?; // (cannot be)
    }
    Ok(())
}

impl Sample for NumberRow {
    type Batch = Tree<HostLeaf>;
    type Plan = Plan;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Plan, CollateError> {
        let Some(first) = samples.next() else {
            return Ok(Plan {
                of: None,
                fields: Vec::new(),
            });
        };
        let mut fields = Vec::with_capacity(first.of.fields.len());
        let mut at = 0;
        for of in &first.of.fields {
            let Some(number) = first.numbers.get(at) else {
                return Err(CollateError::Other("a row of other fields".into())); // (cannot be)
            };
            fields.push(each!(number, Scalar, number => field(Some(*number), of.width, layout)?));
            at += of.width.unwrap_or(1);
        }
        Ok(Plan {
            of: Some(Arc::clone(&first.of)),
            fields,
        })
    }

    fn fill(self, plan: &Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        let mut rest = &self.numbers[..];
        for (of, field) in self.of.fields.iter().zip(&plan.fields) {
            let width = of.width.unwrap_or(1).min(rest.len());
            let (numbers, behind) = rest.split_at(width);
            rest = behind;
            each!(field, AnyField, field => write(numbers, field, row)?);
        }
        Ok(())
    }

    fn finish(plan: Plan, _: Vec<()>, filled: &mut Filled) -> Tree<HostLeaf> {
        let Some(of) = plan.of else {
            return Tree::List(Vec::new());
        };
        let leaves = plan.fields.into_iter().zip(&of.fields);
        let leaves = leaves.map(|(field, of)| {
            Tree::Leaf(HostLeaf {
                tensor: each!(field, AnyField, field => filled.take(field).into()),
                kind: of.kind,
                finish: None,
            })
        });
        match of.as_tuple {
            true => Tree::List(leaves.collect()),
            false => {
                let keys = of.fields.iter().map(|field| field.key.clone());
                Tree::Dict(keys.zip(leaves).collect())
            }
        }
    }
}
