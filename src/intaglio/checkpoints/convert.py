"""`intaglio convert`: a GGUF file to a complete Hugging Face directory."""

import tempfile
from pathlib import Path

from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.load import load_gguf
from intaglio.checkpoints.save import save_model
from intaglio.files import write_json
from intaglio.text.tokenizer import Tokenizer

__all__ = ["convert_gguf", "gguf_tokenizer"]


def convert_gguf(file: Path, directory: Path, dtype: str = "bfloat16") -> None:
    """Writes config, weights dequantised to `dtype`, tokenizer, chat template and generation config.

    Raises:
        UserError: not a GGUF file we understand, or the directory cannot be written.
    """
    model = load_gguf(file, dtype)
    save_model(model, directory, gguf_tokenizer(file), open_gguf(file).generation_config())


def gguf_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer a GGUF file carries."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in open_gguf(file).tokenizer_files().items():
            if isinstance(content, str):
                (Path(folder) / name).write_text(content, encoding="utf-8")
            else:
                write_json(Path(folder) / name, content)
        write_json(Path(folder) / "generation_config.json", open_gguf(file).generation_config())
        return Tokenizer.from_directory(folder)
