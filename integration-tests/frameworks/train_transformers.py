"""Train a layer with the Trainer of Hugging Face's transformers."""

import os

import torch
from load import load
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Model(PreTrainedModel):
    """A layer whose loss is its output."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": self.layer(x).sum()}


class Samples(torch.utils.data.Dataset):
    """The samples of this rank."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(load(int(os.environ["RANK"])))}


arguments = TrainingArguments(
    max_steps=4,
    output_dir=os.environ["OUTPUT"],
    per_device_train_batch_size=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
)
Trainer(Model(PretrainedConfig()), arguments, train_dataset=Samples()).train()
