"""Accelerate and Lightning take a loader as it is."""

import numpy as np
import pytest

import pinfeed

torch = pytest.importorskip("torch")


@pytest.fixture
def loader():
    rng = np.random.default_rng(1)
    data = pinfeed.TensorDataset(rng.random((64, 8), np.float32), rng.integers(0, 2, 64))
    return pinfeed.DataLoader(data, batch_size=16, shuffle=True, num_workers=2)


def test_accelerate(loader):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(8, 2)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    before = model.weight.clone()
    for x, y in prepared:
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(before, model.weight)


def test_lightning(loader, tmp_path):
    lightning = pytest.importorskip("lightning")
    steps = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)

        def training_step(self, batch, index):
            x, y = batch
            steps.append((self.current_epoch, index, tuple(y.tolist())))
            return torch.nn.functional.cross_entropy(self.layer(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader)
    assert [(epoch, index) for epoch, index, _ in steps] == [(epoch, index) for epoch in range(3) for index in range(4)]
    assert len({labels for _, _, labels in steps}) > 4  # another order in each epoch
