"""Train a layer with the Trainer of Lightning."""

import os

import lightning
import torch
from load import load


class Model(lightning.LightningModule):
    """A layer whose loss is its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, sample: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.layer(sample).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Samples(torch.utils.data.Dataset):
    """The samples of this rank."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(load(int(os.environ["RANK"])))


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
    max_steps=4,
)
trainer.fit(Model(), torch.utils.data.DataLoader(Samples()))
