"""`intaglio convert`: a GGUF file to a complete Hugging Face directory."""

import tempfile
from pathlib import Path

from intaglio.checkpoints.gguf import GGUFModel, open_gguf
from intaglio.checkpoints.load import load_source
from intaglio.checkpoints.save import save_model
from intaglio.files import write_json
from intaglio.text.tokenizer import Tokenizer

__all__ = ["convert_gguf", "gguf_tokenizer"]


def convert_gguf(file: Path, directory: Path, dtype: str = "bfloat16") -> None:
    """Writes config, weights dequantised to `dtype`, tokenizer, chat template and generation config.

    Raises:
        UserError: not a GGUF file we understand, or the directory cannot be written.
    """
    source = open_gguf(file)
    tokenizer = gguf_tokenizer(source)
    model = load_source(source.config(), source, str(file), dtype)
    save_model(model, directory, tokenizer, source.generation_config())


def gguf_tokenizer(source: GGUFModel) -> Tokenizer:
    """The tokenizer a GGUF file carries.

    Raises:
        UserError: a kind of tokenizer that we do not know.
    """
    files = {**source.tokenizer_files(), "generation_config.json": source.generation_config()}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            if isinstance(content, str):
                (Path(folder) / name).write_text(content, encoding="utf-8")
            else:
                write_json(Path(folder) / name, content, indent=None)
        return Tokenizer.from_directory(folder)
