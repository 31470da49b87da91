"""The planner beside what others published: memory and tokens a second, and every assumption with its source.

    python benchmarks/planner.py [--json]

Nothing is measured here, so that it says the same on every machine. A line is a hit if tokens are within 30 % and
memory within 10 %, or what is published as a bound is kept; a miss has its cause.
"""

import argparse
import json

from intaglio.lineage import preset
from intaglio.planning.published import Line, lines, misses
from intaglio.planning.speeds import EAGER
from intaglio.specs import DecoderSpec


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = lines(_spec)
    if as_json:
        print(json.dumps([line.plain() for line in found], indent=2))
        return
    width = max(len(line.name) for line in found)
    print(f"{'':{width}}  {'published':>10} {'predicted':>10} {'unit':8} error")
    for line in found:
        print(_row(line, width))
    print(f"\n{len(found) - len(misses(found))} of {len(found)} are hits. Sources:")
    for source in dict.fromkeys(line.source for line in found):
        print(f"  {source}")
    print("\nWhat is assumed, of an H100 where nothing else is known:")
    for name, value, source in EAGER.sources():
        print(f"  {name:20} {value:<8g} {source}")


def _spec(name: str) -> DecoderSpec:
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec


def _row(line: Line, width: int) -> str:
    row = f"{line.name:{width}}  {line.published:10,.1f} {line.predicted:10,.1f} {line.unit:8} {line.error:+7.1%}"
    bound = " (a bound)" if line.at_most else ""
    return row + bound + ("" if line.hit else f"  miss: {line.cause}")


if __name__ == "__main__":
    main()
