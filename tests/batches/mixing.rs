//! Normalising, mixing and smoothing give torchvision's and PyTorch's numbers: tests/fixtures/mixing.py.

#![cfg(not(miri))] // it reads a file

use pinfeed::ops::{MixupDraw, Normalize};
use pinfeed::{Batch, Device, Tensor};
use serde_json::Value;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().into_iter().flatten();
    numbers.filter_map(Value::as_f64).collect()
}

fn integers(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|n| n as usize).collect()
}

fn fixture() -> Result<Value, serde_json::Error> {
    serde_json::from_str(include_str!("../fixtures/mixing.json"))
}

fn mix_of(case: &Value, shape: &[usize]) -> MixupDraw {
    match case["mix"].as_str() {
        Some("mixup") => MixupDraw::mixup(case["lambda"].as_f64().unwrap_or(f64::NAN)),
        Some("cutmix") => {
            let corners = integers(&case["box"]); // left, top, right, bottom
            let (rows, columns) = (corners[1]..corners[3], corners[0]..corners[2]);
            MixupDraw::cutmix([shape[1], shape[2]], rows, columns)
        }
        _ => MixupDraw::none(),
    }
}

/// Compares two lists; the tolerance is for `f32` arithmetic in another order.
fn check(found: &[f32], expected: &Value, what: &Value) {
    let expected = numbers(expected);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let off = (f64::from(*found) - expected).abs();
        assert!(off < 1e-6, "{what}: {found}, and theirs is {expected}");
    }
}

#[test]
fn pictures_and_targets_are_torchvisions() -> Outcome {
    let (fixture, device) = (fixture()?, Device::cpu());
    let shape = integers(&fixture["shape"]);
    let pixels: Vec<u8> = integers(&fixture["pixels"])
        .into_iter()
        .map(|n| n as u8)
        .collect();
    let labels: Vec<i64> = integers(&fixture["labels"])
        .into_iter()
        .map(|n| n as i64)
        .collect();
    let classes = fixture["classes"].as_u64().ok_or("no classes")? as usize;
    let cases = fixture["cases"].as_array().ok_or("no cases")?;
    assert_eq!(cases.len(), 6);
    for case in cases {
        let what = &case["mix"];
        let mix = mix_of(case, &shape);
        let images = Tensor::from_vec(pixels.clone(), &shape)?.to_device(&device, true)?;
        let labels = Tensor::from_vec(labels.clone(), &[labels.len()])?.to_device(&device, true)?;

        let mixed = images.normalize_mixed::<f32>(&Normalize::IMAGENET, &mix)?;
        check(
            mixed.to_host(true)?.wait()?.as_slice(),
            &case["images"],
            what,
        );
        let targets = labels.soft_labels::<f32>(classes, &mix, 0.0)?;
        check(
            targets.to_host(true)?.wait()?.as_slice(),
            &case["targets"],
            what,
        );
        let smoothed = labels.soft_labels::<f32>(classes, &mix, 0.1)?;
        check(
            smoothed.to_host(true)?.wait()?.as_slice(),
            &case["smoothed"],
            what,
        );
    }
    Ok(())
}

/// The cross entropy with smoothed targets is what PyTorch's `label_smoothing` makes of the labels.
#[test]
fn smoothed_targets_give_pytorchs_loss() -> Outcome {
    let (fixture, device) = (fixture()?, Device::cpu());
    let labels: Vec<i64> = integers(&fixture["labels"])
        .into_iter()
        .map(|n| n as i64)
        .collect();
    let labels = Tensor::from_vec(labels.clone(), &[labels.len()])?.to_device(&device, true)?;
    let targets = labels.soft_labels::<f32>(4, &MixupDraw::none(), 0.1)?;
    let targets = targets.to_host(true)?.wait()?;
    let logits = numbers(&fixture["logits"]);
    let rows = logits.chunks(4).zip(targets.as_slice().chunks(4));
    let losses = rows.map(|(logits, targets)| {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let terms = logits.iter().zip(targets);
        terms
            .map(|(logit, target)| f64::from(*target) * (sum.ln() - logit))
            .sum::<f64>()
    });
    let losses: Vec<f64> = losses.collect();
    let loss = losses.iter().sum::<f64>() / losses.len() as f64;
    let theirs = fixture["smoothed_loss"].as_f64().ok_or("no loss")?;
    assert!(
        (loss - theirs).abs() < 1e-6,
        "{loss}, and theirs is {theirs}"
    );
    Ok(())
}
