"""A model with an adapter of a directory on it, from their names."""

from pathlib import Path
from typing import Any

from intaglio.adapters.peft_files import config_of_adapter, head_rows, load_adapter, trained_beside
from intaglio.checkpoints import models
from intaglio.checkpoints.classifiers import is_classifier, load_classifier
from intaglio.models.heads import SequenceClassifier
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["load_model"]


def load_model(
    name: str | Path,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    quantization: QuantizationSpec | None = None,
    adapter: str | Path | None = None,
) -> Any:
    """The model, ready to run, of the class that its spec's kind has; with an adapter, not merged.

    Args:
        name: a pulled name, a directory or a GGUF file.
        dtype: None takes the one the weights are stored in (bfloat16 for a GGUF file); an adapter is in fp32.
        device: where the weights go.
        quantization: how to keep the matrices of the layers; None: as the file does, or as they were when the adapter
            was trained.
        adapter: a PEFT directory.

    Raises:
        UserError: see `intaglio.checkpoints.models` and `load_adapter`.
    """
    if adapter is None:
        return models.load_model(name, dtype=dtype, device=device, quantization=quantization)
    folder = Path(adapter)
    classifies = config_of_adapter(folder).get("task_type") == "SEQ_CLS"
    path = models.find_model(name)
    if classifies and is_classifier(path):
        model: Any = load_classifier(path, dtype, device)
    else:
        kept = quantization or trained_beside(folder)
        model = models.load_model(path, dtype=dtype, device=device, quantization=kept)
        if classifies:
            model = SequenceClassifier(model, head_rows(folder))
            model.drop_outputs()
    load_adapter(model, folder)
    return model.eval()
