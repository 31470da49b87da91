"""What to run next on each road. No torch."""

from intaglio.advice.roads import Road

__all__ = ["commands_for"]

_RECIPES = {"lora": "lora-smollm2", "qlora": "qlora-smollm2", "full": "sft-smollm2"}


def commands_for(road: Road, model: str) -> list[str]:
    """Commands, one after the other; what only the user knows is in capitals."""
    index = ["intaglio rag index FOLDER --out INDEX"] if road.retrieval else []
    if road.training == "none":
        ask = f'intaglio rag ask INDEX "QUESTION" --model {model}' if index else f"intaglio chat {model}"
        return [*index, "intaglio advise --measure TASK.yaml" if road.examples else ask]
    rows = "ROWS_WITH_PASSAGES.jsonl" if road.retrieval else "ROWS.jsonl"
    train = f"intaglio train recipes/{_RECIPES[road.training]}.yaml model={model} data={rows} out=RUN"
    if road.training == "full":
        return [train, "intaglio chat RUN/model"]
    merge = f"intaglio merge {model} RUN/adapter MERGED"
    ask = 'intaglio rag ask INDEX "QUESTION" --model MERGED' if index else "intaglio chat MERGED"
    return [*index, *(["intaglio advise --measure TASK.yaml"] if index else []), train, merge, ask]
