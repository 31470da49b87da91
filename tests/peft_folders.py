"""PEFT directories as far as a server looks at them itself: their config, without weights."""

from pathlib import Path
from typing import Any

from intaglio.files import write_json

__all__ = ["peft_folder"]


def peft_folder(path: Path, **config: Any) -> Path:
    """Writes one; `config` changes what `adapter_config.json` says."""
    usual = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    write_json(path / "adapter_config.json", {**usual, **config})
    return path
