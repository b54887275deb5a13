//! A table with holes: what is missing is `None`, not a number that means it, and the model is told which are.

use std::error::Error;

use pinfeed::{DataLoader, Sample};

const TABLE: &str = "\
age,income,city,bought
31,52000,Graz,1
,48000,Linz,0
45,,,1
27,39000,Graz,0
,,Wien,0
60,71000,,1
";

#[derive(Clone, Sample)]
struct Customer {
    age: Option<f32>,
    income: Option<f32>,
    city: Option<String>,
    bought: bool,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let number = |cell: &str| if cell.is_empty() { Ok(None) } else { cell.parse().map(Some) };
    let mut table = Vec::new();
    for line in TABLE.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        table.push(Customer {
            age: number(cells[0])?,
            income: number(cells[1])?,
            city: Some(cells[2].to_string()).filter(|city| !city.is_empty()),
            bought: cells[3] == "1",
        });
    }

    let loader = DataLoader::builder(table).batch_size(6).build()?;
    for batch in &loader {
        let batch: CustomerBatch = batch?;
        let ((ages, age_known), (incomes, income_known)) = (batch.age, batch.income);
        assert_eq!(age_known.as_slice(), [1, 0, 1, 1, 0, 1]);
        assert_eq!(income_known.as_slice(), [1, 1, 0, 1, 0, 1]);
        assert_eq!(ages.as_slice(), [31.0, 0.0, 45.0, 27.0, 0.0, 60.0]);
        // Zeros do not count, so a sum needs no mask; a mean is over those that are known.
        let mean = |values: &[f32], known: &[u8]| {
            values.iter().sum::<f32>() / known.iter().map(|known| f32::from(*known)).sum::<f32>()
        };
        let age = mean(ages.as_slice(), age_known.as_slice());
        let income = mean(incomes.as_slice(), income_known.as_slice());
        println!("mean age {age}, mean income {income}");
        assert_eq!((age, income), (40.75, 52_500.0));
        assert_eq!((batch.city[0].as_deref(), &batch.city[2]), (Some("Graz"), &None));
        assert_eq!(batch.bought.as_slice(), [1, 0, 1, 0, 0, 1]);
    }
    Ok(())
}
