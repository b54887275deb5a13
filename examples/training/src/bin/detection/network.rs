//! A small detector without anchors (Zhou and others, "Objects as points", 2019). On a grid of a quarter of the
//! picture's resolution, it predicts for each cell how likely an object of each class has its centre there, and that
//! object's box.

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::ops::sigmoid;

use training::net::{Convolution, Init, Layer, normalise};

/// A cell has `CELL` x `CELL` pixels.
pub const CELL: usize = 4;

pub struct Network {
    layers: Vec<Layer>,
    heat: Convolution,
    /// A bias for the heat: at first, centres are rare.
    heat_bias: Tensor,
    boxes: Convolution,
    pub variables: Vec<Var>,
}

/// The network's output for each cell.
pub struct Cells {
    /// The score of each class: `[N, H, W, classes]`.
    pub heat: Tensor,
    /// From the middle of the cell to the object's left, top, right and bottom, in cells: `[N, H, W, 4]`.
    pub boxes: Tensor,
}

impl Network {
    pub fn new(classes: usize, seed: u64, device: &Device) -> Result<Self> {
        let init = &mut Init::new(seed, device);
        Ok(Self {
            layers: vec![
                Layer::new(init, [3, 16], 4, 2)?,
                Layer::new(init, [16, 32], 4, 2)?,
                Layer::new(init, [32, 64], 3, 1)?,
                Layer::new(init, [64, 64], 3, 1)?,
                Layer::new(init, [64, 64], 3, 1)?,
            ],
            heat: Convolution::new(init, [64, classes], 1, 1)?,
            heat_bias: init.constant(classes, -4.0)?,
            boxes: Convolution::new(init, [64, 4], 1, 1)?,
            variables: std::mem::take(&mut init.variables),
        })
    }

    /// Takes pictures as the loader makes them: `[N, H, W, 3]` bytes.
    pub fn forward(&self, images: &Tensor) -> Result<Cells> {
        let mut x = normalise(images)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(Cells {
            heat: self.heat.forward(&x)?.broadcast_add(&self.heat_bias)?,
            boxes: self.boxes.forward(&x)?,
        })
    }
}

/// The loss against the boxes of a batch: `boxes` has those of all pictures, `[B, 4]` in pixels, and `labels` their
/// classes, `[B]`. Picture `n` has the boxes from `offsets[n]` to `offsets[n + 1]`.
pub fn loss(cells: &Cells, boxes: &Tensor, labels: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let (pictures, rows, columns, _) = cells.heat.dims4()?;
    if boxes.dim(0)? == 0 {
        return focal(&cells.heat, &cells.heat.zeros_like()?);
    }
    // A box's picture is the number of pictures whose boxes end before it.
    let ends = offsets.narrow(0, 1, pictures)?.unsqueeze(0)?;
    let number = Tensor::arange(0, boxes.dim(0)? as i64, boxes.device())?.unsqueeze(1)?;
    let picture = ends.broadcast_le(&number)?.to_dtype(DType::I64)?.sum(1)?;

    // In cells: `[B, 4]`, split into the left and top, `[B, 2]`, and the right and bottom, `[B, 2]`.
    let boxes = (boxes / CELL as f64)?;
    let (start, end) = (boxes.narrow(1, 0, 2)?, boxes.narrow(1, 2, 2)?);
    let size = (&end - &start)?;
    // The columns and rows of the cells that contain the centres, `[B, 1]` each.
    let middle = ((start + end)? / 2.0)?.floor()?;
    let column = middle.narrow(1, 0, 1)?.clamp(0.0, columns as f64 - 1.0)?;
    let row = middle.narrow(1, 1, 1)?.clamp(0.0, rows as f64 - 1.0)?;
    let wanted = wanted_heat(&cells.heat, &picture, labels, [&column, &row], &size)?;

    // The boxes relative to the middles of their cells.
    let cell = ((&row * columns as f64)? + &column)?.squeeze(1)?;
    let cell = (cell.to_dtype(DType::I64)? + (picture * (rows * columns) as f64)?)?;
    let found = cells.boxes.flatten_to(2)?.index_select(&cell, 0)?;
    let middle = (Tensor::cat(&[&column, &row, &column, &row], 1)? + 0.5)?;
    let missed = (found - (boxes - middle)?)?.abs()?.mean_all()?;
    focal(&cells.heat, &wanted)? + missed
}

