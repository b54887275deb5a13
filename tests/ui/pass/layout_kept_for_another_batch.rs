use std::sync::Mutex;

use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{DataLoader, Sample, Tensor, from_fn};

static KEPT: Mutex<Vec<Layout>> = Mutex::new(Vec::new());

struct Number(f32);

impl Sample for Number {
    type Batch = Tensor<f32>;
    type Plan = Field<f32>;
    type Rest = ();

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<f32>, CollateError> {
        let field = layout.field(&[]);
        field
    }

    fn fill(self, field: &Field<f32>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(field, &[self.0])
    }

    fn finish(field: Field<f32>, _: Vec<()>, filled: &mut Filled) -> Tensor<f32> {
        filled.take(field)
    }
}

fn main() -> pinfeed::Result<()> {
    let loader = DataLoader::builder(from_fn(3, |_, _| Ok(Number(1.0)))).build()?;
    assert_eq!(loader.epoch(0).count(), 3);
    assert!(KEPT.lock().unwrap().is_empty());
    Ok(())
}
