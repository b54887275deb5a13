//! Fraud among payments: one in a hundred, and the training sees as many of these as of the others.

use std::error::Error;

use pinfeed::DataLoader;
use pinfeed::sampler::WeightedRandomSampler;

struct Payment {
    amount: f32,
    is_fraud: bool,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let payments: Vec<Payment> =
        (0..2_000).map(|n| Payment { amount: (n % 97) as f32, is_fraud: n % 100 == 3 }).collect();
    let frauds = payments.iter().filter(|payment| payment.is_fraud).count() as f64;
    let honest = payments.len() as f64 - frauds;
    let weights: Vec<f64> =
        payments.iter().map(|payment| if payment.is_fraud { 1.0 / frauds } else { 1.0 / honest }).collect();

    let samples: Vec<(f32, bool)> = payments.iter().map(|payment| (payment.amount, payment.is_fraud)).collect();
    let loader = DataLoader::builder(samples)
        .batch_size(100)
        .sampler(WeightedRandomSampler::new(&weights, 2_000, 17)?)
        .num_workers(2)
        .build()?;

    let (mut seen, mut seen_frauds) = (0, 0);
    for epoch in loader.epochs(0..3) {
        for batch in epoch {
            let (amounts, is_fraud) = batch?;
            seen += amounts.len();
            seen_frauds += is_fraud.as_slice().iter().filter(|flag| **flag == 1).count();
        }
    }
    let share = seen_frauds as f64 / seen as f64;
    println!("{seen} payments, {:.1} % of them fraud", 100.0 * share);
    assert!((share - 0.5).abs() < 0.03, "{share}");
    Ok(())
}