/// The target heat: 1 at the centre of each box, falling off with the distance, and faster for small boxes.
fn wanted_heat(
    heat: &Tensor,
    picture: &Tensor,
    labels: &Tensor,
    [column, row]: [&Tensor; 2],
    size: &Tensor,
) -> Result<Tensor> {
    let (pictures, rows, columns, classes) = heat.dims4()?;
    let reach = ((size.sum_keepdim(1)? / 16.0)? + 0.3)?;
    let falls = |length: usize, middle: &Tensor| {
        let cells = Tensor::arange(0, length as u32, heat.device())?.to_dtype(DType::F32)?;
        let distance = cells.unsqueeze(0)?.broadcast_sub(middle)?;
        let distance = distance.broadcast_div(&reach)?;
        (distance.sqr()? * -0.5)?.exp()
    };
    let (across, down) = (falls(columns, column)?, falls(rows, row)?);
    let around = down.unsqueeze(2)?.broadcast_mul(&across.unsqueeze(1)?)?;
    let plane = ((picture * classes as f64)? + labels)?;
    Tensor::zeros(
        (pictures * classes, rows, columns),
        DType::F32,
        heat.device(),
    )?
    .index_add(&plane, &around, 0)?
    .clamp(0.0, 1.0)?
    .reshape((pictures, classes, rows, columns))?
    .permute((0, 2, 3, 1))?
    .contiguous()
}

/// The paper's focal loss: cells that are nearly right count little, and so do the neighbours of a centre.
fn focal(heat: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    let heat = sigmoid(heat)?.clamp(1e-4, 1.0 - 1e-4)?;
    let cold = (1.0 - &heat)?;
    let is_middle = wanted.ge(0.999)?.to_dtype(DType::F32)?;
    let at_middles = (cold.sqr()? * heat.log()?)?.mul(&is_middle)?;
    let elsewhere = ((1.0 - wanted)?.sqr()?.sqr()? * (heat.sqr()? * cold.log()?)?)?;
    let sum = (at_middles.sum_all()? + elsewhere.sum_all()?)?.neg()?;
    sum / (is_middle.sum_all()? + 1.0)?
}

/// A detected object.
pub struct Found {
    /// Left, top, right and bottom, in pixels.
    pub corners: [f32; 4],
    pub label: usize,
    pub score: f32,
}

/// Returns the detections in each picture with a score of at least `least`, best first. A cell is a detection if it is
/// the hottest among its neighbours, over all classes.
pub fn objects(cells: &Cells, least: f32) -> Result<Vec<Vec<Found>>> {
    let (heat, labels) = (
        sigmoid(&cells.heat.max(D::Minus1)?)?,
        cells.heat.argmax(D::Minus1)?,
    );
    let pictures = heat.dim(0)?;
    let mut found = Vec::new();
    for picture in 0..pictures {
        let heat: Vec<Vec<f32>> = heat.get(picture)?.to_vec2()?;
        let labels: Vec<Vec<u32>> = labels.get(picture)?.to_vec2()?;
        let boxes: Vec<Vec<Vec<f32>>> = cells.boxes.get(picture)?.to_vec3()?;
        let mut objects = Vec::new();
        for (row, column) in (0..heat.len()).flat_map(|y| (0..heat[y].len()).map(move |x| (y, x))) {
            let score = heat[row][column];
            let near = |at: usize, length| at.saturating_sub(1)..(at + 2).min(length);
            let around = near(row, heat.len())
                .flat_map(|y| heat[y][near(column, heat[y].len())].iter())
                .copied();
            if score >= least && score >= around.fold(0.0, f32::max) {
                let middle = [column, row, column, row].map(|at| at as f32 + 0.5);
                let corner = |i: usize| CELL as f32 * (middle[i] + boxes[row][column][i]);
                objects.push(Found {
                    corners: [corner(0), corner(1), corner(2), corner(3)],
                    label: labels[row][column] as usize,
                    score,
                });
            }
        }
        objects.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.push(objects);
    }
    Ok(found)
}
