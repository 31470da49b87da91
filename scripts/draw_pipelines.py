"""Draws docs/pictures/pipeline-*.svg: the timelines of four schedules over four ranks and eight micro-batches."""

from pathlib import Path

from intaglio.planning.schedules import schedule
from intaglio.planning.simulation import simulate
from intaglio.planning.timeline import timeline_svg
from intaglio.specs.parallel import PipelineSpec, Schedule

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
TITLES: dict[Schedule, str] = {
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved 1F1B, two stages a rank",
    "zbv_zero_bubble": "ZB-V",
    "dual_pipe_v": "DualPipeV",
}


def pictures() -> dict[Path, str]:
    """Each file and what is in it."""
    drawn = {}
    for name, title in TITLES.items():
        run = simulate(schedule(PipelineSpec(ranks=4, schedule=name), 8))
        drawn[PICTURES / f"pipeline-{name.replace('_', '-')}.svg"] = timeline_svg(
            run, f"{title}: bubble {run.bubble:.1%}"
        )
    return drawn


if __name__ == "__main__":
    for file, text in pictures().items():
        file.write_text(text, encoding="utf-8")
        print(file)
