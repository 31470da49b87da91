"""What the API's process and the engine's say to each other: MessagePack with a schema, each message behind its length.

Nothing is pickled: a message that does not fit its schema is refused, and none can run code.
"""

import struct
from typing import Any

import msgspec

from intaglio.engine.interface import EngineConfig, EngineStats, Output

__all__ = [
    "HEADER",
    "Abort",
    "Done",
    "Embed",
    "FromEngine",
    "Generate",
    "Launch",
    "LoadAdapter",
    "Outputs",
    "Ready",
    "Refused",
    "Replied",
    "Score",
    "Stats",
    "ToEngine",
    "UnloadAdapter",
    "encode",
    "read_from_engine",
    "read_launch",
    "read_to_engine",
]

HEADER = struct.Struct("!I")
"""The length of the message behind it, in bytes."""


class Launch(msgspec.Struct):
    """The first message: which model the engine runs, and how."""

    model: str
    dtype: str | None
    device: str
    threads: int | None
    config: EngineConfig


class Generate(msgspec.Struct, tag=True):
    """A request; `params` are those that are not at their defaults, `adapter` is the name of one that is loaded."""

    request_id: str
    prompt_ids: list[int]
    params: dict[str, Any]
    priority: int
    salt: bytes
    adapter: str | None


class Abort(msgspec.Struct, tag=True):
    """Ends a request, if it still runs."""

    request_id: str


class Embed(msgspec.Struct, tag=True):
    """Asks for a vector a prompt."""

    request_id: str
    prompts: list[list[int]]
    pooling: str
    normalize: bool
    adapter: str | None


class Score(msgspec.Struct, tag=True):
    """Asks for what the model's head says of each prompt."""

    request_id: str
    prompts: list[list[int]]
    adapter: str | None


class Stats(msgspec.Struct, tag=True):
    """Asks how the engine stands."""

    request_id: str


class LoadAdapter(msgspec.Struct, tag=True):
    """Asks for an adapter to be read from a directory, under a name that is free."""

    request_id: str
    name: str
    directory: str


class UnloadAdapter(msgspec.Struct, tag=True):
    """Asks for an adapter to be let go; requests that run under it keep it to their end."""

    request_id: str
    name: str


ToEngine = Generate | Abort | Embed | Score | Stats | LoadAdapter | UnloadAdapter


class Ready(msgspec.Struct, tag=True):
    """The model stands and requests may come."""

    max_model_len: int


class Outputs(msgspec.Struct, tag=True):
    """What one step made, and how many tokens it worked on, of prompts and of answers."""

    outputs: list[Output]
    step_tokens: int


class Refused(msgspec.Struct, tag=True):
    """A request that the engine does not take, or the launch (no `request_id`): the parts of a `UserError`."""

    request_id: str
    what: str
    where: str
    mend: str


class Replied(msgspec.Struct, tag=True):
    """The reply to one of `Embed`, `Score` and `Stats`."""

    request_id: str
    reply: list[list[float]] | EngineStats


class Done(msgspec.Struct, tag=True):
    """What `LoadAdapter` or `UnloadAdapter` asked for has been done."""

    request_id: str


FromEngine = Ready | Outputs | Refused | Replied | Done

_encoder = msgspec.msgpack.Encoder()
read_launch = msgspec.msgpack.Decoder(Launch).decode
read_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
read_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def encode(message: Launch | ToEngine | FromEngine) -> bytes:
    """The message behind its length."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body
