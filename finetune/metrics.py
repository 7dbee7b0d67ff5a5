"""Scores of a model on a split: the clean branch in eval mode."""

import torch
from sklearn.metrics import accuracy_score, f1_score

from asa.losses import task_loss
from asa.model import TaskModel
from finetune.tasks.batches import Encoded, evaluation_batches


@torch.no_grad()
def evaluate(module: TaskModel, data: Encoded, size: int, device: torch.device) -> dict[str, float]:
    """accuracy, macro_f1 (mean over all classes of the task, 0 for one never seen) and loss (mean cross entropy)."""
    module.eval()
    losses, predictions, labels = [], [], []
    classes = sorted(module.model.config.id2label or {})
    for batch in evaluation_batches(data, size):
        moved = batch.to(device)
        out = module(moved)
        losses.append(task_loss(out, moved))
        predictions.append(out.logits.argmax(-1))
        labels.append(batch.labels)
    guessed, truth = torch.cat(predictions).cpu().numpy(), torch.cat(labels).numpy()
    return {
        "accuracy": float(accuracy_score(truth, guessed)),
        # The stubs of scikit-learn know zero_division as text only.
        "macro_f1": float(f1_score(truth, guessed, labels=classes, average="macro", zero_division=0)),  # type: ignore
        "loss": float(torch.stack(losses).sum()),
    }
